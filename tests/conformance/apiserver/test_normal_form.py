"""What comes in by subresources and webhooks is stored in normal form as well; what is of another type is refused."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from dray.api.document import Document
from dray.api.errors import BadRequestError, InvalidError, PatchFailedError
from tests.local_server import Local
from tests.webhook_server import patching, serving

APPLY, MERGE = "application/apply-patch+yaml", "application/merge-patch+json"
HOOKS = "admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
DEPLOYMENT = "apps/v1/deployments/a@default"
TEMPLATE = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "a", "image": "a"}]}}
SPEC = {"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": TEMPLATE}


async def stored(api: Local, key: str) -> Any:
    entry = await api.running.store.get(f"/registry/{key}")
    assert entry is not None
    return orjson.loads(entry.value)


async def deploy(api: Local) -> None:
    body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}, "spec": SPEC}
    await api.request("create", "apps/v1/deployments@default", body)


async def run_pod(api: Local, **spec: Any) -> None:
    account = {"metadata": {"name": "default"}}
    await api.request("create", "core/v1/serviceaccounts@default", account)
    pod = {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "a", "image": "a"}]} | spec}
    await api.request("create", "core/v1/pods@default", pod)


async def hook(api: Local, client_config: Document, group: str, resource: str) -> None:
    rule = {"apiGroups": [group], "apiVersions": ["v1"], "operations": ["*"], "resources": [resource]}
    webhook = {
        "name": "a.example.com",
        "clientConfig": client_config,
        "rules": [rule],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 30,
    }
    await api.request("create", HOOKS, {"metadata": {"name": "a"}, "webhooks": [webhook]})


# --- Webhooks.


async def test_a_patch_of_a_webhook(api: Local) -> None:
    operations: list[Document] = [
        {"op": "add", "path": "/metadata/annotations", "value": None},
        {"op": "add", "path": "/binaryData", "value": {}},
        {"op": "add", "path": "/data", "value": {"a": None}},
        {"op": "add", "path": "/immutable", "value": None},
    ]
    async with serving(patching(*operations)) as webhook:
        await hook(api, webhook.client_config, "", "configmaps")
        await api.request("create", "core/v1/configmaps@default", {"metadata": {"name": "a"}})
    found = await stored(api, "core/configmaps/default/a")
    assert found["data"] == {"a": ""}
    assert not found.keys() & {"binaryData", "immutable"}
    assert "annotations" not in found["metadata"]


async def test_a_patch_of_a_scale_by_a_webhook_scales(api: Local) -> None:
    operation: Document = {"op": "replace", "path": "/spec/replicas", "value": 3}
    async with serving(patching(operation)) as webhook:
        await hook(api, webhook.client_config, "apps", "deployments/scale")
        await deploy(api)
        await api.request("patch", "apps/v1/deployments/a/scale@default", {"spec": {"replicas": 2}}, content_type=MERGE)
    found = await stored(api, "apps/deployments/default/a")
    assert found["spec"]["replicas"] == 3
    assert found["spec"]["template"]["spec"]["containers"]


# --- Subresources.


@pytest.mark.parametrize("replicas", ["2", [], {"a": 1}, 2.5, True, 2**40])
async def test_a_scale_of_another_type_is_refused(api: Local, replicas: Any) -> None:
    await deploy(api)
    scale = {"metadata": {"name": "a"}, "spec": {"replicas": replicas}}
    with pytest.raises(BadRequestError):
        await api.request("update", "apps/v1/deployments/a/scale@default", scale)
    with pytest.raises((BadRequestError, InvalidError)):
        await api.request("patch", "apps/v1/deployments/a/scale@default", scale, content_type=MERGE)
    body = {"apiVersion": "autoscaling/v1", "kind": "Scale", **scale}
    query = {"fieldManager": "a", "force": "true"}
    with pytest.raises(PatchFailedError):
        await api.request("patch", "apps/v1/deployments/a/scale@default", body, content_type=APPLY, query=query)
    assert (await stored(api, "apps/deployments/default/a"))["spec"]["replicas"] == 1


async def test_annotations_of_a_binding(api: Local) -> None:
    await run_pod(api)
    binding = {"metadata": {"name": "a", "annotations": {"a": None, "b": ""}}, "target": {"kind": "Node", "name": "n"}}
    await api.request("create", "core/v1/pods/a/binding@default", binding)
    assert (await stored(api, "core/pods/default/a"))["metadata"]["annotations"] == {"a": "", "b": ""}


@pytest.mark.parametrize("path", ["core/v1/pods/a/binding@default", "core/v1/bindings@default"])
@pytest.mark.parametrize("annotations", [{"a": 1}, ["a"], "a"])
async def test_a_binding_of_another_type_is_refused(api: Local, path: str, annotations: Any) -> None:
    await run_pod(api)
    binding = {"metadata": {"name": "a", "annotations": annotations}, "target": {"kind": "Node", "name": "n"}}
    with pytest.raises(BadRequestError):
        await api.request("create", path, binding)


@pytest.mark.parametrize("finalizers", ["abc", {"a": "b"}, [1], [[]]])
async def test_finalizers_of_another_type_are_refused(api: Local, finalizers: Any) -> None:
    await api.request("create", "core/v1/namespaces", {"metadata": {"name": "a"}})
    with pytest.raises(BadRequestError):
        await api.request("update", "core/v1/namespaces/a/finalize", {"spec": {"finalizers": finalizers}})


@pytest.mark.parametrize("content_type", [APPLY, MERGE])
async def test_a_status_in_two_patches(api: Local, content_type: str) -> None:
    await run_pod(api)
    condition = {"type": "Ready", "status": "True", "message": "", "reason": None, "lastTransitionTime": None}
    status = {"phase": "Running", "conditions": [condition], "hostIP": "", "podIPs": [], "resize": None}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "status": status}
    query = {"fieldManager": "a"}
    await api.request("patch", "core/v1/pods/a/status@default", body, content_type=content_type, query=query)
    found = (await stored(api, "core/pods/default/a"))["status"]
    assert found == {"phase": "Running", "qosClass": "BestEffort", "conditions": [{"type": "Ready", "status": "True"}]}


# --- Server-side apply.


async def test_metadata_that_comes_with_an_applied_status(api: Local) -> None:
    await run_pod(api)
    metadata = {"name": "a", "labels": {"tier": None}, "annotations": {}, "generateName": ""}
    for status in ({"phase": "Running"}, {"phase": "Running", "message": "b"}):
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": status}
        query = {"fieldManager": "a", "force": "true"}
        await api.request("patch", "core/v1/pods/a/status@default", body, content_type=APPLY, query=query)
        found = (await stored(api, "core/pods/default/a"))["metadata"]
        assert found["labels"] == {"tier": ""}
        assert found.keys().isdisjoint({"annotations", "generateName"})


async def test_null_keeps_what_others_have_added(api: Local) -> None:
    """Null is an empty map, to which the merge adds nothing and of which it removes nothing."""
    labels = {"metadata": {"name": "a", "labels": {"a": "b"}}, "data": {"a": "b"}}
    await api.request("create", "core/v1/configmaps@default", labels)
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "labels": None}, "data": None}
    await api.request(
        "patch", "core/v1/configmaps/a@default", body, content_type=APPLY, query={"fieldManager": "applier"}
    )
    found = await stored(api, "core/configmaps/default/a")
    assert (found["metadata"]["labels"], found["data"]) == ({"a": "b"}, {"a": "b"})
    owned = next(entry for entry in found["metadata"]["managedFields"] if entry["manager"] == "applier")
    assert owned["fieldsV1"] == {"f:data": {}, "f:metadata": {"f:labels": {}}}


async def test_a_service_port_is_merged_with_its_default_protocol(api: Local) -> None:
    service = {"metadata": {"name": "a"}, "spec": {"clusterIP": "None", "ports": [{"port": 80}]}}
    await api.request("create", "core/v1/services@default", service)
    body = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spec": service["spec"]}
    query = {"fieldManager": "a", "force": "true"}
    await api.request("patch", "core/v1/services/a@default", body, content_type=APPLY, query=query)
    assert len((await stored(api, "core/services/default/a"))["spec"]["ports"]) == 1


# --- Updates.


async def test_an_update_may_leave_out_the_tolerations_that_a_pod_was_given(api: Local) -> None:
    await run_pod(api)
    pod = await api.request("get", "core/v1/pods/a@default")
    del pod["spec"]["tolerations"]
    pod["metadata"]["labels"] = {"a": "b"}
    await api.request("update", "core/v1/pods/a@default", pod)
    found = await stored(api, "core/pods/default/a")
    assert len(found["spec"]["tolerations"]) == 2
    assert found["metadata"]["labels"] == {"a": "b"}
