"""Status that drivers of the SDK report for the devices of a claim, on the real API server."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from dray.api.document import UID, Document, NamespacedName
from dray.api.errors import APIError, BadRequestError, ConflictError
from dray.client.interface import Client
from dray.client.resources import RESOURCE_CLAIMS
from dray.driver import AllocatedDevice, DeviceCondition, NetworkDeviceData
from dray.driver.claims import PreparedClaim
from dray.driver.status_reporter import StatusReporter
from tests.e2e.driver.cluster import CLOCK, NODE, Cluster, Node, driver_running, result, until
from tests.e2e.driver.test_sdk import TestDriver

X, Y = AllocatedDevice("req", NODE, "x"), AllocatedDevice("req", NODE, "y")
READY = DeviceCondition("Ready", is_true=True, reason="Configured")
STATUS = "resource.k8s.io/v1/resourceclaims/{}@default"


async def devices(cluster: Cluster, name: str = "a") -> list[Document]:
    claim = await cluster.local.request("get", STATUS.format(name))
    found: list[Document] = claim["status"].get("devices", [])
    return found


def reference(claim: Document, name: str = "a") -> PreparedClaim:
    return PreparedClaim(UID(claim["metadata"]["uid"]), NamespacedName("default", name), (X, Y))


async def test_reports_from_threads_are_combined_and_others_are_kept(cluster: Cluster, node: Node) -> None:
    claim = await cluster.claim("a", result("x"), result("y"), result("z", "other.example.com"), pods=["p"])
    theirs = {"driver": "other.example.com", "pool": NODE, "device": "z", "data": {"owner": "other"}}
    claim["status"]["devices"] = [theirs]
    await cluster.local.request("update", "resource.k8s.io/v1/resourceclaims/a/status@default", claim)
    async with driver_running(TestDriver(), node) as runner:
        network = NetworkDeviceData(interface_name="net1", ips=("10.0.0.2/24",))

        def report() -> None:
            runner.report_status(reference(claim), X, conditions=[READY], data={"mtu": 1500})
            runner.report_status(reference(claim), X, data={"mtu": 9000})
            runner.report_status(reference(claim), Y, network=network)
            # Not allocated, and another claim of the name: neither is written.
            runner.report_status(reference(claim), AllocatedDevice("req", NODE, "w"), data={"a": 1})
            runner.report_status(PreparedClaim(UID("other"), NamespacedName("default", "a"), ()), X, data={"no": 1})
            runner.report_status(PreparedClaim(UID("gone"), NamespacedName("default", "none"), ()), X, data={"no": 1})

        await asyncio.to_thread(report)
        await until(lambda: runner.status_reporter.is_settled)
        found = {item["device"]: item for item in await devices(cluster)}
        assert found.keys() == {"x", "y", "z"}
        assert found["z"] == theirs
        assert found["x"]["data"] == {"mtu": 9000}
        assert [(item["type"], item["status"]) for item in found["x"]["conditions"]] == [("Ready", "True")]
        assert found["y"]["networkData"] == {"interfaceName": "net1", "ips": ["10.0.0.2/24"]}


class Refusing:
    """A client whose patches fail with the errors first."""

    def __init__(self, client: Client, *errors: APIError) -> None:
        self._client, self._errors = client, list(errors)
        self.patches = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def patch(self, *arguments: Any) -> Any:
        self.patches += 1
        if self._errors:
            raise self._errors.pop(0)
        return await self._client.patch(*arguments)


async def reported(client: Refusing, claim: Document) -> list[Exception]:
    """Report a condition, wait until that is settled, and return the errors."""
    errors: list[Exception] = []
    reporter = StatusReporter(cast("Client", client), "test.example.com", CLOCK, errors.append)
    task = asyncio.ensure_future(reporter.run())
    reporter.report(reference(claim), X, reporter.check(X, [READY], None, None))
    await until(lambda: reporter.is_settled)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return errors


async def test_a_conflict_is_retried(cluster: Cluster) -> None:
    claim = await cluster.claim("a", result("x"), pods=["p"])
    client = Refusing(cluster.client, ConflictError(RESOURCE_CLAIMS.group_resource, "a"))
    assert await reported(client, claim) == []
    assert client.patches == 2
    assert [item["device"] for item in await devices(cluster)] == ["x"]


async def test_a_rejected_report_is_an_error_and_not_retried(cluster: Cluster) -> None:
    claim = await cluster.claim("a", result("x"), pods=["p"])
    client = Refusing(cluster.client, BadRequestError("no"))
    (error,) = await reported(client, claim)
    assert str(error) == "claim default/a: status of devices not reported: no"
    assert client.patches == 1
