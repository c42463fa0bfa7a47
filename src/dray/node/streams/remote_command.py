"""Connects the session of a client with the streams of a command or of a container."""

from __future__ import annotations

from typing import Protocol

from dray.node.runtimes.streams import ContainerStreams, StreamEnd
from dray.node.streams.messages import Input, Resize, StdinData
from dray.runtime.tasks import first_completed


class Session(Protocol):
    """A client's side of exec or attach."""

    async def start(self) -> None:
        """Open the channels."""

    async def receive(self) -> Input | None:
        """Return the next input; None when the client is gone."""

    async def send(self, channel: int, data: bytes) -> None:
        """Send output; returns when the client may get more. Raises `ConnectionError` if it is gone."""

    async def finish(self, end: StreamEnd, failure_prefix: str) -> None:
        """Tell the client how it ended."""

    async def fail(self) -> None:
        """Close after a bug."""


async def run_session(session: Session, streams: ContainerStreams, failure_prefix: str) -> None:
    """Copy inputs and outputs until the outputs end or the client leaves, and close the streams."""
    try:
        finished, end = await first_completed(_copy_outputs(session, streams), _copy_inputs(session, streams))
        if finished == 0 and end is not None:
            await session.finish(end, failure_prefix)
    except ConnectionError:
        return
    finally:
        streams.close()


async def _copy_outputs(session: Session, streams: ContainerStreams) -> StreamEnd:
    while (output := await streams.read()) is not None:
        await session.send(*output)
    return await streams.wait()


async def _copy_inputs(session: Session, streams: ContainerStreams) -> None:
    while (item := await session.receive()) is not None:
        if isinstance(item, StdinData):
            await streams.write(item.data)
        elif isinstance(item, Resize):
            await streams.resize(item.columns, item.rows)
        else:
            await streams.end_input()
