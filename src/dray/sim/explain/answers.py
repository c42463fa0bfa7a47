"""Values of an explanation."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dray.allocator import RequestExplanation
    from dray.framework.evaluation import NodeScore


class Standing(enum.StrEnum):
    """Scheduling state of the Pod or claim."""

    PENDING = "pending"
    PLACED = "placed"
    DONE = "done"


class Stage(enum.StrEnum):
    """Where on its path a Pod is, or stopped, in the order of the path."""

    WORKLOAD = "workload"
    ADMISSION = "admission"
    QUOTA = "quota"
    CLAIM = "claim"
    GATE = "gate"
    SCHEDULER = "scheduler"
    FILTER = "filter"
    DEVICES = "devices"
    PREEMPTION = "preemption"
    BINDING = "binding"
    NODE = "node"
    PREPARE = "prepare"
    IMAGE = "image"
    VOLUME = "volume"
    START = "start"
    PROBE = "probe"
    RUNNING = "running"
    DONE = "done"


class Fault(enum.Enum):
    """What keeps a container from running; a Pod that is just starting has none."""

    # It ran, and ended.
    CRASH_LOOP = enum.auto()
    # It has never run.
    FAILED_START = enum.auto()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer in one sentence: what is the matter, and the one thing to do."""

    stage: Stage
    # Follows the kind and name of the subject.
    text: str
    # An imperative; empty if there is nothing to do.
    action: str = ""
    # Of a pending subject: what it waits for, without the words that say that it is pending.
    why: str = ""
    fault: Fault | None = None

    @property
    def sentence(self) -> str:
        """Return text and action."""
        return f"{self.text}; {self.action}" if self.action else self.text


@dataclass(frozen=True, slots=True)
class ReasonGroup:
    """The nodes that are rejected for the same reasons."""

    count: int
    text: str
    # Some of the nodes.
    examples: tuple[str, ...]
    # Whether they have room, and nothing but a cordon or a taint keeps the Pod from them.
    is_admission: bool = False


@dataclass(frozen=True, slots=True)
class Victims:
    """The Pods that would be evicted for the Pod if it had at least this priority."""

    priority: int
    # Empty if they are anywhere in the cluster: those of a group.
    node: str
    pods: tuple[str, ...]
    # A PriorityClass with at least that priority; empty if there is none.
    priority_class: str = ""
    # How many of the Pods a disruption budget protects.
    violated_budgets: int = 0
    # Whether the Pod evicts nobody because its preemptionPolicy is Never.
    never: bool = False


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


class Size(enum.IntEnum):
    """How much a change costs, the least first."""

    CORRECT_NAME = 0
    ADMIT_TO_NODE = 1
    # No Pod uses them.
    FREE_UNUSED_CLAIMS = 2
    FREE_CLAIMS = 3
    LOWER_REQUEST = 4
    # More of them than a line can name: each has a user who loses it.
    FREE_MANY_CLAIMS = 5
    DROP_CONSTRAINT = 6
    ADD_ALTERNATIVE = 7
    # Also of a Pod that was meant for the nodes which it names.
    DROP_NODE_SELECTOR = 8
    TOLERATE = 9
    ADD_NODE = 10
    DROP_SELECTOR = 11


@dataclass(frozen=True, slots=True)
class Change:
    """A change that would make the Pod schedulable, tested with the scheduler's own code."""

    text: str
    # The nodes on which it fits then.
    nodes: tuple[str, ...]
    # Smaller is a smaller change.
    size: Size


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
    verdict: Verdict | None = None
    # Why nodes are rejected, the most common reasons first.
    groups: tuple[ReasonGroup, ...] = ()
    # Names that match nothing, with what was probably meant.
    hints: tuple[str, ...] = ()
    # What to do about the first of them if no change is known that suffices.
    advice: str = ""
    victims: Victims | None = None
    # For a Pod on a node: the best nodes of now, and its own.
    scores: tuple[NodeScore, ...] = ()
    # The Pod of a workload that the rest of the answer is about.
    pod: str = ""

    @property
    def sentence(self) -> str:
        """The verdict as a sentence."""
        subject = f"{self.kind} {self.namespace}/{self.name}"
        return subject if self.verdict is None else f"{subject} {self.verdict.sentence}"

    @property
    def fitting(self) -> int:
        """Number of nodes that fit."""
        return sum(answer.fits for answer in self.nodes)
