"""Resource lists in the form the server keeps them: canonical quantities, never finer than a thousandth."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from dray.api.document import Document
from dray.api.quantity import Quantity, QuantityError

_NANOS_PER_MILLI: Final = 1_000_000
_CACHE_SIZE: Final = 4096


@lru_cache(maxsize=_CACHE_SIZE)
def _canonical(text: str) -> str:
    try:
        quantity = Quantity.parse(text)
    except QuantityError:
        # Decoding refuses such text with its own message; what gets here anyway is left for validation.
        return text
    rest = quantity.nanos % _NANOS_PER_MILLI
    return str(Quantity(quantity.nanos + (_NANOS_PER_MILLI - rest), quantity.format) if rest else quantity)


def canonical_quantity(value: Any) -> Any:
    """`0.1` becomes `100m`, `1024Mi` becomes `1Gi`; JSON numbers become text."""
    if isinstance(value, str):
        return _canonical(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _canonical(repr(value))
    return value


def canonicalize_quantities(resource_list: Document | None) -> None:
    """Put every quantity of a resource list into canonical form."""
    if resource_list:
        for name, value in resource_list.items():
            resource_list[name] = canonical_quantity(value)
