"""Snapshots from YAML or JSON files, directories of them, or standard input, as written by `kubectl get -o yaml`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from dray.api.document import Document
from dray.api.parse import ParseError, parse_yaml
from dray.sim.snapshot import Snapshot, SnapshotError, each_object

SUFFIXES: Final = (".yaml", ".yml", ".json")


def read_snapshot(paths: Sequence[str]) -> Snapshot:
    """Read all objects in the files and directories; raises `SnapshotError` with the file's name."""
    # Imported here: API servers have checked the types of what they serve.
    from dray.sim.field_types import with_checked_fields

    found, notes = with_checked_fields(each_object(document for path in paths for document in read_documents(path)))
    return Snapshot.of(found, notes)


def read_documents(path: str) -> list[Document]:
    """Return all documents of a file, or of the files in a directory; `-` is standard input."""
    found: list[Document] = []
    for name, text in _texts(path):
        try:
            found += _documents(text)
        except (yaml.YAMLError, ParseError, SnapshotError) as error:
            raise SnapshotError(f"{name}: {error}") from error
    return found


def _texts(path: str) -> Iterator[tuple[str, str]]:
    if path == "-":
        yield "standard input", sys.stdin.read()
        return
    root = Path(path)
    try:
        files = sorted(item for item in root.rglob("*") if item.suffix in SUFFIXES) if root.is_dir() else [root]
        for item in files:
            yield str(item), item.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SnapshotError(f"{path}: {getattr(error, 'strerror', None) or error}") from error


def _documents(text: str) -> Iterator[Document]:
    for number, part in enumerate(_parts(text), 1):
        value: Any = parse_yaml(part.encode())[0]
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


def _parts(text: str) -> Iterator[str]:
    """Split a YAML stream at lines of three dashes."""
    lines: list[str] = []
    for line in text.splitlines():
        if line == "---" or line.startswith("--- "):
            yield "\n".join(lines)
            lines = [line[4:]]
        else:
            lines.append(line)
    yield "\n".join(lines)
