"""The hardware of every node and who has it, from the cluster's objects. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dray.api.document import Document
from dray.cmd.demo.scene import Card, NodeRow
from dray.cmd.demo.story import DRIVER, RESOURCE, DemoNode

# The counter of a card that its partitions share.
COUNTER = "slices"


@dataclass(frozen=True, slots=True)
class Look:
    """The cluster's objects at one moment."""

    nodes: Sequence[Document] = ()
    pods: Sequence[Document] = ()
    claims: Sequence[Document] = ()
    slices: Sequence[Document] = ()
    # Claims of cdi.k8s.io.
    classic: Sequence[Document] = ()

    def pods_of(self, story: str) -> list[Document]:
        """The Pods of a step, by name."""
        return [pod for pod in self.pods if pod["metadata"].get("labels", {}).get("story") == story]

    def node(self, name: str) -> Document | None:
        """One node."""
        return _named(self.nodes, name)

    def claim(self, name: str) -> Document | None:
        """One claim of the demo's namespace."""
        return _named(self.claims, name)

    def classic_claim(self, name: str) -> Document | None:
        """One classic claim of the demo's namespace."""
        return _named(self.classic, name)

    def slices_of(self, node: str) -> list[Document]:
        """What drivers publish for a node."""
        return [item for item in self.slices if item["spec"].get("nodeName") == node]


def _named(documents: Sequence[Document], name: str) -> Document | None:
    return next((item for item in documents if item["metadata"]["name"] == name), None)


def is_running(pod: Document) -> bool:
    """Whether its containers run."""
    statuses = pod.get("status", {}).get("containerStatuses", ())
    return bool(statuses) and all("running" in item.get("state", {}) for item in statuses)


def is_waiting(pod: Document) -> bool:
    """Whether the scheduler has found no place for it."""
    conditions = pod.get("status", {}).get("conditions", ())
    return any(item["type"] == "PodScheduled" and item.get("reason") == "Unschedulable" for item in conditions)


def standing(pod: Document) -> str:
    """How far a Pod has come, in a few words."""
    if is_running(pod):
        return f"runs on {pod['spec']['nodeName']}"
    if node := pod["spec"].get("nodeName"):
        return f"starts on {node}"
    return "waits" if is_waiting(pod) else "is looked at"


def is_ready(node: Document) -> bool:
    """Whether the node says so."""
    conditions = node.get("status", {}).get("conditions", ())
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


def is_complete(look: Look, nodes: Sequence[DemoNode]) -> bool:
    """Whether every node is ready and has the hardware that the story needs."""
    rows = board(look, nodes)
    wanted = [node.cards if node.model else 1 for node in nodes]
    return all(row.ready and len(row.cards) >= count for row, count in zip(rows, wanted, strict=True))


def board(look: Look, nodes: Sequence[DemoNode]) -> tuple[NodeRow, ...]:
    """One row for each node of the story."""
    return tuple(_row(look, node) for node in nodes)


def _row(look: Look, node: DemoNode) -> NodeRow:
    found = look.node(node.name)
    ready = found is not None and is_ready(found)
    cards = tuple(_driver_cards(look, node) if node.model else _plugin_cards(look, found))
    pods = tuple(pod["metadata"]["name"] for pod in look.pods if pod["spec"].get("nodeName") == node.name)
    return NodeRow(node.name, node.served_by, ready, cards, pods)


def _driver_cards(look: Look, node: DemoNode) -> Iterator[Card]:
    slices = look.slices_of(node.name)
    devices = {device["name"]: device for item in slices for device in item["spec"].get("devices", ())}
    # A pool is usable when all of its slices are there: the one with counters, and the one with devices.
    if not devices or len(slices) < slices[0]["spec"]["pool"]["resourceSliceCount"]:
        return
    held = _held(look, node.name)
    for item in slices:
        for counters in item["spec"].get("sharedCounters", ()):
            total = int(counters["counters"][COUNTER]["value"])
            used = sum(_consumed(devices[name], counters["name"]) for name in held if name in devices)
            yield Card(node.model, min(used, total), total)


def _held(look: Look, pool: str) -> list[str]:
    return [
        result["device"]
        for claim in look.claims
        for result in claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
        if (result["driver"], result["pool"]) == (DRIVER, pool)
    ]


def _consumed(device: Document, counter_set: str) -> int:
    return sum(
        int(item["counters"][COUNTER]["value"])
        for item in device.get("consumesCounters", ())
        if item["counterSet"] == counter_set
    )


def _plugin_cards(look: Look, node: Document | None) -> Iterator[Card]:
    count = int((node or {}).get("status", {}).get("allocatable", {}).get(RESOURCE, "0"))
    if node is None or not count:
        return
    name = node["metadata"]["name"]
    used = sum(_limit(pod) for pod in look.pods if pod["spec"].get("nodeName") == name)
    for number in range(count):
        yield Card(RESOURCE.partition("/")[2], int(number < used), 1)


def _limit(pod: Document) -> int:
    return sum(
        int(container.get("resources", {}).get("limits", {}).get(RESOURCE, "0"))
        for container in pod["spec"]["containers"]
    )
