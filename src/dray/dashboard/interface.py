"""What the dashboard answers with; whoever serves it turns this into HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Final

HTML: Final = "text/html; charset=utf-8"
JSON: Final = "application/json"
LINES: Final = "application/x-ndjson"

# Nothing comes from elsewhere, nothing goes elsewhere, and nobody puts the page into a frame.
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
    """One answer; `stream` follows the body when it is set."""

    body: bytes
    content_type: str = JSON
    status: int = 200
    headers: tuple[tuple[str, str], ...] = field(default=SECURITY_HEADERS)
    stream: AsyncGenerator[bytes, None] | None = None
