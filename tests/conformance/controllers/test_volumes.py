"""Claims of ephemeral volumes, and what keeps claims and volumes that are being deleted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dray.api.document import Document
from dray.client.interface import DeleteOptions, WriteOptions
from dray.client.resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES
from dray.controllers.ephemeral_volume import EphemeralVolumeController
from dray.controllers.garbage_collector.reconciler import GarbageCollector
from dray.controllers.volume_protection import VolumeClaimProtectionController, VolumeProtectionController
from dray.sim.replica.virtual_time import run_virtually
from tests.conformance.controllers.cluster import PODS, TEAM, Cluster, running_cluster

CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}
CONTAINERS = [{"name": "a", "image": "i"}]


def run(scenario: Callable[[Cluster], Awaitable[None]]) -> None:
    controllers = (
        EphemeralVolumeController,
        GarbageCollector,
        VolumeClaimProtectionController,
        VolumeProtectionController,
    )

    async def main() -> None:
        async with running_cluster(*controllers, nodes=1) as cluster:
            await scenario(cluster)

    run_virtually(main())


async def claims(cluster: Cluster) -> dict[str, Document]:
    return {item["metadata"]["name"]: item for item in await cluster.list(PERSISTENT_VOLUME_CLAIMS)}


async def add_pod(cluster: Cluster, volume: Document, **spec: Any) -> Document:
    body = {"containers": CONTAINERS, "volumes": [{"name": "v", **volume}], **spec}
    return await cluster.create(PODS, "p", body)


@pytest.mark.behaviour("ST-46")
def test_an_ephemeral_volume_gets_a_claim_that_goes_with_its_pod() -> None:
    async def scenario(cluster: Cluster) -> None:
        template = {"metadata": {"labels": {"app": "x"}}, "spec": CLAIM}
        pod = await add_pod(cluster, {"ephemeral": {"volumeClaimTemplate": template}})

        async def has(*names: str) -> bool:
            return sorted(await claims(cluster)) == sorted(names)

        await cluster.until(lambda: has("p-v"))
        metadata = (await claims(cluster))["p-v"]["metadata"]
        (owner,) = metadata["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == (pod["metadata"]["uid"], True)
        assert metadata["labels"] == {"app": "x"}
        await cluster.user.delete(PODS, "p", TEAM)
        await cluster.until(has)

    run(scenario)


@pytest.mark.behaviour("ST-46")
def test_a_claim_of_somebody_else_is_reported() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create(PERSISTENT_VOLUME_CLAIMS, "p-v", CLAIM)
        await add_pod(cluster, {"ephemeral": {"volumeClaimTemplate": {"spec": CLAIM}}})
        text = f"PVC {TEAM}/p-v was not created for pod {TEAM}/p (pod is not owner)"

        async def is_reported() -> bool:
            return ("Warning", "EphemeralVolumeError", text) in await cluster.events("p")

        await cluster.until(is_reported)

    run(scenario)


@pytest.mark.behaviour("ST-45")
def test_a_claim_stays_until_its_pod_has_finished() -> None:
    async def scenario(cluster: Cluster) -> None:
        for name in ("used", "free"):
            await cluster.create(PERSISTENT_VOLUME_CLAIMS, name, CLAIM)
        await add_pod(cluster, {"persistentVolumeClaim": {"claimName": "used"}}, nodeName="node-0")
        for name in ("used", "free"):
            await cluster.user.delete(PERSISTENT_VOLUME_CLAIMS, name, TEAM)

        async def has(*names: str) -> bool:
            return sorted(await claims(cluster)) == sorted(names)

        await cluster.until(lambda: has("used"))
        await cluster.settle()
        assert (await claims(cluster))["used"]["metadata"]["finalizers"] == ["kubernetes.io/pvc-protection"]
        await cluster.user.delete(PODS, "p", TEAM, DeleteOptions(grace_period_seconds=0))
        await cluster.until(has)

    run(scenario)


@pytest.mark.behaviour("ST-45")
def test_a_volume_stays_while_it_is_bound() -> None:
    async def scenario(cluster: Cluster) -> None:
        spec = {"capacity": {"storage": "1Mi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"}}
        body = {"metadata": {"name": "v"}, "spec": spec}
        created = await cluster.user.create(PERSISTENT_VOLUMES, body)
        bound = created | {"status": {"phase": "Bound"}}
        await cluster.user.update(PERSISTENT_VOLUMES, bound, WriteOptions(subresource="status"))
        await cluster.user.delete(PERSISTENT_VOLUMES, "v", "")
        await cluster.settle()
        found = await cluster.user.get(PERSISTENT_VOLUMES, "v")
        released = found | {"status": {"phase": "Released"}}
        await cluster.user.update(PERSISTENT_VOLUMES, released, WriteOptions(subresource="status"))

        async def is_gone() -> bool:
            return not (await cluster.user.list(PERSISTENT_VOLUMES)).items

        await cluster.until(is_gone)

    run(scenario)
