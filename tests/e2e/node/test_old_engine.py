"""A node that ran the engine of an earlier release: its Pods run again, and what it has left is reported."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dray.api.document import Document
from dray.client.interface import Patch, PatchType, WriteOptions
from tests.e2e.node.conftest import end_shims
from tests.e2e.node.harness import NODES, PODS, Agent, Cluster, container_status, shell
from tests.servers import Server


@pytest.fixture
def agent(server: Server, tmp_path: Path) -> Iterator[Agent]:
    """An agent that has not started."""
    own = Agent(server, tmp_path / "n", "node-of-old-engine", ("--runtime=process",))
    yield own
    own.stop()
    end_shims(own)


async def test_pods_of_an_old_engine_run_again(cluster: Cluster, agent: Agent) -> None:
    for name in ("containers/runc/0123", "images/layers", "network/cni"):
        (agent.root / name).mkdir(parents=True)
    await cluster.client.create(NODES, {"metadata": {"name": agent.name}})
    await cluster.run("p", shell("a", "sleep 600"), restartPolicy="Always")
    started = {"startedAt": "2026-01-01T00:00:00Z"}
    status: Document = {
        "phase": "Running",
        "containerStatuses": [
            {
                "name": "a",
                "image": "busybox",
                "imageID": "sha256:0123",
                "containerID": "runc://0123",
                "ready": True,
                "restartCount": 0,
                "state": {"running": started},
            }
        ],
    }
    patch = Patch(PatchType.MERGE, {"status": status})
    await cluster.client.patch(PODS, "p", cluster.namespace, patch, WriteOptions(subresource="status"))
    agent.start()
    await cluster.wait("p", lambda pod: container_status(pod).get("containerID", "").startswith("process://"))
    text = agent.log.read_text()
    found = re.search(r"no longer managed.*rm -rf ([^\"\n]*)", text)
    assert found is not None, text
    assert found[1].split() == [f"{agent.root}/{name}" for name in ("containers/runc", "images", "network/cni")]
    # Reported, not removed.
    assert (agent.root / "containers/runc/0123").exists()
    await cluster.delete("p", 0)
    await cluster.gone("p")
