"""The heads of requests and responses, as bytes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

# The texts of Go's net/http, which clients of Kubernetes see; other statuses go without one.
_PHRASES: Final = {
    101: "Switching Protocols",
    200: "OK",
    201: "Created",
    202: "Accepted",
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
    406: "Not Acceptable",
    408: "Request Timeout",
    409: "Conflict",
    410: "Gone",
    412: "Precondition Failed",
    413: "Request Entity Too Large",
    415: "Unsupported Media Type",
    422: "Unprocessable Entity",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    501: "Not Implemented",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
    507: "Insufficient Storage",
}


def request_head(method: str, target: str, headers: Sequence[tuple[str, str]], body_size: int | None = None) -> bytes:
    """Return request line and headers; raise ValueError for text that would change their meaning."""
    if " " in target or not target.isascii():
        raise ValueError(f"the request target {target!r} is not quoted")
    lines = [f"{method} {target} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in headers]
    if body_size is not None:
        lines.append(f"Content-Length: {body_size}")
    return _joined(lines).encode()


def response_head(status: int, headers: Sequence[tuple[str, str]], date_text: str) -> bytes:
    """Return status line and headers; characters outside Latin-1 are replaced."""
    lines = [f"HTTP/1.1 {status} {_PHRASES.get(status, '')}", f"Date: {date_text}"]
    lines += [f"{name}: {value}" for name, value in headers]
    return _joined(lines).encode("latin-1", "replace")


def date(seconds: float) -> str:
    """Return a time in the format of the Date header."""
    return time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(seconds))


def _joined(lines: Sequence[str]) -> str:
    text = "\r\n".join(lines)
    # A line break in a value would begin another header or message.
    if text.count("\n") != len(lines) - 1 or text.count("\r") != len(lines) - 1 or "\0" in text:
        raise ValueError("a header has a line break in it")
    return f"{text}\r\n\r\n"
