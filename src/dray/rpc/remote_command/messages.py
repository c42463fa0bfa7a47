"""What clients of exec and attach ask for and send, and how a session ends, whatever carries it. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

import orjson

from dray.api.document import Document

STDIN: Final = 0
STDOUT: Final = 1
STDERR: Final = 2
ERROR: Final = 3
RESIZE: Final = 4
# The protocol that sends a Status at the end; earlier ones send a text, and only of a failure.
STATUS_PROTOCOLS: Final = ("v5.channel.k8s.io", "v4.channel.k8s.io", "v4.base64.channel.k8s.io")
# A terminal size has a few dozen bytes.
RESIZE_BYTES_MAX: Final = 4096
SIZE_MAX: Final = 0xFFFF
# What is read of an output at a time.
CHUNK_BYTES: Final = 32 * 1024


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Which streams a client asks for; with a terminal there is no stderr."""

    stdin: bool = False
    stdout: bool = False
    stderr: bool = False
    tty: bool = False


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """How streams ended: the exit code of a command, 0 for a container that has ended, None with a failure."""

    code: int | None
    message: str = ""


@dataclass(frozen=True, slots=True)
class StdinData:
    """Bytes for the standard input."""

    data: bytes


@dataclass(frozen=True, slots=True)
class StdinEnd:
    """The end of the standard input."""


@dataclass(frozen=True, slots=True)
class Resize:
    """The size of the client's terminal."""

    columns: int
    rows: int


Input: TypeAlias = StdinData | StdinEnd | Resize


class StreamProtocolError(Exception):
    """The client has broken the protocol; the connection ends."""


class ResizeReader:
    """Reads a stream of JSON objects, which may be cut anywhere."""

    def __init__(self) -> None:
        self._text = ""
        self._decoder = json.JSONDecoder()

    def feed(self, data: bytes) -> Iterator[Resize]:
        """Yield the sizes that are complete."""
        self._text = (self._text + data.decode("utf-8", "replace")).lstrip()
        while self._text:
            try:
                value, end = self._decoder.raw_decode(self._text)
            except RecursionError:
                raise StreamProtocolError("a terminal size cannot be read") from None
            except ValueError:
                if len(self._text) > RESIZE_BYTES_MAX:
                    raise StreamProtocolError("a terminal size cannot be read") from None
                return
            self._text = self._text[end:].lstrip()
            yield _size(value)


def _size(value: object) -> Resize:
    match value:
        case {"Width": int(columns), "Height": int(rows)} if 0 <= columns <= SIZE_MAX and 0 <= rows <= SIZE_MAX:
            return Resize(columns, rows)
    raise StreamProtocolError("a terminal size is not valid")


def end_message(protocol: str, end: StreamEnd, failure_prefix: str) -> bytes:
    """Return what is sent on the error channel at the end; may be empty."""
    status = end_status(end, failure_prefix)
    if protocol in STATUS_PROTOCOLS:
        return orjson.dumps(status)
    return str(status.get("message", "")).encode()


def end_status(end: StreamEnd, failure_prefix: str) -> Document:
    """Return the Status that tells a client how a command or an attached container ended."""
    if end.code == 0:
        return {"metadata": {}, "status": "Success"}
    if end.code is None:
        message = f"Internal error occurred: {failure_prefix}{end.message}"
        causes = [{"message": f"{failure_prefix}{end.message}"}]
        return {
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": "InternalError",
            "details": {"causes": causes},
            "code": 500,
        }
    why = end.message or f"exit code {end.code}"
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: {why}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(end.code)}]},
    }
