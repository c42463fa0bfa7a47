"""What an explanation consists of. Values only."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dray.allocator import RequestExplanation


class Standing(enum.StrEnum):
    """Where the Pod or claim is."""

    PENDING = "pending"
    PLACED = "placed"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """What one node says."""

    node: str
    fits: bool
    # Plugin -> its reasons; all plugins are asked, not only until the first no.
    rejections: dict[str, tuple[str, ...]]
    # What the devices say, one line; empty when they fit or were not asked for.
    devices: str = ""
    requests: tuple[RequestExplanation, ...] = ()
    # `request: device` for what would be given here.
    would_get: tuple[str, ...] = ()

    @property
    def why(self) -> str:
        """One line."""
        if self.fits:
            return f"fits: {', '.join(self.would_get)}" if self.would_get else "fits"
        texts = [", ".join(reasons) for plugin, reasons in self.rejections.items() if plugin != "DynamicResources"]
        return "; ".join([*texts, self.devices] if self.devices else [*texts, *self._device_rejection()])

    def _device_rejection(self) -> tuple[str, ...]:
        return self.rejections.get("DynamicResources", ())


@dataclass(frozen=True, slots=True)
class Change:
    """One change that would let the Pod be placed, tried out with the real allocator."""

    text: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Given:
    """One device that was given, and why none of a better alternative was."""

    claim: str
    request: str
    device: str
    # Better alternatives with what was wrong with each on the same node.
    passed_over: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """Everything there is to say about one Pod or claim."""

    kind: str
    namespace: str
    name: str
    standing: Standing
    # The node it is on.
    node: str = ""
    # What kept it from being looked at on any node.
    obstacle: str = ""
    nodes: tuple[NodeAnswer, ...] = ()
    given: tuple[Given, ...] = ()
    changes: tuple[Change, ...] = ()
    # Nodes that would do, were some devices not held: who holds what.
    holders: tuple[str, ...] = ()

    @property
    def fitting(self) -> int:
        """How many nodes would take it."""
        return sum(answer.fits for answer in self.nodes)
