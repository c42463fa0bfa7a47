"""Numbers that may be given as percentages; pure."""

from __future__ import annotations

_HUNDRED = 100


def scaled(value: int | str | None, total: int, *, round_up: bool) -> int:
    """The number, or the percentage of the total."""
    if isinstance(value, str):
        share = int(value.removesuffix("%")) * total
        return -(-share // _HUNDRED) if round_up else share // _HUNDRED
    return value or 0
