"""Every kind does what Kubernetes' end-to-end specifications for API operations ask of one kind after another.

Discovery, create, get, list, watch, patch, update, status, delete and deletion of a collection.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from tests.e2e.apiserver.calls import Answer, Caller, calling
from tests.servers import Server

pytestmark = pytest.mark.api_faults

NAMESPACE, LABEL = "specifications", "special-label"
MERGE = "application/merge-patch+json"
WAIT_SECONDS = 120.0
TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"app": "x"}},
    "spec": {"containers": [{"name": "c", "image": "i"}], "nodeSelector": {"no": "node"}},
}
SELECTED = {"selector": {"matchLabels": {"app": "x"}}, "template": TEMPLATE}
JOB_TEMPLATE = {**TEMPLATE, "spec": {**TEMPLATE["spec"], "restartPolicy": "Never"}}
JOB = {"suspend": True, "template": JOB_TEMPLATE}
REQUESTS = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "none.example.com"}}]}}
CONDITION = {
    "type": "StatusUpdate",
    "status": "True",
    "reason": "E2E",
    "message": "Set by a test",
    "lastTransitionTime": "2026-01-02T03:04:05Z",
}
CONDITIONS = {"conditions": [CONDITION]}
RULE = {"apiGroups": ["nothing.example.com"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["x"]}
WEBHOOK = {
    "name": "w.example.com",
    "clientConfig": {"url": "https://example.com/"},
    "sideEffects": "None",
    "admissionReviewVersions": ["v1"],
    "failurePolicy": "Ignore",
    "rules": [
        {"apiGroups": ["nothing.example.com"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["x"]}
    ],
}
POLICY = {
    "matchConstraints": {"resourceRules": [RULE]},
    "validations": [{"expression": "true"}],
    "failurePolicy": "Ignore",
}


class Kind(NamedTuple):
    """A kind with the fields of an object of it, and those of its status."""

    path: str
    kind: str
    fields: dict[str, Any]
    status: dict[str, Any] | None = None


# Kinds whose status endpoint ignores metadata.
METADATA_IGNORED = frozenset(
    {
        "APIService",
        "DeviceTaintRule",
        "FlowSchema",
        "PriorityLevelConfiguration",
        "ResourceClaim",
        "VolumeAttachment",
    }
)


def definition(name: str) -> dict[str, Any]:
    plural = name.replace("-", "")
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
    names = {
        "plural": plural,
        "singular": plural,
        "kind": plural.capitalize(),
        "listKind": f"{plural.capitalize()}List",
    }
    return {"spec": {"group": "spec.example.com", "scope": "Cluster", "names": names, "versions": [version]}}


KINDS = [
    Kind("v1/configmaps", "ConfigMap", {"data": {"a": "b"}}),
    Kind("v1/endpoints", "Endpoints", {"subsets": [{"addresses": [{"ip": "10.0.0.24"}], "ports": [{"port": 80}]}]}),
    Kind("v1/limitranges", "LimitRange", {"spec": {"limits": [{"type": "Pod", "max": {"example.com/x": "1"}}]}}),
    Kind(
        "v1/persistentvolumes",
        "PersistentVolume",
        {
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "hostPath": {"path": "/tmp/x"},
            }
        },
        {"message": "m", "reason": "E2E"},
    ),
    Kind(
        "v1/persistentvolumeclaims",
        "PersistentVolumeClaim",
        {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}},
        CONDITIONS,
    ),
    Kind("v1/pods", "Pod", {"spec": {**TEMPLATE["spec"], "schedulerName": "nobody"}}, {"message": "m"}),
    Kind("v1/podtemplates", "PodTemplate", {"template": TEMPLATE}),
    Kind(
        "v1/replicationcontrollers",
        "ReplicationController",
        {"spec": {"replicas": 0, "selector": {"app": "x"}, "template": TEMPLATE}},
        CONDITIONS,
    ),
    Kind("v1/resourcequotas", "ResourceQuota", {"spec": {"hard": {"count/x.example.com": "5"}}}, {"used": {}}),
    Kind("v1/secrets", "Secret", {"data": {"a": "Yg=="}}),
    Kind("v1/services", "Service", {"spec": {"ports": [{"port": 80}]}}, {"loadBalancer": {}, **CONDITIONS}),
    Kind("v1/serviceaccounts", "ServiceAccount", {}),
    Kind("v1/nodes", "Node", {}, CONDITIONS),
    Kind(
        "admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
        "MutatingWebhookConfiguration",
        {"webhooks": [WEBHOOK]},
    ),
    Kind(
        "admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
        "ValidatingWebhookConfiguration",
        {"webhooks": [WEBHOOK]},
    ),
    Kind(
        "admissionregistration.k8s.io/v1/validatingadmissionpolicies",
        "ValidatingAdmissionPolicy",
        {"spec": POLICY},
        CONDITIONS,
    ),
    Kind(
        "admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
        "ValidatingAdmissionPolicyBinding",
        {"spec": {"policyName": "none", "validationActions": ["Deny"]}},
    ),
    Kind("apiextensions.k8s.io/v1/customresourcedefinitions", "CustomResourceDefinition", {}, CONDITIONS),
    Kind("apiregistration.k8s.io/v1/apiservices", "APIService", {}, CONDITIONS),
    Kind("apps/v1/controllerrevisions", "ControllerRevision", {"revision": 1, "data": {"a": "b"}}),
    Kind("apps/v1/daemonsets", "DaemonSet", {"spec": SELECTED}, CONDITIONS),
    Kind("apps/v1/deployments", "Deployment", {"spec": {**SELECTED, "replicas": 0}}, CONDITIONS),
    Kind("apps/v1/replicasets", "ReplicaSet", {"spec": {**SELECTED, "replicas": 0}}, CONDITIONS),
    Kind("apps/v1/statefulsets", "StatefulSet", {"spec": {**SELECTED, "replicas": 0, "serviceName": "s"}}, CONDITIONS),
    Kind(
        "autoscaling/v1/horizontalpodautoscalers",
        "HorizontalPodAutoscaler",
        {"spec": {"maxReplicas": 2, "scaleTargetRef": {"kind": "ReplicaSet", "name": "none"}}},
        {"currentReplicas": 1},
    ),
    Kind(
        "autoscaling/v2/horizontalpodautoscalers",
        "HorizontalPodAutoscaler",
        {"spec": {"maxReplicas": 2, "scaleTargetRef": {"kind": "ReplicaSet", "name": "none"}}},
        CONDITIONS,
    ),
    Kind(
        "batch/v1/cronjobs",
        "CronJob",
        {"spec": {"schedule": "0 0 29 2 *", "suspend": True, "jobTemplate": {"spec": {"template": JOB_TEMPLATE}}}},
        {"lastScheduleTime": "2026-01-02T03:04:05Z"},
    ),
    Kind("batch/v1/jobs", "Job", {"spec": JOB}, CONDITIONS),
    Kind("cdi.k8s.io/v1alpha1/resourceclasses", "ResourceClass", {"driverName": "none.example.com"}),
    Kind("coordination.k8s.io/v1/leases", "Lease", {"spec": {"holderIdentity": "me", "leaseDurationSeconds": 30}}),
    Kind("discovery.k8s.io/v1/endpointslices", "EndpointSlice", {"addressType": "IPv4", "endpoints": []}),
    Kind(
        "flowcontrol.apiserver.k8s.io/v1/flowschemas",
        "FlowSchema",
        {"spec": {"matchingPrecedence": 9000, "priorityLevelConfiguration": {"name": "none"}}},
        CONDITIONS,
    ),
    Kind(
        "flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations",
        "PriorityLevelConfiguration",
        {"spec": {"type": "Limited", "limited": {"limitResponse": {"type": "Reject"}}}},
        CONDITIONS,
    ),
    Kind(
        "networking.k8s.io/v1/ingresses",
        "Ingress",
        {"spec": {"defaultBackend": {"service": {"name": "s", "port": {"number": 80}}}}},
        {"loadBalancer": {"ingress": [{"ip": "169.1.1.1"}]}},
    ),
    Kind("networking.k8s.io/v1/ingressclasses", "IngressClass", {"spec": {"controller": "example.com/c"}}),
    Kind("networking.k8s.io/v1/networkpolicies", "NetworkPolicy", {"spec": {"podSelector": {}}}),
    Kind("node.k8s.io/v1/runtimeclasses", "RuntimeClass", {"handler": "h"}),
    Kind(
        "policy/v1/poddisruptionbudgets",
        "PodDisruptionBudget",
        {"spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "none"}}}},
        CONDITIONS,
    ),
    Kind("rbac.authorization.k8s.io/v1/roles", "Role", {"rules": []}),
    Kind("rbac.authorization.k8s.io/v1/clusterroles", "ClusterRole", {"rules": []}),
    Kind(
        "rbac.authorization.k8s.io/v1/rolebindings",
        "RoleBinding",
        {"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "none"}},
    ),
    Kind(
        "rbac.authorization.k8s.io/v1/clusterrolebindings",
        "ClusterRoleBinding",
        {"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "none"}},
    ),
    Kind("resource.k8s.io/v1/deviceclasses", "DeviceClass", {"spec": {}}),
    Kind("resource.k8s.io/v1/resourceclaims", "ResourceClaim", {"spec": REQUESTS}, {}),
    Kind("resource.k8s.io/v1/resourceclaimtemplates", "ResourceClaimTemplate", {"spec": {"spec": REQUESTS}}),
    Kind(
        "resource.k8s.io/v1/resourceslices",
        "ResourceSlice",
        {
            "spec": {
                "driver": "spec.example.com",
                "nodeName": "none",
                "pool": {"name": "none", "generation": 1, "resourceSliceCount": 1},
            }
        },
    ),
    Kind(
        "resource.k8s.io/v1/devicetaintrules",
        "DeviceTaintRule",
        {"spec": {"deviceSelector": {"driver": "none.example.com"}, "taint": {"key": "k", "effect": "None"}}},
        CONDITIONS,
    ),
    Kind("scheduling.k8s.io/v1/priorityclasses", "PriorityClass", {"value": 1}),
    Kind("storage.k8s.io/v1/csidrivers", "CSIDriver", {"spec": {"attachRequired": False}}),
    Kind("storage.k8s.io/v1/csinodes", "CSINode", {"spec": {"drivers": []}}, {"storageHealth": [{"name": "d"}]}),
    Kind("storage.k8s.io/v1/csistoragecapacities", "CSIStorageCapacity", {"storageClassName": "s"}),
    Kind("storage.k8s.io/v1/storageclasses", "StorageClass", {"provisioner": "example.com/p"}),
    Kind(
        "storage.k8s.io/v1/volumeattachments",
        "VolumeAttachment",
        {"spec": {"attacher": "a", "nodeName": "n", "source": {"persistentVolumeName": "p"}}},
        {"attached": True},
    ),
    Kind(
        "storage.k8s.io/v1/volumeattributesclasses",
        "VolumeAttributesClass",
        {"driverName": "d", "parameters": {"a": "b"}},
    ),
    Kind(
        "storagemigration.k8s.io/v1/storageversionmigrations",
        "StorageVersionMigration",
        {"spec": {"resource": {"group": "apps", "resource": "deployments"}}},
        CONDITIONS,
    ),
    Kind(
        "certificates.k8s.io/v1/podcertificaterequests",
        "PodCertificateRequest",
        {
            "spec": {
                **dict.fromkeys(("podName", "nodeName", "serviceAccountName"), "a"),
                **dict.fromkeys(("podUID", "nodeUID", "serviceAccountUID"), "8f2b2d5c-92f5-4d42-9c3c-1e6a3f0f4b11"),
                "signerName": "example.com/a",
                "stubPKCS10Request": "YQ==",
            }
        },
        CONDITIONS,
    ),
]


class Place(NamedTuple):
    """Where a kind is served."""

    collection: str
    everywhere: str
    verbs: tuple[str, ...]
    subresources: frozenset[str]


def base_of(path: str) -> str:
    return f"/api/{path}" if path.count("/") == 1 else f"/apis/{path}"


def discover(client: Caller, kind: Kind) -> Place:
    group_version, _, plural = base_of(kind.path).rpartition("/")
    resources = client.get(group_version).json()["resources"]
    (found,) = [item for item in resources if item["name"] == plural]
    assert found["kind"] == kind.kind
    subresources = {item["name"].partition("/")[2] for item in resources if item["name"].startswith(f"{plural}/")}
    everywhere = f"{group_version}/{plural}"
    collection = f"{group_version}/namespaces/{NAMESPACE}/{plural}" if found["namespaced"] else everywhere
    return Place(collection, everywhere, tuple(found["verbs"]), frozenset(subresources))


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Caller]:
    with calling(server) as caller:
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        assert caller.call("POST", "/api/v1/namespaces", body).status == 201
        yield caller


def api_service(version: str) -> dict[str, Any]:
    served = {"group": "served.example.com", "version": version, "groupPriorityMinimum": 1, "versionPriority": 1}
    return {"spec": {**served, "service": {"namespace": NAMESPACE, "name": "none"}, "insecureSkipTLSVerify": True}}


def document(kind: Kind, name: str) -> dict[str, Any]:
    group_version = kind.path.rpartition("/")[0]
    fields = kind.fields
    if kind.kind == "CustomResourceDefinition":
        fields = definition(name)
        name = f"{fields['spec']['names']['plural']}.spec.example.com"
    elif kind.kind == "APIService":
        fields = api_service(name)
        name = f"{name}.served.example.com"
    return {
        "apiVersion": group_version,
        "kind": kind.kind,
        "metadata": {"name": name, "labels": {LABEL: "x"}},
        **fields,
    }


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def changed(client: Caller, path: str, change: Callable[[dict[str, Any]], None]) -> Any:
    """Read, change and write; again if a controller wrote in between."""
    for _ in range(20):
        current = client.get(path).json()
        change(current)
        answer = client.call("PUT", path, current)
        if answer.status != 409:
            return ok(answer)
    raise AssertionError(answer.body)


def ok(answer: Answer) -> Any:
    assert answer.status in (200, 201), answer.body
    return answer.json()


def annotate(key: str) -> Callable[[dict[str, Any]], None]:
    def change(current: dict[str, Any]) -> None:
        current["metadata"].setdefault("annotations", {})[key] = "true"

    return change


def seen(client: Caller, place: Place, version: str, name: str) -> list[str]:
    """The types of events about an object since a version, until it is deleted."""
    types: list[str] = []
    query = f"watch=true&resourceVersion={version}&labelSelector={LABEL}%3Dx&timeoutSeconds=20"
    with client.stream(f"{place.collection}?{query}") as stream:
        for line in stream:
            event = json.loads(line)
            if event["object"]["metadata"].get("name") == name:
                types.append(event["type"])
                if event["type"] == "DELETED":
                    break
    return types


@pytest.mark.behaviour("ST-32")
@pytest.mark.parametrize("kind", KINDS, ids=[f"{kind.path.split('/')[-2]}-{kind.kind}" for kind in KINDS])
def test_operations(client: Caller, kind: Kind) -> None:
    place = discover(client, kind)
    selected = f"?labelSelector={LABEL}%3Dx"
    before = ok(client.get(place.collection + selected))["metadata"]["resourceVersion"]
    first, *others = [ok(client.call("POST", place.collection, document(kind, f"spec-{i}"))) for i in "abc"]
    name = first["metadata"]["name"]
    path = f"{place.collection}/{name}"
    assert client.call("POST", place.collection, document(kind, "spec-a")).json()["reason"] == "AlreadyExists"
    assert ok(client.get(path))["metadata"]["uid"] == first["metadata"]["uid"]
    for listed in (place.collection, place.everywhere):
        assert len(ok(client.get(listed + selected))["items"]) == 3
    patched = ok(client.call("PATCH", path, {"metadata": {"annotations": {"patched": "true"}}}, content_type=MERGE))
    assert patched["metadata"]["annotations"]["patched"] == "true"
    assert changed(client, path, annotate("updated"))["metadata"]["annotations"]["updated"] == "true"
    if "status" in place.subresources:
        check_status(client, kind, path)
    assert client.call("DELETE", path).status in (200, 202)
    until(lambda: client.get(path).status == 404)
    types = seen(client, place, before, name)
    assert (types[0], types[-1], set(types[1:-1])) == ("ADDED", "DELETED", {"MODIFIED"})
    assert "deletecollection" in place.verbs
    ok(client.call("DELETE", place.collection + selected))
    until(lambda: not ok(client.get(place.collection + selected))["items"])
    assert all(client.get(f"{place.collection}/{other['metadata']['name']}").status == 404 for other in others)


def check_status(client: Caller, kind: Kind, path: str) -> None:
    status = f"{path}/status"
    assert kind.status is not None, "a row must have a status"
    assert ok(client.get(status))["kind"] == kind.kind
    body = {"metadata": {"annotations": {"patchedstatus": "true"}}, "status": kind.status}
    patched = ok(client.call("PATCH", status, body, content_type=MERGE))
    noted = (patched["metadata"].get("annotations") or {}).get("patchedstatus")
    assert noted == (None if kind.kind in METADATA_IGNORED else "true")
    for field, value in kind.status.items():
        if field != "conditions":
            assert patched.get("status", {}).get(field, {}) == value
        else:
            assert [item["reason"] for item in patched["status"]["conditions"] if item["type"] == "StatusUpdate"] == [
                "E2E"
            ]
    updated = changed(client, status, lambda current: current.setdefault("status", {}).update(kind.status or {}))
    assert updated["metadata"]["uid"] == patched["metadata"]["uid"]


# Not in the table: they are evaluated at once, have tests of their own, or are kept by the server itself.
ELSEWHERE = {
    "bindings",
    "certificatesigningrequests",
    "events",
    "ipaddresses",
    "localsubjectaccessreviews",
    "namespaces",
    "resourceclaims",
    "selfsubjectaccessreviews",
    "selfsubjectreviews",
    "selfsubjectrulesreviews",
    "servicecidrs",
    "subjectaccessreviews",
    "tokenreviews",
}


def test_no_kind_is_forgotten(client: Caller) -> None:
    accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    served = {
        resource["resource"]
        for root in ("/api", "/apis")
        for group in client.get(root, Accept=accept).json()["items"]
        if group["metadata"].get("name") != "spec.example.com"
        for version in group["versions"]
        for resource in version["resources"]
        if "create" in resource["verbs"]
    }
    assert served - ELSEWHERE == {kind.path.rpartition("/")[2] for kind in KINDS} - ELSEWHERE
