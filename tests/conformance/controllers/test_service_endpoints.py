"""EndpointSlices and Endpoints of Services, in virtual time; the test plays the nodes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dray.api.document import Document
from dray.api.errors import ServiceUnavailableError
from dray.apiserver.authorization.bootstrap_roles import CONTROLLER_ROLES
from dray.client.resources import ENDPOINT_SLICES, ENDPOINTS, NODES, SERVICES
from dray.controllers.garbage_collector.reconciler import GarbageCollector
from dray.controllers.service_endpoints.reconciler import EndpointSliceMirroringController, ServiceEndpointsController
from dray.controllers.service_endpoints.slices import ENDPOINTS_MAX
from dray.sim.replica.virtual_time import run_virtually
from tests.conformance.controllers.cluster import PODS, TEAM, Cluster, running_cluster

WEB = {"app": "web"}
MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
SERVICE_NAME = "kubernetes.io/service-name"


def run(scenario: Callable[[Cluster], Awaitable[None]]) -> None:
    async def main() -> None:
        controllers = (ServiceEndpointsController, EndpointSliceMirroringController)
        async with running_cluster(*controllers, GarbageCollector, nodes=0, scheduler=False) as cluster:
            await scenario(cluster)

    run_virtually(main())


async def add_service(cluster: Cluster, name: str = "web", **spec: Any) -> Document:
    ports = [{"port": 80, "targetPort": "http"}]
    return await cluster.create(SERVICES, name, {"selector": WEB, "ports": ports, **spec}, labels={"tier": "front"})


async def add_pod(
    cluster: Cluster, name: str, address: str, *, ready: bool = True, port: int = 8080, **spec: Any
) -> None:
    container = {"name": "c", "image": "i", "ports": [{"name": "http", "containerPort": port}]}
    await cluster.create(PODS, name, {"containers": [container], "nodeName": "n", **spec}, labels=WEB)
    await set_status(cluster, name, address, ready=ready)


async def set_status(cluster: Cluster, name: str, address: str, *, ready: bool = True, phase: str = "Running") -> None:
    status = {
        "phase": phase,
        "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        **({"podIP": address, "podIPs": [{"ip": address}]} if address else {}),
    }
    await cluster.patch(PODS, name, {"status": status}, "status")


async def slices_of(cluster: Cluster, service: str = "web") -> list[Document]:
    return await cluster.list(ENDPOINT_SLICES, f"{SERVICE_NAME}={service}")


async def until_ready(cluster: Cluster, *wanted: str, service: str = "web") -> list[Document]:
    """Wait until exactly these addresses are ready, and return the slices."""

    async def reached() -> list[Document] | None:
        found = await slices_of(cluster, service)
        ready = [
            address
            for item in found
            for endpoint in item.get("endpoints") or ()
            for address in endpoint["addresses"]
            if endpoint["conditions"]["ready"]
        ]
        return found if found and sorted(ready) == sorted(wanted) else None

    found: list[Document] = await cluster.until(reached)
    return found


async def subsets(cluster: Cluster, name: str = "web") -> list[Document]:
    found: list[Document] = (await cluster.get(ENDPOINTS, name)).get("subsets") or []
    return found


@pytest.mark.behaviour("SV-10", "SV-11", "SV-12")
def test_ready_pods_are_endpoints_of_their_service() -> None:
    async def scenario(cluster: Cluster) -> None:
        node = {"metadata": {"name": "n", "labels": {"topology.kubernetes.io/zone": "east"}}}
        await cluster.user.create(NODES.unstructured, node)
        service = await add_service(cluster)
        (empty,) = await until_ready(cluster)
        assert empty["addressType"] == "IPv4"
        assert not empty.get("endpoints")
        await add_pod(cluster, "a", "10.0.0.1")
        await add_pod(cluster, "b", "10.0.0.2", ready=False)
        await add_pod(cluster, "without-address", "")
        (found,) = await until_ready(cluster, "10.0.0.1")
        assert found["metadata"]["name"].startswith("web-")
        assert found["metadata"]["labels"] == {
            "tier": "front",
            SERVICE_NAME: "web",
            MANAGED_BY: "endpointslice-controller.k8s.io",
        }
        assert "endpoints.kubernetes.io/last-change-trigger-time" in found["metadata"]["annotations"]
        (owner,) = found["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"], owner["controller"]) == ("Service", service["metadata"]["uid"], True)
        assert found["ports"] == [{"name": "", "port": 8080, "protocol": "TCP"}]
        ready = next(item for item in found["endpoints"] if item["addresses"] == ["10.0.0.1"])
        assert ready["conditions"] == {"ready": True, "serving": True, "terminating": False}
        assert (ready["nodeName"], ready["zone"], ready["targetRef"]["name"]) == ("n", "east", "a")
        (subset,) = await subsets(cluster)
        assert [item["ip"] for item in subset["addresses"]] == ["10.0.0.1"]
        assert [item["ip"] for item in subset["notReadyAddresses"]] == ["10.0.0.2"]
        assert subset["ports"] == [{"port": 8080, "protocol": "TCP"}]

    run(scenario)


@pytest.mark.behaviour("SV-11", "SV-12")
def test_a_pod_that_is_deleted_serves_no_new_connections() -> None:
    async def scenario(cluster: Cluster) -> None:
        await add_service(cluster)
        await add_pod(cluster, "a", "10.0.0.1")
        await add_pod(cluster, "b", "10.0.0.2")
        await until_ready(cluster, "10.0.0.1", "10.0.0.2")
        await cluster.patch(PODS, "b", {"metadata": {"finalizers": ["example.com/hold"]}})
        await cluster.user.delete(PODS, "b", TEAM)
        (found,) = await until_ready(cluster, "10.0.0.1")
        leaving = next(item for item in found["endpoints"] if item["addresses"] == ["10.0.0.2"])
        assert leaving["conditions"] == {"ready": False, "serving": True, "terminating": True}
        assert [item["ip"] for item in (await subsets(cluster))[0]["addresses"]] == ["10.0.0.1"]
        await set_status(cluster, "a", "10.0.0.1", ready=False, phase="Succeeded")
        await until_ready(cluster)

    run(scenario)


@pytest.mark.behaviour("SV-10", "SV-11")
def test_headless_services_publish_host_names_and_unready_pods() -> None:
    async def scenario(cluster: Cluster) -> None:
        await add_service(cluster, clusterIP="None", publishNotReadyAddresses=True, ports=[])
        await add_pod(cluster, "a", "10.0.0.1", ready=False, hostname="first", subdomain="web")
        (found,) = await until_ready(cluster, "10.0.0.1")
        assert found["metadata"]["labels"]["service.kubernetes.io/headless"] == ""
        assert found["endpoints"][0]["hostname"] == "first"
        assert found["endpoints"][0]["conditions"]["serving"] is False
        assert not found.get("ports")
        assert (await subsets(cluster))[0]["addresses"][0]["hostname"] == "first"

    run(scenario)


@pytest.mark.behaviour("SV-11")
def test_pods_that_name_a_port_differently_have_slices_of_their_own() -> None:
    async def scenario(cluster: Cluster) -> None:
        await add_service(cluster)
        await add_pod(cluster, "a", "10.0.0.1", port=8080)
        await add_pod(cluster, "b", "10.0.0.2", port=9090)
        found = await until_ready(cluster, "10.0.0.1", "10.0.0.2")
        assert {(item["ports"][0]["port"], item["endpoints"][0]["addresses"][0]) for item in found} == {
            (8080, "10.0.0.1"),
            (9090, "10.0.0.2"),
        }
        assert len(await subsets(cluster)) == 2

    run(scenario)


@pytest.mark.behaviour("SV-10", "SV-14")
def test_slices_are_filled_before_new_ones_are_created_and_changes_are_batched() -> None:
    async def scenario(cluster: Cluster) -> None:
        count = ENDPOINTS_MAX + 20
        wanted = [f"10.0.{number // 200}.{number % 200 + 1}" for number in range(count)]
        for number, address in enumerate(wanted):
            await add_pod(cluster, f"p{number:03}", address)
        await add_service(cluster)
        found = await until_ready(cluster, *wanted)
        assert sorted(len(item["endpoints"]) for item in found) == [20, ENDPOINTS_MAX]
        names = {item["metadata"]["name"] for item in found}
        await cluster.settle()
        before = len(cluster.writes("endpointslices"))
        for number in range(10):
            await cluster.user.delete(PODS, f"p{number:03}", TEAM)
        found = await until_ready(cluster, *wanted[10:])
        assert {item["metadata"]["name"] for item in found} == names
        # Ten deletions, in two steps each, within a second.
        assert len(cluster.writes("endpointslices")) - before <= 3

    run(scenario)


@pytest.mark.behaviour("SV-14")
def test_a_late_cache_and_a_lost_response_leave_no_endpoint_in_two_slices() -> None:
    async def scenario(cluster: Cluster) -> None:
        await add_pod(cluster, "a", "10.0.0.1")
        lost: list[str] = []

        def lose(call: Any) -> Exception | None:
            if call.resource is not None and call.resource.plural == "endpointslices" and call.verb == "create":
                lost.append(call.verb)
                return ServiceUnavailableError("the response was lost") if len(lost) == 1 else None
            return None

        cluster.transport.lose = lose
        cluster.transport.held.add("endpointslices")
        await add_service(cluster)
        await cluster.until(lambda: _reached(lost, 2))
        cluster.transport.held.clear()
        await cluster.settle()
        found = await slices_of(cluster)
        assert [item["endpoints"][0]["addresses"] for item in found] == [["10.0.0.1"]]

    async def _reached(lost: list[str], count: int) -> bool:
        return len(lost) >= count

    run(scenario)


@pytest.mark.behaviour("SV-10", "SV-12")
def test_slices_and_endpoints_go_with_their_service() -> None:
    async def scenario(cluster: Cluster) -> None:
        await add_service(cluster)
        await add_pod(cluster, "a", "10.0.0.1")
        await until_ready(cluster, "10.0.0.1")
        await cluster.user.delete(SERVICES, "web", TEAM)

        async def gone() -> bool:
            return not await slices_of(cluster) and not await cluster.list(ENDPOINTS)

        await cluster.until(gone)

    run(scenario)


@pytest.mark.behaviour("SV-12")
def test_endpoints_written_by_hand_are_mirrored() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create(SERVICES, "db", {"ports": [{"port": 5432}]})
        subset = {
            "addresses": [{"ip": "192.0.2.1"}],
            "notReadyAddresses": [{"ip": "192.0.2.2"}],
            "ports": [{"port": 5432, "protocol": "TCP"}],
        }
        endpoints = {"metadata": {"name": "db", "namespace": TEAM, "labels": {"own": "yes"}}, "subsets": [subset]}
        await cluster.user.create(ENDPOINTS, endpoints)
        (found,) = await until_ready(cluster, "192.0.2.1", service="db")
        assert found["metadata"]["labels"] == {
            "own": "yes",
            SERVICE_NAME: "db",
            MANAGED_BY: "endpointslicemirroring-controller.k8s.io",
        }
        assert len(found["endpoints"]) == 2
        await cluster.patch(
            ENDPOINTS, "db", {"metadata": {"labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}}}
        )

        async def gone() -> bool:
            return not await slices_of(cluster, "db")

        await cluster.until(gone)
        # Nobody has touched what a person wrote.
        assert (await subsets(cluster, "db"))[0]["addresses"] == [{"ip": "192.0.2.1"}]

    run(scenario)


@pytest.mark.behaviour("SV-11")
def test_an_address_that_endpoints_cannot_have_is_reported() -> None:
    async def scenario(cluster: Cluster) -> None:
        await add_service(cluster)
        await add_pod(cluster, "local", "127.0.0.1")

        async def reported() -> bool:
            return any(reason == "UnusableAddress" for _, reason, _ in await cluster.events("web"))

        await cluster.until(reported)
        await until_ready(cluster)

    run(scenario)


@pytest.mark.behaviour("SV-10")
def test_the_controllers_have_the_roles_of_kubernetes() -> None:
    assert {"endpoint-controller", "endpointslice-controller", "endpointslicemirroring-controller"} <= set(
        CONTROLLER_ROLES
    )
