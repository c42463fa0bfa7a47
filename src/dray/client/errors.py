"""Errors of calls that a caller expects."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from dray.api.errors import NotFoundError

T = TypeVar("T")


async def ignore_not_found(call: Awaitable[T]) -> T | None:
    """Return the result of a call, or None when the object does not exist."""
    try:
        return await call
    except NotFoundError:
        return None
