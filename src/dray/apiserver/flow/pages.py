"""The seam to pages for people, which others make: some for anybody, some for who has said who they are."""

from __future__ import annotations

from typing import Final, Protocol

from dray.apiserver.flow.call import Call, TextResult

ROOT: Final = "/ui"
DATA: Final = "/ui/data/"
STREAM: Final = "/ui/data/stream"


class Pages(Protocol):
    """Answers paths below `ROOT`."""

    def public(self, path: str, known_tag: str) -> TextResult | None:
        """A file that anybody may have; None when there is none at the path."""

    async def data(self, call: Call) -> TextResult:
        """An answer made with the caller's own rights."""
