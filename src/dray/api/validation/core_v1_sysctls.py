"""Kernel parameters of a Pod."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors, Path, duplicate, invalid, required

_LENGTH_MAX: Final = 253
_PATTERN: Final = r"^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$"
# Matched by segments, in linear time.
_SEGMENT: Final = re.compile(r"[a-z0-9]([-_a-z0-9]*[a-z0-9])?", re.ASCII)
_SEPARATORS: Final = re.compile(r"[./]")
_IPC_PREFIXES: Final = ("kernel.shm", "kernel.msg", "fs.mqueue.")
_IPC_NAMES: Final = frozenset({"kernel.sem"})


def validate_sysctls(sysctls: Sequence[Document], spec: Document, path: Path) -> FieldErrors:
    """Validate names, and that none belongs to a namespace that the Pod shares with its host."""
    errors: FieldErrors = []
    seen: set[str] = set()
    for i, sysctl in enumerate(sysctls):
        name, at = sysctl.get("name") or "", path.index(i).child("name")
        if not name:
            errors.append(required(at))
        elif not _is_valid(name):
            errors.append(invalid(at, name, f"must have at most {_LENGTH_MAX} characters and match regex {_PATTERN}"))
        elif name in seen:
            errors.append(duplicate(at, name))
        if problem := _host_problem(name.replace("/", "."), spec):
            errors.append(invalid(at, name, problem))
        seen.add(name)
    return errors


def _is_valid(name: str) -> bool:
    return len(name) <= _LENGTH_MAX and all(_SEGMENT.fullmatch(part) for part in _SEPARATORS.split(name))


def _host_problem(name: str, spec: Document) -> str:
    if spec.get("hostIPC") and (name.startswith(_IPC_PREFIXES) or name in _IPC_NAMES):
        return "may not be specified when 'hostIPC' is true"
    if spec.get("hostNetwork") and name.startswith("net."):
        return "may not be specified when 'hostNetwork' is true"
    return ""
