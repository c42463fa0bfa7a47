"""`pods/ephemeralcontainers` and `pods/resize` on an in-process server."""

from __future__ import annotations

from typing import Any

import pytest

from dray.api.document import Document
from dray.api.errors import APIError, ForbiddenError, InvalidError
from tests.local_server import Local, until

pytestmark = pytest.mark.api_faults

PODS = "core/v1/pods"
STRATEGIC = "application/strategic-merge-patch+json"


def container(name: str = "c", **more: Any) -> Document:
    return {"name": name, "image": "i", **more}


def sized(cpu: str, memory: str, **more: str) -> Document:
    return {"requests": {"cpu": cpu, "memory": memory, **more}}


async def created(api: Local, *containers: Document, **more: Any) -> Document:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    await api.request("create", "core/v1/serviceaccounts@default", account)
    metadata = {"name": "p", **more.pop("metadata", {})}
    spec = {"containers": list(containers) or [container()], **more}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    return await api.request("create", f"{PODS}@default", pod)


async def patch(api: Local, subresource: str, spec: Document, **metadata: Any) -> Document:
    body = {"spec": spec} | ({"metadata": metadata} if metadata else {})
    return await api.request("patch", f"{PODS}/p/{subresource}@default", body, content_type=STRATEGIC)


async def refused(api: Local, subresource: str, spec: Document) -> str:
    with pytest.raises(InvalidError) as caught:
        await patch(api, subresource, spec)
    return caught.value.message


# --- Ephemeral containers.


@pytest.mark.behaviour("EX-42")
async def test_an_ephemeral_container_is_added(api: Local) -> None:
    pod = await created(api)
    debugger = container("debugger", targetContainerName="c")
    changed = await patch(api, "ephemeralcontainers", {"ephemeralContainers": [debugger]}, labels={"ignored": "yes"})
    (added,) = changed["spec"]["ephemeralContainers"]
    assert added.items() >= {**debugger, "imagePullPolicy": "Always", "terminationMessagePolicy": "File"}.items()
    assert "labels" not in changed["metadata"]
    assert changed["metadata"]["generation"] == pod["metadata"]["generation"] + 1
    assert changed["metadata"]["managedFields"][-1]["subresource"] == "ephemeralcontainers"
    assert await api.request("get", f"{PODS}/p/ephemeralcontainers@default") == changed


async def test_a_put_changes_only_ephemeral_containers(api: Local) -> None:
    pod = await created(api)
    pod["spec"]["ephemeralContainers"] = [container("debugger")]
    pod["spec"]["containers"][0]["image"] = "other"
    changed = await api.request("update", f"{PODS}/p/ephemeralcontainers@default", pod)
    assert [item["name"] for item in changed["spec"]["ephemeralContainers"]] == ["debugger"]
    assert changed["spec"]["containers"][0]["image"] == "i"


async def test_existing_ephemeral_containers_stay(api: Local) -> None:
    pod = await created(api)
    pod["spec"]["ephemeralContainers"] = [container("debugger")]
    path = f"{PODS}/p/ephemeralcontainers@default"
    pod = await api.request("update", path, pod)
    kept = pod["spec"].pop("ephemeralContainers")
    with pytest.raises(InvalidError) as caught:
        await api.request("update", path, pod)
    assert caught.value.message == (
        'Pod "p" is invalid: spec.ephemeralContainers: Forbidden: existing ephemeral containers "debugger" may not be '
        "removed\n"
    )
    pod["spec"]["ephemeralContainers"] = [{**kept[0], "image": "other"}]
    with pytest.raises(InvalidError) as caught:
        await api.request("update", path, pod)
    head = 'Pod "p" is invalid: spec.ephemeralContainers: Forbidden: existing ephemeral containers "debugger" may not '
    assert caught.value.message.startswith(f"{head}be changed\n")


@pytest.mark.parametrize(
    ("ephemeral", "problem"),
    [
        (container("c"), 'spec.ephemeralContainers[0].name: Duplicate value: "c"'),
        (
            container("d", ports=[{"containerPort": 1}]),
            "spec.ephemeralContainers[0].ports: Forbidden: cannot be set for an Ephemeral Container",
        ),
        (
            container("d", targetContainerName="x"),
            'spec.ephemeralContainers[0].targetContainerName: Not found: "x"',
        ),
    ],
)
async def test_ephemeral_containers_are_validated(api: Local, ephemeral: Document, problem: str) -> None:
    await created(api)
    spec = {"ephemeralContainers": [ephemeral]}
    assert await refused(api, "ephemeralcontainers", spec) == f'Pod "p" is invalid: {problem}'


async def test_ephemeral_containers_obey_pod_security(api: Local) -> None:
    await created(api)
    labels = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "baseline"}}}
    await api.request("patch", "core/v1/namespaces/default", labels, content_type=STRATEGIC)
    namespaces = api.running.server.cache.namespaces
    await until(lambda: bool(namespaces["default"]["metadata"].get("labels", {}).keys() & labels["metadata"]["labels"]))
    debugger = container("debugger", securityContext={"privileged": True})
    with pytest.raises(ForbiddenError, match="violates PodSecurity"):
        await patch(api, "ephemeralcontainers", {"ephemeralContainers": [debugger]})


async def test_static_pods_have_no_subresources(api: Local) -> None:
    await created(api, metadata={"annotations": {"kubernetes.io/config.mirror": "x"}}, nodeName="n")
    added = {"ephemeralContainers": [container("d")]}
    assert "static pods do not support ephemeral containers" in await refused(api, "ephemeralcontainers", added)
    resized = {"containers": [{"name": "c", "resources": sized("1", "1Gi")}]}
    assert "static pods cannot be resized" in await refused(api, "resize", resized)


# --- Resize.


async def test_a_pod_is_resized(api: Local) -> None:
    pod = await created(api, container(resources=sized("1", "1Gi")))
    spec = {"containers": [{"name": "c", "image": "ignored", "resources": sized("2", "2Gi")}]}
    changed = await patch(api, "resize", spec, labels={"ignored": "yes"})
    (resized,) = changed["spec"]["containers"]
    assert (resized["resources"], resized["image"]) == (sized("2", "2Gi"), "i")
    assert "labels" not in changed["metadata"]
    assert changed["metadata"]["generation"] == pod["metadata"]["generation"] + 1


@pytest.mark.parametrize(
    ("resources", "problem"),
    [
        (
            {"requests": {"cpu": "1", "memory": None}},
            "spec.containers[0].resources.requests: Forbidden: resource requests cannot be removed",
        ),
        (
            {**sized("1", "1Gi"), "limits": {"cpu": "1", "memory": "1Gi"}},
            'spec: Invalid value: "Burstable": Pod QOS Class may not change as a result of resizing',
        ),
        (
            {"requests": {"ephemeral-storage": "2Gi"}},
            "invalid: spec: Forbidden: only cpu and memory resources are mutable",
        ),
    ],
)
async def test_what_a_resize_cannot_do(api: Local, resources: Document, problem: str) -> None:
    await created(api, container(resources=sized("1", "1Gi", **{"ephemeral-storage": "1Gi"})))
    message = await refused(api, "resize", {"containers": [{"name": "c", "resources": resources}]})
    assert problem in message


async def test_containers_of_a_resize_are_those_of_the_pod(api: Local) -> None:
    pod = await created(api, container("a"), container("b"))
    path = f"{PODS}/p/resize@default"
    renamed = ", ".join(
        f"spec.containers[{i}].name: Forbidden: containers may not be renamed or reordered on resize" for i in range(2)
    )
    for names, problem in (
        ("ba", f"[{renamed}]"),
        ("a", "spec.containers: Forbidden: containers may not be added or removed on resize"),
    ):
        by_name = {item["name"]: item for item in pod["spec"]["containers"]}
        sent = {**pod, "spec": {**pod["spec"], "containers": [by_name[name] for name in names]}}
        with pytest.raises(InvalidError) as caught:
            await api.request("update", path, sent)
        assert caught.value.message == f'Pod "p" is invalid: {problem}'


async def test_the_node_must_support_a_resize(api: Local) -> None:
    await created(api, container(resources=sized("1", "1Gi")), nodeName="n")
    running = {"name": "c", "state": {"running": {}}, "ready": True, "restartCount": 0, "image": "i", "imageID": "i"}
    await api.request(
        "patch", f"{PODS}/p/status@default", {"status": {"containerStatuses": [running]}}, content_type=STRATEGIC
    )
    message = await refused(api, "resize", {"containers": [{"name": "c", "resources": sized("2", "1Gi")}]})
    assert message == 'Pod "p" is invalid: spec: Forbidden: Pod running on node without support for resize'


async def test_a_resize_is_charged_to_the_quota(api: Local) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "q"},
        "spec": {"hard": {"requests.cpu": "2"}},
    }
    await api.request("create", "core/v1/resourcequotas@default", quota)
    status = {"status": {"hard": {"requests.cpu": "2"}, "used": {"requests.cpu": "0"}}}
    await api.request("patch", "core/v1/resourcequotas/q/status@default", status, content_type=STRATEGIC)
    quotas = api.running.server.cache.quotas
    await until(lambda: bool((quotas.get("default", {}).get("q", {}).get("status") or {}).get("hard")))
    await created(api, container(resources=sized("1", "1Gi")))
    with pytest.raises(APIError, match=r"exceeded quota: q, requested: requests\.cpu=2, used: requests\.cpu=1"):
        await patch(api, "resize", {"containers": [{"name": "c", "resources": sized("3", "1Gi")}]})


async def test_both_are_discovered(api: Local) -> None:
    endpoint = api.running.server.catalog.get("", "v1", "pods")
    assert endpoint is not None
    assert {"ephemeralcontainers", "resize"} <= set(endpoint.subresources)
