"""The sockets of a plugin: who may serve them, for how long, and what kubelet reports about the registration."""

from __future__ import annotations

import asyncio
import fcntl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

import grpc.aio

from dray.rpc.sockets import SocketError, listen, remove_socket

# How long calls in progress may take when the driver is asked to stop.
STOP_SECONDS: Final = 5.0


class RegisteredPlugin:
    """Registration status of a plugin; base of the runners."""

    def __init__(self) -> None:
        # Set while kubelet's last report is that the plugin is registered.
        self.registered = asyncio.Event()
        self.registration_error = ""

    def _on_registration(self, error: str | None) -> None:
        """Record kubelet's report; None is success."""
        self.registration_error = error or ""
        if error is None:
            self.registered.set()
        else:
            self.registered.clear()


@contextmanager
def sole_server(socket_path: str) -> Iterator[None]:
    """Hold the right to serve the socket; a crash releases it.

    Without it a second process would replace the socket of the first, and the first would remove it when it stops.
    """
    with open(f"{socket_path}.lock", "a", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise SocketError(
                f"{socket_path}: another process serves it; instances that run side by side need each its own --pod-uid"
            ) from error
        yield


@asynccontextmanager
async def listening(server: grpc.aio.Server, path: str) -> AsyncIterator[None]:
    """Serve at the socket for the time of the block."""
    await listen(server, path)
    try:
        yield
    finally:
        # Removed before the last call has ended, so that no new one begins.
        remove_socket(path)
        await server.stop(STOP_SECONDS)
