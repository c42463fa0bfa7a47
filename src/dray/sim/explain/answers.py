"""Values of an explanation."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dray.allocator import RequestExplanation


class Standing(enum.StrEnum):
    """Scheduling state of the Pod or claim."""

    PENDING = "pending"
    PLACED = "placed"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """Filter results of one node."""

    node: str
    fits: bool
    # Plugin -> reasons; all plugins run, not only until the first rejection.
    rejections: dict[str, tuple[str, ...]]
    # Summary of the allocator; empty if devices fit or are not requested.
    devices: str = ""
    requests: tuple[RequestExplanation, ...] = ()
    # `request: device` for what would be allocated here.
    would_get: tuple[str, ...] = ()

    @property
    def why(self) -> str:
        """Return the result as one line."""
        if self.fits:
            return f"fits: {', '.join(self.would_get)}" if self.would_get else "fits"
        texts = [", ".join(reasons) for plugin, reasons in self.rejections.items() if plugin != "DynamicResources"]
        return "; ".join([*texts, self.devices] if self.devices else [*texts, *self._device_rejection()])

    def _device_rejection(self) -> tuple[str, ...]:
        return self.rejections.get("DynamicResources", ())


@dataclass(frozen=True, slots=True)
class Change:
    """A change that would make the Pod schedulable, tested with the allocator."""

    text: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Given:
    """An allocated device, and why no preferred alternative was."""

    claim: str
    request: str
    device: str
    # Preferred alternatives, with why each was impossible on the node.
    passed_over: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ClassicAnswer:
    """A claim of cdi.k8s.io, and what it waits for; only its driver knows where it can be allocated."""

    claim: str
    driver: str
    summary: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The explanation of one Pod or claim."""

    kind: str
    namespace: str
    name: str
    standing: Standing
    # The node it is on.
    node: str = ""
    # Why no node can be used, whatever the nodes are like.
    obstacle: str = ""
    nodes: tuple[NodeAnswer, ...] = ()
    given: tuple[Given, ...] = ()
    classic: tuple[ClassicAnswer, ...] = ()
    changes: tuple[Change, ...] = ()
    # For nodes that would fit without other claims: which claims have which devices.
    holders: tuple[str, ...] = ()
    # What was not evaluated.
    notes: tuple[str, ...] = ()

    @property
    def fitting(self) -> int:
        """Number of nodes that fit."""
        return sum(answer.fits for answer in self.nodes)
