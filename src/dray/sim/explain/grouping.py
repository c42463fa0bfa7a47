"""Groups the nodes of an answer by the reasons that reject them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from dray.allocator import DeviceReason, Reason, RequestExplanation
from dray.allocator.device_reasons import InIncompletePool, InUse, LacksCapacity, LacksCounter, SelectorFalse, Tainted
from dray.api.tolerations import tolerates
from dray.api.types.core_v1 import Node, Pod
from dray.sim.explain.answers import NodeAnswer, ReasonGroup
from dray.sim.explain.selector_hints import shortened
from dray.sim.usable_nodes import NOT_READY_TAINTS

_EXAMPLES_MAX: Final = 3
_HARD: Final = ("NoSchedule", "NoExecute")
UNSCHEDULABLE: Final = "node.kubernetes.io/unschedulable"
NOT_READY: Final = tuple(f"{key}:" for key in NOT_READY_TAINTS.values())
_DEVICES: Final = "DynamicResources"

# The kinds of reasons by how near a node is to fit, the nearest first: devices can be freed and taints removed, but a
# device that does not match will never do.
NEARNESS: Final = (
    Reason.IN_USE,
    Reason.COUNTER,
    Reason.INCOMPATIBLE,
    Reason.CAPACITY,
    Reason.TAINT,
    Reason.CONSTRAINT,
    Reason.TAKEN,
    Reason.POOL_INCOMPLETE,
    Reason.POOL_INVALID,
    Reason.FEATURE_DISABLED,
    Reason.SELECTOR_ERROR,
    Reason.SELECTOR,
    Reason.NODE_NOT_REACHED,
)
_NO_DEVICES: Final = len(NEARNESS) + 1
# The same for other plugins, on the same scale.
_PLUGIN_NEARNESS: Final = {
    "NodeResourcesFit": 1,
    "NodePorts": 1,
    "NominatedPods": 1,
    "NodeUnschedulable": 3,
    "TaintToleration": 3,
    "NodeAffinity": len(NEARNESS),
    "NodeName": len(NEARNESS),
}
_OTHER_NEARNESS: Final = 6
_ADMISSION: Final = frozenset({"NodeUnschedulable", "TaintToleration"})
_DO_NOT_MATCH, _ARE, _LACK = "do not match", "are", "lack"
# The verbs of one device.
_ONE: Final = {_ARE: "is", _LACK: "lacks"}


class _Group:
    """Nodes with the same reasons; devices are counted over all of them."""

    def __init__(self, others: tuple[str, ...]) -> None:
        self.others = others
        self.nodes: list[str] = []
        # By request.
        self.counts: dict[str, Counter[_Label]] = {}
        self.usable: Counter[str] = Counter()
        self.needed: dict[str, int] = {}
        # Requests of which no device is of the class.
        self.classes: dict[str, str] = {}
        self.summary = ""
        self.nearness = 0
        self.is_admission = True

    def add(self, answer: NodeAnswer, culprits: Sequence[RequestExplanation], classes: Mapping[str, str]) -> None:
        self.nodes.append(answer.node)
        self.is_admission = self.is_admission and _ADMISSION.issuperset(answer.rejections)
        for plugin in answer.rejections:
            if plugin != _DEVICES:
                self.nearness = max(self.nearness, _PLUGIN_NEARNESS.get(plugin, _OTHER_NEARNESS))
        for request in culprits:
            reasons = [reason for reason in request.reasons if not _is_of_other_class(reason)]
            counts = self.counts.setdefault(request.request, Counter())
            counts.update(_label(reason) for reason in reasons)
            self.usable[request.request] += request.usable
            self.needed[request.request] = request.needed
            self.classes[request.request] = classes.get(request.request.partition("/")[0], "")
            kinds = [NEARNESS.index(reason.reason) for reason in reasons]
            nearest = 0 if request.usable else min(kinds, default=_NO_DEVICES)
            self.nearness = max(self.nearness, nearest)
        if not culprits:
            self.summary = answer.devices or ", ".join(answer.rejections.get(_DEVICES, ()))

    def text(self, *, several: bool) -> str:
        parts = list(self.others)
        for request, counts in self.counts.items():
            start = f"request {request}: " if several else ""
            text = _devices_text(counts, self.usable[request], self.needed[request])
            parts.append(start + (text or f"no device of class {self.classes[request]}".removesuffix(" of class ")))
        return "; ".join([*parts, self.summary] if self.summary else parts)


def reason_groups(
    answers: Iterable[NodeAnswer], nodes: Iterable[Node], pod: Pod, classes: Mapping[str, str]
) -> tuple[ReasonGroup, ...]:
    """Return the groups of nodes that do not fit, those nearest to fit first; `classes` are those of requests."""
    by_name = {node.metadata.name or "": node for node in nodes}
    found: dict[object, _Group] = {}
    requests: set[str] = set()
    for answer in answers:
        if answer.fits:
            continue
        others = tuple(_other_reasons(answer, by_name.get(answer.node), pod))
        culprits = [item for item in answer.requests if not item.satisfiable and item.note is None]
        if _DEVICES not in answer.rejections:
            culprits = []
        requests.update(item.request for item in culprits)
        shape = tuple((item.request, item.needed, bool(item.usable), frozenset(_labels(item))) for item in culprits)
        key = others, shape, "" if culprits else answer.devices
        found.setdefault(key, _Group(others)).add(answer, culprits, classes)
    ordered = sorted(found.values(), key=lambda group: (group.nearness, len(group.others), -len(group.nodes)))
    several = len(requests) > 1
    return tuple(
        ReasonGroup(
            len(group.nodes),
            group.text(several=several),
            tuple(group.nodes[:_EXAMPLES_MAX]),
            is_admission=group.is_admission,
        )
        for group in ordered
    )


# --- Reasons of other plugins than devices. ---


def _other_reasons(answer: NodeAnswer, node: Node | None, pod: Pod) -> Iterator[str]:
    taints = [] if node is None else untolerated_taints(node, pod)
    for plugin, reasons in answer.rejections.items():
        if plugin == _DEVICES:
            continue
        if plugin == "NodeUnschedulable":
            yield "cordoned"
        elif plugin == "TaintToleration":
            shown = [taint for taint in taints if not taint.startswith((f"{UNSCHEDULABLE}:", *NOT_READY))]
            if any(taint.startswith(NOT_READY) for taint in taints):
                yield "not ready"
            if shown:
                yield f"taint {', '.join(shown)} is not tolerated"
        else:
            yield ", ".join(reason.removeprefix("node(s) ") for reason in reasons)


def untolerated_taints(node: Node, pod: Pod) -> list[str]:
    """Return the taints that keep the Pod from the node, as `key=value:effect`."""
    return [
        f"{taint.key}{f'={taint.value}' if taint.value else ''}:{taint.effect}"
        for taint in node.spec.taints
        if taint.effect in _HARD and not any(tolerates(item, taint) for item in pod.spec.tolerations)
    ]


# --- Reasons of devices. ---


class _Label(NamedTuple):
    """What devices have in common: "are in use", "lack counter memory"."""

    verb: str
    what: str

    @property
    def text(self) -> str:
        return f"{self.verb} {self.what}".strip()


def _labels(request: RequestExplanation) -> Iterator[_Label]:
    return (_label(reason) for reason in request.reasons if not _is_of_other_class(reason))


def _is_of_other_class(reason: DeviceReason) -> bool:
    return isinstance(reason, SelectorFalse) and bool(reason.class_name)


def _label(reason: DeviceReason) -> _Label:
    if isinstance(reason, SelectorFalse):
        return _Label(_DO_NOT_MATCH, f"`{shortened(reason.expression)}`")
    if isinstance(reason, LacksCounter):
        # Counter sets have a name for each card.
        return _Label(_LACK, f"counter {reason.counter}")
    if isinstance(reason, LacksCapacity):
        return _Label(_LACK, "capacity")
    return _Label(_ARE if isinstance(reason, InUse | Tainted | InIncompletePool) else "", reason.brief)


def _devices_text(counts: Mapping[_Label, int], usable: int, needed: int) -> str:
    # Devices that do not match are not worth a word if others do.
    matching = {label: count for label, count in counts.items() if label.verb != _DO_NOT_MATCH}
    kind = "devices"
    if (matching or usable) and len(matching) < len(counts):
        counts, kind = matching, "matching devices"
    total = sum(counts.values()) + usable
    if not total:
        return ""
    devices = f"{total} {kind}" if total > 1 else f"1 {kind.removesuffix('s')}"
    if len(counts) == 1 and not usable:
        ((label, _),) = counts.items()
        if label.verb == _DO_NOT_MATCH:
            return f"no device matches {label.what}"
        if total > 1:
            return f"all {devices} {label.text}"
        if label.verb in _ONE:
            return f"its only {kind.removesuffix('s')} {_ONE[label.verb]} {label.what}"
    parts = [
        f"{count} {label.what if label.verb == _ARE else label.text}" for label, count in Counter(counts).most_common()
    ]
    if usable:
        parts.append(f"{usable} usable but {needed} needed on one node")
    return f"of {devices} {', '.join(parts)}"
