"""Kill -9 of the agent at each step of a Pod's life: devices and claims are neither lost nor given twice."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dray.api.document import Document, GroupVersion
from dray.api.errors import AlreadyExistsError
from dray.client.interface import unstructured
from tests.e2e.node.conftest import end_shims
from tests.e2e.node.crashing_agent import PLACES
from tests.e2e.node.devices import EXAMPLES, FOO, TOP, driver, held, plugin, until, until_amounts
from tests.e2e.node.harness import PODS, Agent, Cluster, container_status, is_running, shell
from tests.servers import Server

RESOURCE = GroupVersion("resource.k8s.io", "v1")
CLASSES = unstructured(RESOURCE, "deviceclasses", "DeviceClass", namespaced=False)
TEMPLATES = unstructured(RESOURCE, "resourceclaimtemplates", "ResourceClaimTemplate")
CLAIMS = unstructured(RESOURCE, "resourceclaims", "ResourceClaim")
STAYS = 'echo $DEVICE $FOO; trap "exit 0" TERM; while true; do sleep 0.05; done'
# While it comes to run, and while it goes.
COMING = ("admission", "volumes", "prepare", "pre-start", "start")
GOING = ("stop", "unprepare", "release", "removal")


class Crashing(Agent):
    """An agent that ends at a chosen point."""

    __slots__ = ()

    @property
    def crash(self) -> Path:
        return self.root / "crash"

    async def died(self) -> None:
        """Wait until it died there, and start it again."""
        assert self.process is not None
        process = self.process
        place = ""
        # The agent removes the file when it has come to this point.
        with contextlib.suppress(FileNotFoundError):
            place = self.crash.read_text()
        await until(lambda: process.poll() is not None, place)
        assert process.returncode == -9
        self.kill()
        self.start()


@pytest.fixture(scope="module")
def agent(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crashing]:
    root = tmp_path_factory.mktemp("n")
    program = (str(TOP / "tests/e2e/node/crashing_agent.py"), str(root / "crash"))
    running = Crashing(server, root, "crashing", ("--runtime=process",), program=program)
    running.start()
    yield running
    running.stop()
    end_shims(running)


async def objects(cluster: Cluster) -> None:
    found = {item["kind"]: item for item in yaml.safe_load_all((EXAMPLES / "env-driver/claim.yaml").read_text())}
    with contextlib.suppress(AlreadyExistsError):
        await cluster.client.create(CLASSES, found["DeviceClass"])
    template = {"metadata": {"name": "t"}, "spec": {"spec": found["ResourceClaim"]["spec"]}}
    await cluster.client.create(TEMPLATES, template, cluster.namespace)


async def run(cluster: Cluster, name: str) -> None:
    """A Pod with a device of the plugin and a claim of the driver."""
    resources = {"limits": {FOO: "1"}, "claims": [{"name": "c"}]}
    await cluster.run(
        name,
        shell("a", STAYS, resources=resources),
        resourceClaims=[{"name": "c", "resourceClaimTemplateName": "t"}],
        nodeName=None,
        nodeSelector={"kubernetes.io/hostname": cluster.node},
    )


def prepared(agent: Agent) -> list[Any]:
    """The claims of the agent's checkpoint."""
    path = agent.root / "dra_manager_state"
    return list(json.loads(json.loads(path.read_text())["Data"])["ClaimInfoStateList"]) if path.exists() else []


def driver_holds(agent: Agent) -> list[str]:
    found = json.loads((agent.root / "plugins/env.example.com/prepared.json").read_text())
    return [item["uid"] for item in found["claims"]]


async def claims_left(cluster: Cluster) -> list[Document]:
    return list((await cluster.client.list(CLAIMS, cluster.namespace)).items)


async def all_is_free(cluster: Cluster, agent: Agent) -> bool:
    nothing = not prepared(agent) and not driver_holds(agent) and not list((agent.root / "cdi").glob("*.json"))
    return nothing and not await held(agent) and not await claims_left(cluster) and not agent.shims()


@pytest.mark.behaviour("SP-111", "SP-120", "DP-44", "DP-47")
async def test_while_a_pod_comes_to_run(cluster: Cluster, agent: Crashing, server: Server) -> None:
    await objects(cluster)
    with driver(agent, server), plugin(agent, "a", "b"):
        await until_amounts(cluster, 2, 2)
        await run(cluster, "other")
        other = await cluster.wait("other", is_running())
        for number, place in enumerate(f"{when} {what}" for what in COMING for when in ("before", "after")):
            agent.crash.write_text(place)
            await run(cluster, f"p{number}")
            await agent.died()
            pod = await cluster.wait(f"p{number}", lambda item: is_running()(item) or "reason" in item["status"])
            # Its plugin may be a moment behind the agent: then the Pod is refused, and that is all it may be.
            if "running" in container_status(pod).get("state", {}):
                assert container_status(pod)["restartCount"] == 0, place
                assert sorted((await held(agent)).items()) == [("other", ["a"]), (f"p{number}", ["b"])], place
                assert len(driver_holds(agent)) == len(prepared(agent)) == 2, place
            else:
                assert pod["status"]["reason"] in ("UnexpectedAdmissionError", f"OutOf{FOO}"), pod["status"]
            await cluster.delete(f"p{number}")
            await cluster.gone(f"p{number}")
            assert list(await held(agent)) == ["other"], place
            await until_amounts(cluster, 2, 2)
        same = await cluster.client.get(PODS, "other", cluster.namespace)
        assert container_status(same)["containerID"] == container_status(other)["containerID"]
        await cluster.delete("other")
        await cluster.gone("other")
        await until(lambda: all_is_free(cluster, agent))


@pytest.mark.behaviour("SP-117", "SP-118", "DP-49")
@pytest.mark.parametrize(
    ("grace", "places"),
    [
        pytest.param(None, tuple(f"{when} {what}" for what in GOING for when in ("before", "after")), id="deleted"),
        pytest.param(0, ("before stop", "before unprepare", "after release"), id="force-deleted"),
    ],
)
async def test_while_a_pod_goes(
    cluster: Cluster, agent: Crashing, server: Server, grace: int | None, places: tuple[str, ...]
) -> None:
    await objects(cluster)
    with driver(agent, server), plugin(agent, "a"):
        await until_amounts(cluster, 1, 1)
        for number, place in enumerate(places):
            await run(cluster, f"p{number}")
            await cluster.wait(f"p{number}", is_running())
            agent.crash.write_text(place)
            await cluster.delete(f"p{number}", grace)
            await agent.died()
            await cluster.gone(f"p{number}")
            await until(lambda: all_is_free(cluster, agent), place)
            await until_amounts(cluster, 1, 1)


def test_every_place_has_its_turn() -> None:
    assert set(COMING) | set(GOING) == set(PLACES)
