"""What stands in the way besides the claims themselves: other claims' devices, and what nodes refuse. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dray.allocator import Reason
from dray.sim.explain.answers import Change, NodeAnswer

# Plugin -> what its user could do; the reason follows.
_ADVICE: Final = {
    "NodeUnschedulable": "uncordon the node",
    "TaintToleration": "tolerate the taint or remove it",
    "NodeAffinity": "drop the nodeSelector or node affinity",
    "NodeResourcesFit": "ask for less, or free some",
    "NodePorts": "use another host port",
    "NodeName": "do not name another node",
}


def holders_in_the_way(answers: Sequence[NodeAnswer]) -> tuple[str, ...]:
    """For nodes that would have enough, were some devices not held: who holds what there; the nearest node first."""
    found = []
    for answer in answers:
        if answer.rejections.keys() - {"DynamicResources"}:
            continue
        for request in answer.requests:
            held = [reason for reason in request.reasons if reason.reason is Reason.IN_USE]
            missing = request.needed - request.usable
            if request.note is None and 0 < missing <= len(held):
                holders = ", ".join(
                    f"{reason.text.removeprefix('in use by ')} holds {reason.device.rpartition('/')[2]}"
                    for reason in held[: missing + 1]
                )
                text = f"{answer.node} has {request.usable} of {request.needed}: {holders}"
                found.append((missing, text))
    return tuple(text for _, text in sorted(found, key=lambda item: item[0]))


def node_changes(answers: Sequence[NodeAnswer]) -> tuple[Change, ...]:
    """What to do about the one thing that keeps a node from fitting, the same advice for all its nodes."""
    advice: dict[str, list[str]] = {}
    for answer in answers:
        if len(answer.rejections) != 1:
            continue
        ((plugin, reasons),) = answer.rejections.items()
        if plugin in _ADVICE:
            advice.setdefault(f"{_ADVICE[plugin]} ({', '.join(reasons)})", []).append(answer.node)
    return tuple(Change(text, tuple(nodes)) for text, nodes in advice.items())
