"""What came of a request: what every node said, what was given and why, what PodResources tells. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dray.api.document import Document
from dray.cmd.demo.board import Look, board
from dray.cmd.demo.scene import Fact
from dray.cmd.demo.story import DRA_DRIVER, RESOURCE, DemoNode
from dray.sim.explain.answers import Answer, NodeAnswer

CHANGES_MAX = 3
# Differ from run to run and say nothing to a reader.
_HIDDEN = ("GPU_CLAIM=", "ACME_SHARE=")


@dataclass(frozen=True, slots=True)
class ContainerDevices:
    """What PodResources says of one container."""

    pod: str
    container: str
    # resource name -> ids that a device plugin gave.
    plugin: Mapping[str, tuple[str, ...]]
    # `driver/pool/device` by claim.
    claims: Mapping[str, tuple[str, ...]]


def hardware(look: Look, nodes: Sequence[DemoNode]) -> Iterator[Fact]:
    """What there is on the nodes."""
    rows = board(look, nodes)
    drivers = [row for row in rows if row.served_by == DRA_DRIVER]
    devices = sum(len(item["spec"].get("devices", ())) for item in look.slices)
    cards = sum(len(row.cards) for row in drivers)
    yield Fact("nodes", f"{len(rows)} agents, each with its own folder and sockets; containers are processes")
    yield Fact("dra", f"{len(drivers)} drivers publish {cards} cards, whole and in parts: {devices} devices")
    for row in rows:
        if row not in drivers:
            yield Fact("plugin", f"the device plugin of {row.name} offers {RESOURCE}: {len(row.cards)}")


def tried(answer: Answer) -> Iterator[Fact]:
    """What every node said."""
    for item in answer.nodes:
        yield Fact("tried", f"{item.node}: {'yes' if item.fits else 'no'}, {_why(item)}", "green" if item.fits else "")


def _why(item: NodeAnswer) -> str:
    return _plain(item.why)


def _plain(text: str) -> str:
    """Without quotes around the names of requests."""
    return re.sub(r'request "([^"]*)"', r"\1", text)


def passed_over(answer: Answer) -> Iterator[Fact]:
    """Why the better alternatives were not given."""
    for item in answer.given:
        for better in item.passed_over:
            yield Fact("why", f"{answer.node} had no {_plain(better)}")


def advice(answer: Answer) -> Iterator[Fact]:
    """What would let the Pod be placed."""
    for change in answer.changes[:CHANGES_MAX]:
        yield Fact("helps", f"{change.text}: fits on {', '.join(change.nodes)}", "yellow")
    for holder in answer.holders[:CHANGES_MAX]:
        yield Fact("helps", holder, "yellow")


def given(pod: Document, look: Look, devices: Iterable[ContainerDevices]) -> Iterator[Fact]:
    """Which devices a Pod has, and who gave them."""
    name, node = pod["metadata"]["name"], pod["spec"].get("nodeName", "")
    for claim_name in claim_names(pod):
        claim = look.claim(claim_name)
        results = (claim or {}).get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
        for result in results:
            by = "a claim that the scheduler made for it" if claim_name == special_claim(pod) else f"claim {claim_name}"
            yield Fact("given", f"{name} has {result['device']} of {node}{_choice(result)}, by {by}", "green")
        if classic := look.classic_claim(claim_name):
            yield from _negotiated(name, classic)
    for item in devices:
        if item.pod == name and RESOURCE in item.plugin:
            ids = ", ".join(item.plugin[RESOURCE])
            yield Fact("given", f"{name} has {ids} of {node}, by the node's device plugin", "green")


def _negotiated(pod: str, claim: Document) -> Iterator[Fact]:
    status = claim["status"]
    what = ", ".join(f"{name} {value}" for name, value in sorted(status.get("attributes", {}).items()))
    yield Fact("given", f"{pod} has {what}, allocated by {status['driverName']} itself", "green")


def is_negotiated(states: Iterable[Document]) -> bool:
    """Whether a classic claim has been seen allocated."""
    return any(state.get("status", {}).get("attributes") for state in states)


def negotiation(states: Iterable[Document]) -> Iterator[Fact]:
    """What scheduler and driver told each other, from all states that a classic claim was in."""
    said = dict.fromkeys(text for state in states for text in _said(state.get("status", {}).get("scheduling", {})))
    return (Fact("tried", text) for text in said)


def _said(scheduling: Document) -> Iterator[str]:
    scheduler, driver = scheduling.get("scheduler", {}), scheduling.get("driver", {})
    if nodes := scheduler.get("potentialNodes"):
        yield f"the scheduler proposes {', '.join(sorted(nodes))}"
    if nodes := driver.get("unsuitableNodes"):
        yield f"the driver finds {', '.join(sorted(nodes))} unsuitable"
    if node := scheduler.get("selectedNode"):
        yield f"the scheduler selects {node}"
    for term in driver.get("availableOnNodes", {}).get("nodeSelectorTerms", ()):
        names = [value for item in term.get("matchFields", ()) for value in item.get("values", ())]
        yield f"the driver allocates, for use on {', '.join(names)}"


def _choice(result: Document) -> str:
    name, _, alternative = result["request"].partition("/")
    return f" as alternative {alternative} of request {name}" if alternative else ""


def claim_names(pod: Document) -> Iterator[str]:
    """The claims of a Pod, made for it or named by it."""
    status = pod.get("status", {})
    made = {item["name"]: item.get("resourceClaimName", "") for item in status.get("resourceClaimStatuses", ())}
    for entry in pod["spec"].get("resourceClaims", ()):
        if "template" in entry:
            yield f"{pod['metadata']['name']}-{entry['name']}"
        elif found := entry.get("resourceClaimName") or made.get(entry["name"]):
            yield found
    if special := special_claim(pod):
        yield special


def special_claim(pod: Document) -> str:
    """The claim for a Pod's extended resources; empty when it has none."""
    status: dict[str, str] = pod.get("status", {}).get("extendedResourceClaimStatus", {})
    return status.get("resourceClaimName", "")


def served_by(pods: Sequence[Document], look: Look) -> Iterator[Fact]:
    """Who serves the extended resource on the nodes of the Pods, and why."""
    for name in sorted({pod["spec"].get("nodeName", "") for pod in pods}):
        node = look.node(name)
        if node is None:
            continue
        count = node["status"]["allocatable"].get(RESOURCE, "0")
        if count != "0":
            yield Fact("why", f"{name} has {RESOURCE}: {count} from its device plugin, which goes first")
        else:
            yield Fact("why", f"{name} has none of its own: the class that names {RESOURCE} serves it, by a claim")


def sees(pod: Document, log: str) -> Iterator[Fact]:
    """What the container wrote: its variables."""
    for line in log.splitlines():
        if not line.startswith(_HIDDEN):
            yield Fact("sees", f"{pod['metadata']['name']}: {line}", "cyan")


def pod_resources(node: str, devices: Iterable[ContainerDevices]) -> Iterator[Fact]:
    """What a node says of the devices of its Pods."""
    for item in devices:
        for resource, ids in item.plugin.items():
            yield Fact(node, f"{item.pod}/{item.container}: {resource} {', '.join(ids)}")
        for claim, names in item.claims.items():
            yield Fact(node, f"{item.pod}/{item.container}: claim {claim}: {', '.join(names)}")
