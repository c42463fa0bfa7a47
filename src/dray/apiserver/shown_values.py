"""Shows stored values without those that cannot be shown, which must not keep the others from being seen. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

from dray.api.errors import APIError
from dray.store.interface import Entry

T = TypeVar("T")

# Called with what cannot be shown, and why.
Report: TypeAlias = Callable[[Entry, Exception], None]


def fail(_entry: Entry, error: Exception) -> None:
    """Report by failing."""
    raise error


def unless_malformed(show: Callable[[Entry], T], entry: Entry, report: Report) -> T | None:
    """Return what a function makes of an entry, None if it fails because of the stored value."""
    try:
        return show(entry)
    except APIError:
        raise
    except Exception as error:  # noqa: BLE001 - a value that has not the form of its kind fails anywhere
        report(entry, error)
        return None


def each_shown(show: Callable[[Entry], T], entries: Sequence[Entry], report: Report) -> list[T]:
    """Return what a function makes of the entries, without those that fail because of the stored value."""
    try:
        return [show(entry) for entry in entries]
    except APIError:
        raise
    except Exception:  # noqa: BLE001 - as above; which one it is shows only one by one
        shown = (unless_malformed(show, entry, report) for entry in entries)
        return [item for item in shown if item is not None]
