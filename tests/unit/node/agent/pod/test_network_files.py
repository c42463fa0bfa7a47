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
    assert dns.to_file().splitlines()[-2:] == ["search node.test pod.test", "options ndots:1 edns0"]


@pytest.mark.behaviour("ST-76")
def test_what_does_not_fit_into_resolv_conf_is_named() -> None:
    config = {"nameservers": ["192.0.2.3", "192.0.2.4"], "searches": [f"{'x' * 60}{n}.test" for n in range(40)]}
    dns, problems = dns_of(pod(dnsConfig=config), NODE)
    assert dns is not None
    assert dns.servers == ("192.0.2.1", "192.0.2.2", "192.0.2.3")
    assert len(" ".join(dns.searches)) <= 2048
    assert len(dns.searches) <= 32
    assert [text.split(" limits")[0] for text in problems] == ["Nameserver", "Search Line"]
