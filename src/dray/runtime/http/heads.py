"""The beginnings of requests and answers, as bytes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

# Those that are sent here; another number goes without words, as it may.
_PHRASES: Final = {
    200: "OK",
    204: "No Content",
    302: "Found",
    304: "Not Modified",
    307: "Temporary Redirect",
    308: "Permanent Redirect",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    409: "Conflict",
    410: "Gone",
    413: "Content Too Large",
    422: "Unprocessable Content",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}


def request_head(method: str, target: str, headers: Sequence[tuple[str, str]], body_size: int | None = None) -> bytes:
    """Request line and headers; ValueError for what would say something else than was meant."""
    if " " in target or not target.isascii():
        raise ValueError(f"the request target {target!r} is not quoted")
    lines = [f"{method} {target} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in headers]
    if body_size is not None:
        lines.append(f"Content-Length: {body_size}")
    return _joined(lines)


def answer_head(status: int, headers: Sequence[tuple[str, str]], now_seconds: float) -> bytes:
    """Status line and headers."""
    lines = [f"HTTP/1.1 {status} {_PHRASES.get(status, '')}", f"Date: {date(now_seconds)}"]
    lines += [f"{name}: {value}" for name, value in headers]
    return _joined(lines)


def date(seconds: float) -> str:
    """A time as HTTP writes it."""
    return time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(seconds))


def _joined(lines: Sequence[str]) -> bytes:
    text = "\r\n".join(lines)
    # A value with a line break would be read as a header of its own, or as the next message.
    if text.count("\n") != len(lines) - 1 or text.count("\r") != len(lines) - 1 or "\0" in text:
        raise ValueError("a header has a line break in it")
    return f"{text}\r\n\r\n".encode()
