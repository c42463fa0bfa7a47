"""Amounts by name, and the few sums that quotas need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from dray.api.quantity import Quantity

Usage: TypeAlias = Mapping[str, Quantity]

ZERO: Final = Quantity(0)
ONE: Final = Quantity.parse("1")


def parse_amounts(texts: Mapping[str, str]) -> dict[str, Quantity]:
    """Amounts as a document has them."""
    return {name: Quantity.parse(text) for name, text in texts.items()}


def write_amounts(usage: Usage) -> dict[str, str]:
    """Amounts as a document has them, in the order of their names."""
    return {name: str(usage[name]) for name in sorted(usage)}


def add_to(total: dict[str, Quantity], more: Usage) -> None:
    """Add amounts to a total in place."""
    for name, amount in more.items():
        total[name] = total.get(name, ZERO) + amount


def subtract_to_zero(usage: Usage, less: Usage) -> dict[str, Quantity]:
    """What is left of each amount, never less than nothing."""
    left = {name: amount - less.get(name, ZERO) for name, amount in usage.items()}
    return {name: amount if amount.nanos > 0 else ZERO for name, amount in left.items()}


def raise_to(total: dict[str, Quantity], least: Usage) -> None:
    """Raise amounts in place to at least these."""
    for name, amount in least.items():
        if name not in total or amount > total[name]:
            total[name] = amount


def masked(usage: Usage, names: Iterable[str]) -> dict[str, Quantity]:
    """The amounts under these names."""
    return {name: usage[name] for name in names if name in usage}


def describe(usage: Usage) -> str:
    """Amounts as messages list them."""
    return ",".join(f"{name}={usage[name]}" for name in sorted(usage))
