"""The order of a merged list: the wanted order for what the patch names, the live order for the rest.

An item only the server has goes before the first wanted item that followed it in the live list; where the two
orders cannot both hold, the wanted one does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def key_getter(merge_key: str) -> Callable[[Any], Any]:
    """What identifies an element: the value of the merge key, or the element itself."""
    if not merge_key:
        return lambda item: item
    return lambda item: item.get(merge_key) if isinstance(item, dict) else None


def arrange(merged: list[Any], wanted: list[Any], live: list[Any], merge_key: str) -> list[Any]:
    """The merged elements, arranged; `wanted` and `live` only say in which order."""
    key = key_getter(merge_key)
    wanted_rank = _ranks([key(item) for item in wanted])
    live_rank = _ranks([key(item) for item in live])
    named = sorted((item for item in merged if key(item) in wanted_rank), key=lambda item: wanted_rank[key(item)])
    others = [item for item in merged if key(item) not in wanted_rank]
    others.sort(key=lambda item: live_rank.get(key(item), len(live_rank)))
    return _interleave(
        others, named, [live_rank.get(key(item)) for item in others], [live_rank.get(key(i)) for i in named]
    )


def _ranks(keys: list[Any]) -> dict[Any, int]:
    ranks: dict[Any, int] = {}
    for position, key in enumerate(keys):
        ranks.setdefault(key, position)
    return ranks


def _interleave(
    left: list[Any], right: list[Any], left_ranks: list[int | None], right_ranks: list[int | None]
) -> list[Any]:
    """Merge two sorted lists; an element of `left` goes first only where the live list says so."""
    result: list[Any] = []
    position = 0
    for item, rank in zip(right, right_ranks, strict=True):
        while position < len(left) and _is_before(left_ranks[position], rank):
            result.append(left[position])
            position += 1
        result.append(item)
    return result + left[position:]


def _is_before(left: int | None, right: int | None) -> bool:
    return left is not None and right is not None and left < right
