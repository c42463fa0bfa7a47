"""The rejections of nodes by name, of which many nodes share a few objects. Pure.

In a large cluster a Pod that fits nowhere is rejected by thousands of nodes. The different rejections are counted as
they are entered, so that to count or to copy them costs nearly nothing for each node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from itertools import chain, compress
from operator import itemgetter
from typing import Final, TypeAlias

from dray.framework.node_info import NodeInfo
from dray.framework.snapshot import Snapshot
from dray.framework.status import Status

# A status, the number of nodes that have it, and the name of one of them.
StatusCount: TypeAlias = tuple[Status, int, str]

# Different statuses that have numbers, by which they are counted for a part of the nodes; there are rarely more.
NUMBERED_MAX: Final = 16
# Different details of a reason in a message; there can be as many as nodes.
DETAILS_MAX: Final = 10
_UNNUMBERED: Final = 255
_NO_STATUS: Final = 0


class NodeStatuses(MutableMapping[str, Status]):
    """The statuses of nodes of a snapshot, whose set of nodes must not change meanwhile."""

    __slots__ = ("_numbers", "_shared", "_snapshot", "_start", "by_index")

    def __init__(
        self,
        snapshot: Snapshot,
        start: int = 0,
        by_index: list[Status | None] | None = None,
        numbers: bytearray | None = None,
        shared: Iterable[_Shared] = (),
    ) -> None:
        self._snapshot = snapshot
        # The first index of an iteration.
        self._start = start
        # By index of the node; None if it has no status. Changed by `put` and `drop` alone.
        self.by_index: list[Status | None] = [None] * len(snapshot) if by_index is None else by_index
        # The numbers of the statuses, by index of the node.
        self._numbers = bytearray(len(snapshot)) if numbers is None else numbers
        # The different statuses, by identity.
        self._shared = {id(item.status): item for item in shared}

    def put(self, index: int, status: Status) -> None:
        """Set the status of a node that has none."""
        self.by_index[index] = status
        shared = self._shared.get(id(status))
        if shared is None:
            shared = self._shared[id(status)] = _Shared(status, 1, index, self._unused_number())
        else:
            shared.count += 1
        self._numbers[index] = shared.number

    def drop(self, index: int) -> None:
        """Remove the status of a node that has one."""
        shared = self._shared[id(self.by_index[index])]
        shared.count -= 1
        if not shared.count:
            del self._shared[id(shared.status)]
        self.by_index[index] = None
        self._numbers[index] = _NO_STATUS

    def _unused_number(self) -> int:
        used = {item.number for item in self._shared.values()}
        return next((number for number in range(1, NUMBERED_MAX + 1) if number not in used), _UNNUMBERED)

    def copy_from(self, start: int) -> NodeStatuses:
        """Return a copy that is iterated from an index on, and around."""
        shared = [_Shared(item.status, item.count, item.example, item.number) for item in self._shared.values()]
        return NodeStatuses(self._snapshot, start, self.by_index.copy(), self._numbers.copy(), shared)

    def copy(self) -> NodeStatuses:
        """Return a copy with the same order."""
        return self.copy_from(self._start)

    # --- Counting. ---

    def distinct(self) -> list[Status]:
        """Return the different statuses, by identity."""
        return [item.status for item in self._shared.values()]

    def counts(self) -> list[StatusCount]:
        """Return the different statuses, each with its number of nodes and one of them."""
        nodes = self._snapshot.nodes
        return [(item.status, item.count, nodes[self._example(item)].name) for item in self._shared.values()]

    def counts_within(self, start: int, count: int) -> list[StatusCount]:
        """Return the different statuses of so many nodes, beginning at an index and wrapping around.

        They are in the order of the first nodes that have them, and each is returned with the last one.
        """
        if not self._shared:
            return []
        wrapped = max(0, start + count - len(self.by_index))
        numbers = self._numbers[start : start + count] + self._numbers[:wrapped]
        if _UNNUMBERED in numbers:
            return self._counts_one_by_one(start, self.by_index[start : start + count] + self.by_index[:wrapped])
        found = [
            (numbers.find(item.number), numbers.rfind(item.number), numbers.count(item.number), item.status)
            for item in self._shared.values()
            if item.number in numbers
        ]
        found.sort(key=itemgetter(0))
        return [(status, nodes, self._name(start + last)) for _, last, nodes, status in found]

    def _counts_one_by_one(self, start: int, statuses: Sequence[Status | None]) -> list[StatusCount]:
        counts = Counter(map(id, statuses))
        last = {id(status): (status, position) for position, status in enumerate(statuses) if status is not None}
        return [(status, counts[key], self._name(start + position)) for key, (status, position) in last.items()]

    def _name(self, index: int) -> str:
        """Return the name of the node at an index, counted on after the last node."""
        return self._snapshot.nodes[index % len(self.by_index)].name

    def _example(self, item: _Shared) -> int:
        """Return a node with the status; the last known one may have another status by now."""
        if self.by_index[item.example] is not item.status:
            item.example = next(index for index, status in enumerate(self.by_index) if status is item.status)
        return item.example

    def names_with(self, statuses: Collection[Status]) -> list[str]:
        """Return the nodes that have one of the statuses, in order."""
        wanted = {id(status) for status in statuses} & self._shared.keys()
        if not wanted:
            return []
        nodes, by_index = self._snapshot.nodes, self.by_index
        selected = bytearray(_UNNUMBERED + 1)
        for key in wanted:
            selected[self._shared[key].number] = 1
        if selected[_UNNUMBERED]:
            return [nodes[index].name for index in self._order() if id(by_index[index]) in wanted]
        # No node is touched that has another status.
        flags = self._numbers.translate(selected)
        return [nodes[index].name for index in compress(self._order(), flags[self._start :] + flags[: self._start])]

    def nodes_with(self, statuses: Collection[Status]) -> Sequence[NodeInfo]:
        """Return the nodes that have one of the statuses, in the order of the snapshot."""
        wanted = {id(status) for status in statuses} & self._shared.keys()
        nodes, by_index = self._snapshot.nodes, self.by_index
        if sum(self._shared[key].count for key in wanted) == len(nodes):
            return nodes
        return [node for node, status in zip(nodes, by_index, strict=True) if id(status) in wanted]

    def _order(self) -> Iterator[int]:
        return chain(range(self._start, len(self.by_index)), range(self._start))

    # --- As a mapping. ---

    def __getitem__(self, name: str) -> Status:
        index = self._snapshot.index_of(name)
        status = None if index is None else self.by_index[index]
        if status is None:
            raise KeyError(name)
        return status

    def __setitem__(self, name: str, status: Status) -> None:
        index = self._snapshot.index_of(name)
        if index is None:
            raise KeyError(name)
        if self.by_index[index] is not None:
            self.drop(index)
        self.put(index, status)

    def __delitem__(self, name: str) -> None:
        index = self._snapshot.index_of(name)
        if index is None or self.by_index[index] is None:
            raise KeyError(name)
        self.drop(index)

    def __iter__(self) -> Iterator[str]:
        nodes, by_index = self._snapshot.nodes, self.by_index
        return (nodes[index].name for index in self._order() if by_index[index] is not None)

    def __len__(self) -> int:
        return sum([item.count for item in self._shared.values()])


class _Shared:
    """A status that nodes share: how many, and the index of one of them, which may have another one by now."""

    __slots__ = ("count", "example", "number", "status")

    def __init__(self, status: Status, count: int, example: int, number: int) -> None:
        self.status = status
        self.count = count
        self.example = example
        # No other status has it, unless it is that of all unnumbered ones.
        self.number = number


# --- For any mapping: small ones are made by hand. ---


def distinct_statuses(statuses: Mapping[str, Status]) -> Collection[Status]:
    """Return the different statuses of nodes, by identity."""
    if isinstance(statuses, NodeStatuses):
        return statuses.distinct()
    return {id(status): status for status in statuses.values()}.values()


def count_statuses(statuses: Mapping[str, Status]) -> list[StatusCount]:
    """Return the different statuses of nodes, each with its number of nodes and one of them."""
    if isinstance(statuses, NodeStatuses):
        return statuses.counts()
    examples = {id(status): (name, status) for name, status in statuses.items()}
    found: list[StatusCount] = []
    for key, count in Counter(map(id, statuses.values())).items():
        name, status = examples[key]
        found.append((status, count, name))
    return found


def count_reasons(counts: Iterable[StatusCount], others: Mapping[str, int]) -> list[str]:
    """Return each reason with its number of nodes, as in the messages of Kubernetes; details follow the sum.

    `others` are nodes without a status.
    """
    numbers: Counter[str] = Counter()
    details: dict[str, Counter[str]] = {}
    for status, count, _ in counts:
        for reason in status.reasons:
            numbers[reason] += count
        if status.detail:
            details.setdefault(status.reasons[0], Counter())[status.detail] += count
    numbers.update(others)
    return sorted(
        f"{count} {reason}{_details_text(details[reason], count) if reason in details else ''}"
        for reason, count in numbers.items()
    )


def _details_text(details: Counter[str], count: int) -> str:
    """Return the details of a reason, the most frequent first, with their numbers unless all nodes have the same.

    Equally frequent ones are in the order of their texts, so that the message does not depend on the order of nodes.
    """
    if len(details) == 1 and details.total() == count:
        return f" ({next(iter(details))})"
    ordered = sorted(details.items(), key=lambda item: (-item[1], item[0]))
    texts = [f"{number}: {detail}" for detail, number in ordered[:DETAILS_MAX]]
    others = sum(number for _, number in ordered[DETAILS_MAX:])
    return f" ({'; '.join([*texts, f'{others}: other details'] if others else texts)})"


def names_with(statuses: Mapping[str, Status], wanted: Collection[Status]) -> list[str]:
    """Return the nodes that have one of the statuses, by identity, in order."""
    if isinstance(statuses, NodeStatuses):
        return statuses.names_with(wanted)
    keys = {id(status) for status in wanted}
    return [name for name, status in statuses.items() if id(status) in keys]


def copy_of(statuses: Mapping[str, Status]) -> MutableMapping[str, Status]:
    """Return a copy that can be changed."""
    return statuses.copy() if isinstance(statuses, NodeStatuses) else dict(statuses)
