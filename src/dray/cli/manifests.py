"""Snapshots from YAML or JSON files, directories of them, or standard input, as written by `kubectl get -o yaml`."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import orjson
import yaml

from dray.api.document import Document
from dray.api.parse import ParseError, parse_own_yaml
from dray.sim.holdings import declared_kinds, of_files
from dray.sim.snapshot import Snapshot, SnapshotError, each_object

SUFFIXES: Final = (".yaml", ".yml", ".json")
_MEGABYTE: Final = 1_000_000
# YAML from here on takes long enough for a note that JSON does not.
_SLOW_BYTES: Final = 20 * _MEGABYTE
# Where kubectl begins an item of a list, and the list itself.
_ITEM: Final = b"\n- "
_ITEMS: Final = b"\nitems:\n- "

_NOT_BLANK: Final = re.compile(r"\S")
_JSON: Final = json.JSONDecoder()

# Called with (done, total, description).
Progress = Callable[[int, int, str], None]


def _silent(_done: int, _of: int, _what: str) -> None:
    return


def read_snapshot(paths: Sequence[str], progress: Progress = _silent) -> Snapshot:
    """Read all objects in the files and directories; raises `SnapshotError` with the file's name."""
    # Imported here: API servers have checked the types of what they serve.
    from dray.sim.field_types import with_checked_fields

    documents = [document for path in paths for document in read_documents(path, progress)]
    declared = declared_kinds(documents)
    found, notes = with_checked_fields(each_object(documents))
    snapshot = Snapshot.of(found, notes)
    return replace(snapshot, **of_files(snapshot.documents, declared))


def read_documents(path: str, progress: Progress = _silent) -> list[Document]:
    """Return all documents of a file, or of the files in a directory; `-` is standard input."""
    found: list[Document] = []
    for name, content in _contents(path):
        try:
            found += _documents(content, progress)
        except (yaml.YAMLError, ParseError, SnapshotError) as error:
            raise SnapshotError(f"{name}: {error}") from error
    return found


def _contents(path: str) -> Iterator[tuple[str, bytes]]:
    if path == "-":
        yield "standard input", sys.stdin.buffer.read()
        return
    root = Path(path)
    try:
        files = sorted(item for item in root.rglob("*") if item.suffix in SUFFIXES) if root.is_dir() else [root]
        for item in files:
            content = item.read_bytes()
            content.decode()
            yield str(item), content
    except (OSError, UnicodeDecodeError) as error:
        raise SnapshotError(f"{path}: {getattr(error, 'strerror', None) or error}") from error


def _documents(content: bytes, progress: Progress) -> Iterator[Document]:
    for number, value in enumerate(_values(content, progress), 1):
        if value is None:
            continue
        if not isinstance(value, dict):
            raise SnapshotError(f"expected an object with apiVersion and kind, found {type(value).__name__}")
        missing = [name for name in ("apiVersion", "kind") if not isinstance(value.get(name), str) or not value[name]]
        if missing:
            known = value.get("metadata") if isinstance(value.get("metadata"), dict) else {}
            name = f' of "{known["name"]}"' if known and known.get("name") else ""
            raise SnapshotError(f"document {number}{name}: {missing[0]} is missing or not a string")
        yield value


def _values(content: bytes, progress: Progress) -> Iterator[Any]:
    """Yield the values of a file: YAML documents, JSON values one after the other, or those of an array."""
    found = _json_values(content) if _is_json(content) and b"\n---" not in content else None
    if found is None:
        done = 0
        for part in _parts(content):
            yield _parsed(part, done, len(content), progress)
            done += len(part)
        return
    for value in found:
        yield from value if isinstance(value, list) else (value,)


def _json_values(content: bytes) -> list[Any] | None:
    """Return JSON values that follow each other, as `jq -c` writes them; None if it is none or YAML with braces."""
    try:
        return [orjson.loads(content)]
    except orjson.JSONDecodeError:
        text = content.decode()
    found: list[Any] = []
    position = 0
    while (rest := _NOT_BLANK.search(text, position)) is not None:
        position = rest.start()
        try:
            value, position = _JSON.raw_decode(text, position)
        except ValueError as error:
            if not found or text[position] not in "{[":
                return None
            raise SnapshotError(f"JSON value {len(found) + 1}: {error}") from error
        found.append(value)
    return found


def _parsed(text: bytes, done: int, total: int, progress: Progress) -> Any:
    """Parse a document; the items of a list as kubectl writes it one by one, which shows progress."""
    head, separator, items = b"\n%b" % text, _ITEMS, b""
    if not _is_json(text) and separator in head:
        head, _, items = head.partition(separator)
    if not items:
        return parse_own_yaml(text)
    # What follows the items at the same level as `items:`.
    body, tail = _before_key(items)
    found: list[Any] = []
    what = "MB read; JSON is read much faster: kubectl get … -o json" if total > _SLOW_BYTES else "MB read"
    try:
        for item in body.split(_ITEM):
            done += len(item)
            progress(done // _MEGABYTE, total // _MEGABYTE, what)
            # As a list of one, so that the item keeps its indentation.
            found += parse_own_yaml(b"- " + item)
        return {**parse_own_yaml(head + b"\n" + tail), "items": found}
    except (ParseError, TypeError):
        # Not as kubectl writes it: an anchor that another item refers to. The error is that of the whole.
        return parse_own_yaml(text)


def _before_key(text: bytes) -> tuple[bytes, bytes]:
    """Split before the first line after the items that begins with a key."""
    position = -1
    while (position := text.find(b"\n", position + 1)) >= 0:
        if text[position + 1 : position + 2].isalpha():
            return text[:position], text[position:]
    return text, b""


def _is_json(text: bytes) -> bool:
    return text.lstrip()[:1] in (b"{", b"[")


def _parts(content: bytes) -> Iterator[bytes]:
    """Split a YAML stream at lines of three dashes."""
    lines: list[bytes] = []
    for line in content.splitlines():
        if line == b"---" or line.startswith(b"--- "):
            yield b"\n".join(lines)
            lines = [line[4:]]
        else:
            lines.append(line)
    yield b"\n".join(lines)
