"""The lines of the stream. Pure."""

from __future__ import annotations

from typing import Any, Final

import orjson

from dray.api.document import Document
from dray.sim.snapshot import in_hub_version

# Fields that no page shows, and that make up most of the bytes.
_NODE_STATUS: Final = ("images", "volumesInUse", "volumesAttached", "daemonEndpoints")
_METADATA: Final = ("managedFields", "selfLink")


def change(kind: str, api_version: str, document: Document, *, gone: bool) -> bytes:
    """An object that is there, as it is now, or that is gone."""
    slim = _slim(kind, in_hub_version({"apiVersion": api_version, "kind": kind, **document}))
    return _line({"type": "GONE" if gone else "IS", "kind": kind, "object": slim})


def synced(kind: str) -> bytes:
    """Everything that there was of the kind has been told."""
    return _line({"type": "SYNCED", "kind": kind})


def refused(kind: str, message: str) -> bytes:
    """The reader may not see the kind, or the server does not have it."""
    return _line({"type": "REFUSED", "kind": kind, "message": message})


def alive() -> bytes:
    """Nothing has happened."""
    return _line({"type": "ALIVE"})


def _line(value: Document) -> bytes:
    return orjson.dumps(value) + b"\n"


def _slim(kind: str, document: Document) -> Document:
    metadata = _without(document["metadata"], _METADATA)
    slim = {**document, "metadata": metadata}
    if kind == "Node" and slim.get("status"):
        slim["status"] = _without(slim["status"], _NODE_STATUS)
    return slim


def _without(value: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: item for name, item in value.items() if name not in names}
