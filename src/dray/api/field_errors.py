"""Field paths and field errors, with the texts of k8s.io/apimachinery `field.Error`.

Texts follow k8s.io/apimachinery `field.Error`, since users and tests match them.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import msgspec

from dray.lib.processor_time import tick


class Path(msgspec.Struct, frozen=True, gc=False):
    """An immutable field path such as `spec.devices.requests[0].name`."""

    text: str = ""

    def child(self, name: str, *more: str) -> Path:
        """Descend into named fields."""
        tail = ".".join((name, *more)) if more else name
        return Path(f"{self.text}.{tail}" if self.text else tail)

    def index(self, position: int) -> Path:
        """Descend into a list element."""
        tick()
        return Path(f"{self.text}[{position}]")

    def key(self, key: str) -> Path:
        """Descend into a map entry."""
        tick()
        return Path(f"{self.text}[{key}]")

    def __str__(self) -> str:
        return self.text or "<nil>"


class ErrorType(enum.StrEnum):
    """The reason of a field error, as it appears in `status.details.causes[].reason`."""

    NOT_FOUND = "FieldValueNotFound"
    REQUIRED = "FieldValueRequired"
    DUPLICATE = "FieldValueDuplicate"
    INVALID = "FieldValueInvalid"
    NOT_SUPPORTED = "FieldValueNotSupported"
    FORBIDDEN = "FieldValueForbidden"
    TOO_LONG = "FieldValueTooLong"
    TOO_MANY = "FieldValueTooMany"
    INTERNAL = "InternalError"
    TYPE_INVALID = "FieldValueTypeInvalid"


_LABELS = {
    ErrorType.NOT_FOUND: "Not found",
    ErrorType.REQUIRED: "Required value",
    ErrorType.DUPLICATE: "Duplicate value",
    ErrorType.INVALID: "Invalid value",
    ErrorType.NOT_SUPPORTED: "Unsupported value",
    ErrorType.FORBIDDEN: "Forbidden",
    ErrorType.TOO_LONG: "Too long",
    ErrorType.TOO_MANY: "Too many",
    ErrorType.INTERNAL: "Internal error",
    ErrorType.TYPE_INVALID: "Invalid value",
}

# The value is omitted: it would only repeat the object or leak a secret.
_WITHOUT_VALUE = frozenset({ErrorType.REQUIRED, ErrorType.FORBIDDEN, ErrorType.TOO_LONG, ErrorType.INTERNAL})


@dataclass(frozen=True, slots=True)
class FieldError:
    """One validation error of one field."""

    type: ErrorType
    path: str
    value: Any = None
    detail: str = ""

    @property
    def body(self) -> str:
        """Return the text without the field path, as in `causes[].message`."""
        head = _LABELS[self.type]
        if self.type not in _WITHOUT_VALUE:
            head = f"{head}: {_render(self.value)}"
        return f"{head}: {self.detail}" if self.detail else head

    def __str__(self) -> str:
        return f"{self.path}: {self.body}"


FieldErrors: TypeAlias = list[FieldError]


def quote(text: str) -> str:
    """Quote as Go's %q does."""
    return json.dumps(text, ensure_ascii=False)


def _render(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, str):
        return quote(value)
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def required(path: Path, detail: str = "") -> FieldError:
    """Return the error for a missing value."""
    tick()
    return FieldError(ErrorType.REQUIRED, str(path), "", detail)


def invalid(path: Path, value: Any, detail: str) -> FieldError:
    """Return the error for a malformed or out-of-range value."""
    tick()
    return FieldError(ErrorType.INVALID, str(path), value, detail)


def type_invalid(path: Path, value: Any, detail: str) -> FieldError:
    """Return the error for a value of the wrong JSON type."""
    tick()
    return FieldError(ErrorType.TYPE_INVALID, str(path), value, detail)


def duplicate(path: Path, value: Any) -> FieldError:
    """Return the error for a value that must be unique."""
    tick()
    return FieldError(ErrorType.DUPLICATE, str(path), value)


def not_found(path: Path, value: Any) -> FieldError:
    """Return the error for a reference to something that does not exist."""
    tick()
    return FieldError(ErrorType.NOT_FOUND, str(path), value)


def forbidden(path: Path, detail: str) -> FieldError:
    """Return the error for a field that must not be set or changed."""
    tick()
    return FieldError(ErrorType.FORBIDDEN, str(path), "", detail)


def not_supported(path: Path, value: Any, supported: Iterable[str]) -> FieldError:
    """Return the error for a value that is not one of the supported ones."""
    tick()
    return FieldError(ErrorType.NOT_SUPPORTED, str(path), value, _supported(tuple(supported)))


# An object can have many values that are none of the same thousands.
@lru_cache(maxsize=32)
def _supported(values: tuple[str, ...]) -> str:
    listed = ", ".join(quote(item) for item in values)
    return f"supported values: {listed}" if listed else ""


def too_long(path: Path, length_max: int) -> FieldError:
    """Return the error for a text of too many bytes."""
    tick()
    plural = "byte" if length_max == 1 else "bytes"
    return FieldError(ErrorType.TOO_LONG, str(path), "", f"may not be more than {length_max} {plural}")


def too_many_characters(path: Path, length_max: int) -> FieldError:
    """Return the error for a text of too many characters."""
    tick()
    return FieldError(ErrorType.TOO_LONG, str(path), "", f"may not be more than {length_max} characters")


def too_many(path: Path, actual: int, count_max: int) -> FieldError:
    """Return the error for a list of too many items."""
    tick()
    plural = "item" if count_max == 1 else "items"
    return FieldError(ErrorType.TOO_MANY, str(path), actual, f"must have at most {count_max} {plural}")


def unique(items: Sequence[Any] | None, key: Callable[[Any], Any], path: Path) -> FieldErrors:
    """Return an error for every item whose key is that of an earlier one."""
    if not items:
        return []
    keys = [key(item) for item in items]
    if len(set(keys)) == len(keys):
        return []
    seen: set[Any] = set()
    errors: FieldErrors = []
    for index, item_key in enumerate(keys):
        if item_key in seen:
            errors.append(duplicate(path.index(index), item_key))
        seen.add(item_key)
    return errors


def itself(item: Any) -> Any:
    """Return the item, as the key of items that are their own."""
    return item


def aggregate(errors: Iterable[FieldError]) -> str:
    """Return all errors in one line."""
    return one_line(map(str, errors))


def one_line(texts: Iterable[str]) -> str:
    """Return the texts in one line without duplicates, as Kubernetes' aggregate prints errors."""
    unique = list(dict.fromkeys(texts))
    return unique[0] if len(unique) == 1 else f"[{', '.join(unique)}]"
