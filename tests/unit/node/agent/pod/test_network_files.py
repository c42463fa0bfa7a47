"""A Pod's /etc/hosts and resolv.conf."""

from __future__ import annotations

from typing import Any

import pytest

from dray.node.agent.pod.network_files import dns_of, hostname_of, hosts_file
from dray.node.runtimes.runtime import Dns
from tests.unit.node.agent.builders import pod

NODE = "# comment\nnameserver 192.0.2.1\nnameserver 192.0.2.2\nsearch node.test.\noptions ndots:5 edns0\n"


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ({}, "p"),
        ({"hostname": "h"}, "h"),
        ({"hostname": "h", "subdomain": "s"}, "h"),
        ({"hostname": "h", "subdomain": "s", "setHostnameAsFQDN": True}, "h.s.ns.svc.cluster.local"),
        ({"setHostnameAsFQDN": True}, "p"),
        ({"hostname": "h", "hostnameOverride": "o.example"}, "o.example"),
    ],
)
@pytest.mark.behaviour("ST-76")
def test_host_names(spec: dict[str, Any], name: str) -> None:
    assert hostname_of(pod(**spec)) == name


@pytest.mark.behaviour("ST-76")
def test_hosts_of_the_node_are_kept_with_its_network() -> None:
    subject = pod(hostNetwork=True, hostAliases=[{"ip": "192.0.2.9", "hostnames": ["x"]}])
    assert hosts_file(subject, ["192.0.2.3"], "192.0.2.4 node\n") == (
        "# Kubernetes-managed hosts file (host network).\n192.0.2.4 node\n"
        "\n# Entries added by HostAliases.\n192.0.2.9\tx\n"
    )


@pytest.mark.behaviour("ST-76")
def test_dns_of_the_node_is_not_changed_without_a_config() -> None:
    assert dns_of(pod(), NODE) == (None, ())
    assert dns_of(pod(dnsPolicy="Default"), NODE) == (None, ())


@pytest.mark.behaviour("ST-76")
def test_dns_config_is_added_to_the_node_and_replaces_its_options() -> None:
    config = {
        "nameservers": ["192.0.2.2", "192.0.2.3"],
        "searches": ["pod.test"],
        "options": [{"name": "ndots", "value": "1"}],
    }
    dns, problems = dns_of(pod(dnsConfig=config), NODE)
    assert dns == Dns(("192.0.2.1", "192.0.2.2", "192.0.2.3"), ("node.test", "pod.test"), ("ndots:1", "edns0"))
    assert problems == ()


@pytest.mark.behaviour("ST-76")
def test_what_does_not_fit_into_resolv_conf_is_named() -> None:
    config = {"nameservers": ["192.0.2.3", "192.0.2.4"], "searches": [f"{'x' * 60}{n}.test" for n in range(40)]}
    dns, problems = dns_of(pod(dnsConfig=config), NODE)
    assert dns is not None
    assert dns.servers == ("192.0.2.1", "192.0.2.2", "192.0.2.3")
    assert len(" ".join(dns.searches)) <= 2048
    assert len(dns.searches) <= 32
    assert [(reason, text.split(" limits")[0]) for reason, text in problems] == [
        ("DNSConfigForming", "Nameserver"),
        ("DNSConfigForming", "Search Line"),
    ]


CLUSTER = Dns(
    ("10.96.0.10",), ("ns.svc.cluster.local", "svc.cluster.local", "cluster.local", "node.test"), ("ndots:5",)
)


@pytest.mark.behaviour("SV-23")
@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, CLUSTER),
        ({"dnsPolicy": "ClusterFirst"}, CLUSTER),
        ({"dnsPolicy": "ClusterFirst", "hostNetwork": True}, None),
        ({"dnsPolicy": "ClusterFirstWithHostNet", "hostNetwork": True}, CLUSTER),
        ({"dnsPolicy": "Default"}, None),
        ({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["192.0.2.9"]}}, Dns(("192.0.2.9",))),
    ],
)
def test_dns_policies(spec: dict[str, Any], expected: Dns | None) -> None:
    assert dns_of(pod(**spec), NODE, ("10.96.0.10",)) == (expected, ())


@pytest.mark.behaviour("SV-23")
def test_dns_config_is_added_to_the_clusters() -> None:
    config = {"nameservers": ["192.0.2.9"], "searches": ["x.test"], "options": [{"name": "ndots", "value": "2"}]}
    dns, problems = dns_of(pod(dnsConfig=config), NODE, ("10.96.0.10",))
    assert dns == Dns(("10.96.0.10", "192.0.2.9"), (*CLUSTER.searches, "x.test"), ("ndots:2",))
    assert problems == ()


@pytest.mark.behaviour("SV-23", "SV-33")
def test_without_dns_of_the_cluster_the_nodes_is_used_and_an_event_says_so() -> None:
    dns, problems = dns_of(pod(), NODE, ())
    assert dns is None
    ((reason, text),) = problems
    assert reason == "MissingClusterDNS"
    assert text.startswith('pod: "p_ns(')
    assert text.endswith('Falling back to "Default" policy.')
    # The node does not write the files of its processes.
    assert dns_of(pod(), NODE, None) == (None, ())


@pytest.mark.behaviour("SV-22")
def test_hosts_file_of_a_pod() -> None:
    subject = pod(hostname="h", subdomain="s", hostAliases=[{"ip": "192.0.2.9", "hostnames": ["x", "y"]}])
    lines = hosts_file(subject, ["10.244.0.5"], "192.0.2.4 node\n").splitlines()
    assert lines[0] == "# Kubernetes-managed hosts file."
    assert lines[1] == "127.0.0.1\tlocalhost"
    assert lines[-4:] == [
        "10.244.0.5\th.s.ns.svc.cluster.local\th",
        "",
        "# Entries added by HostAliases.",
        "192.0.2.9\tx\ty",
    ]
