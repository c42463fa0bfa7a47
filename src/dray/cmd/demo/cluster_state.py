"""The cluster's objects, and the devices of every node and their usage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dray.api.devices import results_in
from dray.api.document import Document
from dray.cmd.demo.scenario import DRIVER, RESOURCE, DemoNode
from dray.cmd.demo.screen import Card, NodeRow

# The shared counter of a card's partitions.
COUNTER = "slices"


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The cluster's objects at one moment."""

    nodes: Sequence[Document] = ()
    pods: Sequence[Document] = ()
    claims: Sequence[Document] = ()
    slices: Sequence[Document] = ()
    # Claims of cdi.k8s.io.
    classic: Sequence[Document] = ()

    def pods_of(self, story: str) -> list[Document]:
        """Return the Pods of a step."""
        return [pod for pod in self.pods if pod["metadata"].get("labels", {}).get("story") == story]

    def node(self, name: str) -> Document | None:
        """Return a node."""
        return _named(self.nodes, name)

    def claim(self, name: str) -> Document | None:
        """Return a claim."""
        return _named(self.claims, name)

    def classic_claim(self, name: str) -> Document | None:
        """Return a classic claim."""
        return _named(self.classic, name)

    def slices_of(self, node: str) -> list[Document]:
        """Return the slices of a node."""
        return [item for item in self.slices if item["spec"].get("nodeName") == node]


def _named(documents: Sequence[Document], name: str) -> Document | None:
    return next((item for item in documents if item["metadata"]["name"] == name), None)


def is_running(pod: Document) -> bool:
    """Return whether all containers are running."""
    statuses = pod.get("status", {}).get("containerStatuses", ())
    return bool(statuses) and all("running" in item.get("state", {}) for item in statuses)


def is_unschedulable(pod: Document) -> bool:
    """Return whether the scheduler reported the Pod as unschedulable."""
    conditions = pod.get("status", {}).get("conditions", ())
    return any(item["type"] == "PodScheduled" and item.get("reason") == "Unschedulable" for item in conditions)


def pod_progress(pod: Document) -> str:
    """Return the state of a Pod."""
    if is_running(pod):
        return f"is running on {pod['spec']['nodeName']}"
    if node := pod["spec"].get("nodeName"):
        return f"is starting on {node}"
    return "is unschedulable" if is_unschedulable(pod) else "is being scheduled"


def is_ready(node: Document) -> bool:
    """Return whether the node is ready."""
    conditions = node.get("status", {}).get("conditions", ())
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


def is_complete(state: ClusterState, nodes: Sequence[DemoNode]) -> bool:
    """Return whether every node is ready and has the devices that the scenario needs."""
    rows = node_rows(state, nodes)
    wanted = [node.cards if node.model else 1 for node in nodes]
    return all(row.ready and len(row.cards) >= count for row, count in zip(rows, wanted, strict=True))


def node_rows(state: ClusterState, nodes: Sequence[DemoNode]) -> tuple[NodeRow, ...]:
    """Return one row per node of the scenario."""
    return tuple(_row(state, node) for node in nodes)


def _row(state: ClusterState, node: DemoNode) -> NodeRow:
    found = state.node(node.name)
    ready = found is not None and is_ready(found)
    cards = tuple(_driver_cards(state, node) if node.model else _plugin_cards(state, found))
    pods = tuple(pod["metadata"]["name"] for pod in state.pods if pod["spec"].get("nodeName") == node.name)
    return NodeRow(node.name, node.served_by, ready, cards, pods)


def _driver_cards(state: ClusterState, node: DemoNode) -> Iterator[Card]:
    slices = state.slices_of(node.name)
    devices = {device["name"]: device for item in slices for device in item["spec"].get("devices", ())}
    # A pool is usable when it is complete: one slice with counters, and one with devices.
    if not devices or len(slices) < slices[0]["spec"]["pool"]["resourceSliceCount"]:
        return
    held = _held(state, node.name)
    for item in slices:
        for counters in item["spec"].get("sharedCounters", ()):
            total = int(counters["counters"][COUNTER]["value"])
            used = sum(_consumed(devices[name], counters["name"]) for name in held if name in devices)
            yield Card(node.model, min(used, total), total)


def _held(state: ClusterState, pool: str) -> list[str]:
    return [
        result["device"]
        for claim in state.claims
        for result in results_in(claim)
        if (result["driver"], result["pool"]) == (DRIVER, pool)
    ]


def _consumed(device: Document, counter_set: str) -> int:
    return sum(
        int(item["counters"][COUNTER]["value"])
        for item in device.get("consumesCounters", ())
        if item["counterSet"] == counter_set
    )


def _plugin_cards(state: ClusterState, node: Document | None) -> Iterator[Card]:
    count = int((node or {}).get("status", {}).get("allocatable", {}).get(RESOURCE, "0"))
    if node is None or not count:
        return
    name = node["metadata"]["name"]
    used = sum(_limit(pod) for pod in state.pods if pod["spec"].get("nodeName") == name)
    for number in range(count):
        yield Card(RESOURCE.partition("/")[2], int(number < used), 1)


def _limit(pod: Document) -> int:
    return sum(
        int(container.get("resources", {}).get("limits", {}).get(RESOURCE, "0"))
        for container in pod["spec"]["containers"]
    )
