"""Shares of a device: what a request consumes of each capacity, by the device's request policy."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from dray.allocator.content import Content
from dray.api.quantity import Format, Quantity
from dray.api.types.resource_v1 import CapacityRequestPolicy, CapacityRequestPolicyRange

# Amounts are in nano units throughout.
Amounts = Mapping[str, int]

_CACHE_SIZE: Final = 4096
# Kubernetes counts steps in whole numbers, or in thousandths if a bound of the range has a fraction.
_WHOLE: Final = 10**9
_MILLI: Final = 10**6
_INT64_MAX: Final = 2**63 - 1
_UNREPRESENTABLE: Final = "capacity request cannot be represented in the device's range arithmetic"


class CapacityRequestError(Exception):
    """A request that cannot be applied to a device; it ends the attempt."""


@lru_cache(maxsize=_CACHE_SIZE)
def nanos(text: str) -> int:
    """Return a quantity in nano units."""
    return Quantity.parse(text).nanos


def offers(content: Content, wanted: Mapping[str, str]) -> bool:
    """Return whether an exclusively used device has the requested capacities."""
    asked = _asked(content, wanted)
    return asked is not None and all(amount <= nanos(content.capacity[own].value) for own, amount in asked.items())


def share(content: Content, wanted: Mapping[str, str]) -> dict[str, int] | None:
    """Return what a share consumes of each capacity; None if the policy forbids it or a capacity is missing.

    All capacities are looked at: one that the policy forbids must not hide a `CapacityRequestError` of another one.
    """
    asked = _asked(content, wanted)
    if asked is None:
        return None
    taken: dict[str, int] = {}
    allowed = True
    for name, capacity in content.capacity.items():
        amount_taken = _amount(name, asked.get(name), capacity.request_policy, nanos(capacity.value))
        if amount_taken is None:
            allowed = False
        elif amount_taken < 0:
            raise CapacityRequestError(f'capacity "{name}": capacity value is negative')
        else:
            taken[name] = amount_taken
    return taken if allowed else None


def request_error(content: Content, wanted: Mapping[str, str]) -> str | None:
    """Return why the request cannot be applied to the device; None if it can."""
    try:
        if content.allow_multiple:
            share(content, wanted)
        else:
            offers(content, wanted)
    except CapacityRequestError as error:
        return str(error)
    return None


def _asked(content: Content, wanted: Mapping[str, str]) -> dict[str, int] | None:
    """Return the requested amounts by the device's own names; None if it does not have one of the capacities."""
    names: dict[str, str] = {}
    for name in wanted:
        own = content.capacity_name(name)
        if own is None:
            return None
        other = names.setdefault(own, name)
        if other != name:
            # Neither amount is more right than the other one.
            short, qualified = sorted((name, other), key=len)
            raise CapacityRequestError(f'capacity "{short}" requested both as "{short}" and as "{qualified}"')
    return {own: nanos(wanted[name]) for own, name in names.items()}


def _amount(name: str, asked: int | None, policy: CapacityRequestPolicy | None, whole: int) -> int | None:
    if asked is None:
        # Without a default the share takes the whole capacity.
        return whole if policy is None or policy.default is None else nanos(policy.default)
    if policy is None:
        return asked
    if policy.valid_range is not None:
        return _in_range(name, asked, policy.valid_range)
    if policy.valid_values:
        return min((value for value in map(nanos, policy.valid_values) if value >= asked), default=None)
    return asked


def _in_range(name: str, asked: int, valid: CapacityRequestPolicyRange) -> int | None:
    least = nanos(valid.min)
    amount = max(asked, least)
    most = None if valid.max is None else nanos(valid.max)
    step = nanos(valid.step) if valid.step is not None else 0
    if step > 0:
        amount = least - (least - amount) // step * step
        unit = _MILLI if least % _WHOLE or step % _WHOLE or (most or 0) % _WHOLE else _WHOLE
        if amount > _INT64_MAX * unit:
            problem = f"more than {_INT64_MAX}{'m' if unit == _MILLI else ''}"
            raise CapacityRequestError(f'capacity "{name}": {_UNREPRESENTABLE}: {problem}')
        if unit == _MILLI and asked % _MILLI:
            raise CapacityRequestError(f'capacity "{name}": {_UNREPRESENTABLE}: finer than 1m')
    return None if most is not None and amount > most else amount


def fits(content: Content, taken: Amounts, consumed: Amounts, also: Amounts) -> str | None:
    """Return the first capacity that is insufficient for one more share; None if there is none."""
    for name, amount in taken.items():
        left = nanos(content.capacity[name].value) - consumed.get(name, 0) - also.get(name, 0)
        if amount > left:
            return name
    return None


def most_consumed(content: Content, wanted: Mapping[str, str]) -> tuple[tuple[str, int], ...]:
    """Return what others may consume of each capacity so that a share still fits; negative if it never does."""
    taken = share(content, wanted)
    if taken is None:
        return (("", -1),)
    return tuple((name, nanos(content.capacity[name].value) - amount) for name, amount in taken.items())


def rendered(content: Content, taken: Amounts, wanted: Mapping[str, str]) -> dict[str, str]:
    """Return the amounts as quantities in the format of the request or the device."""
    asked = {content.capacity_name(name): amount for name, amount in wanted.items()}
    return {name: _text(amount, asked.get(name) or content.capacity[name].value) for name, amount in taken.items()}


def _text(nanos: int, like: str) -> str:
    quantity = Quantity.parse(like)
    return str(Quantity(nanos, quantity.format if quantity.nanos else Format.DECIMAL_SI))
