"""Objects from documents, YAML text, files and directories."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, TypeAlias

import yaml

from dray.api.document import Document

Source: TypeAlias = "str | Path | Document | Iterable[Document]"
_SUFFIXES: Final = frozenset({".yaml", ".yml", ".json"})


def read_manifests(source: Source) -> tuple[Document, ...]:
    """Return every object, in order; lists are flattened."""
    return tuple(found for document in _documents(source) for found in _objects(document))


def _documents(source: Source) -> Iterator[Document]:
    if isinstance(source, dict):
        yield copy.deepcopy(source)
    elif isinstance(source, Path):
        for path in _files(source):
            yield from _parsed(path.read_text(encoding="utf-8"), str(path))
    elif isinstance(source, str):
        # A single line that is not a YAML mapping is a path.
        if "\n" not in source and ":" not in source:
            yield from _documents(Path(source))
        else:
            yield from _parsed(source, "manifest")
    else:
        for document in source:
            yield from _documents(document)


def _files(path: Path) -> list[Path]:
    return sorted(item for item in path.iterdir() if item.suffix in _SUFFIXES) if path.is_dir() else [path]


def _parsed(text: str, name: str) -> Iterator[Document]:
    for document in yaml.safe_load_all(text):
        if document is None:
            continue
        if not isinstance(document, dict):
            raise TypeError(f"{name}: not an object: {document!r}")
        yield document


def _objects(document: Document) -> Iterator[Document]:
    if str(document.get("kind", "")).endswith("List") and "items" in document:
        yield from document["items"]
    else:
        yield document
