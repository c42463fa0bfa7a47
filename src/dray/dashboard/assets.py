"""The static files of the page. They are few and small: all are read once and stay in memory.

They are served before anything else of the dashboard is imported.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from functools import cache
from pathlib import Path
from typing import Final

from dray.dashboard.responses import HTML, SECURITY_HEADERS, Reply

ROOT: Final = "/ui"
DATA: Final = "/ui/data/"
_DIRECTORY: Final = Path(__file__).resolve().parent / "static"
_CONTENT_TYPES: Final = {
    ".html": HTML,
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
_INDEX: Final = "index.html"
# Replaced by links to the modules that the first picture needs: the browser would find them only one import after the
# other.
_MODULES: Final = b"<!-- modules -->"
_ENTRY: Final = "js/main.js"
# An import that is part of the module; `import(…)` fetches others later.
_IMPORT: Final = re.compile(rb'^import .* from "([^"]+)";$', re.MULTILINE)


@cache
def _assets() -> dict[str, tuple[bytes, str, str]]:
    """Return content, content type and ETag by path."""
    assets = {}
    paths = [path for path in sorted(_DIRECTORY.rglob("*")) if path.suffix in _CONTENT_TYPES]
    names = {path: path.relative_to(_DIRECTORY).as_posix() for path in paths}
    modules = [f'<link rel="modulepreload" href="{name}">' for name in _needed_modules(_ENTRY)]
    for path in paths:
        content = path.read_bytes().replace(_MODULES, "\n".join(modules).encode())
        etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        assets[names[path]] = content, _CONTENT_TYPES[path.suffix], etag
    return assets


def _needed_modules(entry: str) -> list[str]:
    """Return the module and all that it imports, in the order in which a browser would find them."""
    found = {entry: None}
    for name in (waiting := [entry]):
        folder = posixpath.dirname(name)
        for imported in _IMPORT.findall((_DIRECTORY / name).read_bytes()):
            path = posixpath.normpath(posixpath.join(folder, imported.decode()))
            if path not in found:
                found[path] = None
                waiting.append(path)
    return list(found)


def page(path: str, if_none_match: str = "") -> Reply | None:
    """Return the static file at a URL path, which needs no credentials; None if there is none."""
    if path == ROOT:
        # Relative links need the slash.
        return Reply(b"", HTML, 308, (("Location", f"{ROOT}/"),))
    if not path.startswith(f"{ROOT}/") or path.startswith(DATA):
        return None
    return asset(path.removeprefix(f"{ROOT}/"), if_none_match)


def asset(path: str, if_none_match: str = "") -> Reply | None:
    """Return the file at a path relative to the page, or 304 if the ETag matches; None if there is no such file."""
    found = _assets().get(path or _INDEX)
    if found is None:
        return None
    content, content_type, etag = found
    headers = (*SECURITY_HEADERS, ("ETag", etag), ("Cache-Control", "no-cache"))
    if if_none_match == etag:
        return Reply(b"", content_type, 304, headers)
    return Reply(content, content_type, 200, headers)
