"""JSON patch (RFC 6902) as the API server applies it.

Indices may be negative, counting from the end; a pointer's text before its first slash is ignored; testing a
missing member for null succeeds. Any operation that does not fit fails the whole patch. Operations, the bytes that they
copy, the list elements that they shift and the depth of the result are bounded, since a small patch can grow a document
exponentially.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dray.api.document import Document, copy_document, copy_value
from dray.api.errors import BadRequestError, PatchRejectedError, RequestEntityTooLargeError
from dray.api.limits import (
    DEPTH_EXCEEDED,
    EXPANDED_BYTES_MAX,
    INTEGER_DIGITS_MAX,
    NESTING_DEPTH_MAX,
    depth_of,
    is_too_deep,
    size_of_copy,
)
from dray.apiserver.patch.go_text import GoJSONError, json_kind, loads
from dray.lib.processor_time import tick, ticking

# kube-apiserver's limit: every operation traverses the document and may copy a part of it.
OPERATIONS_MAX: Final = 10_000
# The accumulated size of all copies, as in kube-apiserver, which does not charge the number of values.
COPIED_BYTES_MAX: Final = EXPANDED_BYTES_MAX
# Inserting into a list moves what follows; 10,000 operations on lists of 5,000 elements stay below.
SHIFTED_ELEMENTS_MAX: Final = 50_000_000

_INDEX: Final = re.compile(r"[+-]?[0-9]+", re.ASCII)
_TEXT_MEMBERS: Final = ("op", "path", "from")
# All members of an operation.
MEMBERS: Final = frozenset({*_TEXT_MEMBERS, "value"})


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a patch; an omitted value is None, like null."""

    op: str = ""
    path: str | None = None
    source: str | None = None
    value: Any = None


def decode(body: bytes) -> tuple[Operation, ...]:
    """Decode a patch document; raises 400 for malformed ones, 413 for long ones."""
    try:
        raw = loads(body)
    except GoJSONError as error:
        raise BadRequestError(f"error decoding patch: {error}") from None
    if raw is None:
        return ()
    if not isinstance(raw, list):
        raise _mismatch(raw, "value of type []handlers.jsonPatchOp")
    operations = tuple(_operation(item) for item in ticking(raw))
    if len(operations) > OPERATIONS_MAX:
        raise RequestEntityTooLargeError(
            "Request entity too large: The allowed maximum operations in a JSON patch is "
            f"{OPERATIONS_MAX}, got {len(operations)}"
        )
    return operations


def _operation(raw: Any) -> Operation:
    if raw is None:
        return Operation()
    if not isinstance(raw, dict):
        raise _mismatch(raw, "value of type handlers.jsonPatchOp")
    for name in _TEXT_MEMBERS:
        if not isinstance(raw.get(name, ""), str | None):
            raise _mismatch(raw[name], f"struct field jsonPatchOp.{name} of type string")
    return Operation(raw.get("op") or "", raw.get("path"), raw.get("from"), raw.get("value"))


def _mismatch(value: Any, wanted: str) -> BadRequestError:
    return BadRequestError(f"error decoding patch: json: cannot unmarshal {json_kind(value)} into Go {wanted}")


def apply(document: Document, operations: Sequence[Operation]) -> Document:
    """Return the document after all operations, in order; the given one is not changed."""
    patched = _Patched(copy_document(document))
    for operation in operations:
        tick()
        step = _STEPS.get(operation.op)
        if step is None:
            raise PatchRejectedError(f"Unexpected kind: {operation.op or 'unknown'}")
        if operation.path is None:
            raise PatchRejectedError(f"{operation.op} operation has no path")
        step(patched, operation.path, operation)
    if not isinstance(patched.root, dict):
        raise PatchRejectedError("the patched document is not an object")
    if is_too_deep(patched.root):
        raise BadRequestError(f"error applying patch: {DEPTH_EXCEEDED}")
    return patched.root


class _Patched:
    """A document that is being patched, with what its operations have cost so far."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self._copied_bytes = 0
        self._shifted_elements = 0

    def add(self, path: str, operation: Operation) -> None:
        """Insert a value, or replace the whole document."""
        if path == "":
            self.root = _whole(operation)
        else:
            self._insert(path, copy_value(operation.value))

    def replace(self, path: str, operation: Operation) -> None:
        """Set a member, which kube-apiserver does not require to exist, or an existing element."""
        if path == "":
            self.root = _whole(operation)
        else:
            parent, key = _parent(self.root, path)
            place = key if isinstance(parent, dict) else _existing(parent, key, path)
            parent[place] = copy_value(operation.value)

    def remove(self, path: str, operation: Operation) -> None:
        """Delete a member or element."""
        self._take(path)

    def move(self, path: str, operation: Operation) -> None:
        """Remove a value and insert it elsewhere."""
        self._insert(path, self._take(_source(operation)))

    def copy(self, path: str, operation: Operation) -> None:
        """Insert a copy of a value; measured first, since copies of copies grow exponentially."""
        source = _source(operation)
        parent, key = _parent(self.root, source)
        value = parent[_existing(parent, key, source)]
        self._copied_bytes += size_of_copy(value)
        if self._copied_bytes > COPIED_BYTES_MAX:
            raise RequestEntityTooLargeError(
                "Request entity too large: the accumulated size increase of the copy operations in a JSON patch is "
                f"{self._copied_bytes}, exceeding the limit {COPIED_BYTES_MAX}"
            )
        if depth_of(value) > NESTING_DEPTH_MAX:
            raise BadRequestError(f"error applying patch: {DEPTH_EXCEEDED}")
        self._insert(path, copy_value(value))

    def test(self, path: str, operation: Operation) -> None:
        """Compare a value; a missing member equals null, a missing element is an error."""
        if path == "":
            found = self.root
        else:
            parent, key = _parent(self.root, path)
            found = parent.get(key) if isinstance(parent, dict) else parent[_existing(parent, key, path)]
        if not _equal(found, operation.value):
            raise PatchRejectedError(f"testing value {path} failed: test failed")

    def _insert(self, path: str, value: Any) -> None:
        parent, key = _parent(self.root, path)
        if isinstance(parent, dict):
            parent[key] = value
        elif key == "-":
            parent.append(value)
        else:
            self._shift(parent)
            parent.insert(_index(key, len(parent) + 1, path), value)

    def _take(self, path: str) -> Any:
        parent, key = _parent(self.root, path)
        if isinstance(parent, list):
            self._shift(parent)
        return parent.pop(_existing(parent, key, path))

    def _shift(self, elements: list[Any]) -> None:
        self._shifted_elements += len(elements)
        if self._shifted_elements > SHIFTED_ELEMENTS_MAX:
            raise RequestEntityTooLargeError(
                "Request entity too large: the operations in a JSON patch move more than "
                f"{SHIFTED_ELEMENTS_MAX} list elements"
            )


_STEPS: Final[dict[str, Callable[[_Patched, str, Operation], None]]] = {
    "add": _Patched.add,
    "remove": _Patched.remove,
    "replace": _Patched.replace,
    "move": _Patched.move,
    "copy": _Patched.copy,
    "test": _Patched.test,
}


def _source(operation: Operation) -> str:
    if operation.source is None:
        raise PatchRejectedError(f"{operation.op} operation has no from")
    return operation.source


def _whole(operation: Operation) -> Any:
    if not isinstance(operation.value, dict | list):
        raise PatchRejectedError(f"{operation.op} operation value must be object or array")
    return copy_value(operation.value)


def _parent(root: Any, path: str) -> tuple[Any, str]:
    parts = [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")[1:]]
    if not parts:
        raise PatchRejectedError(f"doc is missing path: {path}")
    node = root
    for part in parts[:-1]:
        node = node[_existing(node, part, path)] if isinstance(node, dict | list) else None
    if not isinstance(node, dict | list):
        raise PatchRejectedError(f"doc is missing path: {path}")
    return node, parts[-1]


def _existing(parent: Any, key: str, path: str | None) -> Any:
    if isinstance(parent, list):
        return _index(key, len(parent), path)
    if key not in parent:
        raise PatchRejectedError(f"doc is missing key: {path}")
    return key


def _index(key: str, length: int, path: str | None) -> int:
    index = int(key) if len(key) <= INTEGER_DIGITS_MAX and _INDEX.fullmatch(key) else length
    if not -length <= index < length:
        raise PatchRejectedError(f"unable to access invalid index: {path}")
    return index + length if index < 0 else index


def _equal(left: Any, right: Any) -> bool:
    """Report deep equality, in which true differs from 1."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_equal(item, right[key]) for key, item in left.items())
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_equal, left, right))
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)
