"""The Node and its Lease: refusals are logged once and shown in health; a deleted Node comes back."""

from __future__ import annotations

import asyncio

import pytest

from dray.api.document import GroupResource
from dray.api.errors import ForbiddenError, ServiceUnavailableError
from dray.client.in_process import in_process_client
from dray.client.interface import Patch, PatchType
from dray.lib.clock import VirtualClock
from dray.node.agent.node_object import LEASE_NAMESPACE, MachineInfo, NodeSpec
from dray.node.agent.node_registration import NODES, NodeRegistration, ReportTimes
from tests.fake_local_server import FakeLocalServer, fail, served

MACHINE = MachineInfo(
    hostname="n",
    addresses=("10.0.0.1",),
    architecture="x86_64",
    cpus=1,
    memory_bytes=1,
    disk_bytes=1,
    kernel="k",
    os_image="o",
)
RIGHT = 'User "system:node:n" cannot create resource "leases" in API group "coordination.k8s.io"'


@pytest.fixture
def server() -> FakeLocalServer:
    return FakeLocalServer(served("nodes", "Node", namespaced=False), served("leases", "Lease", "coordination.k8s.io"))


def registration(server: FakeLocalServer) -> NodeRegistration:
    clock = VirtualClock(asyncio.get_running_loop().create_future)
    return NodeRegistration(in_process_client(server, user="node"), clock, NodeSpec("n", MACHINE, "fake://1"))


async def test_a_forbidden_lease_is_logged_once_and_unhealthy(
    server: FakeLocalServer, caplog: pytest.LogCaptureFixture
) -> None:
    node = registration(server)
    await node.register()
    assert (node.node_health(), node.lease_health()) == (None, "the Lease has not been renewed")
    refused = ForbiddenError(GroupResource("coordination.k8s.io", "leases"), "", RIGHT)
    server.before = fail(3, refused, resource="leases")
    for _ in range(3):
        await node.renew_once()
        assert node.lease_health() == f"leases.coordination.k8s.io is forbidden: {RIGHT}"
    await node.renew_once()
    assert node.lease_health() is None
    assert [record.getMessage() for record in caplog.records] == ["create failed, will be retried"]


async def test_labels_are_read_again_when_they_are_needed(server: FakeLocalServer) -> None:
    node = registration(server)
    await node.register()
    label = Patch(PatchType.MERGE, {"metadata": {"labels": {"gpu": "true"}}})
    await in_process_client(server, user="admin").patch(NODES, "n", "", label)
    assert "gpu" not in node.labels
    await node.refresh()
    assert node.labels["gpu"] == "true"
    server.before = fail(1, ServiceUnavailableError("no answer"), resource="nodes")
    await node.refresh()
    assert node.labels["gpu"] == "true"
    assert node.node_health() == "no answer"


async def test_a_node_that_cannot_be_written_is_unhealthy(server: FakeLocalServer) -> None:
    node = registration(server)
    assert node.node_health() == "the Node has not been registered"
    await node.register()
    node.resources_changed()
    node.observe({"metadata": {"uid": "other"}, "status": {"conditions": []}})
    server.before = fail(1, ForbiddenError(GroupResource("", "nodes"), "n", "no"), verb="patch")
    node._last_reported = None
    await node.correct_once()
    reason = 'nodes "n" is forbidden: no: cannot patch resource "nodes" in API group "" at the cluster scope'
    assert node.node_health() == reason
    await node.correct_once()
    assert node.node_health() is None


async def test_a_lease_that_was_collected_with_its_node_is_created_for_the_new_one(server: FakeLocalServer) -> None:
    node = registration(server)
    await node.register()
    await node.renew_once()
    server.remove("", "nodes", "n")
    server.remove("coordination.k8s.io", "leases", "n", LEASE_NAMESPACE)
    await node.register()
    await node.renew_once()
    lease = server.find("leases", "n", LEASE_NAMESPACE, "coordination.k8s.io")
    found = server.find("nodes", "n")
    assert lease is not None
    assert found is not None
    assert [owner["uid"] for owner in lease["metadata"]["ownerReferences"]] == [found["metadata"]["uid"]]
    assert node.lease_health() is None


async def test_a_failed_renewal_is_repeated_sooner_than_the_next_is_due(server: FakeLocalServer) -> None:
    clock = VirtualClock(asyncio.get_running_loop().create_future)
    node = NodeRegistration(in_process_client(server, user="node"), clock, NodeSpec("n", MACHINE, "fake://1"))
    await node.register()
    server.before = fail(3, ServiceUnavailableError("the response timed out"), resource="leases")
    renewing = asyncio.create_task(node.renew_lease())
    waits = []
    for _ in range(5):
        while (due := clock.next_wakeup) is None:  # noqa: ASYNC110 - until the renewal has ended
            await asyncio.sleep(0)
        waits.append(due - clock.monotonic())
        clock.advance(waits[-1])
    renewing.cancel()
    assert waits == [1, 2, 4, 10, 10]


async def test_a_status_that_has_not_changed_is_written_as_seldom_as_was_asked(server: FakeLocalServer) -> None:
    clock = VirtualClock(asyncio.get_running_loop().create_future)
    client = in_process_client(server, user="node")
    node = NodeRegistration(client, clock, NodeSpec("n", MACHINE, "fake://1"), times=ReportTimes(status_seconds=3600))
    await node.register()

    def version() -> str:
        found = server.find("nodes", "n")
        assert found is not None
        return str(found["metadata"]["resourceVersion"])

    await node.correct_once()
    first = version()
    clock.advance(3599)
    await node.correct_once()
    assert version() == first
    clock.advance(1)
    await node.correct_once()
    assert version() != first
