"""LimitRanger, RuntimeClass and PodTopologyLabels in a server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dray.api.errors import ForbiddenError, InvalidError
from tests.local_server import Local

Document = dict[str, Any]


@pytest.fixture(autouse=True)
async def account(api: Local) -> None:
    await api.request("create", "core/v1/serviceaccounts@default", {"metadata": {"name": "default"}})


def pod(name: str, **spec: Any) -> Document:
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "busybox"}], **spec}}


async def create_pod(api: Local, document: Document, **query: str) -> Document:
    return await api.request("create", "core/v1/pods@default", document, query=query)


@pytest.mark.behaviour("ST-32")
async def test_limit_range(api: Local) -> None:
    limits = {"type": "Container", "max": {"cpu": "1"}, "default": {"cpu": "500m"}, "defaultRequest": {"cpu": "100m"}}
    body = {"metadata": {"name": "limits"}, "spec": {"limits": [limits]}}
    await api.request("create", "core/v1/limitranges@default", body)
    async with asyncio.timeout(5):
        # The range acts once the server has noticed it.
        while "annotations" not in (await create_pod(api, pod("defaulted"), dryRun="All"))["metadata"]:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0)
    made = await create_pod(api, pod("defaulted"))
    assert made["spec"]["containers"][0]["resources"] == {"limits": {"cpu": "500m"}, "requests": {"cpu": "100m"}}
    assert made["metadata"]["annotations"] == {
        "kubernetes.io/limit-ranger": "LimitRanger plugin set: cpu request for container c; cpu limit for container c"
    }
    large = pod("large")
    large["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "2"}}
    with pytest.raises(ForbiddenError) as refused:
        await create_pod(api, large)
    assert str(refused.value) == 'pods "large" is forbidden: maximum cpu usage per Container is 1, but limit is 2'


@pytest.mark.behaviour("ST-32")
async def test_runtime_class(api: Local) -> None:
    with pytest.raises(ForbiddenError) as refused:
        await create_pod(api, pod("unknown", runtimeClassName="gvisor"))
    assert str(refused.value) == 'pods "unknown" is forbidden: pod rejected: RuntimeClass "gvisor" not found'
    with pytest.raises(ForbiddenError) as refused:
        await create_pod(api, pod("bare", overhead={"cpu": "1"}))
    assert "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead" in str(refused.value)

    toleration = {"key": "sandbox", "operator": "Exists"}
    runtime_class = {
        "metadata": {"name": "gvisor"},
        "handler": "runsc",
        "overhead": {"podFixed": {"cpu": "250m"}},
        "scheduling": {"nodeSelector": {"sandbox": "yes"}, "tolerations": [toleration]},
    }
    await api.request("create", "node.k8s.io/v1/runtimeclasses", runtime_class)
    made = await create_pod(api, pod("a", runtimeClassName="gvisor", nodeSelector={"disk": "ssd"}))
    assert made["spec"]["overhead"] == {"cpu": "250m"}
    assert made["spec"]["nodeSelector"] == {"disk": "ssd", "sandbox": "yes"}
    assert toleration in made["spec"]["tolerations"]
    for name, extra, text in (
        ("b", {"overhead": {"cpu": "1"}}, "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead"),
        (
            "c",
            {"nodeSelector": {"sandbox": "no"}},
            "conflict: runtimeClass.scheduling.nodeSelector[sandbox] = yes; pod.spec.nodeSelector[sandbox] = no",
        ),
    ):
        with pytest.raises(ForbiddenError) as refused:
            await create_pod(api, pod(name, runtimeClassName="gvisor", **extra))
        assert str(refused.value) == f'pods "{name}" is forbidden: {text}'

    changed = await api.request("get", "node.k8s.io/v1/runtimeclasses/gvisor")
    with pytest.raises(InvalidError) as invalid:
        await api.request("update", "node.k8s.io/v1/runtimeclasses/gvisor", changed | {"handler": "other"})
    assert 'handler: Invalid value: "other": field is immutable' in str(invalid.value)


async def test_topology_labels(api: Local) -> None:
    labels = {"topology.kubernetes.io/zone": "z1", "topology.kubernetes.io/region": "r1", "other": "x"}
    await api.request("create", "core/v1/nodes", {"metadata": {"name": "n1", "labels": labels}})
    await create_pod(api, pod("bound") | {"metadata": {"name": "bound", "labels": {"app": "web"}}})
    await api.request("create", "core/v1/pods/bound/binding@default", {"target": {"kind": "Node", "name": "n1"}})
    found = await api.request("get", "core/v1/pods/bound@default")
    topology = {"topology.kubernetes.io/zone": "z1", "topology.kubernetes.io/region": "r1"}
    assert found["metadata"]["labels"] == {"app": "web"} | topology
    placed = await create_pod(api, pod("placed", nodeName="n1"))
    assert placed["metadata"]["labels"] == topology
