"""Reads the page's files once; there are few, and they are small."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Final

from dray.dashboard.interface import HTML, SECURITY_HEADERS, Reply

_FOLDER: Final = Path(__file__).resolve().parent.parent / "static"
_TYPES: Final = {
    ".html": HTML,
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
_INDEX: Final = "index.html"


@cache
def _read() -> dict[str, tuple[bytes, str, str]]:
    """Path -> content, type and tag."""
    found = {}
    for path in sorted(_FOLDER.rglob("*")):
        if path.suffix in _TYPES:
            content = path.read_bytes()
            tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
            found[path.relative_to(_FOLDER).as_posix()] = content, _TYPES[path.suffix], tag
    return found


def asset(path: str, known_tag: str = "") -> Reply | None:
    """The file at a path below the page's own; a tag that the reader knows spares the content."""
    found = _read().get(path or _INDEX)
    if found is None:
        return None
    content, content_type, tag = found
    headers = (*SECURITY_HEADERS, ("ETag", tag), ("Cache-Control", "no-cache"))
    if known_tag == tag:
        return Reply(b"", content_type, 304, headers)
    return Reply(content, content_type, 200, headers)
