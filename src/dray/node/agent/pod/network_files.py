"""The content of a Pod's /etc/hosts and resolv.conf, as kubelet writes them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from dray.api.types.core_v1 import Pod, PodDNSConfig
from dray.node.runtimes.runtime import Dns

# Those of the C library's resolver, and kubelet's.
SERVERS_MAX: Final = 3
SEARCHES_MAX: Final = 32
SEARCH_LENGTH_MAX: Final = 2048
DNS_CONFIG_FORMING: Final = "DNSConfigForming"
MISSING_CLUSTER_DNS: Final = "MissingClusterDNS"
CLUSTER_DOMAIN: Final = "cluster.local"
HOSTNAME_LENGTH_MAX: Final = 63

_HOSTS: Final = "# Kubernetes-managed hosts file.\n"
_NODE_HOSTS: Final = "# Kubernetes-managed hosts file (host network).\n"
_LOCALHOST: Final = (
    "127.0.0.1\tlocalhost\n"
    "::1\tlocalhost ip6-localhost ip6-loopback\n"
    "fe00::0\tip6-localnet\n"
    "fe00::0\tip6-mcastprefix\n"
    "fe00::1\tip6-allnodes\n"
    "fe00::2\tip6-allrouters\n"
)


def short_hostname(pod: Pod) -> str:
    """Return the host name of a Pod without its domain."""
    spec = pod.spec
    return (spec.hostname or pod.metadata.name or "")[:HOSTNAME_LENGTH_MAX].rstrip("-.")


def domain_name(pod: Pod) -> str:
    """Return the host name of a Pod with its domain; empty if it has no subdomain."""
    if not pod.spec.subdomain:
        return ""
    return f"{short_hostname(pod)}.{pod.spec.subdomain}.{pod.metadata.namespace}.svc.{CLUSTER_DOMAIN}"


def hostname_of(pod: Pod) -> str:
    """Return the host name that the containers of a Pod see."""
    if pod.spec.hostname_override:
        return pod.spec.hostname_override
    return (domain_name(pod) if pod.spec.set_hostname_as_fqdn else "") or short_hostname(pod)


def hosts_file(pod: Pod, addresses: Sequence[str], node_hosts: str) -> str:
    """Return the Pod's /etc/hosts; with the host's network it is the node's, with the Pod's aliases."""
    if pod.spec.host_network:
        text = _NODE_HOSTS + node_hosts
    else:
        names = "\t".join(filter(None, (domain_name(pod), pod.spec.hostname_override or short_hostname(pod))))
        text = _HOSTS + _LOCALHOST + "".join(f"{address}\t{names}\n" for address in addresses)
    if pod.spec.host_aliases:
        text += "\n# Entries added by HostAliases.\n"
        text += "".join("\t".join((alias.ip, *alias.hostnames)) + "\n" for alias in pod.spec.host_aliases)
    return text


def dns_of(
    pod: Pod, node_file: str, cluster_servers: Sequence[str] | None = None
) -> tuple[Dns | None, tuple[tuple[str, str], ...]]:
    """Return the Pod's DNS settings, None meaning the node's, and the reasons and messages of what it does not get.

    `cluster_servers` are the addresses of the cluster's DNS, None for containers whose files the node does not write.
    """
    config, policy = pod.spec.dns_config, pod.spec.dns_policy or "ClusterFirst"
    wants_cluster = policy == "ClusterFirstWithHostNet" or (policy == "ClusterFirst" and not pod.spec.host_network)
    missing: tuple[tuple[str, str], ...] = ()
    if wants_cluster and cluster_servers == ():
        missing = ((MISSING_CLUSTER_DNS, _missing_text(pod)),)
    if wants_cluster and cluster_servers:
        base = _cluster_first(pod, tuple(cluster_servers), parse_resolv(node_file))
    elif policy == "None":
        base = Dns()
    elif config is None:
        return None, missing
    else:
        base = parse_resolv(node_file)
    limited, problems = _limit(base if config is None else _merge(base, config))
    return limited, (*missing, *((DNS_CONFIG_FORMING, text) for text in problems))


def _cluster_first(pod: Pod, servers: tuple[str, ...], node: Dns) -> Dns:
    services = f"svc.{CLUSTER_DOMAIN}"
    searches = (f"{pod.metadata.namespace}.{services}", services, CLUSTER_DOMAIN, *node.searches)
    return Dns(servers, _unique(searches), ("ndots:5",))


def _missing_text(pod: Pod) -> str:
    metadata = pod.metadata
    return (
        f'pod: "{metadata.name}_{metadata.namespace}({metadata.uid})". kubelet does not have ClusterDNS IP configured '
        'and cannot create Pod using "ClusterFirst" policy. Falling back to "Default" policy.'
    )


def parse_resolv(text: str) -> Dns:
    """Return the settings of a resolv.conf."""
    servers: list[str] = []
    searches: list[str] = []
    options: list[str] = []
    for line in text.splitlines():
        match line.split():
            case ["nameserver", address, *_]:
                servers.append(address)
            case ["search", *domains]:
                searches = [domain.rstrip(".") or "." for domain in domains]
            case ["options", *given]:
                options += given
    return Dns(tuple(servers), tuple(searches), tuple(options))


def _merge(base: Dns, config: PodDNSConfig) -> Dns:
    options = {option.partition(":")[0]: option for option in base.options}
    for item in config.options:
        name = item.name or ""
        options[name] = f"{name}:{item.value}" if item.value else name
    return Dns(
        _unique((*base.servers, *config.nameservers)),
        _unique((*base.searches, *config.searches)),
        tuple(options.values()),
    )


def _unique(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))


def _limit(dns: Dns) -> tuple[Dns, tuple[str, ...]]:
    problems = []
    servers, searches = dns.servers[:SERVERS_MAX], list(dns.searches[:SEARCHES_MAX])
    while len(" ".join(searches)) > SEARCH_LENGTH_MAX:
        searches.pop()
    if len(servers) < len(dns.servers):
        problems.append(
            "Nameserver limits were exceeded, some nameservers have been omitted, "
            f"the applied nameserver line is: {' '.join(servers)}"
        )
    if len(searches) < len(dns.searches):
        problems.append(
            "Search Line limits were exceeded, some search paths have been omitted, "
            f"the applied search line is: {' '.join(searches)}"
        )
    return Dns(servers, tuple(searches), dns.options), tuple(problems)
