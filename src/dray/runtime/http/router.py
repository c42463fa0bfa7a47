"""Routes requests by path to handlers that return replies."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

from dray.runtime.http.requests import Request

TEXT: Final = "text/plain; charset=utf-8"
_READ: Final = ("GET", "HEAD")


@dataclass(slots=True)
class Reply:
    """A response; the stream, if any, follows the body and is always closed."""

    body: bytes = b""
    status: int = 200
    content_type: str = TEXT
    headers: tuple[tuple[str, str], ...] = ()
    stream: AsyncGenerator[bytes, None] | None = None
    # Accepts the upgrade that the request asks for, with the headers, and speaks on the connection until it returns.
    upgrade: Callable[[Any], Awaitable[None]] | None = None


Handler = Callable[[Request], Awaitable[Reply]]


def text(content: str, status: int = 200, headers: tuple[tuple[str, str], ...] = ()) -> Reply:
    """Return a reply of plain text."""
    return Reply(content.encode(), status, headers=headers)


class Router:
    """Routes requests; `{name}` in a pattern matches one path segment.

    Handlers get GET and HEAD requests; those of patterns in `with_post` also POST.
    """

    def __init__(self, handlers: Mapping[str, Handler], with_post: Collection[str] = ()) -> None:
        self._handlers = [
            (_compile(pattern), handler, _READ if pattern not in with_post else (*_READ, "POST"))
            for pattern, handler in handlers.items()
        ]

    async def __call__(self, request: Request) -> Reply:
        """Call the handler of the path."""
        # Matched before unquoting: a quoted slash is part of a segment.
        path = request.target.partition("?")[0]
        for pattern, handler, methods in self._handlers:
            match = pattern.fullmatch(path)
            if match is None:
                continue
            if request.method not in methods:
                return text("405: Method Not Allowed", 405, (("Allow", ",".join(methods)),))
            request.parameters = {name: unquote(value) for name, value in match.groupdict().items()}
            return await handler(request)
        return text("404: Not Found", 404)


def _compile(pattern: str) -> re.Pattern[str]:
    """Return the pattern as a regular expression."""
    parts = re.split(r"\{(\w+)\}", pattern)
    made = [re.escape(part) if number % 2 == 0 else f"(?P<{part}>[^/]+)" for number, part in enumerate(parts)]
    return re.compile("".join(made))
