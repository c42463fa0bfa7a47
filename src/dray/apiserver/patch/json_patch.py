"""JSON patch (RFC 6902) as the API server applies it.

Indices may be negative, counting from the end; a pointer's text before its first slash is ignored; testing a
missing member for null succeeds. Any operation that does not fit fails the whole patch.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dray.api.document import Document
from dray.api.errors import BadRequestError, PatchRejectedError, RequestEntityTooLargeError
from dray.apiserver.patch.go_text import GoJSONError, json_kind, loads

# kube-apiserver's limit: every operation traverses the document and may copy a part of it.
OPERATIONS_MAX: Final = 10_000

_INDEX: Final = re.compile(r"[+-]?[0-9]+", re.ASCII)
_TEXT_MEMBERS: Final = ("op", "path", "from")


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
    operations = tuple(_operation(item) for item in raw)
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
    root: Any = copy.deepcopy(document)
    for operation in operations:
        step = _STEPS.get(operation.op)
        if step is None:
            raise PatchRejectedError(f"Unexpected kind: {operation.op or 'unknown'}")
        if operation.path is None:
            raise PatchRejectedError(f"{operation.op} operation has no path")
        root = step(root, operation)
    if not isinstance(root, dict):
        raise PatchRejectedError("the patched document is not an object")
    return root


def _add(root: Any, operation: Operation) -> Any:
    if operation.path == "":
        return _whole(operation)
    return _insert(root, operation.path or "", copy.deepcopy(operation.value))


def _replace(root: Any, operation: Operation) -> Any:
    if operation.path == "":
        return _whole(operation)
    parent, key = _parent(root, operation.path or "")
    parent[_existing(parent, key, operation.path)] = copy.deepcopy(operation.value)
    return root


def _remove(root: Any, operation: Operation) -> Any:
    _take(root, operation.path or "")
    return root


def _move(root: Any, operation: Operation) -> Any:
    return _insert(root, operation.path or "", _take(root, _source(operation)))


def _copy(root: Any, operation: Operation) -> Any:
    source = _source(operation)
    parent, key = _parent(root, source)
    return _insert(root, operation.path or "", copy.deepcopy(parent[_existing(parent, key, source)]))


def _test(root: Any, operation: Operation) -> Any:
    path = operation.path or ""
    if path == "":
        found = root
    else:
        parent, key = _parent(root, path)
        # A missing member equals null, a missing element is an error.
        found = parent.get(key) if isinstance(parent, dict) else parent[_existing(parent, key, path)]
    if not _equal(found, operation.value):
        raise PatchRejectedError(f"testing value {path} failed: test failed")
    return root


_STEPS: Final[dict[str, Callable[[Any, Operation], Any]]] = {
    "add": _add,
    "remove": _remove,
    "replace": _replace,
    "move": _move,
    "copy": _copy,
    "test": _test,
}


def _source(operation: Operation) -> str:
    if operation.source is None:
        raise PatchRejectedError(f"{operation.op} operation has no from")
    return operation.source


def _whole(operation: Operation) -> Any:
    if not isinstance(operation.value, dict | list):
        raise PatchRejectedError(f"{operation.op} operation value must be object or array")
    return copy.deepcopy(operation.value)


def _insert(root: Any, path: str, value: Any) -> Any:
    parent, key = _parent(root, path)
    if isinstance(parent, dict):
        parent[key] = value
    elif key == "-":
        parent.append(value)
    else:
        parent.insert(_index(key, len(parent) + 1, path), value)
    return root


def _take(root: Any, path: str) -> Any:
    parent, key = _parent(root, path)
    return parent.pop(_existing(parent, key, path))


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
    index = int(key) if _INDEX.fullmatch(key) else length
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
