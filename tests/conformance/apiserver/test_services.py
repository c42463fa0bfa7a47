"""Services get addresses and node ports; the API server keeps its own Service."""

from __future__ import annotations

from typing import Any

import pytest

from dray.api.errors import InvalidError, MethodNotAllowedError, NotFoundError
from dray.apiserver import local_transport
from dray.apiserver.kubernetes_service import KubernetesService
from tests.local_server import Local, local_request

Document = dict[str, Any]
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
    endpoints = await api.request("get", "core/v1/endpoints/kubernetes@default")
    slice_ = await api.request("get", "discovery.k8s.io/v1/endpointslices/kubernetes@default")
    assert endpoints["subsets"][0]["addresses"] == [{"ip": "127.0.0.1"}]
    assert slice_["endpoints"] == [{"addresses": ["127.0.0.1"], "conditions": {"ready": True}}]
    assert slice_["metadata"]["labels"] == {"kubernetes.io/service-name": "kubernetes"}

    keeper = KubernetesService(api.running.local, "127.0.0.1:7443", "10.96.0.1")
    await api.request("delete", "core/v1/services/kubernetes@default")
    await keeper.ensure()
    repaired = await api.request("get", "core/v1/services/kubernetes@default")
    assert repaired["spec"]["ports"][0]["targetPort"] == 7443
    assert (await api.request("get", "core/v1/endpoints/kubernetes@default"))["subsets"][0]["ports"][0]["port"] == 7443
    await keeper.ensure()
    same = await api.request("get", "core/v1/services/kubernetes@default")
    assert same["metadata"]["resourceVersion"] == repaired["metadata"]["resourceVersion"]


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
    with pytest.raises(MethodNotAllowedError):
        await api.request("create", "apiregistration.k8s.io/v1/apiservices", {"metadata": {"name": "a"}})
