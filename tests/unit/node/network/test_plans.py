"""Addresses, links, ports of Services and rules: what is planned, without touching the machine."""

from __future__ import annotations

from ipaddress import IPv4Network
from typing import Any

import pytest

from dray.api.document import NamespacedName
from dray.node.network.links import Routes, gateway_steps, link_name, parse_routes
from dray.node.network.pod_network import configuration
from dray.node.network.rules import NetworkState, chain_prefix, cleanup_steps, jumps, own_chains, restore_step
from dray.node.network.service_ports import ServicePort, Target, service_ports

NETWORK = IPv4Network("10.244.3.0/29")


@pytest.mark.behaviour("SV-51")
def test_names_of_links_fit_and_differ_between_agents() -> None:
    names = {link_name("/a"), link_name("/b")}
    assert len(names) == 2
    assert all(len(name) <= 15 for name in names)


@pytest.mark.behaviour("SV-51", "SV-53")
def test_a_pod_has_its_address_alone_and_the_node_as_gateway() -> None:
    assert [" ".join(step.argv) for step in gateway_steps("dray0", NETWORK)] == [
        "ip link add dray0 type bridge",
        "ip address replace 10.244.3.1/32 dev dray0",
        "ip link set dray0 up",
    ]
    found = configuration("dray0", NETWORK, 1400, "/addresses")
    pods, ports = found["plugins"]
    assert (pods["type"], pods["mtu"], pods["ipMasq"]) == ("ptp", 1400, False)
    assert pods["ipam"] == {
        "type": "host-local",
        "dataDir": "/addresses",
        "ranges": [[{"subnet": "10.244.3.0/29", "gateway": "10.244.3.1"}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    assert (ports["type"], ports["capabilities"]) == ("portmap", {"portMappings": True})


@pytest.mark.behaviour("SV-51")
def test_routes_to_other_nodes_follow_the_nodes() -> None:
    before = Routes("117", parse_routes("10.244.1.0/24 via 192.0.2.3 dev eth0\n10.244.2.0/24 via 192.0.2.4 dev eth0\n"))
    after = Routes("117", {"10.244.1.0/24": "192.0.2.3", "10.244.5.0/24": "192.0.2.5"})
    assert [" ".join(step.argv) for step in after.steps_from(before)] == [
        "ip route replace 10.244.5.0/24 via 192.0.2.5 proto 117",
        "ip route delete 10.244.2.0/24 proto 117",
    ]


# --- Ports of Services. ---


def service(name: str = "web", **spec: Any) -> dict[str, Any]:
    base = {"clusterIP": "10.96.0.7", "type": "ClusterIP", "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]}
    return {"metadata": {"name": name, "namespace": "ns"}, "spec": base | spec}


def endpoint(address: str, node: str = "n1", **conditions: bool) -> dict[str, Any]:
    ready = {"ready": True, "serving": True, "terminating": False} | conditions
    return {"addresses": [address], "conditions": ready, "nodeName": node}


def slice_of(*endpoints: dict[str, Any], service_name: str = "web", port: int = 8080) -> dict[str, Any]:
    return {
        "metadata": {"name": "s", "namespace": "ns", "labels": {"kubernetes.io/service-name": service_name}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": port, "protocol": "TCP"}],
        "endpoints": list(endpoints),
    }


def targets(*slices: dict[str, Any], **spec: Any) -> tuple[str, ...]:
    (port,) = service_ports([service(**spec)], slices, "n1")
    return tuple(target.address for target in port.targets)


@pytest.mark.behaviour("SV-42")
def test_ready_endpoints_come_first_and_terminating_ones_when_there_is_no_other() -> None:
    ready, ending = endpoint("10.244.0.2"), endpoint("10.244.0.3", ready=False, terminating=True)
    unready = endpoint("10.244.0.4", ready=False, serving=False)
    assert targets(slice_of(ready, ending, unready)) == ("10.244.0.2",)
    assert targets(slice_of(ending, unready)) == ("10.244.0.3",)
    assert targets(slice_of(unready)) == ()
    assert targets(slice_of(ready, service_name="other")) == ()


@pytest.mark.behaviour("SV-43")
def test_local_policies_use_endpoints_of_this_node() -> None:
    slices = [slice_of(endpoint("10.244.0.2"), endpoint("10.244.1.2", "n2"))]
    assert targets(*slices, internalTrafficPolicy="Local") == ("10.244.0.2",)
    ports = [{"name": "http", "port": 80, "protocol": "TCP", "nodePort": 30080}]
    subject = service(type="NodePort", ports=ports, externalTrafficPolicy="Local")
    (port,) = service_ports([subject], slices, "n1")
    assert [target.address for target in port.targets] == ["10.244.0.2", "10.244.1.2"]
    assert [target.address for target in port.external] == ["10.244.0.2"]
    assert port.is_external_local


def test_services_without_an_address_have_no_rules() -> None:
    for spec in ({"clusterIP": "None"}, {"type": "ExternalName", "clusterIP": ""}, {"clusterIP": "fd00::7"}):
        assert service_ports([service(**spec)], [], "n1") == ()


@pytest.mark.behaviour("SV-21")
def test_a_node_may_reach_a_service_in_its_own_way() -> None:
    own = {NamespacedName("ns", "web"): Target("10.244.0.1", 9)}
    (port,) = service_ports([service()], [slice_of(endpoint("10.244.0.2"))], "n1", own)
    assert port.targets == (Target("10.244.0.1", 9),)


# --- Rules. ---

WEB = ServicePort("ns/web:http", "tcp", "10.96.0.7", 80, (Target("10.244.0.2", 8080), Target("10.244.1.2", 8080)))


def rules(**fields: Any) -> list[str]:
    step = restore_step(NetworkState("agent", **fields), [])
    assert step.argv == ("iptables-restore", "-w", "5", "--noflush")
    return step.stdin.replace(chain_prefix("agent"), "").splitlines()


@pytest.mark.behaviour("SV-40")
def test_a_service_leads_to_one_of_its_endpoints() -> None:
    lines = rules(services=(WEB,))
    (jump,) = [line for line in lines if "-d 10.96.0.7/32" in line]
    chain = jump.split()[-1]
    assert jump == f"-A SERVICES -d 10.96.0.7/32 -p tcp -m tcp --dport 80 -j {chain}"
    picks = [line for line in lines if line.startswith(f"-A {chain} ")]
    assert [line.split(" -j ")[0] for line in picks] == [
        f"-A {chain} -m statistic --mode random --probability 0.5000000000",
        f"-A {chain}",
    ]
    first = picks[0].split()[-1]
    assert [line for line in lines if line.startswith(f"-A {first} ")] == [
        f"-A {first} -s 10.244.0.2/32 -j MARK --or-mark 0x4000",
        f"-A {first} -p tcp -m tcp -j DNAT --to-destination 10.244.0.2:8080",
    ]
    assert "-A POSTROUTING -m mark --mark 0x4000/0x4000 -j MASQUERADE" in lines


@pytest.mark.behaviour("SV-40")
def test_a_sticky_service_remembers_its_clients() -> None:
    sticky = ServicePort("ns/web:http", "tcp", "10.96.0.7", 80, WEB.targets, affinity_seconds=600)
    lines = rules(services=(sticky,))
    assert sum("--rcheck --seconds 600 --reap" in line for line in lines) == 2
    assert sum("--set -j DNAT" in line for line in lines) == 2


@pytest.mark.behaviour("SV-42")
def test_a_service_without_endpoints_refuses_connections() -> None:
    lines = rules(services=(ServicePort("ns/web:http", "udp", "10.96.0.7", 53, ()),))
    refused = "-A REJECT -d 10.96.0.7/32 -p udp -m udp --dport 53 -j REJECT --reject-with icmp-port-unreachable"
    assert refused in lines
    assert not any("10.96.0.7" in line for line in lines if line != refused)


@pytest.mark.behaviour("SV-42", "SV-43")
def test_node_ports_are_masqueraded_unless_they_stay_on_the_node() -> None:
    port = ServicePort("ns/web:http", "tcp", "10.96.0.7", 80, WEB.targets, 30080, WEB.targets[:1])
    lines = rules(services=(port,))
    assert "-A NODEPORTS -p tcp -m tcp --dport 30080 -j MARK --or-mark 0x4000" in lines
    assert "-A SERVICES -m addrtype --dst-type LOCAL ! -d 127.0.0.0/8 -j NODEPORTS" in lines
    local = ServicePort("ns/web:http", "tcp", "10.96.0.7", 80, WEB.targets, 30080, WEB.targets[:1], True)
    assert [line for line in rules(services=(local,)) if "--dport 30080" in line and "MARK" in line] == []


@pytest.mark.behaviour("SV-51")
def test_pods_leave_the_cluster_with_the_nodes_address() -> None:
    lines = rules(pod_range="10.244.0.0/24", other_ranges=("10.244.1.0/24",))
    out = [line for line in lines if line.startswith("-A POSTROUTING -s")]
    assert out == [
        "-A POSTROUTING -s 10.244.0.0/24 -d 10.244.1.0/24 -j RETURN",
        "-A POSTROUTING -s 10.244.0.0/24 ! -d 10.244.0.0/24 -j MASQUERADE",
    ]
    assert {"-A FORWARD -s 10.244.0.0/24 -j ACCEPT", "-A FORWARD -d 10.244.0.0/24 -j ACCEPT"} <= set(lines)


@pytest.mark.behaviour("SV-40", "SV-44")
def test_only_chains_of_the_agent_are_touched_and_old_ones_are_removed() -> None:
    prefix = chain_prefix("agent")
    saved = f"*nat\n:PREROUTING ACCEPT [0:0]\n:{prefix}SERVICES - [0:0]\n:{prefix}OLD - [0:0]\n:DRAY-OTHER - [0:0]\n"
    saved += f"-A PREROUTING -j {prefix}SERVICES\n-A OUTPUT -j DRAY-OTHER\nCOMMIT\n"
    assert own_chains(saved, "agent") == [f"{prefix}SERVICES", f"{prefix}OLD"]
    text = restore_step(NetworkState("agent"), own_chains(saved, "agent")).stdin
    assert f"-X {prefix}OLD\n" in text
    assert f"-X {prefix}SERVICES\n" not in text
    touched = {line.split()[1] for line in text.splitlines() if line.startswith(("-A", "-X"))}
    assert all(chain.startswith(prefix) for chain in touched)
    assert all(len(line.split()[0]) <= 29 for line in text.splitlines() if line.startswith(":"))
    first, second = cleanup_steps(saved, "agent", "nat")
    assert first.argv[-4:] == ("-D", "PREROUTING", "-j", f"{prefix}SERVICES")
    assert second.stdin == (
        f"*nat\n:{prefix}SERVICES - [0:0]\n:{prefix}OLD - [0:0]\n-X {prefix}SERVICES\n-X {prefix}OLD\nCOMMIT\n"
    )
    assert all(rule.startswith(f"-j {prefix}") for _, _, rule in jumps("agent"))
