"""The dashboard behind the API server: the page for anybody, its data as the user who asks."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from dray.apiserver.call import Call, TextResult
from dray.apiserver.local_transport import LocalTransport
from dray.client.memory import memory_client
from dray.lib.clock import Clock

if TYPE_CHECKING:
    from dray.dashboard.interface import Reply
    from dray.dashboard.servicer import Dashboard


class DashboardPages:
    """Implements `dray.apiserver.handlers.nonresource.Pages`."""

    def __init__(self, local: LocalTransport, clock: Clock) -> None:
        self._local = local
        self._clock = clock

    @cached_property
    def _dashboard(self) -> Dashboard:
        # It brings half of the package along; a server that nobody looks at starts faster and smaller without.
        from dray.dashboard.servicer import Dashboard

        return Dashboard(self._clock)

    def public(self, path: str, known_tag: str) -> TextResult | None:
        """A file of the page."""
        reply = self._dashboard.page(path, known_tag)
        return None if reply is None else _result(reply)

    async def data(self, call: Call) -> TextResult:
        """An answer made with the caller's own rights."""
        user = call.user
        client = memory_client(self._local, user=user.name, groups=user.groups, user_agent="dashboard")
        return _result(await self._dashboard.data(call.info.path, call.query, client))


def _result(reply: Reply) -> TextResult:
    return TextResult(reply.body, reply.content_type, reply.status, reply.headers, reply.stream)
