"""The sockets of a plugin: who may serve them, for how long, and what kubelet reports about the registration."""

from __future__ import annotations

import asyncio
import fcntl
import os
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Final

import grpc.aio

from dray.rpc.sockets import PATH_LENGTH_MAX, SocketError, listen, remove_socket

# How long calls in progress may take when the driver is asked to stop.
STOP_SECONDS: Final = 5.0


def registration_socket(folder: str, driver: str, pod_uid: str = "") -> str:
    """Return the path of a driver's registration socket.

    During a rolling update two instances run side by side, each with its Pod's UID in the name. Where that is too long
    for a socket, parts of the name are replaced by their hash, as Kubernetes does.
    """
    if not pod_uid:
        return str(Path(folder) / f"{driver}-reg.sock")
    both = "\0".join((driver, pod_uid))
    return _first_that_fits(
        folder,
        f"{driver}-{pod_uid}-reg.sock",
        f"{driver}-{_digest(pod_uid, 8)}-reg.sock",
        f"dra-{_digest(both, 16)}-reg.sock",
    )


def service_socket(folder: str, pod_uid: str = "") -> str:
    """Return the path of the service socket in the driver's own directory."""
    if not pod_uid:
        return str(Path(folder) / "dra.sock")
    return _first_that_fits(folder, f"dra-{pod_uid}.sock", f"d-{_digest(pod_uid, 6)}.sock")


def _first_that_fits(folder: str, *names: str) -> str:
    paths = [str(Path(folder) / name) for name in names]
    return next((path for path in paths if len(os.fsencode(path)) <= PATH_LENGTH_MAX), paths[-1])


def _digest(text: str, length: int) -> str:
    return urlsafe_b64encode(sha256(text.encode()).digest()[:length]).decode().rstrip("=")


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
