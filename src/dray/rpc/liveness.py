"""Whether the process behind a gRPC socket answers at all.

A process that was stopped, or that the machine has no time for, keeps its connections open and accepts new ones, but
does not greet them. gRPC's keepalive would tell as well, but a server closes connections with more than one ping in
five minutes unless it is configured otherwise, which plugins are not. The greeting (the server's HTTP/2 settings) needs
none of the server's handlers, so that a busy plugin is not mistaken for a stopped one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

# RFC 9113, section 3.4: the client's connection preface, with an empty SETTINGS frame.
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
FRAME_HEADER_LENGTH: Final = 9
_TYPE: Final = 3
_SETTINGS: Final = 4


async def is_greeted(path: str, late_seconds: float, on_late: Callable[[], None]) -> bool:
    """Connect and wait for the greeting, however long it takes; call `on_late` once if it takes longer than allowed.

    Return False if nobody listens or the connection ends without a greeting.
    """
    late = asyncio.get_running_loop().call_later(late_seconds, on_late)
    writer = None
    try:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(PREFACE)
        header = await reader.readexactly(FRAME_HEADER_LENGTH)
    except (OSError, asyncio.IncompleteReadError):
        return False
    finally:
        late.cancel()
        if writer is not None:
            writer.close()
    return header[_TYPE] == _SETTINGS
