"""The interface of interactive streams: those of a command in a container, of the container itself, and of a port."""

from __future__ import annotations

from typing import Protocol

from dray.rpc.remote_command.messages import StreamEnd


class ContainerStreams(Protocol):
    """The streams of a running command or container."""

    async def read(self) -> tuple[int, bytes] | None:
        """Return the channel and the next bytes of an output; None when all outputs have ended."""

    async def write(self, data: bytes) -> None:
        """Write to the standard input; returns when it has been taken. Ignored if nobody reads it any more."""

    async def end_input(self) -> None:
        """Close the standard input."""

    async def resize(self, columns: int, rows: int) -> None:
        """Set the size of the terminal, if there is one."""

    async def wait(self) -> StreamEnd:
        """Wait for the end; called when the outputs have ended."""

    def close(self) -> None:
        """Leave: the standard input ends, a terminal hangs up; idempotent."""


class ForwardedPort(Protocol):
    """A connection to a port of a Pod."""

    async def read(self) -> bytes:
        """Return the next bytes, none at the end; raises OSError."""

    async def write(self, data: bytes) -> None:
        """Send bytes; raises OSError."""

    async def end(self) -> None:
        """Send no more."""

    def close(self) -> None:
        """Close the connection; idempotent."""
