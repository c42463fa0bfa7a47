"""The dashboard hosted by the API server: static files for everyone, data with the user's permissions."""

from __future__ import annotations

import asyncio
import importlib
from functools import cached_property
from typing import TYPE_CHECKING, Final

from dray.apiserver.call import Call, TextResult
from dray.apiserver.local_transport import LocalTransport
from dray.apiserver.server import APIServer
from dray.client.in_process import in_process_client
from dray.dashboard import assets
from dray.lib.clock import Clock

if TYPE_CHECKING:
    from dray.dashboard.handler import Dashboard
    from dray.dashboard.responses import Reply


# Reads for all users; what each may see is decided by the user's own permissions.
_WATCHER: Final = "system:apiserver"
_USER_AGENT: Final = "dashboard"
_HANDLER: Final = "dray.dashboard.handler"


class DashboardPages:
    """Implements `dray.apiserver.server.UIPages`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._is_opened = False

    @cached_property
    def _dashboard(self) -> Dashboard:
        # Imported on first use: it pulls in the simulator, and a server without dashboard users starts faster.
        from dray.dashboard.handler import Dashboard

        return Dashboard(self._clock)

    def public(self, path: str, known_tag: str) -> TextResult | None:
        """Return a static file; None if there is none at the path."""
        reply = assets.page(path, known_tag)
        if reply is None:
            return None
        if not self._is_opened:
            self._is_opened = True
            # Requests for data follow: what they need is imported while the browser reads the page.
            asyncio.get_running_loop().run_in_executor(None, importlib.import_module, _HANDLER)
        return _result(reply)

    async def data(self, call: Call, server: APIServer) -> TextResult:
        """Return data read with the caller's own permissions."""
        # Imported on first use, as the dashboard itself.
        from dray.dashboard import handler

        user, transport = call.user, LocalTransport(server)
        client = in_process_client(transport, user=user.name, groups=user.groups, user_agent=_USER_AGENT)
        watcher = in_process_client(transport, user=_WATCHER, groups=("system:masters",), user_agent=_USER_AGENT)
        body = call.body if isinstance(call.body, bytes) else b""
        request = handler.DataRequest(call.info.path, call.query, call.info.method, call.content_type, body)
        return _result(await self._dashboard.data(request, client, watcher, server.tasks))


def _result(reply: Reply) -> TextResult:
    return TextResult(reply.body, reply.content_type, reply.status, reply.headers, reply.stream)
