"""What a driver's author writes: a subclass of `ClassicController` with `allocate` and `deallocate`.

The kit promises the author: calls come one at a time (unless `concurrency` says otherwise), from one instance of the
driver in the cluster. `allocate` is called for a claim for which nothing is held: where that is not certain, after a
crash or an answer that got lost, `deallocate` comes first. So `deallocate` must cope with finding nothing to free, and
with a claim whose attributes were never recorded: what it needs then is the claim's uid. Whatever they raise is told
to the claim's user and tried again later. Plain methods run in a thread of their own and may block; coroutines run in
the event loop and must not.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from dray.api.cdi import ContainerEdits
from dray.api.classic_claims import UNLIMITED
from dray.api.document import UID, NamespacedName
from dray.api.types.core_v1 import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from dray.client.interface import Client


class NoRoomError(Exception):
    """Raised by `allocate`: not on this node, or not now; nothing is held."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim as the driver sees it; parameters are as written, `attributes` what `allocate` returned for it."""

    key: NamespacedName
    uid: UID
    class_name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    # Empty when the class is gone.
    class_parameters: Mapping[str, Any] = field(default_factory=dict)
    attributes: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return str(self.key)


@dataclass(frozen=True, slots=True)
class Allocation:
    """What was allocated.

    `attributes` must suffice to free it, since the class may be gone by then. `nodes` says where it can be used: names,
    a selector, or None for everywhere.
    """

    attributes: Mapping[str, str] = field(default_factory=dict)
    nodes: NodeSelector | Iterable[str] | None = None
    # How many Pods may use it at the same time.
    user_limit: int = 1
    # Any number may.
    shareable: bool = False

    @property
    def limit(self) -> int:
        """As the claim has it."""
        return UNLIMITED if self.shareable else self.user_limit

    @property
    def selector(self) -> NodeSelector | None:
        """As the claim has it."""
        if self.nodes is None or isinstance(self.nodes, NodeSelector):
            return self.nodes
        # A requirement on a node's name takes one value.
        return NodeSelector(node_selector_terms=tuple(_only(name) for name in sorted(set(self.nodes))))


def _only(node_name: str) -> NodeSelectorTerm:
    named = NodeSelectorRequirement(key="metadata.name", operator="In", values=(node_name,))
    return NodeSelectorTerm(match_fields=(named,))


class ClassicController:
    """Base of a classic driver's controller; `name` is the driver's, such as `gpu.example.com`."""

    name: ClassVar[str]
    # How many calls may run at the same time.
    concurrency: ClassVar[int] = 1
    # Resources are the nodes' own: each node has an instance that allocates there, and this one only judges nodes.
    node_local: ClassVar[bool] = False
    # The API server, for coroutines; set before anything is called.
    client: Client

    def start(self, held: Sequence[Claim]) -> Awaitable[None] | None:
        """Called before anything else with the claims that hold something, or may: the driver's memory."""

    def unsuitable_nodes(
        self, claims: Sequence[Claim], nodes: Sequence[str]
    ) -> Iterable[str] | Awaitable[Iterable[str]]:
        """Those of the nodes on which the claims of one Pod could not all be allocated now; must be quick."""
        return ()

    def choose_node(self, claim: Claim, refused: Sequence[str]) -> str | Awaitable[str]:
        """With `node_local`: where to allocate a claim that no Pod waits for; empty to be asked again later."""
        return ""

    def allocate(
        self,
        claim: Claim,
        class_parameters: Mapping[str, Any],
        claim_parameters: Mapping[str, Any],
        node: str | None,
    ) -> Allocation | Awaitable[Allocation]:
        """Allocate for use on the node, or anywhere when it is None; raises `NoRoomError`."""
        raise NotImplementedError

    def deallocate(self, claim: Claim) -> Awaitable[None] | None:
        """Free what is held for the claim, if anything is."""
        raise NotImplementedError


# What containers get: edits, or the names of CDI devices that are there already.
Prepared = ContainerEdits | Iterable[str]


class NodePlugin:
    """Base of a classic driver's plugin; `name` is the driver's."""

    name: ClassVar[str]
    # The node that the plugin runs on; set before anything is called.
    node_name: str = ""
    # The API server, for coroutines; set before anything is called.
    client: Client

    def start(self) -> Awaitable[None] | None:
        """Called once, before anything else."""

    def prepare(self, claim: Claim) -> Prepared | Awaitable[Prepared]:
        """Make the claim's resource ready, and say what containers that use it get."""
        raise NotImplementedError

    def unprepare(self, claim: Claim) -> Awaitable[None] | None:
        """Undo `prepare`; the claim may be long gone, what is known of it is as it was when it was prepared."""
