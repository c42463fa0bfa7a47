"""Requests and answers in protobuf, as client-go's typed clients send them, by an encoder that is not ours."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.apiserver.calls import Caller, caller, chunks
from tests.e2e.clients import bodies
from tests.e2e.clients.protobuf_messages import MEDIA_TYPE, META, decode, encode, enveloped, watch_events
from tests.servers import Server

CORE = "k8s.io.api.core.v1"
RESOURCE = "k8s.io.api.resource.v1"
COORDINATION = "k8s.io.api.coordination.v1"
AUTHORIZATION = "k8s.io.api.authorization.v1"
BOTH = f"{MEDIA_TYPE},application/json"
JSON = "application/json"


@pytest.fixture
def admin(server: Server) -> Iterator[Caller]:
    found = caller(server)
    yield found
    found.close()


def post(admin: Caller, path: str, body: bytes, accept: str = MEDIA_TYPE) -> Any:
    answer = admin.call("POST", path, body, content_type=MEDIA_TYPE, Accept=accept)
    assert answer.status == 201, answer.body
    return answer


def test_namespace_create_get_list(admin: Caller) -> None:
    body = encode("v1", "Namespace", CORE, {"metadata": {"name": "binary", "labels": {"a": "b"}}})
    answer = post(admin, "/api/v1/namespaces", body)
    assert answer.headers["Content-Type"] == MEDIA_TYPE
    kind, made = decode(answer.body, CORE)
    assert kind == "v1 Namespace"
    assert (made.metadata.name, made.status.phase) == ("binary", "Active")
    assert made.metadata.labels["kubernetes.io/metadata.name"] == "binary"
    assert made.metadata.uid
    assert made.metadata.creationTimestamp.seconds > 0
    _, read = decode(admin.get("/api/v1/namespaces/binary", Accept=MEDIA_TYPE).body, CORE)
    assert read.metadata.uid == made.metadata.uid
    kind, listing = decode(admin.get("/api/v1/namespaces?labelSelector=a%3Db", Accept=MEDIA_TYPE).body, CORE)
    assert kind == "v1 NamespaceList"
    assert [item.metadata.uid for item in listing.items] == [made.metadata.uid]
    assert listing.metadata.resourceVersion


def pod_fields(name: str) -> dict[str, Any]:
    quantity = {"string": "64Mi"}
    port = {"containerPort": 80, "protocol": "TCP"}
    probe = {"httpGet": {"path": "/", "port": {"type": 1, "strVal": "http"}}}
    return {
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "image": "busybox",
                    "ports": [{**port, "name": "http"}],
                    "resources": {
                        "requests": {"memory": quantity},
                        "limits": {"memory": quantity},
                        "claims": [{"name": "gpu"}],
                    },
                    "readinessProbe": {"handler": probe, "periodSeconds": 5},
                }
            ],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": "claim"}],
            "terminationGracePeriodSeconds": 7,
        },
    }


def test_pod_create_update_delete(admin: Caller, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    _, made = decode(post(admin, path, encode("v1", "Pod", CORE, pod_fields("web"))).body, CORE)
    container = made.spec.containers[0]
    assert container.resources.limits["memory"].string == "64Mi"
    assert container.resources.claims[0].name == "gpu"
    assert (container.readinessProbe.handler.httpGet.port.type, container.readinessProbe.periodSeconds) == (1, 5)
    assert made.spec.resourceClaims[0].resourceClaimName == "claim"
    assert made.spec.terminationGracePeriodSeconds == 7
    # The same object in JSON says the same.
    document = admin.get(f"{path}/web", Accept=JSON).json()
    assert document["spec"]["containers"][0]["readinessProbe"]["httpGet"]["port"] == "http"
    assert document["spec"]["containers"][0]["resources"]["requests"] == {"memory": "64Mi"}
    made.metadata.labels["tier"] = "front"
    body = enveloped("v1", "Pod", made)
    answer = admin.call("PUT", f"{path}/web", body, content_type=MEDIA_TYPE, Accept=MEDIA_TYPE)
    assert answer.status == 200, answer.body
    _, replaced = decode(answer.body, CORE)
    assert replaced.metadata.labels["tier"] == "front"
    assert int(replaced.metadata.resourceVersion) > int(made.metadata.resourceVersion)
    stale = admin.call("PUT", f"{path}/web", body, content_type=MEDIA_TYPE, Accept=MEDIA_TYPE)
    kind, status = decode(stale.body, META)
    assert (stale.status, kind, status.reason, status.code) == (409, "v1 Status", "Conflict", 409)
    options = encode("v1", "DeleteOptions", META, {"gracePeriodSeconds": 0, "preconditions": {"uid": "other"}})
    refused = admin.call("DELETE", f"{path}/web", options, content_type=MEDIA_TYPE, Accept=JSON)
    assert refused.status == 409, refused.body
    options = encode(
        "v1", "DeleteOptions", META, {"gracePeriodSeconds": 0, "preconditions": {"uid": made.metadata.uid}}
    )
    gone = admin.call("DELETE", f"{path}/web", options, content_type=MEDIA_TYPE, Accept=MEDIA_TYPE)
    assert gone.status == 200, gone.body
    missing = admin.get(f"{path}/web", Accept=MEDIA_TYPE)
    _, status = decode(missing.body, META)
    assert (missing.status, status.message) == (404, 'pods "web" not found')
    assert (status.details.name, status.details.kind) == ("web", "pods")


def test_resource_slice(admin: Caller) -> None:
    device = {
        "name": "gpu-0",
        "attributes": {
            "model": {"string": "a100"},
            "cores": {"int": "108"},
            "healthy": {"bool": True},
            "version": {"version": "1.2.3"},
        },
        "capacity": {"memory": {"value": {"string": "40Gi"}}},
        "taints": [{"key": "example.com/bad", "effect": "NoSchedule", "timeAdded": {"seconds": 1700000000}}],
    }
    fields = {
        "metadata": {"generateName": "slice-"},
        "spec": {
            "driver": "gpu.example.com",
            "nodeName": "node-1",
            "pool": {"name": "pool", "generation": "1", "resourceSliceCount": "1"},
            "devices": [device],
        },
    }
    body = encode("resource.k8s.io/v1", "ResourceSlice", RESOURCE, fields)
    _, made = decode(post(admin, "/apis/resource.k8s.io/v1/resourceslices", body).body, RESOURCE)
    assert made.metadata.name.startswith("slice-")
    found = made.spec.devices[0]
    assert (found.attributes["cores"].int, found.attributes["healthy"].bool) == (108, True)
    assert found.attributes["version"].version == "1.2.3"
    assert found.capacity["memory"].value.string == "40Gi"
    assert found.taints[0].timeAdded.seconds == 1700000000
    document = admin.get(f"/apis/resource.k8s.io/v1/resourceslices/{made.metadata.name}").json()
    assert document["spec"]["devices"][0]["attributes"] == {
        "model": {"string": "a100"},
        "cores": {"int": 108},
        "healthy": {"bool": True},
        "version": {"version": "1.2.3"},
    }
    assert document["spec"]["devices"][0]["taints"][0]["timeAdded"] == "2023-11-14T22:13:20Z"


def test_lease_with_micro_time(admin: Caller, namespace: str) -> None:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
    spec = {
        "holderIdentity": "me",
        "leaseDurationSeconds": 15,
        "renewTime": {"seconds": 1700000000, "nanos": 123456000},
    }
    body = encode("coordination.k8s.io/v1", "Lease", COORDINATION, {"metadata": {"name": "lock"}, "spec": spec})
    _, made = decode(post(admin, path, body).body, COORDINATION)
    assert (made.spec.holderIdentity, made.spec.renewTime.nanos) == ("me", 123456000)
    assert admin.get(f"{path}/lock").json()["spec"]["renewTime"] == "2023-11-14T22:13:20.123456Z"


def test_access_review(admin: Caller, namespace: str) -> None:
    attributes = {"verb": "create", "resource": "pods", "namespace": namespace}
    body = encode(
        "authorization.k8s.io/v1",
        "SelfSubjectAccessReview",
        AUTHORIZATION,
        {"spec": {"resourceAttributes": attributes}},
    )
    answer = post(admin, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
    _, review = decode(answer.body, AUTHORIZATION)
    assert review.status.allowed


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        pytest.param(MEDIA_TYPE, MEDIA_TYPE, id="protobuf alone"),
        pytest.param(BOTH, MEDIA_TYPE, id="both as client-go lists them"),
        pytest.param(f"{JSON},{MEDIA_TYPE}", JSON, id="both, JSON first"),
        pytest.param(f"{MEDIA_TYPE},{JSON};q=0.5", MEDIA_TYPE, id="protobuf preferred"),
        pytest.param("*/*", JSON, id="anything"),
    ],
)
def test_answers_in_what_is_accepted(admin: Caller, namespace: str, accept: str, expected: str) -> None:
    body = encode("v1", "ConfigMap", CORE, {"metadata": {"generateName": "settings-"}, "data": {"a": "1"}})
    made = post(admin, f"/api/v1/namespaces/{namespace}/configmaps", body, accept)
    assert made.headers["Content-Type"] == expected
    for path in ("configmaps", "configmaps/missing", "pods?limit=1"):
        answer = admin.get(f"/api/v1/namespaces/{namespace}/{path}", Accept=accept)
        assert answer.headers["Content-Type"] == expected


def test_watch_in_protobuf(admin: Caller, server: Server, namespace: str) -> None:
    path = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims"
    version = admin.get(path).json()["metadata"]["resourceVersion"]

    def write() -> None:
        other = caller(server)
        other.call("POST", path, bodies.resource_claim("claim", count=2))
        patch = {"metadata": {"labels": {"a": "b"}}}
        other.call("PATCH", f"{path}/claim", patch, content_type="application/merge-patch+json")
        other.call("DELETE", f"{path}/claim")
        other.close()

    writer = threading.Thread(target=write)
    with admin.stream(f"{path}?watch=true&resourceVersion={version}&timeoutSeconds=20", Accept=MEDIA_TYPE) as answer:
        assert answer.getheader("Content-Type") == f"{MEDIA_TYPE};stream=watch"
        writer.start()
        seen = []
        for kind, claim in watch_events(chunks(answer), RESOURCE):
            assert claim.spec.devices.requests[0].exactly.count == 2
            seen.append((kind, claim.metadata.name, dict(claim.metadata.labels)))
            if kind == "DELETED":
                break
    writer.join()
    assert seen == [
        ("ADDED", "claim", {}),
        ("MODIFIED", "claim", {"a": "b"}),
        ("DELETED", "claim", {"a": "b"}),
    ]


def test_streamed_list_in_protobuf(admin: Caller, namespace: str) -> None:
    path = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims"
    for number in range(3):
        admin.call("POST", path, bodies.resource_claim(f"claim-{number}"))
    query = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    with admin.stream(f"{path}?{query}&timeoutSeconds=20", Accept=MEDIA_TYPE) as answer:
        seen = []
        for kind, claim in watch_events(chunks(answer), RESOURCE):
            if kind == "BOOKMARK":
                assert claim.metadata.annotations["k8s.io/initial-events-end"] == "true"
                break
            seen.append((kind, claim.metadata.name))
    assert seen == [("ADDED", f"claim-{number}") for number in range(3)]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"not protobuf", id="no magic"),
        pytest.param(b"k8s\x00\xff\xff\xff", id="torn envelope"),
        pytest.param(encode("v1", "Pod", CORE, pod_fields("web"))[:-40], id="cut off"),
        pytest.param(b"", id="empty"),
    ],
)
def test_broken_bodies_are_refused(admin: Caller, namespace: str, body: bytes) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    answer = admin.call("POST", path, body, content_type=MEDIA_TYPE, Accept=JSON)
    assert answer.status in (400, 422), answer.body
    assert answer.json()["kind"] == "Status"


def test_patches_are_not_protobuf(admin: Caller, namespace: str) -> None:
    body = encode("v1", "ConfigMap", CORE, {"metadata": {"name": "kube-root-ca.crt"}})
    path = f"/api/v1/namespaces/{namespace}/configmaps/kube-root-ca.crt"
    assert admin.call("PATCH", path, body, content_type=MEDIA_TYPE, Accept=JSON).status == 415
