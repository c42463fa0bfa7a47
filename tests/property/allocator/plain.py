"""An allocator that tries everything in order, with nothing clever in it: what the real one is compared with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dray.api.quantity import Quantity
from dray.api.types import core_v1
from dray.api.types import resource_v1 as r

LIMIT = 32
# The derived attributes that inputs use: for a device without a bus, its attribute is 5.
BUS_OR_FIVE = "device.attributes[device.driver].?bus.orValue(5)"


@dataclass(frozen=True)
class Found:
    """A device that the node can use."""

    driver: str
    pool: str
    spec: r.Device

    @property
    def key(self) -> tuple[str, str, str]:
        return self.driver, self.pool, self.spec.name


@dataclass
class AllocatorInput:
    """The input of one allocation attempt."""

    node: core_v1.Node
    slices: Sequence[r.ResourceSlice]
    in_use: Sequence[r.ResourceClaim]
    # For each class, the value of attribute `kind` that its devices have; none for any.
    classes: dict[str, str | None]
    found: list[Found] = field(default_factory=list)

    def __post_init__(self) -> None:
        reached = [item for item in self.slices if self._reaches(item)]
        reached.sort(key=lambda item: (item.spec.driver, item.spec.pool.name, item.metadata.name))
        self.found = [
            Found(item.spec.driver, item.spec.pool.name, spec) for item in reached for spec in item.spec.devices
        ]

    def _reaches(self, item: r.ResourceSlice) -> bool:
        return bool(item.spec.all_nodes) or item.spec.node_name == self.node.metadata.name

    def everywhere(self) -> Iterator[Found]:
        for item in self.slices:
            for spec in item.spec.devices:
                yield Found(item.spec.driver, item.spec.pool.name, spec)

    def counters(self, driver: str, pool: str) -> dict[tuple[str, str], int]:
        return {
            (group.name, name): Quantity.parse(counter.value).nanos
            for item in self.slices
            if (item.spec.driver, item.spec.pool.name) == (driver, pool)
            for group in item.spec.shared_counters
            for name, counter in group.counters.items()
        }

    def uses(self) -> list[tuple[tuple[str, str, str], r.DeviceRequestAllocationResult]]:
        return [
            ((result.driver, result.pool, result.device), result)
            for claim in self.in_use
            if claim.status.allocation is not None
            for result in claim.status.allocation.devices.results
            if not result.admin_access
        ]


@dataclass(frozen=True)
class Pick:
    claim: int
    request: str
    alternative: Any
    device: Found
    admin: bool


def solve(inputs: AllocatorInput, claims: Sequence[r.ResourceClaim]) -> list[Pick] | None:
    """The first solution in the order of requests, alternatives and devices."""
    requests = [(number, request) for number, claim in enumerate(claims) for request in claim.spec.devices.requests]
    return _requests(inputs, claims, requests, [])


def usable(inputs: AllocatorInput, claim: r.ResourceClaim, name: str, spec: Any, *, admin: bool) -> list[Found]:
    """The devices that an alternative of a request could use if it were the only one."""
    picks = [Pick(0, name, spec, item, admin) for item in inputs.found if _matches(inputs, spec, item)]
    return [pick.device for pick in picks if _allowed(inputs, claim, [], pick)]


def unevaluable(inputs: AllocatorInput, spec: Any) -> list[Found]:
    """The shareable devices whose policies cannot be applied: a range of thousandths, and a finer request."""
    found = [item for item in inputs.found if _matches(inputs, spec, item) and _shared(item)]
    return [item for item in found if _is_too_fine(Pick(0, "", spec, item, admin=False))]


def _is_too_fine(pick: Pick) -> bool:
    asked = _asked(pick)
    if None in asked:
        return False
    for name, amount in asked.items():
        policy = pick.device.spec.capacity[name or ""].request_policy
        valid = None if policy is None else policy.valid_range
        if valid is not None and valid.step is not None:
            bounds = (valid.min, valid.step, valid.max or "0")
            if any(_nanos(bound) % 10**9 for bound in bounds) and amount % 10**6:
                return True
    return False


def everything(inputs: AllocatorInput, spec: Any) -> list[Found]:
    """The devices that mode All stands for."""
    return [item for item in inputs.found if _matches(inputs, spec, item) and _could_ever(inputs, spec, item)]


def _requests(inputs: AllocatorInput, claims: Any, requests: list[Any], picks: list[Pick]) -> list[Pick] | None:
    if not requests:
        return picks
    (number, request), *rest = requests
    for name, spec, admin in alternatives(request):
        if spec.allocation_mode == "All":
            every = everything(inputs, spec)
            groups: Iterator[list[Found]] = iter([every] if every else [])
        else:
            candidates = [item for item in inputs.found if _matches(inputs, spec, item)]
            groups = _combinations(candidates, spec.count)
        for group in groups:
            chosen = [*picks]
            for item in group:
                pick = Pick(number, name, spec, item, admin)
                if not _allowed(inputs, claims[number], chosen, pick):
                    break
                chosen.append(pick)
            else:
                solution = _requests(inputs, claims, rest, chosen)
                if solution is not None:
                    return solution
    return None


def _combinations(items: list[Found], count: int) -> Iterator[list[Found]]:
    if count == 0:
        yield []
        return
    for position, item in enumerate(items):
        for others in _combinations(items[position + 1 :], count - 1):
            yield [item, *others]


def alternatives(request: r.DeviceRequest) -> Iterator[tuple[str, Any, bool]]:
    """The alternatives of a request: name, spec, and whether it has admin access."""
    if request.exactly is not None:
        yield request.name, request.exactly, bool(request.exactly.admin_access)
    for alternative in request.first_available:
        yield f"{request.name}/{alternative.name}", alternative, False


def _matches(inputs: AllocatorInput, spec: Any, item: Found) -> bool:
    kind = inputs.classes[spec.device_class_name]
    attribute = item.spec.attributes.get("kind")
    return kind is None or (attribute is not None and attribute.string == kind)


def _could_ever(inputs: AllocatorInput, spec: Any, item: Found) -> bool:
    """For all devices: those with too little capacity, even if nobody used them, are none of them."""
    if getattr(spec, "admin_access", None):
        return True
    asked = spec.capacity.requests if spec.capacity else {}
    unused = replace(inputs, in_use=[])
    return _has_capacity(unused, [], Pick(0, "", spec, item, admin=False)) if asked or _shared(item) else True


def _shared(item: Found) -> bool:
    return bool(item.spec.allow_multiple_allocations)


def _allowed(inputs: AllocatorInput, claim: r.ResourceClaim, picks: list[Pick], pick: Pick) -> bool:
    own = [other for other in picks if other.claim == pick.claim]
    if len(own) >= LIMIT or not _tolerated(pick) or not _constraints_hold(claim, [*own, pick]):
        return False
    if pick.admin:
        return _shared(pick.device) or all(other.device.key != pick.device.key for other in own)
    if not _shared(pick.device) and any(other.admin and other.device.key == pick.device.key for other in own):
        return False
    others = [result for key, result in inputs.uses() if key == pick.device.key]
    mine = [other for other in picks if not other.admin and other.device.key == pick.device.key]
    if not _shared(pick.device) and (others or mine):
        return False
    if any(result.share_id is None for result in others):
        return False
    return (
        _has_capacity(inputs, picks, pick)
        and _has_counters(inputs, picks, pick)
        and _is_compatible(inputs, picks, pick)
    )


def _tolerated(pick: Pick) -> bool:
    for taint in pick.device.spec.taints:
        covered = any(
            item.operator == "Exists" and item.key in (None, taint.key) for item in pick.alternative.tolerations
        )
        if taint.effect in ("NoSchedule", "NoExecute") and not covered:
            return False
    return True


def _values(pick: Pick, name: str) -> set[Any] | None:
    item = pick.device
    driver, _, bare = name.partition("/")
    if any(derived.name == name for derived in pick.alternative.derived_attributes):
        bus = item.spec.attributes.get("bus")
        return {5 if bus is None else bus.int_}
    attribute = item.spec.attributes.get(bare) if driver == item.driver else None
    if attribute is None:
        return None
    if attribute.int_ is not None:
        return {attribute.int_}
    return set(attribute.ints)


def _constraints_hold(claim: r.ResourceClaim, picks: list[Pick]) -> bool:
    for constraint in claim.spec.devices.constraints:
        named = constraint.requests
        concerned = [
            pick for pick in picks if not named or pick.request in named or pick.request.partition("/")[0] in named
        ]
        name = constraint.match_attribute or constraint.distinct_attribute or ""
        found = [_values(pick, name) for pick in concerned]
        if any(value is None for value in found):
            return False
        values = [value for value in found if value is not None]
        if constraint.match_attribute:
            if values and not set.intersection(*values):
                return False
        elif sum(map(len, values)) != len(set[Any]().union(*values)):
            return False
    return True


def _own_name(item: Found, name: str) -> str | None:
    """The device's own name of a capacity, with or without its driver's domain."""

    def qualified(short: str) -> str:
        return short if "/" in short else f"{item.driver}/{short}"

    return next((own for own in item.spec.capacity if qualified(own) == qualified(name)), None)


def _asked(pick: Pick) -> dict[str | None, int]:
    """What a request asks for, by the device's own names; None stands for what the device does not have."""
    asked = pick.alternative.capacity.requests if pick.alternative.capacity else {}
    return {_own_name(pick.device, name): Quantity.parse(amount).nanos for name, amount in asked.items()}


def _taken(pick: Pick) -> dict[str, int] | None:
    """What a share takes of each capacity by the device's policies; None if they forbid it."""
    asked = _asked(pick)
    taken = {}
    for name, capacity in pick.device.spec.capacity.items():
        amount = _amount(capacity, asked.pop(name, None))
        if amount is None:
            return None
        taken[name] = amount
    return None if asked else taken


def _amount(capacity: r.DeviceCapacity, asked: int | None) -> int | None:
    policy = capacity.request_policy or r.CapacityRequestPolicy()
    if asked is None:
        return Quantity.parse(policy.default or capacity.value).nanos
    if policy.valid_values:
        return min((value for value in map(_nanos, policy.valid_values) if value >= asked), default=None)
    if policy.valid_range is None:
        return asked
    amount = _nanos(policy.valid_range.min)
    while amount < asked and policy.valid_range.step is not None:
        amount += _nanos(policy.valid_range.step)
    amount = max(amount, asked)
    return None if policy.valid_range.max is not None and amount > _nanos(policy.valid_range.max) else amount


def _nanos(text: str) -> int:
    return Quantity.parse(text).nanos


def _has_capacity(inputs: AllocatorInput, picks: list[Pick], pick: Pick) -> bool:
    capacity = pick.device.spec.capacity
    if not _shared(pick.device):
        return all(name is not None and _nanos(capacity[name].value) >= amount for name, amount in _asked(pick).items())
    taken = _taken(pick)
    if taken is None:
        return False
    for other in picks:
        if not other.admin and other.device.key == pick.device.key:
            for name, amount in (_taken(other) or {}).items():
                taken[name] += amount
    for key, result in inputs.uses():
        if key == pick.device.key:
            for name, text in result.consumed_capacity.items():
                taken[name] = taken.get(name, 0) + Quantity.parse(text).nanos
    return all(amount <= Quantity.parse(capacity[name].value).nanos for name, amount in taken.items())


def _has_counters(inputs: AllocatorInput, picks: list[Pick], pick: Pick) -> bool:
    used = {key for key, _ in inputs.uses()} | {other.device.key for other in picks if not other.admin}
    if pick.device.key in used:
        return True
    left = inputs.counters(pick.device.driver, pick.device.pool)
    pool = (pick.device.driver, pick.device.pool)
    for item in inputs.everywhere():
        if item.key in used | {pick.device.key} and (item.driver, item.pool) == pool:
            for name, amount in _consumption(item):
                left[name] -= amount
    return all(left[name] >= 0 for name, _ in _consumption(pick.device))


def _consumption(item: Found) -> Iterator[tuple[tuple[str, str], int]]:
    for consumed in item.spec.consumes_counters:
        for name, counter in consumed.counters.items():
            yield (consumed.counter_set, name), Quantity.parse(counter.value).nanos


def _is_compatible(inputs: AllocatorInput, picks: list[Pick], pick: Pick) -> bool:
    """The devices in use that consume from a counter set all have a group in common, or have none at all."""
    used = {key for key, _ in inputs.uses()} | {other.device.key for other in picks if not other.admin}
    if pick.device.key in used:
        return True
    pool = (pick.device.driver, pick.device.pool)
    for own in pick.device.spec.consumes_counters:
        groups = [
            set(consumed.compatibility_groups)
            for item in inputs.everywhere()
            if item.key in used | {pick.device.key} and (item.driver, item.pool) == pool
            for consumed in item.spec.consumes_counters
            if consumed.counter_set == own.counter_set
        ]
        if any(groups) and not set.intersection(*groups):
            return False
    return True
