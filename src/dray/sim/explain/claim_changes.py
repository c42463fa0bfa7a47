"""Changes of a Pod's claims that would make it schedulable, each tested with the allocator. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from dray.allocator.device_reasons import DeviceReason, Tainted
from dray.allocator.taints import TaintRule
from dray.api.types.resource_v1 import (
    CELDeviceSelector,
    DeviceRequest,
    DeviceSelector,
    DeviceSubRequest,
    DeviceToleration,
    ExactDeviceRequest,
    ResourceClaim,
)
from dray.cel.environments import compile_device_selector
from dray.cel.errors import CELError
from dray.cel.explain import compared_strings
from dray.sim.devices import taint_text
from dray.sim.explain.answers import Change, NodeAnswer, Size
from dray.sim.explain.device_catalogue import Catalogue
from dray.sim.explain.selector_hints import SelectorHint, shortened

# Values of an attribute that are tried instead of the requested one.
_ALTERNATIVES_MAX: Final = 8
replace = msgspec.structs.replace
R = TypeVar("R", bound=DeviceReason)
RequestT = TypeVar("RequestT", ExactDeviceRequest, DeviceSubRequest)

# Returns the nodes that fit with these claims.
Attempt = Callable[[Sequence[ResourceClaim]], list[str]]


@dataclass(frozen=True, slots=True)
class _Candidate:
    size: Size
    text: str
    claims: tuple[ResourceClaim, ...]
    # Of candidates with the same topic, the first that suffices is enough.
    topic: str = ""
    # Several corrections at once, for when one alone does not suffice.
    combined: bool = False


def claim_changes(
    claims: Sequence[ResourceClaim],
    answers: Sequence[NodeAnswer],
    hints: Sequence[SelectorHint],
    catalogue: Catalogue,
    rules: Sequence[TaintRule],
    attempt: Attempt,
) -> tuple[Change, ...]:
    """Return single changes of claims that suffice, the smallest first."""
    found: list[Change] = []
    topics: set[str] = set()
    for candidate in _candidates(claims, answers, hints, catalogue, rules):
        if candidate.size > Size.ADD_NODE and found:
            # Something smaller works.
            break
        if candidate.combined and found:
            continue
        if candidate.topic not in topics and (nodes := attempt(candidate.claims)):
            topics |= {candidate.topic} - {""}
            found.append(Change(candidate.text, tuple(nodes), candidate.size))
    return tuple(found)


def _candidates(
    claims: Sequence[ResourceClaim],
    answers: Sequence[NodeAnswer],
    hints: Sequence[SelectorHint],
    catalogue: Catalogue,
    rules: Sequence[TaintRule],
) -> Iterator[_Candidate]:
    yield from _corrected(claims, hints)
    yield from _fewer(claims)
    for position in range(len(claims)):
        yield from _without_constraints(claims, position)
    yield from _alternatives(claims, catalogue)
    yield from _tolerant(claims, answers, rules)
    for position, claim in enumerate(claims):
        for index, request in enumerate(claim.spec.devices.requests):
            yield from _without_selectors(claims, position, index, request)


def _corrected(claims: Sequence[ResourceClaim], hints: Sequence[SelectorHint]) -> Iterator[_Candidate]:
    """Correct one misspelt name, or all of them."""
    known = [hint for hint in hints if hint.corrected]
    choices = [[hint] for hint in known] + ([known] if len(known) > 1 else [])
    for chosen in choices:
        changed = tuple(claims)
        for hint in chosen:
            changed = tuple(_rewritten(claim, hint) for claim in changed)
        text = " and ".join(hint.action for hint in chosen)
        yield _Candidate(Size.CORRECT_NAME, text, changed, combined=len(chosen) > 1)


def _rewritten(claim: ResourceClaim, hint: SelectorHint) -> ResourceClaim:
    devices = claim.spec.devices
    requests = tuple(
        replace(
            request,
            exactly=None if request.exactly is None else _with_correction(request.exactly, hint),
            first_available=tuple(_with_correction(item, hint) for item in request.first_available),
        )
        for request in devices.requests
    )
    constraints = tuple(
        replace(
            item,
            match_attribute=_renamed(item.match_attribute, hint),
            distinct_attribute=_renamed(item.distinct_attribute, hint),
        )
        for item in devices.constraints
    )
    return _with_devices(claim, replace(devices, requests=requests, constraints=constraints))


def _with_correction(request: RequestT, hint: SelectorHint) -> RequestT:
    selectors = tuple(
        replace(item, cel=replace(item.cel, expression=hint.corrected))
        if item.cel is not None and item.cel.expression == hint.expression
        else item
        for item in request.selectors
    )
    device_class = hint.corrected if request.device_class_name == hint.expression else request.device_class_name
    return replace(request, selectors=selectors, device_class_name=device_class)


def _renamed(attribute: str | None, hint: SelectorHint) -> str | None:
    return hint.corrected if attribute and attribute == hint.expression else attribute


def _fewer(claims: Sequence[ResourceClaim]) -> Iterator[_Candidate]:
    """Lower the count of one request; of several counts that fit, the largest is found first."""
    for position, claim in enumerate(claims):
        for index, request in enumerate(claim.spec.devices.requests):
            exactly = request.exactly
            if exactly is None or exactly.allocation_mode == "All":
                continue
            for count in range((exactly.count or 1) - 1, 0, -1):
                text = f"lower the count of request {request.name} to {count}"
                changed = _with_exactly(claims, position, index, replace(exactly, count=count))
                yield _Candidate(Size.LOWER_REQUEST, text, changed, topic=f"{position}/{index}")


def _alternatives(claims: Sequence[ResourceClaim], catalogue: Catalogue) -> Iterator[_Candidate]:
    """Accept another value of an attribute that a selector compares."""
    for position, claim in enumerate(claims):
        for index, request in enumerate(claim.spec.devices.requests):
            exactly = request.exactly
            for number, selector in enumerate(() if exactly is None else exactly.selectors):
                assert exactly is not None
                for value, expression in _other_values(selector, catalogue):
                    selectors = list(exactly.selectors)
                    selectors[number] = DeviceSelector(cel=CELDeviceSelector(expression=expression))
                    changed = _with_exactly(claims, position, index, replace(exactly, selectors=tuple(selectors)))
                    text = f"add an alternative with {value} to request {request.name}"
                    yield _Candidate(Size.ADD_ALTERNATIVE, text, changed)


def _other_values(selector: DeviceSelector, catalogue: Catalogue) -> Iterator[tuple[str, str]]:
    expression = "" if selector.cel is None else selector.cel.expression
    try:
        compared = compared_strings(compile_device_selector(expression)) if expression else []
    except CELError:
        return
    for comparison in compared:
        values = catalogue.values(comparison.domain, comparison.name)
        if comparison.value not in values or not comparison.domain:
            continue
        for value in sorted(values.keys() - {comparison.value})[:_ALTERNATIVES_MAX]:
            changed = expression
            for quote in ('"', "'"):
                changed = changed.replace(f"{quote}{comparison.value}{quote}", f"{quote}{value}{quote}")
            yield f"{comparison.name} {value}", changed


def _without_selectors(
    claims: Sequence[ResourceClaim], position: int, index: int, request: DeviceRequest
) -> Iterator[_Candidate]:
    exactly = request.exactly
    if exactly is None:
        return
    for number, selector in enumerate(exactly.selectors):
        text = "" if selector.cel is None else shortened(selector.cel.expression)
        others = exactly.selectors[:number] + exactly.selectors[number + 1 :]
        changed = _with_exactly(claims, position, index, replace(exactly, selectors=others))
        yield _Candidate(Size.DROP_SELECTOR, f"drop the selector `{text}` of request {request.name}", changed)


def _without_constraints(claims: Sequence[ResourceClaim], position: int) -> Iterator[_Candidate]:
    claim = claims[position]
    devices = claim.spec.devices
    for number, constraint in enumerate(devices.constraints):
        others = devices.constraints[:number] + devices.constraints[number + 1 :]
        changed = list(claims)
        changed[position] = _with_devices(claim, replace(devices, constraints=others))
        name = constraint.match_attribute or constraint.distinct_attribute or ""
        yield _Candidate(Size.DROP_CONSTRAINT, f"drop the constraint on attribute {name}", tuple(changed))


def _tolerant(
    claims: Sequence[ResourceClaim], answers: Sequence[NodeAnswer], rules: Sequence[TaintRule]
) -> Iterator[_Candidate]:
    for taint, devices in _tainted(answers).items():
        key, _, effect = taint.rpartition(":")
        toleration = DeviceToleration(key=key.partition("=")[0], operator="Exists", effect=effect or None)
        changed = tuple(_tolerating(claim, toleration) for claim in claims)
        text = f"remove the device taint {taint}{_removal(taint, devices, rules)}, or tolerate it"
        yield _Candidate(Size.TOLERATE, text, changed)


def _tainted(answers: Iterable[NodeAnswer]) -> dict[str, list[str]]:
    """Return the devices with each taint that is not tolerated."""
    found: dict[str, list[str]] = {}
    for reason in reasons_of(answers, Tainted):
        found.setdefault(reason.name, []).append(reason.device)
    return found


def _removal(taint: str, devices: Sequence[str], rules: Sequence[TaintRule]) -> str:
    """Return the command that removes a taint which rules set; empty if drivers publish it."""
    names = [
        rule.name
        for rule in rules
        if taint_text(rule.taint) == taint and any(_selects(rule, device) for device in devices)
    ]
    return f" (kubectl delete devicetaintrule {' '.join(names)})" if names else ""


def _selects(rule: TaintRule, key: str) -> bool:
    # Names of pools may have slashes.
    pool_key, _, device = key.rpartition("/")
    driver, _, pool = pool_key.partition("/")
    return rule.selects(driver, pool, device)


def reasons_of(answers: Iterable[NodeAnswer], kind: type[R]) -> Iterator[R]:
    """Yield the reasons of a kind from all nodes."""
    for answer in answers:
        for request in answer.requests:
            yield from (reason for reason in request.reasons if isinstance(reason, kind))


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
    return _with_devices(claim, replace(claim.spec.devices, requests=requests))


def _with_exactly(
    claims: Sequence[ResourceClaim], position: int, index: int, exactly: ExactDeviceRequest
) -> tuple[ResourceClaim, ...]:
    claim = claims[position]
    requests = list(claim.spec.devices.requests)
    requests[index] = replace(requests[index], exactly=exactly)
    changed = list(claims)
    changed[position] = _with_devices(claim, replace(claim.spec.devices, requests=tuple(requests)))
    return tuple(changed)


def _with_devices(claim: ResourceClaim, devices: object) -> ResourceClaim:
    return replace(claim, spec=replace(claim.spec, devices=devices))
