"""Reads the CDI spec directories when they have changed, and completes device nodes from the host."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from dray.api.cdi import CdiError, ContainerEdits, DeviceNode, Spec, from_document, parse
from dray.node.cdi.registry import Registry, SpecFile, build
from dray.runtime.logs import fields

_log = logging.getLogger(__name__)

# Later directories have the higher priority: dynamic specs override static ones.
DEFAULT_DIRECTORIES: Final = ("/etc/cdi", "/var/run/cdi")
_SUFFIXES: Final = (".json", ".yaml")
_Stamp = tuple[tuple[str, int, int], ...]


class CdiCache:
    """The devices of the directories; each use checks for changes with one `stat` per file."""

    def __init__(self, directories: Sequence[str] = DEFAULT_DIRECTORIES) -> None:
        self._directories = tuple(directories)
        self._stamp: _Stamp | None = None
        self._registry = Registry()

    def registry(self) -> Registry:
        """Return the current registry."""
        stamp = self._look()
        if stamp != self._stamp:
            self._registry = self._read()
            self._stamp = stamp
            for path, text in self._registry.unreadable.items():
                _log.warning("CDI spec", extra=fields(path=path, problems=text))
            for path, texts in self._registry.conflicts.items():
                _log.warning("CDI spec", extra=fields(path=path, problems="; ".join(texts)))
        return self._registry

    def edits(self, names: Iterable[str]) -> ContainerEdits:
        """Return the container edits of the devices, with the host's device numbers; raises `CdiError`."""
        edits = self.registry().edits(names)
        nodes = tuple(complete(node) for node in edits.device_nodes)
        return msgspec.structs.replace(edits, device_nodes=nodes)

    def _files(self) -> list[tuple[int, Path]]:
        found = []
        for priority, directory in enumerate(self._directories):
            try:
                entries = sorted(Path(directory).iterdir())
            except OSError:
                continue
            found += [(priority, path) for path in entries if path.suffix in _SUFFIXES and path.is_file()]
        return found

    def _look(self) -> _Stamp:
        stamps = []
        for _, path in self._files():
            try:
                info = path.stat()
            except OSError:
                continue
            stamps.append((str(path), info.st_mtime_ns, info.st_size))
        return tuple(stamps)

    def _read(self) -> Registry:
        files: list[SpecFile] = []
        unreadable: dict[str, str] = {}
        for priority, path in self._files():
            try:
                files.append(SpecFile(str(path), priority, _load(path)))
            except (OSError, CdiError) as error:
                unreadable[str(path)] = str(error)
        return build(files, unreadable)


def _load(path: Path) -> Spec:
    content = path.read_bytes()
    if path.suffix == ".json":
        return parse(content)
    return _from_yaml(content)


def _from_yaml(content: bytes) -> Spec:
    # Rarely used, and the library takes a megabyte.
    from dray.api.parse import ParseError, parse_yaml

    try:
        document, _ = parse_yaml(content)
    except ParseError as error:
        raise CdiError(str(error)) from error
    if not isinstance(document, dict):
        raise CdiError("not a CDI spec: not an object")
    return from_document(document)


def complete(node: DeviceNode) -> DeviceNode:
    """Return the device node with type and numbers, read from the host if the spec has none; raises `CdiError`."""
    host_path = node.host_path or node.path
    if node.type and (node.major or node.type == "p"):
        return msgspec.structs.replace(node, host_path=host_path)
    try:
        info = Path(host_path).stat()
    except OSError as error:
        raise CdiError(f'device "{host_path}": {error.strerror}') from error
    kind = _kind(info.st_mode)
    if not kind:
        raise CdiError(f'device "{host_path}": not a device node')
    if node.type and node.type != kind and not (node.type == "u" and kind == "c"):
        raise CdiError(f'CDI device ("{node.path}", "{host_path}"), host type mismatch ({node.type}, {kind})')
    major, minor = os.major(info.st_rdev), os.minor(info.st_rdev)
    return msgspec.structs.replace(node, host_path=host_path, type=node.type or kind, major=major, minor=minor)


def _kind(mode: int) -> str:
    if stat.S_ISBLK(mode):
        return "b"
    if stat.S_ISCHR(mode):
        return "c"
    return "p" if stat.S_ISFIFO(mode) else ""
