"""Base classes of a classic driver: `ClassicController` allocates claims, `NodePlugin` prepares them on nodes.

Guarantees for a controller: calls do not overlap (unless `concurrency` allows it), and one instance is active in the
cluster. `allocate` is called for a claim without allocated resources. If that is uncertain, after a crash or a lost
response, `deallocate` is called first. It must therefore accept that there is nothing to free, and a claim whose
attributes were never recorded: then the uid identifies it. Errors are reported in the claim's status and events, and
the call is repeated after 1 s, doubling to 60 s.

Guarantees for a plugin: calls do not overlap, also across instances. `prepare` is called for claims that are not
prepared, `unprepare` for claims that are or may be. After a crash the same call is repeated, so both must accept that
some of their work is done. What can fail belongs into the allocation: a Pod whose claim cannot be prepared waits on its
node.

In both, plain methods run in a thread and may block; coroutines run in the event loop and must not block.
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
    """Raised by `allocate` if the claim cannot be allocated on this node, or not now; nothing stays allocated."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim with its parameters; `attributes` are what `allocate` returned."""

    key: NamespacedName
    uid: UID
    class_name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    # Empty if the class does not exist any more.
    class_parameters: Mapping[str, Any] = field(default_factory=dict)
    attributes: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return str(self.key)


@dataclass(frozen=True, slots=True)
class Allocation:
    """The result of `allocate`.

    `attributes` must suffice to deallocate, since the class may be deleted by then. `nodes` are the nodes where the
    resource is available: names, a selector, or None for all.
    """

    attributes: Mapping[str, str] = field(default_factory=dict)
    nodes: NodeSelector | Iterable[str] | None = None
    # Number of Pods that may use it at the same time.
    user_limit: int = 1
    # Any number of Pods may use it.
    shareable: bool = False

    @property
    def limit(self) -> int:
        """The value for the claim's status."""
        return UNLIMITED if self.shareable else self.user_limit

    @property
    def selector(self) -> NodeSelector | None:
        """The value for the claim's status."""
        return selector_of(self.nodes)


def selector_of(nodes: NodeSelector | Iterable[str] | None) -> NodeSelector | None:
    """Return the nodes as a selector; None for all nodes."""
    if nodes is None or isinstance(nodes, NodeSelector):
        return nodes
    # A requirement on `metadata.name` takes one value.
    return NodeSelector(node_selector_terms=tuple(_only(name) for name in sorted(set(nodes))))


def _only(node_name: str) -> NodeSelectorTerm:
    named = NodeSelectorRequirement(key="metadata.name", operator="In", values=(node_name,))
    return NodeSelectorTerm(match_fields=(named,))


class ClassicController:
    """Base of a classic driver's controller; `name` is the driver's, such as `gpu.example.com`."""

    name: ClassVar[str]
    # Maximum of concurrent calls.
    concurrency: ClassVar[int] = 1
    # Resources are node-local: an instance on each node allocates, and this one only reports unsuitable nodes.
    node_local: ClassVar[bool] = False
    # Client of the API server, for coroutines; set before any call.
    client: Client

    def start(self, held: Sequence[Claim]) -> Awaitable[None] | None:
        """Called first, with the claims that have, or may have, allocated resources: they are the driver's state."""

    def unsuitable_nodes(
        self, claims: Sequence[Claim], nodes: Sequence[str]
    ) -> Iterable[str] | Awaitable[Iterable[str]]:
        """Return the nodes where the claims of one Pod cannot all be allocated now; must be fast."""
        return ()

    def available_nodes(
        self, claim: Claim
    ) -> NodeSelector | Iterable[str] | Awaitable[NodeSelector | Iterable[str] | None] | None:
        """Return the nodes where the claim can ever be allocated, or None for all; the scheduler uses no others."""
        return None

    def choose_node(self, claim: Claim, refused: Sequence[str]) -> str | Awaitable[str]:
        """With `node_local`: return the node for an immediate claim; empty to be called again later."""
        return ""

    def allocate(
        self,
        claim: Claim,
        class_parameters: Mapping[str, Any],
        claim_parameters: Mapping[str, Any],
        node: str | None,
    ) -> Allocation | Awaitable[Allocation]:
        """Allocate for use on the node, or anywhere if it is None; raise `NoRoomError` if that is impossible."""
        raise NotImplementedError

    def deallocate(self, claim: Claim) -> Awaitable[None] | None:
        """Free the resources of the claim, if there are any."""
        raise NotImplementedError


# What containers get: edits, or names of existing CDI devices.
Prepared = ContainerEdits | Iterable[str]


class NodePlugin:
    """Base of a classic driver's plugin; `name` is the driver's."""

    name: ClassVar[str]
    # The node that the plugin runs on; set before any call.
    node_name: str = ""
    # Client of the API server, for coroutines; set before any call.
    client: Client

    def start(self) -> Awaitable[None] | None:
        """Called once, before all other methods."""

    def prepare(self, claim: Claim) -> Prepared | Awaitable[Prepared]:
        """Prepare the claim's resource; return what containers that use it get."""
        raise NotImplementedError

    def unprepare(self, claim: Claim) -> Awaitable[None] | None:
        """Undo `prepare`; the claim is as it was then, and may be deleted since."""
