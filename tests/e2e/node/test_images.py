"""Images from a real registry, and from archives, in real containers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from dray.api.document import GroupVersion
from dray.client.interface import unstructured
from tests.containerd import needs_containerd
from tests.docker_registry import docker_registry, needs_docker_registry, push
from tests.e2e.node.harness import (
    LOOK_SECONDS,
    NODES,
    POD_SECONDS_MAX,
    Agent,
    Cluster,
    container_status,
    is_running,
    is_waiting,
    shell,
)

RUNTIMES = ("cri",)
pytestmark = [
    needs_containerd,
    needs_docker_registry,
]
SECRETS = unstructured(GroupVersion("", "v1"), "secrets", "Secret")


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a registry."""
    with docker_registry(tmp_path_factory.mktemp("registry")) as address:
        yield address


@pytest.mark.behaviour("IM-02", "IM-03", "IM-16", "IM-20")
async def test_a_pod_runs_an_image_of_a_registry(cluster: Cluster, agent: Agent, registry: str, images: Path) -> None:
    digest = push(registry, "team/busybox", "1", images, {"Env": ["FROM=registry"], "Entrypoint": ["/bin/sh", "-c"]})
    name = f"{registry}/team/busybox:1"
    container = {"name": "a", "image": name, "args": ["test $FROM = registry && sleep 3600"]}
    await cluster.run("pulled", container)
    pod = await cluster.wait("pulled", is_running())
    assert container_status(pod)["imageID"] == f"{registry}/team/busybox@{digest}"
    assert f'Pulling image "{name}"' in (await cluster.event("pulled", "Pulling"))["message"]
    assert "Successfully pulled image" in (await cluster.event("pulled", "Pulled"))["message"]
    await cluster.run("again", {**container, "name": "b"})
    await cluster.wait("again", is_running("b"))
    assert "already present on machine" in (await cluster.event("again", "Pulled"))["message"]
    # The next agent reports it as soon as it starts.
    agent.stop()
    agent.start()

    async def reported() -> bool:
        node = await cluster.client.get(NODES, agent.name, "")
        names = [each for image in node["status"].get("images") or () for each in image["names"]]
        return f"{registry}/team/busybox@{digest}" in names

    async with asyncio.timeout(POD_SECONDS_MAX):
        while not await reported():  # noqa: ASYNC110 - the condition is the server's state
            await asyncio.sleep(LOOK_SECONDS)
    for pod_name in ("pulled", "again"):
        await cluster.delete(pod_name, 0)
        await cluster.gone(pod_name)


@pytest.mark.behaviour("IM-03", "IM-04")
async def test_a_missing_image_is_tried_again_with_a_backoff(cluster: Cluster, registry: str, images: Path) -> None:
    name = f"{registry}/late:1"
    await cluster.run("late", {"name": "a", "image": name, "command": ["sleep", "3600"]})
    pod = await cluster.wait("late", is_waiting("ErrImagePull"))
    waiting = container_status(pod)["state"]["waiting"]
    assert waiting["message"].startswith(f'Failed to pull image "{name}": ')
    found = await cluster.wait_event("late", lambda event: event["message"] == "Error: ErrImagePull")
    assert (found["type"], found["reason"]) == ("Warning", "Failed")
    await cluster.delete("late", 0)
    await cluster.gone("late")


@pytest.mark.behaviour("IM-08")
async def test_a_missing_pull_secret_is_reported(cluster: Cluster, agent: Agent) -> None:
    secrets = [{"name": "absent"}]
    await cluster.run("secret", shell("a", "sleep 3600", image="busybox"), imagePullSecrets=secrets)
    await cluster.wait("secret", is_running())
    event = await cluster.event("secret", "FailedToRetrieveImagePullSecret")
    assert "(absent)" in event["message"]
    await cluster.delete("secret", 0)
    await cluster.gone("secret")
