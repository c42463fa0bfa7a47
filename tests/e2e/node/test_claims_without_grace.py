"""A Pod that wants no grace is held until its claim is unprepared. The driver is written to the protocol."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dray.api.document import GroupVersion
from dray.client.interface import WriteOptions, unstructured
from tests.e2e.driver.servicer import FakeDriver
from tests.e2e.node.devices import until
from tests.e2e.node.harness import PODS, Agent, Cluster, is_running, shell

CLAIMS = unstructured(GroupVersion("resource.k8s.io", "v1"), "resourceclaims", "ResourceClaim")
STAYS = 'trap "exit 0" TERM; while true; do sleep 0.05; done'


@pytest.mark.behaviour("CL-63")
async def test_a_pod_without_grace_keeps_its_reservation_until_its_claim_is_unprepared(
    cluster: Cluster, agent: Agent
) -> None:
    kind = "test.example.com/claim"
    device = {"name": "c", "containerEdits": {"env": ["CLAIM=c"]}}
    (agent.root / "cdi").mkdir(exist_ok=True)
    (agent.root / "cdi/c.json").write_text(json.dumps({"cdiVersion": "0.6.0", "kind": kind, "devices": [device]}))
    async with FakeDriver().running(agent.root) as driver:
        spec = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "any"}}]}}
        claim = await cluster.client.create(CLAIMS, {"metadata": {"name": "c"}, "spec": spec}, cluster.namespace)
        pod = await cluster.run(
            "p",
            shell("a", STAYS, resources={"claims": [{"name": "c"}]}),
            resourceClaims=[{"name": "c", "resourceClaimName": "c"}],
            terminationGracePeriodSeconds=0,
        )
        result = {"request": "r", "driver": driver.name, "pool": cluster.node, "device": "d"}
        user = {"resource": "pods", "name": "p", "uid": pod["metadata"]["uid"]}
        claim["status"] = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [user]}
        await cluster.client.update(CLAIMS, claim, WriteOptions(subresource="status"))
        await cluster.wait("p", is_running())
        works, tries = driver.on_unprepare, []

        async def fails(*arguments: Any) -> Any:
            tries.append(arguments)
            raise RuntimeError("busy")

        driver.on_unprepare = fails
        await cluster.delete("p")
        # Its container has ended long ago.
        await until(lambda: len(tries) >= 3)
        held = await cluster.client.get(PODS, "p", cluster.namespace)
        assert held["metadata"]["deletionGracePeriodSeconds"] == 1
        assert (await cluster.client.get(CLAIMS, "c", cluster.namespace))["status"]["reservedFor"] == [user]
        driver.on_unprepare = works
        await cluster.gone("p")
        assert driver.names("unprepare")
