"""The iptables rules of a node: Services, node ports and the way out. Pure.

All rules are in chains of the agent's own, whose text replaces what they had. Only jumps to them are in the chains that
the kernel calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from dray.node.network.links import Step, short_id
from dray.node.network.service_ports import ServicePort, Target

# Kubernetes' mark of packets whose source must become the node's.
MARK: Final = "0x4000"
_MARKED: Final = f"-j MARK --or-mark {MARK}"
_LOCAL: Final = "-m addrtype --dst-type LOCAL ! -d 127.0.0.0/8"
_ID_LENGTH: Final = 6


@dataclass(frozen=True, slots=True)
class NetworkState:
    """What the rules of a node follow from."""

    # Identifies the agent: several may run on one machine.
    agent: str
    # The addresses of its Pods; empty until they are known.
    pod_range: str = ""
    # The addresses of other nodes' Pods.
    other_ranges: tuple[str, ...] = ()
    services: tuple[ServicePort, ...] = ()


@dataclass(slots=True)
class _Table:
    """The chains of one table in the order of their definition, and their rules."""

    name: str
    chains: dict[str, list[str]] = field(default_factory=dict)

    def add(self, chain: str, *rules: str) -> None:
        self.chains.setdefault(chain, []).extend(rules)

    def to_text(self, removed: Iterable[str]) -> str:
        lines = [f"*{self.name}", *(f":{chain} - [0:0]" for chain in (*self.chains, *removed))]
        lines += [f"-A {chain} {rule}" for chain, rules in self.chains.items() for rule in rules]
        lines += [f"-X {chain}" for chain in removed]
        return "\n".join((*lines, "COMMIT")) + "\n"


def chain_prefix(agent: str) -> str:
    """Return what the names of all chains of an agent begin with."""
    return f"DRAY-{short_id(agent, _ID_LENGTH).upper()}-"


def jumps(agent: str) -> tuple[tuple[str, str, str], ...]:
    """Return table, chain and rule of every jump to the agent's chains."""
    prefix = chain_prefix(agent)
    return (
        ("nat", "PREROUTING", f"-j {prefix}SERVICES"),
        ("nat", "OUTPUT", f"-j {prefix}SERVICES"),
        ("nat", "POSTROUTING", f"-j {prefix}POSTROUTING"),
        ("filter", "FORWARD", f"-j {prefix}FORWARD"),
        ("filter", "OUTPUT", f"-j {prefix}REJECT"),
    )


def restore_step(state: NetworkState, existing: Sequence[str]) -> Step:
    """Return how to replace the rules; `existing` are the nat chains of the agent that are there now."""
    nat, filters = _nat(state), _filter(state)
    removed = sorted(set(existing) - nat.chains.keys())
    return Step(("iptables-restore", "-w", "5", "--noflush"), stdin=nat.to_text(removed) + filters.to_text(()))


def _nat(state: NetworkState) -> _Table:
    prefix = chain_prefix(state.agent)
    table = _Table("nat")
    services, node_ports = f"{prefix}SERVICES", f"{prefix}NODEPORTS"
    out = f"{prefix}POSTROUTING"
    for chain in (services, node_ports, out):
        table.add(chain)
    for port in state.services:
        match = f"-p {port.protocol} -m {port.protocol} --dport"
        if port.targets:
            chain = _service_chain(table, prefix, port, port.targets, "svc")
            table.add(services, f"-d {port.address}/32 {match} {port.port} -j {chain}")
        if port.node_port and port.external:
            chain = _service_chain(table, prefix, port, port.external, "ext")
            masquerade = () if port.is_external_local else (f"{match} {port.node_port} {_MARKED}",)
            table.add(node_ports, *masquerade, f"{match} {port.node_port} -j {chain}")
    # Ports of nodes come last: a cluster IP is none of the node's addresses.
    table.add(services, f"{_LOCAL} -j {node_ports}")
    table.add(out, f"-m mark --mark {MARK}/{MARK} -j MASQUERADE")
    if state.pod_range:
        leaves = f"-s {state.pod_range}"
        table.add(out, *(f"{leaves} -d {cidr} -j RETURN" for cidr in sorted(state.other_ranges)))
        table.add(out, f"{leaves} ! -d {state.pod_range} -j MASQUERADE")
    return table


def _service_chain(table: _Table, prefix: str, port: ServicePort, targets: Sequence[Target], role: str) -> str:
    chain = prefix + short_id(f"{role} {port.name} {port.protocol} {port.port}", 16).upper()
    table.add(chain)
    ends = [_target_chain(table, prefix, port, target) for target in targets]
    if port.affinity_seconds:
        seconds = f"--rcheck --seconds {port.affinity_seconds} --reap"
        table.add(chain, *(f"-m recent --name {end} {seconds} -j {end}" for end in ends))
    for position, end in enumerate(ends):
        left = len(ends) - position
        chance = f"-m statistic --mode random --probability {1 / left:.10f} " if left > 1 else ""
        table.add(chain, f"{chance}-j {end}")
    return chain


def _target_chain(table: _Table, prefix: str, port: ServicePort, target: Target) -> str:
    chain = prefix + short_id(f"end {port.name} {port.protocol} {target.address} {target.port}", 16).upper()
    if chain in table.chains:
        return chain
    recent = f"-m recent --name {chain} --set " if port.affinity_seconds else ""
    table.add(
        chain,
        # An endpoint that calls its own Service must not get a packet from itself.
        f"-s {target.address}/32 {_MARKED}",
        f"-p {port.protocol} -m {port.protocol} {recent}-j DNAT --to-destination {target.address}:{target.port}",
    )
    return chain


def _filter(state: NetworkState) -> _Table:
    prefix = chain_prefix(state.agent)
    table = _Table("filter")
    forward, reject = f"{prefix}FORWARD", f"{prefix}REJECT"
    table.add(forward, f"-j {reject}")
    table.add(reject)
    for port in state.services:
        match = f"-p {port.protocol} -m {port.protocol} --dport"
        refuse = "-j REJECT --reject-with icmp-port-unreachable"
        if not port.targets:
            table.add(reject, f"-d {port.address}/32 {match} {port.port} {refuse}")
    if state.pod_range:
        # Others, such as Docker, may have set the policy to DROP.
        table.add(forward, f"-s {state.pod_range} -j ACCEPT", f"-d {state.pod_range} -j ACCEPT")
    return table


def own_chains(saved: str, agent: str) -> list[str]:
    """Return the chains of the agent in the output of iptables-save."""
    prefix = f":{chain_prefix(agent)}"
    return [line[1:].split()[0] for line in saved.splitlines() if line.startswith(prefix)]


def own_jumps(saved: str, agent: str, table: str) -> list[tuple[str, str, str]]:
    """Return those jumps of a table that are in the output of iptables-save."""
    lines = set(saved.splitlines())
    return [jump for jump in jumps(agent) if jump[0] == table and f"-A {jump[1]} {jump[2]}" in lines]


def cleanup_steps(saved: str, agent: str, table: str) -> Iterator[Step]:
    """Yield how to remove everything of the agent from a table, given its iptables-save."""
    for _, chain, rule in own_jumps(saved, agent, table):
        yield Step(("iptables", "-w", "5", "-t", table, "-D", chain, *rule.split()))
    if chains := own_chains(saved, agent):
        yield Step(("iptables-restore", "-w", "5", "--noflush"), stdin=_Table(table).to_text(chains))
