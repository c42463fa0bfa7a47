"""Requests of one user to an API server in the test's process."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Final

from dray.api.document import Document
from dray.api.errors import ForbiddenError
from dray.apiserver.local_transport import LocalTransport
from tests.local_server import local_request

MERGE: Final = "application/merge-patch+json"
APPLY: Final = "application/apply-patch+yaml"


@dataclass(slots=True)
class Requester:
    """One user; `path` is that of `local_request`."""

    user: str
    groups: tuple[str, ...] = ()
    server: LocalTransport | None = None

    def connect(self, server: LocalTransport) -> None:
        """Send all further requests to the server."""
        self.server = server

    async def request(
        self,
        verb: str,
        path: str,
        body: Any = None,
        *,
        query: dict[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Document:
        """Send a request and return its answer."""
        assert self.server is not None
        request = local_request(self.user, self.groups, verb, path, body, query=query, content_type=content_type)
        return await self.server.handle(request)

    async def create(self, path: str, body: Document) -> Document:
        """POST an object."""
        return await self.request("create", path, body)

    async def until_allowed(self, verb: str, path: str, body: Document) -> Document:
        """Send a request until the server has seen the roles and bindings that allow it."""
        async with asyncio.timeout(5):
            while True:
                try:
                    return await self.request(verb, path, body)
                except ForbiddenError:
                    await asyncio.sleep(0)


ADMIN: Final = Requester("admin", ("system:masters",))
