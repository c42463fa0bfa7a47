"""HTTP responses of the dashboard; the server that hosts it writes them to the connection."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from dray.api.errors import APIError

HTML: Final = "text/html; charset=utf-8"
JSON: Final = "application/json"
JSON_LINES: Final = "application/x-ndjson"

# No content from other origins, no requests to other origins, no framing.
SECURITY_HEADERS: Final = (
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("Referrer-Policy", "no-referrer"),
    ("X-Content-Type-Options", "nosniff"),
)


@dataclass(slots=True)
class Reply:
    """One response; if `stream` is set, it is sent after the body."""

    body: bytes
    content_type: str = JSON
    status: int = 200
    headers: tuple[tuple[str, str], ...] = field(default=SECURITY_HEADERS)
    stream: AsyncGenerator[bytes, None] | None = None


def json_reply(value: Any, status: int = 200) -> Reply:
    """Return a JSON response."""
    return Reply(orjson.dumps(value), status=status)


def error_reply(error: APIError) -> Reply:
    """Return an API error as a Status object."""
    return json_reply(error.status(), error.code)
