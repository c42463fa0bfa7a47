"""Server-side apply on an in-process server: who owns what, as Kubernetes' own suite expects it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dray.api.document import Document
from dray.api.errors import ApplyConflictError, ConflictError, InvalidError
from tests.local_server import Local

pytestmark = pytest.mark.api_faults

APPLY, MERGE = "application/apply-patch+yaml", "application/merge-patch+json"
CONFIG_MAPS, REPLICA_SETS = "core/v1/configmaps", "apps/v1/replicasets"
DEPLOYMENTS, PODS, REVISIONS = "apps/v1/deployments", "core/v1/pods", "apps/v1/controllerrevisions"


async def apply(api: Local, path: str, document: Document, manager: str = "applier", **query: str) -> Document:
    return await api.request("patch", path, document, content_type=APPLY, query={"fieldManager": manager, **query})


def owned(document: Document, manager: str, subresource: str = "") -> Any:
    for entry in document["metadata"].get("managedFields") or ():
        if (entry["manager"], entry.get("subresource", "")) == (manager, subresource):
            return entry["fieldsV1"]
    return None


def workload(kind: str, **metadata: Any) -> Document:
    template = {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": "w", **metadata},
        "spec": {"replicas": 0, "selector": {"matchLabels": {"app": "x"}}, "template": template},
    }


def config_map(**metadata: Any) -> Document:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", **metadata}, "data": {"key": "value"}}


# --- Status.


async def define(api: Local, schema: Document) -> None:
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}},
    }
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "gadgets.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "gadgets", "kind": "Gadget"},
            "versions": [version],
        },
    }
    await api.request("create", "apiextensions.k8s.io/v1/customresourcedefinitions", definition)


FREE = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
DECLARED = {"type": "object", "properties": {"spec": FREE, "status": FREE}}


@pytest.mark.parametrize("schema", [FREE, DECLARED], ids=["free", "declared"])
async def test_status_of_a_custom_resource_applied_to_it_is_ignored(api: Local, schema: Document) -> None:
    await define(api, schema)
    gadget = {"apiVersion": "example.com/v1", "kind": "Gadget", "metadata": {"name": "g"}, "spec": {"size": 1}}
    path = "example.com/v1/gadgets/g"
    for _ in range(2):
        applied = await apply(api, f"{path}@default", {**gadget, "status": {"phase": "Mine"}})
        assert "status" not in applied
        assert list(owned(applied, "applier")) == ["f:spec"]
    theirs = {**gadget, "spec": {"size": 2}, "status": {"phase": "Theirs"}}
    theirs["metadata"] = {"name": "g", "labels": {"ignored": "yes"}}
    reported = await apply(api, f"{path}/status@default", theirs, "reporter")
    assert (reported["spec"], reported["status"]) == ({"size": 1}, {"phase": "Theirs"})
    assert "labels" not in reported["metadata"]
    assert list(owned(reported, "reporter", "status")) == ["f:status"]


async def test_metadata_applied_with_the_status_is_owned(api: Local) -> None:
    await api.request("create", f"{REPLICA_SETS}@default", workload("ReplicaSet"))
    sent = workload("ReplicaSet", labels={"seen": "yes"}, annotations={"by": "me"})
    reported = await apply(api, f"{REPLICA_SETS}/w/status@default", {**sent, "status": {"replicas": 0}}, "reporter")
    assert reported["metadata"]["labels"]["seen"] == "yes"
    assert owned(reported, "reporter", "status") == {
        "f:metadata": {"f:annotations": {"f:by": {}}, "f:labels": {"f:seen": {}}},
        "f:status": {"f:replicas": {}},
    }


async def test_the_status_of_a_deployment_has_no_labels(api: Local) -> None:
    await api.request("create", f"{DEPLOYMENTS}@default", workload("Deployment"))
    sent = workload("Deployment", labels={"seen": "yes"}, annotations={"by": "me"})
    reported = await apply(api, f"{DEPLOYMENTS}/w/status@default", {**sent, "status": {"replicas": 0}}, "reporter")
    assert "labels" not in reported["metadata"]
    assert owned(reported, "reporter", "status")["f:metadata"] == {"f:annotations": {"f:by": {}}}


async def test_the_status_of_a_pod_has_no_owners(api: Local) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    await api.request("create", "core/v1/serviceaccounts@default", account)
    await api.request("create", f"{PODS}@default", pod)
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "o", "uid": "1"}
    sent = {**pod, "metadata": {"name": "p", "labels": {"seen": "yes"}, "ownerReferences": [owner]}}
    reported = await apply(api, f"{PODS}/p/status@default", {**sent, "status": {"message": "m"}}, "reporter")
    assert "ownerReferences" not in reported["metadata"]
    assert owned(reported, "reporter", "status") == {
        "f:metadata": {"f:labels": {"f:seen": {}}},
        "f:status": {"f:message": {}},
    }


# --- Clearing, creating, raw values.


@pytest.mark.parametrize("verb", ["update", "patch"])
@pytest.mark.parametrize("entries", [[], [{}]], ids=["empty list", "empty entry"])
async def test_managed_fields_are_cleared(api: Local, verb: str, entries: list[Document]) -> None:
    created = await apply(api, f"{CONFIG_MAPS}/c@default", config_map())
    assert created["metadata"]["managedFields"]
    path = f"{CONFIG_MAPS}/c@default"
    body = config_map(managedFields=entries, labels={"kept": "yes"})
    sent = json.dumps(body).encode()
    changed = await api.request(verb, path, sent, content_type=MERGE if verb == "patch" else "application/json")
    assert "managedFields" not in changed["metadata"]
    assert changed["metadata"]["labels"] == {"kept": "yes"}


async def test_a_new_object_keeps_its_manager(api: Local) -> None:
    sent = json.dumps(config_map(managedFields=[])).encode()
    created = await api.request("create", f"{CONFIG_MAPS}@default", sent)
    assert owned(created, "test") == {"f:data": {".": {}, "f:key": {}}}


async def test_an_object_with_a_uid_is_not_created(api: Local) -> None:
    expected = (
        'Operation cannot be fulfilled on configmaps "c": uid mismatch: the provided object specified uid 88e00824, '
        "and no existing object was found"
    )
    with pytest.raises(ConflictError) as caught:
        await apply(api, f"{CONFIG_MAPS}/c@default", config_map(uid="88e00824"))
    assert caught.value.message == expected


async def test_a_put_that_would_create_an_object_with_a_uid_is_a_conflict(api: Local) -> None:
    """A UID in a PUT is a precondition, which an object that does not exist cannot meet."""
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l", "uid": "88e00824"}}
    with pytest.raises(ConflictError) as caught:
        await api.request("update", "coordination.k8s.io/v1/leases/l@default", lease)
    assert caught.value.message.endswith(
        "AdditionalErrorMsg: Precondition failed: UID in precondition: 88e00824, UID in object meta: "
    )
    del lease["metadata"]["uid"]  # type: ignore[attr-defined]
    created = await api.request("update", "coordination.k8s.io/v1/leases/l@default", lease)
    assert created["metadata"]["uid"]


async def test_raw_values_come_back_as_go_wrote_them(api: Local) -> None:
    raw = rb'{"b":1,"a":{"args":["\u003c\u0026\u003e"],"none":null,"empty":{}}}'
    body = b'{"apiVersion":"apps/v1","kind":"ControllerRevision","metadata":{"name":"r"},"revision":1,"data":%b}' % raw
    await api.request("create", f"{REVISIONS}@default", body)
    entry = await api.running.store.get("/registry/apps/controllerrevisions/default/r")
    assert entry is not None
    assert raw in entry.value


SCALED = {
    "Deployment": ("apps/v1/deployments", {"matchLabels": {"app": "x"}}),
    "StatefulSet": ("apps/v1/statefulsets", {"matchLabels": {"app": "x"}}),
    "ReplicaSet": ("apps/v1/replicasets", {"matchLabels": {"app": "x"}}),
    "ReplicationController": ("core/v1/replicationcontrollers", {"app": "x"}),
}


async def owners_of_replicas(api: Local, path: str) -> set[str]:
    found = await api.request("get", f"{path}/test@default")
    entries = found["metadata"]["managedFields"]
    return {entry["manager"] for entry in entries if "f:replicas" in entry["fieldsV1"].get("f:spec", {})}


@pytest.mark.parametrize("kind", SCALED)
async def test_who_applies_or_updates_a_scale_owns_the_replicas(api: Local, kind: str) -> None:
    """As TestScaleAllResources: the managers of a Scale are those of the replicas of the object."""
    path, selector = SCALED[kind]
    template = {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"replicas": 1, "selector": selector, "template": template}
    given = {
        "apiVersion": path.rpartition("/")[0].removeprefix("core/"),
        "kind": kind,
        "metadata": {"name": "test"},
        "spec": spec,
    }

    def scale(replicas: int) -> Document:
        metadata = {"name": "test", "namespace": "default"}
        return {"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata, "spec": {"replicas": replicas}}

    async def apply_scale(replicas: int, manager: str, **query: str) -> Document:
        return await apply(api, f"{path}/test/scale@default", scale(replicas), manager=manager, **query)

    async def patch_scale(replicas: int) -> Document:
        body = {"spec": {"replicas": replicas}}
        query = {"fieldManager": "scale_test"}
        return await api.request("patch", f"{path}/test/scale@default", body, query=query, content_type=MERGE)

    await apply(api, f"{path}/test@default", given, manager="apply_test")
    await patch_scale(5)
    assert await owners_of_replicas(api, path) == {"scale_test"}
    with pytest.raises(ApplyConflictError):
        await apply(api, f"{path}/test@default", given, manager="apply_test")
    await apply(api, f"{path}/test@default", given, manager="apply_test", force="true")
    with pytest.raises(ApplyConflictError, match="apply_test"):
        await apply_scale(17, "apply_scale")
    assert (await apply_scale(17, "apply_scale", force="true"))["spec"] == {"replicas": 17}
    assert await owners_of_replicas(api, path) == {"apply_scale"}
    await api.request("update", f"{path}/test/scale@default", scale(7), query={"fieldManager": "replace_test"})
    assert await owners_of_replicas(api, path) == {"replace_test"}
    await apply_scale(7, "co_owning_test")
    assert await owners_of_replicas(api, path) == {"replace_test", "co_owning_test"}
    await patch_scale(5)
    assert await owners_of_replicas(api, path) == {"scale_test"}


async def test_an_applied_scale_needs_a_manager(api: Local) -> None:
    with pytest.raises(InvalidError, match="fieldManager: Required value: is required for apply patch"):
        await api.request("patch", "apps/v1/deployments/test/scale@default", {}, content_type=APPLY)
