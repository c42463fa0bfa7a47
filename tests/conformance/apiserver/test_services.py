"""Services get addresses and node ports; the API server keeps its own Service."""

from __future__ import annotations

import asyncio
import random
from datetime import datetime, timedelta
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from dray.api.errors import (
    AlreadyExistsError,
    InternalError,
    InvalidError,
    NotFoundError,
)
from dray.apiserver import local_transport
from dray.apiserver.ip_addresses import IPAddressRecords, IPAddressRepair
from dray.apiserver.kubernetes_service import Advertised, KubernetesService, advertised_host
from dray.apiserver.service_addresses import ServiceAddresses
from dray.runtime.system import SystemClock
from tests.local_server import Local, local_request

Document = dict[str, Any]


class Later(SystemClock):
    def now(self) -> datetime:
        return super().now() + timedelta(hours=1)


ANNOTATION = "dray.dev/advertise-address"
PORTS = [{"name": "http", "port": 80}]


def service(name: str, **spec: Any) -> Document:
    return {"metadata": {"name": name}, "spec": {"selector": {"app": "web"}, "ports": PORTS, **spec}}


async def create(api: Local, name: str, *, query: dict[str, str] | None = None, **spec: Any) -> Document:
    return await api.request("create", "core/v1/services@default", service(name, **spec), query=query)


async def put(api: Local, name: str, **spec: Any) -> Document:
    return await api.request("update", f"core/v1/services/{name}@default", service(name, **spec))


@pytest.mark.behaviour("SV-02", "SV-04")
async def test_a_cluster_ip_is_allocated_and_kept(api: Local) -> None:
    made = await create(api, "web")
    spec = made["spec"]
    assert spec["clusterIP"].startswith("10.96.")
    assert spec == {
        "selector": {"app": "web"},
        "ports": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 80}],
        "clusterIP": spec["clusterIP"],
        "clusterIPs": [spec["clusterIP"]],
        "type": "ClusterIP",
        "sessionAffinity": "None",
        "internalTrafficPolicy": "Cluster",
        "ipFamilies": ["IPv4"],
        "ipFamilyPolicy": "SingleStack",
    }
    assert made["status"] == {"loadBalancer": {}}
    # kubectl replace need not know the address.
    assert (await put(api, "web"))["spec"] == spec
    with pytest.raises(InvalidError) as refused:
        await put(api, "web", clusterIP="10.96.1.2")
    assert 'spec.clusterIPs[0]: Invalid value: ["10.96.1.2"]: may not change once set' in str(refused.value)
    # Another Service cannot have it, until this one is gone.
    text = f'spec.clusterIPs: Invalid value: ["{spec["clusterIP"]}"]: failed to allocate IP {spec["clusterIP"]}: '
    with pytest.raises(InvalidError) as refused:
        await create(api, "other", clusterIP=spec["clusterIP"])
    assert text + "provided IP is already allocated" in str(refused.value)
    external = await put(api, "web", type="ExternalName", externalName="example.com")
    assert "clusterIP" not in external["spec"]


@pytest.mark.behaviour("SV-04")
async def test_addresses_outside_the_range_are_refused(api: Local) -> None:
    with pytest.raises(InvalidError) as refused:
        await create(api, "web", clusterIP="192.168.0.1")
    assert (
        'spec.clusterIPs: Invalid value: ["192.168.0.1"]: failed to allocate IP 192.168.0.1: the provided IP '
        "(192.168.0.1) is not in the valid range. The range of valid IPs is 10.96.0.0/16"
    ) in str(refused.value)


@pytest.mark.behaviour("SV-06")
async def test_node_ports(api: Local) -> None:
    dns = [{"name": "udp", "port": 53, "protocol": "UDP"}, {"name": "tcp", "port": 53, "protocol": "TCP"}]
    made = await create(api, "dns", type="NodePort", ports=dns)
    first, second = (port["nodePort"] for port in made["spec"]["ports"])
    assert first == second
    assert first in range(30000, 32768)
    assert made["spec"]["externalTrafficPolicy"] == "Cluster"
    with pytest.raises(InvalidError) as refused:
        await create(api, "other", type="NodePort", ports=[{"port": 80, "nodePort": first}])
    assert f"spec.ports[0].nodePort: Invalid value: {first}: provided port is already allocated" in str(refused.value)
    with pytest.raises(InvalidError) as refused:
        await create(api, "other", type="NodePort", ports=[{"port": 80, "nodePort": 80}])
    assert "provided port is not in the valid range. The range of valid ports is 30000-32767" in str(refused.value)
    inside = await put(api, "dns", type="ClusterIP", ports=made["spec"]["ports"])
    assert all("nodePort" not in port for port in inside["spec"]["ports"])


async def test_a_dry_run_and_a_refused_write_reserve_nothing(api: Local) -> None:
    await create(api, "web", clusterIP="10.96.7.7", query={"dryRun": "All"})
    with pytest.raises(InvalidError):
        await create(api, "web", clusterIP="10.96.7.7", sessionAffinity="Wheelbarrow")
    await create(api, "web", clusterIP="10.96.7.7")


async def test_a_headless_service_has_no_address(api: Local) -> None:
    made = await create(api, "headless", clusterIP="None")
    assert made["spec"]["clusterIPs"] == ["None"]
    assert made["spec"]["ipFamilies"] == ["IPv4"]


@pytest.mark.behaviour("SV-07")
async def test_the_servers_own_service(api: Local) -> None:
    found = await api.request("get", "core/v1/services/kubernetes@default")
    assert found["spec"]["clusterIP"] == "10.96.0.1"
    assert found["spec"]["ports"][0]["port"] == 443
    assert found["metadata"]["labels"] == {"component": "apiserver", "provider": "kubernetes"}
    # It listens on loopback, which no Pod on another network reaches.
    with pytest.raises(NotFoundError):
        await api.request("get", "core/v1/endpoints/kubernetes@default")
    ranges = await api.request("get", "networking.k8s.io/v1/servicecidrs/kubernetes")
    assert ranges["spec"]["cidrs"] == ["10.96.0.0/16"]
    assert ranges["status"]["conditions"][0]["message"] == "Kubernetes default Service CIDR is ready"

    def keeper(host: str, *, many: bool = False) -> KubernetesService:
        own = Advertised(host, 7443, is_one_of_many=many)
        return KubernetesService(api.running.local, SystemClock(), own, ip_network("10.96.0.0/16"))

    await api.request("delete", "core/v1/services/kubernetes@default")
    await keeper("192.0.2.7").ensure()
    repaired = await api.request("get", "core/v1/services/kubernetes@default")
    assert repaired["spec"]["ports"][0]["targetPort"] == 7443
    endpoints = await api.request("get", "core/v1/endpoints/kubernetes@default")
    assert endpoints["subsets"][0]["addresses"] == [{"ip": "192.0.2.7"}]
    assert endpoints["subsets"][0]["ports"][0]["port"] == 7443
    slice_ = await api.request("get", "discovery.k8s.io/v1/endpointslices/kubernetes@default")
    assert slice_["endpoints"] == [{"addresses": ["192.0.2.7"], "conditions": {"ready": True}}]
    assert slice_["metadata"]["labels"] == {"kubernetes.io/service-name": "kubernetes"}
    await keeper("192.0.2.7").ensure()
    same = await api.request("get", "core/v1/services/kubernetes@default")
    assert same["metadata"]["resourceVersion"] == repaired["metadata"]["resourceVersion"]

    # Several servers on one store: each adds its own, and one whose lease has expired is left out.
    for host in ("192.0.2.8", "192.0.2.7"):
        await keeper(host, many=True).ensure()
    endpoints = await api.request("get", "core/v1/endpoints/kubernetes@default")
    assert endpoints["subsets"][0]["addresses"] == [{"ip": "192.0.2.7"}, {"ip": "192.0.2.8"}]
    leases = await api.request("list", "coordination.k8s.io/v1/leases@kube-system")
    old = next(item for item in leases["items"] if item["metadata"]["annotations"] == {ANNOTATION: "192.0.2.8"})
    old["spec"]["renewTime"] = "2020-01-01T00:00:00.000000Z"
    await api.request("update", f"coordination.k8s.io/v1/leases/{old['metadata']['name']}@kube-system", old)
    await keeper("192.0.2.7", many=True).ensure()
    endpoints = await api.request("get", "core/v1/endpoints/kubernetes@default")
    assert endpoints["subsets"][0]["addresses"] == [{"ip": "192.0.2.7"}]


@pytest.mark.behaviour("SV-07")
@pytest.mark.parametrize(
    ("bound", "detected", "host"),
    [
        ("127.0.0.1", "192.0.2.2", ""),
        ("0.0.0.0", "192.0.2.2", "192.0.2.2"),
        ("", "192.0.2.2", "192.0.2.2"),
        ("0.0.0.0", "127.0.0.1", ""),
        ("192.0.2.9", "192.0.2.2", "192.0.2.9"),
        ("localhost", "192.0.2.2", ""),
    ],
)
def test_the_address_that_a_server_advertises(bound: str, detected: str, host: str) -> None:
    assert advertised_host(bound, detected) == host


@pytest.mark.behaviour("SV-05")
async def test_an_address_is_recorded_as_an_object(api: Local) -> None:
    made = await create(api, "web", clusterIP="10.96.9.9")
    found = await api.request("get", "networking.k8s.io/v1/ipaddresses/10.96.9.9")
    assert found["spec"]["parentRef"] == {"group": "", "resource": "services", "namespace": "default", "name": "web"}
    assert found["metadata"]["labels"]["ipaddress.kubernetes.io/ip-family"] == "IPv4"
    await create(api, "dry", clusterIP="10.96.9.10", query={"dryRun": "All"})
    with pytest.raises(NotFoundError):
        await api.request("get", "networking.k8s.io/v1/ipaddresses/10.96.9.10")
    # A write that fails leaves nothing.
    with pytest.raises(AlreadyExistsError):
        await create(api, "web", clusterIP="10.96.9.11")
    with pytest.raises(NotFoundError):
        await api.request("get", "networking.k8s.io/v1/ipaddresses/10.96.9.11")
    assert made["spec"]["clusterIP"] == "10.96.9.9"
    await api.request("delete", "core/v1/services/web@default")
    await gone(api, "10.96.9.9")
    await create(api, "next", clusterIP="10.96.9.9")


async def gone(api: Local, address: str) -> None:
    async with asyncio.timeout(10):
        while True:
            try:
                await api.request("get", f"networking.k8s.io/v1/ipaddresses/{address}")
            except NotFoundError:
                return
            await asyncio.sleep(0.01)


@pytest.mark.behaviour("SV-05")
async def test_objects_that_do_not_fit_the_services_are_repaired(api: Local) -> None:
    await create(api, "web", clusterIP="10.96.9.9")
    await api.request("delete", "networking.k8s.io/v1/ipaddresses/10.96.9.9")
    leaked = {"spec": {"parentRef": {"resource": "services", "namespace": "default", "name": "nobody"}}}
    await api.request("create", "networking.k8s.io/v1/ipaddresses", {"metadata": {"name": "10.96.8.8"}} | leaked)
    later = Later()
    addresses = ServiceAddresses(ip_network("10.96.0.0/16"), random.Random(1))
    for item in (await api.request("list", "core/v1/services"))["items"]:
        addresses.observe(item, deleted=False)
    records = IPAddressRecords(api.running.store, later, random.Random(1))
    await IPAddressRepair(records, addresses, later).repair(api.running.local)
    found = await api.request("get", "networking.k8s.io/v1/ipaddresses/10.96.9.9")
    assert found["spec"]["parentRef"]["name"] == "web"
    await gone(api, "10.96.8.8")
    events = (await api.request("list", "core/v1/events@default"))["items"]
    assert sorted((event["reason"], event["message"]) for event in events) == [
        ("ClusterIPNotAllocated", "Cluster IP [IPv4]: 10.96.9.9 is not allocated; repairing"),
        (
            "IPAddressNotAllocated",
            "IPAddress: 10.96.8.8 for Service default/nobody appears to have leaked: cleaning up",
        ),
    ]


@pytest.mark.behaviour("SV-05")
async def test_another_servers_address_is_not_taken(api: Local) -> None:
    """An object of another API server, whose Service this one has not seen."""
    body = {"spec": {"parentRef": {"resource": "services", "namespace": "default", "name": "theirs"}}}
    await api.request("create", "networking.k8s.io/v1/ipaddresses", {"metadata": {"name": "10.96.8.8"}} | body)
    with pytest.raises(InvalidError) as refused:
        await create(api, "ours", clusterIP="10.96.8.8")
    assert "failed to allocate IP 10.96.8.8: provided IP is already allocated" in str(refused.value)


@pytest.mark.behaviour("SV-04", "SV-06")
def test_the_first_part_of_a_range_is_given_last() -> None:
    addresses = ServiceAddresses(ip_network("10.96.0.0/26"), random.Random(1))
    for number in range(61):
        document = service(f"s{number}", type="ClusterIP")
        addresses.complete(document, None)
        addresses.reserve(document)
        last = int(ip_address(document["spec"]["clusterIP"])) & 63
        # 62 addresses, of which 16 are static: the first is the API server's.
        assert (17 <= last <= 62) is (number < 46), (number, last)
    with pytest.raises(InternalError) as refused:
        addresses.complete(service("more", type="ClusterIP"), None)
    assert 'failed to allocate a serviceIP for Service "more": range is full' in str(refused.value)

    addresses = ServiceAddresses(ip_network("10.96.0.0/16"), random.Random(1))
    for number in range(2000):
        document = service(f"s{number}", type="NodePort", clusterIP="10.96.1.1")
        addresses.complete(document, None)
        assert document["spec"]["ports"][0].pop("nodePort") >= 30086


@pytest.mark.behaviour("SV-01")
async def test_endpoints_are_deprecated(api: Local) -> None:
    request = local_request("tester", ("system:masters",), "list", "core/v1/endpoints@default")
    call = local_transport._call(request)
    await api.running.server.execute(call)
    assert call.warnings == ["v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"]


@pytest.mark.behaviour("SV-03")
async def test_a_name_may_begin_with_a_digit(api: Local) -> None:
    assert (await create(api, "1st"))["metadata"]["name"] == "1st"
    with pytest.raises(InvalidError):
        await create(api, "a.b")


async def test_a_kind_that_nobody_acts_on_warns(api: Local) -> None:
    body = {"metadata": {"name": "a"}}
    request = local_request("tester", ("system:masters",), "create", "networking.k8s.io/v1/ingressclasses", body)
    call = local_transport._call(request)
    await api.running.server.execute(call)
    assert call.warnings == [
        "networking.k8s.io/v1 IngressClass: Dray stores objects of this kind, but none of its components acts on them"
    ]


async def test_every_group_version_has_an_api_service(api: Local) -> None:
    listing = await api.request("list", "apiregistration.k8s.io/v1/apiservices")
    names = [item["metadata"]["name"] for item in listing["items"]]
    assert {"v1.", "v1.apps", "v1.resource.k8s.io", "v1beta1.resource.k8s.io", "v2.autoscaling"} <= set(names)
    assert names == sorted(names)
    found = await api.request("get", "apiregistration.k8s.io/v1/apiservices/v1.apps")
    assert (found["spec"]["group"], found["spec"]["version"]) == ("apps", "v1")
    assert found["status"]["conditions"][0]["status"] == "True"
    with pytest.raises(NotFoundError):
        await api.request("get", "apiregistration.k8s.io/v1/apiservices/v9.apps")


@pytest.mark.parametrize(
    ("name", "valid"), [("2001:db8::1", True), ("192.0.2.1", True), ("2001:DB8::1", False), ("one", False)]
)
async def test_an_ip_address_is_named_as_its_address(api: Local, name: str, valid: bool) -> None:
    parent = {"resource": "services", "namespace": "default", "name": "s"}
    body = {"metadata": {"name": name}, "spec": {"parentRef": parent}}
    create = api.request("create", "networking.k8s.io/v1/ipaddresses", body)
    if valid:
        assert (await create)["metadata"]["name"] == name
    else:
        with pytest.raises(InvalidError, match=r"metadata\.name: Invalid value"):
            await create
