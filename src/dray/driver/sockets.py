"""Keeps two processes from serving the same socket."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

from dray.rpc.sockets import SocketError


@contextmanager
def sole_server(socket_path: str) -> Iterator[None]:
    """Hold the right to serve the socket; a crash gives it up.

    Without it a second process would take the socket from the first, and the first, stopping, would remove it.
    """
    with open(f"{socket_path}.lock", "a", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise SocketError(
                f"{socket_path}: another process serves it; instances that run side by side need each its own --pod-uid"
            ) from error
        yield
