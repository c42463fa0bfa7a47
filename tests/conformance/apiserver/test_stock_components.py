"""What stock clients and components need of the API server, as kube-apiserver 1.37 does it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from dray.api.errors import BadRequestError, ForbiddenError
from tests.local_server import Local, local_server

PODS: Final = "core/v1/pods"
STRATEGIC: Final = "application/strategic-merge-patch+json"
MERGE: Final = "application/merge-patch+json"


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Local]:
    async with local_server(tmp_path, disabled=("ServiceAccount",)) as running:
        yield running


def pod(name: str, node: str) -> dict[str, Any]:
    container = {"name": "a", "image": "a", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container], "nodeName": node},
    }


async def resize(api: Local, name: str, **requests: str) -> dict[str, Any]:
    body = {"spec": {"containers": [{"name": "a", "resources": {"requests": requests}}]}}
    return await api.request("patch", f"{PODS}/{name}/resize@default", body, content_type=STRATEGIC)


@pytest.mark.behaviour("AK-02")
async def test_a_pod_is_not_resized_beyond_its_node(api: Local) -> None:
    capacity = {"cpu": "4", "memory": "2Gi"}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "status": {"capacity": capacity}}
    await api.request("create", "core/v1/nodes", node)
    await api.request("create", f"{PODS}@default", pod("p", "n"))
    assert (await resize(api, "p", cpu="4"))["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "4"
    with pytest.raises(ForbiddenError) as caught:
        await resize(api, "p", cpu="5", memory="3Gi")
    assert caught.value.message == (
        'pods "p" is forbidden: node didn\'t have enough allocatable resources: cpu, requested: 5000, allocatable: '
        "4000; memory, requested: 3221225472, allocatable: 2147483648"
    )


@pytest.mark.behaviour("AK-02")
@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (None, 'node "n" not found'),
        ({"kubernetes.io/os": "windows"}, 'pod resize is only supported on linux nodes, node "n" is "windows"'),
    ],
)
async def test_a_pod_is_resized_only_on_a_node_that_can(
    api: Local, labels: dict[str, str] | None, expected: str
) -> None:
    if labels is not None:
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "labels": labels}}
        await api.request("create", "core/v1/nodes", node)
    await api.request("create", f"{PODS}@default", pod("p", "n"))
    with pytest.raises(ForbiddenError) as caught:
        await resize(api, "p", cpu="2")
    assert caught.value.message == f'pods "p" is forbidden: {expected}'


@pytest.mark.behaviour("AK-02")
@pytest.mark.parametrize("content_type", [MERGE, STRATEGIC, "application/json-patch+json"])
async def test_a_patch_that_is_not_json_is_refused_as_such(api: Local, content_type: str) -> None:
    await api.request("create", f"{PODS}@default", pod("p", ""))
    with pytest.raises(BadRequestError, match="invalid JSON patch"):
        await api.request("patch", f"{PODS}/p@default", b"{", content_type=content_type)
