"""Incremental processing of bodies: gzip decompression, and splitting into lines."""

from __future__ import annotations

import zlib
from typing import Final

from dray.runtime.http.errors import BrokenResponseError

_GZIP: Final = 16 + zlib.MAX_WBITS
# The maximum size of a decompressed chunk: a small response must not exhaust the memory.
PIECE_BYTES_MAX: Final = 1024 * 1024


class Gunzip:
    """Decompresses gzip data of one or several members in chunks."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(_GZIP)
        self._data = b""
        self._began = False
        # After a chunk of maximum size there may be more output without further input.
        self._was_full = False

    def feed(self, data: bytes) -> None:
        """Add compressed bytes."""
        self._data += data
        self._began = self._began or bool(data)

    def take(self) -> bytes:
        """Return the next chunk, empty if more input is needed; raise BrokenResponseError."""
        while self._data or self._was_full:
            if self._member.eof:
                self._member = zlib.decompressobj(_GZIP)
            try:
                piece = self._member.decompress(self._data, PIECE_BYTES_MAX)
            except zlib.error as error:
                raise BrokenResponseError(f"the response is not gzip: {error}") from error
            self._data = self._member.unused_data if self._member.eof else self._member.unconsumed_tail
            self._was_full = len(piece) == PIECE_BYTES_MAX and not self._member.eof
            if piece:
                return piece
        return b""

    def end(self) -> None:
        """End the input; raise BrokenResponseError if it is incomplete."""
        if self._began and not self._member.eof:
            raise BrokenResponseError("the server closed the connection in the middle of a response")


class Lines:
    """Splits chunks into lines, in linear time for long lines."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that are now complete, without empty ones; the rest is buffered."""
        first, *more = data.split(b"\n")
        if not more:
            self._rest.append(first)
            return []
        lines = [b"".join((*self._rest, first)), *more[:-1]]
        self._rest = [more[-1]]
        return [line for line in lines if line.strip()]
