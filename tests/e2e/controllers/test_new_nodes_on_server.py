"""A new node takes no Pods until it is seen to be ready; Pods bear with a node that is away for a while."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dray.api.document import Document
from dray.client.in_process import in_process_client
from dray.cmd import apiserver
from dray.cmd.controllers import spawn_controllers
from dray.cmd.settings import APIServerSettings
from dray.runtime.settings import SettingsError
from dray.runtime.tasks import TaskGroup
from tests.local_server import Local

WAIT_SECONDS_MAX = 120
NODES = "core/v1/nodes"
NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
OTHER = {"key": "example.com/gpu", "value": "yes", "effect": "NoSchedule"}
EVICT = {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}


@asynccontextmanager
async def started(folder: Path, *disabled: str) -> AsyncIterator[Local]:
    settings = APIServerSettings(data_dir=str(folder), port=0, store="memory", disable_admission_plugins=disabled)
    async with apiserver.running(settings) as running:
        yield Local(running)


def node(*taints: Document) -> Document:
    return {"metadata": {"name": "n"}, "spec": {"taints": list(taints)}}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param((), [NOT_READY], id="none"),
        pytest.param((OTHER,), [OTHER, NOT_READY], id="others stay"),
        pytest.param((NOT_READY, OTHER), [NOT_READY, OTHER], id="there already"),
        pytest.param((EVICT,), [EVICT, NOT_READY], id="with another effect"),
    ],
)
async def test_a_new_node_is_tainted(tmp_path: Path, given: tuple[Document, ...], expected: list[Document]) -> None:
    async with started(tmp_path) as local:
        made = await local.request("create", NODES, node(*given))
        assert made["spec"]["taints"] == expected
        # Who takes it away is not contradicted.
        made["spec"]["taints"] = []
        changed = await local.request("update", f"{NODES}/n", made)
        assert not changed["spec"].get("taints")


async def test_the_taint_goes_when_the_node_is_ready(tmp_path: Path) -> None:
    async with started(tmp_path) as local, TaskGroup("test") as group:
        running = local.running
        client = in_process_client(running.local, user="system:kube-controller-manager")
        spawn_controllers(group, client, running.clock, running.metrics, root_ca="PEM")
        made = await local.request("create", NODES, node(OTHER))
        assert NOT_READY in made["spec"]["taints"]
        made["status"] = {"conditions": [{"type": "Ready", "status": "True"}]}
        made["metadata"].pop("resourceVersion")
        await local.request("update", f"{NODES}/n/status", made)
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            while (await local.request("get", f"{NODES}/n"))["spec"]["taints"] != [OTHER]:  # noqa: ASYNC110 - state
                await asyncio.sleep(0.01)
        await group.cancel()


def tolerated(pod: Document) -> dict[str, object]:
    return {item["key"]: item.get("tolerationSeconds") for item in pod["spec"].get("tolerations") or ()}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param([], {"not-ready": 300, "unreachable": 300}, id="none"),
        pytest.param(
            [
                {
                    "key": "node.kubernetes.io/not-ready",
                    "operator": "Exists",
                    "tolerationSeconds": 5,
                    "effect": "NoExecute",
                }
            ],
            {"not-ready": 5, "unreachable": 300},
            id="one of one's own",
        ),
        pytest.param(
            [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoSchedule"}],
            {"not-ready": 300, "unreachable": 300},
            id="of another effect",
        ),
    ],
)
async def test_pods_bear_with_a_node_that_is_away(
    tmp_path: Path, given: list[Document], expected: dict[str, int]
) -> None:
    async with started(tmp_path) as local:
        await local.request("create", "core/v1/serviceaccounts@default", {"metadata": {"name": "default"}})
        spec = {"containers": [{"name": "c", "image": "i"}], "tolerations": given}
        made = await local.request("create", "core/v1/pods@default", {"metadata": {"name": "p"}, "spec": spec})
        assert tolerated(made) == {f"node.kubernetes.io/{name}": seconds for name, seconds in expected.items()}


async def test_plugins_can_be_left_out(tmp_path: Path) -> None:
    async with started(tmp_path, "TaintNodesByCondition", "DefaultTolerationSeconds", "ResourceQuota") as local:
        assert not (await local.request("create", NODES, node())).get("spec", {}).get("taints")
        await local.request("create", "core/v1/serviceaccounts@default", {"metadata": {"name": "default"}})
        quota = {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "0"}}}
        made = await local.request("create", "core/v1/resourcequotas@default", quota)
        made["status"] = {"hard": {"pods": "0"}, "used": {"pods": "0"}}
        await local.request("update", "core/v1/resourcequotas/q/status@default", made)
        spec = {"containers": [{"name": "c", "image": "i"}]}
        pod = await local.request("create", "core/v1/pods@default", {"metadata": {"name": "p"}, "spec": spec})
        assert tolerated(pod) == {}


async def test_other_plugins_cannot(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match='--disable-admission-plugins plugin "Mystery" is unknown'):
        async with started(tmp_path, "Mystery"):
            pass
