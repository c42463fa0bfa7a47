"""Connects the session of a client with the streams of a command or of a container."""

from __future__ import annotations

from dray.node.runtimes.streams import ContainerStreams
from dray.rpc.remote_command.messages import Resize, StdinData, StreamEnd
from dray.rpc.remote_command.negotiation import Session
from dray.runtime.tasks import first_completed


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
