"""gRPC over unix sockets without TLS, as node agent and plugins speak it: listening, connecting, error texts."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

# The kernel's limit (sun_path) without the closing zero byte.
PATH_LENGTH_MAX: Final = 107
# A plugin that restarts should be found quickly; the library's own pauses grow to two minutes.
RECONNECT_FIRST_MILLISECONDS: Final = 100
RECONNECT_MAX_MILLISECONDS: Final = 3000
CONNECT_MILLISECONDS_MAX: Final = 5000

_CHANNEL_OPTIONS: Final[Sequence[tuple[str, Any]]] = (
    # Two channels to one path must not share a connection: one of them may be a plugin that is gone.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", RECONNECT_FIRST_MILLISECONDS),
    # In spite of its name, how long one attempt may take: a busy process answers late.
    ("grpc.min_reconnect_backoff_ms", CONNECT_MILLISECONDS_MAX),
    ("grpc.max_reconnect_backoff_ms", RECONNECT_MAX_MILLISECONDS),
    ("grpc.enable_http_proxy", 0),
)


class SocketError(OSError):
    """A path that cannot be listened on."""


def connect(path: str) -> grpc.aio.Channel:
    """A channel to the socket; it connects when first used, or when its state is asked for with `try_to_connect`."""
    return grpc.aio.insecure_channel(f"unix:{path}", options=_CHANNEL_OPTIONS)


async def listen(server: grpc.aio.Server, path: str) -> None:
    """Bind and start the server at the path, in place of a socket that an earlier process left there.

    Nothing else is ever removed: a file that is no socket is an error.
    """
    _check_path(path)
    remove_socket(path)
    # The file must not be open to others even for the moment between being made and `chmod`.
    umask = os.umask(0o177)
    try:
        bound = server.add_insecure_port(f"unix:{path}")
    except RuntimeError as error:
        raise SocketError(f"{path}: {error}") from error
    finally:
        os.umask(umask)
    if not bound:
        raise SocketError(f"{path}: cannot be listened on")
    await server.start()


def _check_path(path: str) -> None:
    if len(os.fsencode(path)) > PATH_LENGTH_MAX:
        raise SocketError(f"{path}: socket paths may have at most {PATH_LENGTH_MAX} bytes")
    if not Path(path).absolute().parent.is_dir():
        raise SocketError(f"{path}: its folder does not exist")


def remove_socket(path: str) -> None:
    """Remove a socket file; it is fine when there is none."""
    try:
        mode = Path(path).lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise SocketError(f"{path}: exists and is no socket")
    Path(path).unlink(missing_ok=True)


def code_name(code: grpc.StatusCode) -> str:
    """The status code in Go's spelling, which Kubernetes' messages and metrics have: `DeadlineExceeded`, `OK`."""
    if code is grpc.StatusCode.OK:
        return "OK"
    # Go writes this one with two l, C++ with one or two.
    if code is grpc.StatusCode.CANCELLED:
        return "Canceled"
    return "".join(word.capitalize() for word in code.name.split("_"))


def error_text(error: grpc.aio.AioRpcError) -> str:
    """The failure in Go's words."""
    return f"rpc error: code = {code_name(error.code())} desc = {error.details() or ''}"


class ChannelClosedError(Exception):
    """The channel was closed under a call: the other side was given up meanwhile."""


async def answer_of(call: Any) -> Any:
    """Await a unary call; a cancellation that is not the caller's own is a `ChannelClosedError`."""
    try:
        return await call
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise ChannelClosedError from error
