"""Decides about the most common claim, which has one request without alternatives, by counting devices.

Any of the available devices satisfies such a request, so that it fits if there are enough of them. `Chooser` and
`Search` decide the same for every claim, and find the same devices. On the row "allocator: one device, fits" of the
benchmark they take 2.7 times as long for a node.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dray.allocator.allocations import AllocatedDevices
from dray.allocator.bits import indices
from dray.allocator.capacity import Amounts, share
from dray.allocator.plan import DEVICES_MAX, Alternative, Plan
from dray.allocator.segments import Segment, TaintRules
from dray.allocator.view import NO_RULES, NodeView

_NOTHING: Final[Amounts] = {}


def counted_request(plan: Plan) -> Alternative | None:
    """Return the only request of a plan if the number of available devices decides about it."""
    if len(plan.requests) != 1 or len(plan.requests[0].alternatives) != 1:
        return None
    alternative = plan.requests[0].alternatives[0]
    if alternative.takes_all or alternative.admin_access or alternative.constraints or alternative.count > DEVICES_MAX:
        return None
    return alternative


def fits_by_count(
    request: Alternative, view: NodeView, allocations: AllocatedDevices, rules: TaintRules
) -> bool | None:
    """Return whether a node has enough devices for a counted request; None if a search has to find out.

    It does where the devices are those of several slices or consume shared counters, and where something was not
    evaluated yet: that may take long, or end with an error.
    """
    found = _available(request, view, allocations, rules)
    if found is None:
        return None
    available, partly_consumed = found
    if available & view.shared:
        return _count_with_shares(request, view.segments[0], available, partly_consumed, allocations)
    return available.bit_count() >= request.count


def first_devices(
    request: Alternative, view: NodeView, allocations: AllocatedDevices, rules: TaintRules
) -> list[tuple[int, Amounts | None]] | None:
    """Return the devices that a search finds for a counted request, and what shares consume; None if it has to."""
    found = _available(request, view, allocations, rules)
    if found is None:
        return None
    available, _ = found
    segment = view.segments[0]
    for key, group in segment.capacity_groups:
        if available & group and key not in request.shares:
            return None
    taken: list[tuple[int, Amounts | None]] = []
    for index in indices(available):
        amounts: Amounts | None = None
        if segment.shared >> index & 1:
            device = segment.devices[index]
            if not _has_left(allocations.consumed(device.key), request.shares[device.content.capacity_key]):
                continue
            amounts = share(device.content, request.capacity)
        taken.append((index, amounts))
        if len(taken) == request.count:
            return taken
    return None


def _available(
    request: Alternative, view: NodeView, allocations: AllocatedDevices, rules: TaintRules
) -> tuple[int, int] | None:
    """Return the devices available to a counted request, and those that are partly consumed; None if not known.

    Of those that can be shared, some may not have enough left.
    """
    if len(view.segments) != 1:
        return None
    segment = view.segments[0]
    matches = segment.known_matches(request.group)
    # A device that cannot be evaluated, or a pool that is invalid, is an error if the others are not enough.
    if matches is None or matches[1] or view.invalid:
        return None
    blocked, partly_consumed = segment.uses(allocations)
    available = matches[0] & ~blocked
    if available and view.gates.taints:
        available &= ~segment.untolerated(request.tolerations, rules if view.gates.taint_rules else NO_RULES)
    if available & segment.consumers or (request.capacity and available & ~segment.shared):
        return None
    return available, partly_consumed


def _count_with_shares(
    request: Alternative, segment: Segment, available: int, partly_consumed: int, allocations: AllocatedDevices
) -> bool | None:
    """Return whether enough of the available devices have the capacity that is left to be consumed.

    All groups are looked at: a search may try a device that cannot be evaluated before it has found enough others.
    """
    count = (available & ~segment.shared).bit_count()
    for key, group in segment.capacity_groups:
        members = available & group
        if not members:
            continue
        most = request.shares.get(key)
        if most is None:
            return None
        if not _has_left(_NOTHING, most):
            continue
        unused = members & ~partly_consumed
        count += unused.bit_count()
        for index in indices(members ^ unused) if count < request.count else ():
            count += _has_left(allocations.consumed(segment.devices[index].key), most)
    return count >= request.count


def _has_left(consumed: Amounts, most: Iterable[tuple[str, int]]) -> bool:
    """Return whether no more is consumed of each capacity than others may consume."""
    return all(consumed.get(name, 0) <= amount for name, amount in most)
