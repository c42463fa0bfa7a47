"""Bodies piece by piece: unpacked, and cut into lines."""

from __future__ import annotations

import zlib
from typing import Final

from dray.runtime.http.errors import BrokenAnswerError

_GZIP: Final = 16 + zlib.MAX_WBITS
# What one piece is unpacked to at most at a time, so that a small answer cannot fill the memory unseen.
PIECE_BYTES_MAX: Final = 1024 * 1024


class Gunzip:
    """Unpacks gzip, of one member or several; as much at a time as is asked for."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(_GZIP)
        self._data = b""
        self._began = False
        # A full piece may have left more behind even where all of the data went in.
        self._was_full = False

    def feed(self, data: bytes) -> None:
        """Take in packed bytes."""
        self._data += data
        self._began = self._began or bool(data)

    def take(self) -> bytes:
        """The next piece, or nothing when more must be fed; raises BrokenAnswerError."""
        while self._data or self._was_full:
            if self._member.eof:
                self._member = zlib.decompressobj(_GZIP)
            try:
                piece = self._member.decompress(self._data, PIECE_BYTES_MAX)
            except zlib.error as error:
                raise BrokenAnswerError(f"the answer is not gzip: {error}") from error
            self._data = self._member.unused_data if self._member.eof else self._member.unconsumed_tail
            self._was_full = len(piece) == PIECE_BYTES_MAX and not self._member.eof
            if piece:
                return piece
        return b""

    def end(self) -> None:
        """All has been fed; raises when that was too little."""
        if self._began and not self._member.eof:
            raise BrokenAnswerError("the server closed the connection in the middle of an answer")


class Lines:
    """Cuts pieces at newlines, however far those are apart, without joining a long line again and again."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are complete now, without the empty ones; what follows the last newline waits."""
        first, *more = data.split(b"\n")
        if not more:
            self._rest.append(first)
            return []
        lines = [b"".join((*self._rest, first)), *more[:-1]]
        self._rest = [more[-1]]
        return [line for line in lines if line.strip()]
