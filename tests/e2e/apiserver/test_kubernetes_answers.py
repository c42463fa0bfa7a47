"""Requests that kube-apiserver answers in a way of its own, over HTTP."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.e2e.apiserver.calls import Answer, Caller

pytestmark = pytest.mark.api_faults

PODS = "/api/v1/namespaces/default/pods"


def pod(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "i"}], **spec},
    }


def created(caller: Caller, path: str, body: Any) -> Any:
    answer = caller.call("POST", path, body)
    assert answer.status == 201, answer.body
    return answer.json()


def warnings(answer: Answer) -> list[str]:
    return [text.removeprefix('299 - "').removesuffix('"') for text in answer.headers.get_all("Warning") or ()]


# --- Options and places.


@pytest.mark.parametrize(
    ("timeout", "problem"),
    [
        ("invalid", 'time: invalid duration "invalid"'),
        ("5", 'time: missing unit in duration "5"'),
        ("5x", 'time: unknown unit "x" in duration "5x"'),
    ],
)
def test_an_invalid_timeout_is_refused(admin: Caller, timeout: str, problem: str) -> None:
    answer = admin.get(f"/version?timeout={timeout}")
    assert (answer.status, answer.message) == (400, f"invalid timeout specified in the request URL - {problem}")


@pytest.mark.parametrize("timeout", ["0s", "30s", "87600h"])
def test_the_server_limits_a_timeout(admin: Caller, timeout: str) -> None:
    assert admin.get(f"/version?timeout={timeout}").status == 200


def test_a_cluster_scoped_object_loses_its_namespace(admin: Caller) -> None:
    path = "/apis/resource.k8s.io/v1/deviceclasses"
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "d", "namespace": "x"}}
    assert "namespace" not in created(admin, path, body)["metadata"]
    changed = admin.call("PUT", f"{path}/d", {**body, "spec": {}})
    assert (changed.status, "namespace" in changed.json()["metadata"]) == (200, False)


def test_a_token_is_for_the_account_of_the_url(admin: Caller) -> None:
    path = "/api/v1/namespaces/default/serviceaccounts/default/token"

    def asked(**metadata: str) -> Answer:
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": metadata, "spec": {}}
        return admin.call("POST", path, body)

    other = asked(name="other")
    assert (other.status, other.message) == (
        422,
        'TokenRequest.authentication.k8s.io "default" is invalid: metadata.name: Invalid value: "other": '
        "must match the service account name if specified",
    )
    elsewhere = asked(namespace="kube-system")
    assert (elsewhere.status, elsewhere.message) == (
        400,
        "the namespace of the provided object does not match the namespace sent on the request",
    )
    assert asked(name="default", namespace="default").status == 201


def test_a_review_needs_a_token(admin: Caller) -> None:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {}}
    answer = admin.call("POST", "/apis/authentication.k8s.io/v1/tokenreviews", body)
    assert (answer.status, answer.message) == (400, "token is required for TokenReview in authentication")


# --- Pods.


def test_an_update_keeps_priority_and_preemption_policy(admin: Caller) -> None:
    sent = pod("keeps")
    assert created(admin, PODS, sent)["spec"]["preemptionPolicy"] == "PreemptLowerPriority"
    whole = admin.get(f"{PODS}/keeps").json()
    # The scheduler may write its condition at any time.
    del whole["spec"]["priority"], whole["spec"]["preemptionPolicy"], whole["metadata"]["resourceVersion"]
    whole["metadata"]["labels"] = {"changed": "yes"}
    answer = admin.call("PUT", f"{PODS}/keeps", whole)
    assert answer.status == 200, answer.body
    spec = answer.json()["spec"]
    assert (spec["priority"], spec["preemptionPolicy"]) == (0, "PreemptLowerPriority")


def test_a_preemption_policy_must_be_that_of_the_class(admin: Caller) -> None:
    answer = admin.call("POST", PODS, pod("polite", preemptionPolicy="Never"))
    assert (answer.status, answer.message) == (
        403,
        'pods "polite" is forbidden: the string value of PreemptionPolicy (Never) must not be provided in pod spec; '
        "priority admission controller computed PreemptLowerPriority from the given PriorityClass name",
    )


def test_names_of_kernel_parameters_are_checked(admin: Caller) -> None:
    names = ("foo-", "kernel.shmmax", "safe/and.unsafe", "bar..", "kernel.shmmax")
    sysctls = [{"name": name, "value": "1"} for name in names]
    answer = admin.call("POST", PODS, pod("tuned", securityContext={"sysctls": sysctls}))
    at = "spec.securityContext.sysctls"
    rule = (
        r"must have at most 253 characters and match regex "
        r"^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$"
    )
    assert (answer.status, answer.message) == (
        422,
        f'Pod "tuned" is invalid: [{at}[0].name: Invalid value: "foo-": {rule}, {at}[3].name: Invalid value: "bar..": '
        f'{rule}, {at}[4].name: Duplicate value: "kernel.shmmax"]',
    )
    shared = pod(
        "shared", hostNetwork=True, securityContext={"sysctls": [{"name": "net.core.somaxconn", "value": "1"}]}
    )
    assert admin.call("POST", PODS, shared).message.endswith(
        f"{at}[0].name: Invalid value: \"net.core.somaxconn\": may not be specified when 'hostNetwork' is true"
    )


# --- Events.


def event(namespace: str, **fields: Any) -> dict[str, Any]:
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"generateName": "e-", "namespace": "default"},
        "regarding": {"kind": "Pod", "name": "p"} | ({"namespace": namespace} if namespace else {}),
        "eventTime": "2026-01-02T03:04:05.000006Z",
        "reportingController": "test",
        "reportingInstance": "test-1",
        "action": "Test",
        "reason": "Test",
        "type": "Normal",
        **fields,
    }


def test_an_event_may_regard_another_namespace(admin: Caller) -> None:
    path = "/apis/events.k8s.io/v1/namespaces/{}/events"
    assert admin.call("POST", path.format("default"), event("kube-system")).status == 201
    assert admin.call("POST", path.format("default"), event("")).status == 201
    other = event("", metadata={"name": "e", "namespace": "kube-public"})
    answer = admin.call("POST", path.format("kube-public"), other)
    problem = 'involvedObject.namespace: Invalid value: "": does not match event.namespace'
    assert (answer.status, answer.message) == (422, f'Event.events.k8s.io "e" is invalid: {problem}')


def test_an_event_without_time_is_in_the_namespace_of_its_object(admin: Caller) -> None:
    body = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "old", "namespace": "default"},
        "involvedObject": {"kind": "Pod", "name": "p", "namespace": "kube-system"},
        "reason": "Test",
        "type": "Normal",
    }
    answer = admin.call("POST", "/api/v1/namespaces/default/events", body)
    text = (
        'Event "old" is invalid: involvedObject.namespace: Invalid value: "kube-system": does not match event.namespace'
    )
    assert (answer.status, answer.message) == (422, text)


# --- Representations.

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
ACCEPTED = "application/json, application/yaml, application/vnd.kubernetes.protobuf"


def replica_set(name: str) -> dict[str, Any]:
    template = {"metadata": {"labels": {"app": name}}, "spec": pod("x")["spec"]}
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": name},
        "spec": {"replicas": 0, "selector": {"matchLabels": {"app": name}}, "template": template},
    }


def test_a_scale_as_a_table(admin: Caller) -> None:
    path = "/apis/apps/v1/namespaces/default/replicasets"
    created(admin, path, replica_set("table"))
    table = admin.get(f"{path}/table/scale", Accept=TABLE).json()
    assert table["kind"] == "Table"
    assert [column["name"] for column in table["columnDefinitions"]] == ["Name", "Desired", "Available", "Age"]
    assert table["rows"][0]["cells"][:3] == ["table", 0, 0]


@pytest.mark.behaviour("CR-09")
@pytest.mark.parametrize("path", ["/api", "/apis", "/api/v1", "/apis/apps", "/apis/apps/v1"])
def test_discovery_as_yaml(admin: Caller, path: str) -> None:
    plain = admin.get(path)
    answer = admin.get(path, Accept="application/yaml, application/json")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/yaml")
    assert yaml.safe_load(answer.body) == plain.json()
    assert admin.get(path, Accept="application/json, application/yaml").body == plain.body
    # Clients that are served JSON for lack of protobuf stay so.
    assert admin.get(path, Accept="application/vnd.kubernetes.protobuf").body == plain.body
    assert admin.get(path, Accept="text/plain").status == 406


@pytest.mark.behaviour("CR-09")
def test_aggregated_discovery_as_yaml(admin: Caller) -> None:
    form = "g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    as_json, as_yaml = (admin.get("/apis", Accept=f"application/{media};{form}") for media in ("json", "yaml"))
    assert as_yaml.headers["Content-Type"] == f"application/yaml;{form}"
    assert yaml.safe_load(as_yaml.body) == as_json.json()


def test_a_review_is_no_table(admin: Caller) -> None:
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"nonResourceAttributes": {"path": "/", "verb": "get"}},
    }
    answer = admin.call("POST", path, body, Accept=TABLE)
    assert (answer.status, answer.message) == (406, f"only the following media types are accepted: {ACCEPTED}")
    second = admin.call("POST", path, body, Accept=f"{TABLE},application/json")
    assert (second.status, second.json()["kind"]) == (201, "SelfSubjectAccessReview")


def test_cbor_is_not_spoken(admin: Caller) -> None:
    answer = admin.get(PODS, Accept="application/cbor")
    assert (answer.status, answer.json()["reason"]) == (406, "NotAcceptable")
    assert admin.get(PODS, Accept="application/cbor,application/json").status == 200
    sent = admin.call("POST", PODS, b"\xd9\xd9\xf7\xa0", content_type="application/cbor")
    assert (sent.status, sent.message) == (
        415,
        f"the body of the request was in an unknown format - accepted media types include: {ACCEPTED}",
    )
    patched = admin.call("PATCH", f"{PODS}/x", b"\xd9\xd9\xf7\xa0", content_type="application/apply-patch+cbor")
    assert (patched.status, patched.json()["reason"]) == (415, "UnsupportedMediaType")


def test_indicators_of_health(admin: Caller) -> None:
    answer = admin.get("/metrics/slis")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    text = answer.body.decode()
    assert "# TYPE kubernetes_healthcheck gauge\n" in text
    assert 'kubernetes_healthcheck{name="etcd",type="readyz"} 1.0\n' in text
    assert 'kubernetes_healthchecks_total{name="ping",status="success",type="livez"} ' in text


# --- Owners.


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH"])
def test_repeated_owners_are_merged(admin: Caller, method: str) -> None:
    path, name = "/api/v1/namespaces/default/configmaps", f"owned-{method.lower()}"
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "1"}
    other = {**owner, "name": "p", "uid": "2"}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
    sent = {**body, "metadata": {"name": name, "ownerReferences": [owner, other, owner, other]}}
    media = "application/merge-patch+json" if method == "PATCH" else "application/json"
    if method != "POST":
        created(admin, path, body)
    answer = admin.call(method, path if method == "POST" else f"{path}/{name}", sent, content_type=media)
    assert answer.json()["metadata"]["ownerReferences"] == [owner, other]
    assert warnings(answer) == [
        ".metadata.ownerReferences contains duplicate entries; API server dedups owner references in 1.20+, and may "
        "reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: 1, 2"
    ]
