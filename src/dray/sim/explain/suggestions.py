"""Suggestions for a pending Pod: changes of its claims or of nodes, and which claims have the devices. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from dray.allocator import DeviceReason, Reason
from dray.api.types.resource_v1 import (
    DeviceRequest,
    DeviceToleration,
    ExactDeviceRequest,
    ResourceClaim,
)
from dray.sim.explain.answers import Change, NodeAnswer

# Longer lists are not useful.
CHANGES_MAX: Final = 8
_TEXT_MAX: Final = 60
replace = msgspec.structs.replace

# Returns the nodes that fit with these claims.
Attempt = Callable[[Sequence[ResourceClaim]], list[str]]


@dataclass(frozen=True, slots=True)
class _Candidate:
    text: str
    claims: tuple[ResourceClaim, ...]


def helpful_changes(
    claims: Sequence[ResourceClaim], answers: Sequence[NodeAnswer], attempt: Attempt
) -> tuple[Change, ...]:
    """Return single changes of claims that suffice, the smallest first."""
    found: list[Change] = []
    for position, claim in enumerate(claims):
        for index, request in enumerate(claim.spec.devices.requests):
            found += _fewer(claims, position, index, request, attempt)
    for candidate in _candidates(claims, answers):
        nodes = attempt(candidate.claims)
        if nodes:
            found.append(Change(candidate.text, tuple(nodes)))
        if len(found) >= CHANGES_MAX:
            break
    return tuple(found)


def _fewer(
    claims: Sequence[ResourceClaim], position: int, index: int, request: DeviceRequest, attempt: Attempt
) -> Iterator[Change]:
    """Yield the largest smaller count that fits."""
    exactly = request.exactly
    if exactly is None or exactly.allocation_mode == "All":
        return
    for count in range((exactly.count or 1) - 1, 0, -1):
        changed = _with_exactly(claims, position, index, replace(exactly, count=count))
        nodes = attempt(changed)
        if nodes:
            yield Change(f"lower the count of request {request.name} to {count}", tuple(nodes))
            return


def _candidates(claims: Sequence[ResourceClaim], answers: Sequence[NodeAnswer]) -> Iterator[_Candidate]:
    for position, claim in enumerate(claims):
        for index, request in enumerate(claim.spec.devices.requests):
            yield from _without_selectors(claims, position, index, request)
        yield from _without_constraints(claims, position)
    yield from _tolerant(claims, answers)


def _without_selectors(
    claims: Sequence[ResourceClaim], position: int, index: int, request: DeviceRequest
) -> Iterator[_Candidate]:
    exactly = request.exactly
    if exactly is None:
        return
    for number, selector in enumerate(exactly.selectors):
        text = "" if selector.cel is None else _short(selector.cel.expression)
        others = exactly.selectors[:number] + exactly.selectors[number + 1 :]
        changed = _with_exactly(claims, position, index, replace(exactly, selectors=others))
        yield _Candidate(f"drop the selector `{text}` of request {request.name}", changed)


def _without_constraints(claims: Sequence[ResourceClaim], position: int) -> Iterator[_Candidate]:
    claim = claims[position]
    devices = claim.spec.devices
    for number, constraint in enumerate(devices.constraints):
        others = devices.constraints[:number] + devices.constraints[number + 1 :]
        spec = replace(claim.spec, devices=replace(devices, constraints=others))
        name = constraint.match_attribute or constraint.distinct_attribute or ""
        yield _Candidate(f"drop the constraint on attribute {name}", _with_claim(claims, position, spec))


def _tolerant(claims: Sequence[ResourceClaim], answers: Sequence[NodeAnswer]) -> Iterator[_Candidate]:
    for taint in dict.fromkeys(_taints(answers)):
        key, _, effect = taint.rpartition(":")
        toleration = DeviceToleration(key=key.partition("=")[0], operator="Exists", effect=effect or None)
        changed = tuple(_tolerating(claim, toleration) for claim in claims)
        yield _Candidate(f"tolerate the device taint {taint}", changed)


def _taints(answers: Sequence[NodeAnswer]) -> Iterator[str]:
    for reason in reasons_of(answers, Reason.TAINT):
        # "taint NAME is not tolerated"
        yield reason.text.removeprefix("taint ").removesuffix(" is not tolerated")


def reasons_of(answers: Sequence[NodeAnswer], kind: Reason) -> Iterator[DeviceReason]:
    """Yield the reasons of a kind from all nodes."""
    for answer in answers:
        for request in answer.requests:
            yield from (reason for reason in request.reasons if reason.reason is kind)


def _tolerating(claim: ResourceClaim, toleration: DeviceToleration) -> ResourceClaim:
    requests = tuple(
        request
        if request.exactly is None
        else replace(
            request,
            exactly=replace(request.exactly, tolerations=(*request.exactly.tolerations, toleration)),
        )
        for request in claim.spec.devices.requests
    )
    devices = replace(claim.spec.devices, requests=requests)
    return replace(claim, spec=replace(claim.spec, devices=devices))


def _with_exactly(
    claims: Sequence[ResourceClaim], position: int, index: int, exactly: ExactDeviceRequest
) -> tuple[ResourceClaim, ...]:
    claim = claims[position]
    requests = list(claim.spec.devices.requests)
    requests[index] = replace(requests[index], exactly=exactly)
    devices = replace(claim.spec.devices, requests=tuple(requests))
    return _with_claim(claims, position, replace(claim.spec, devices=devices))


def _with_claim(claims: Sequence[ResourceClaim], position: int, spec: object) -> tuple[ResourceClaim, ...]:
    changed = list(claims)
    changed[position] = replace(claims[position], spec=spec)
    return tuple(changed)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _TEXT_MAX else f"{line[: _TEXT_MAX - 1]}…"


# Plugin -> suggestion; the reason follows.
_ADVICE: Final = {
    "NodeUnschedulable": "uncordon the node",
    "TaintToleration": "tolerate the taint or remove it",
    "NodeAffinity": "drop the nodeSelector or node affinity",
    "NodeResourcesFit": "lower the requests, or free resources on the node",
    "NodePorts": "use another host port",
    "NodeName": "remove spec.nodeName",
}


def blocking_claims(answers: Sequence[NodeAnswer]) -> tuple[str, ...]:
    """Return for nodes with enough devices which claims have them, the node with the fewest missing devices first."""
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
    """Return suggestions for nodes that only one plugin rejects, grouped by suggestion."""
    advice: dict[str, list[str]] = {}
    for answer in answers:
        if len(answer.rejections) != 1:
            continue
        ((plugin, reasons),) = answer.rejections.items()
        if plugin in _ADVICE:
            advice.setdefault(f"{_ADVICE[plugin]} ({', '.join(reasons)})", []).append(answer.node)
    return tuple(Change(text, tuple(nodes)) for text, nodes in advice.items())
