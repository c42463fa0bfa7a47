"""The order of devices' names. Pure."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import Final

_NUMBERS: Final = re.compile(r"([0-9]+)")
# The same devices are sorted again and again; a node has hundreds of them, seldom thousands.
NAMES_KEPT: Final = 16384


@functools.lru_cache(maxsize=NAMES_KEPT)
def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """A key for sorting that counts numbers inside of names: gpu2 before gpu10."""
    parts = _NUMBERS.split(name)
    return tuple((0, int(part), part) if index % 2 else (1, 0, part) for index, part in enumerate(parts))


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """The names sorted naturally."""
    return tuple(sorted(names, key=natural))
