"""A transport of in-process clients that records requests, and fails as tests demand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from dray.api.document import Document
from dray.api.errors import ServiceUnavailableError
from dray.client.in_process import InProcessTransport
from dray.client.rest import Call

READS: Final = ("get", "list", "watch")


@dataclass
class RecordingTransport:
    """Records every request; `fail` returns the error for one."""

    inner: InProcessTransport
    calls: list[Call] = field(default_factory=list)
    fail: Callable[[Call], Exception | None] = lambda _: None

    async def send(self, call: Call) -> Document:
        self.calls.append(call)
        failure = self.fail(call)
        if failure is not None:
            raise failure
        return await self.inner.send(call)

    def stream(self, call: Call) -> Any:
        return self.inner.stream(call)

    async def close(self) -> None:
        await self.inner.close()

    def writes(self, plural: str = "resourceclaims") -> list[Call]:
        """Return the writes of one resource."""
        return [call for call in self.calls if _is_of(call, plural) and call.verb not in READS]

    def cut_off(self, step: int, when: str, plural: str = "resourceclaims") -> None:
        """End the connection for one resource for good, before or after the write of that number."""
        inner, writes = self.inner.send, 0

        async def send(call: Call) -> Document:
            nonlocal writes
            if not _is_of(call, plural):
                return await inner(call)
            if writes > step:
                raise ServiceUnavailableError("cut off")
            if call.verb in READS:
                return await inner(call)
            writes += 1
            if writes <= step:
                return await inner(call)
            if when == "after":
                await inner(call)
            raise ServiceUnavailableError("cut off")

        self.inner.send = send  # type: ignore[method-assign]


def _is_of(call: Call, plural: str) -> bool:
    return call.resource is not None and call.resource.plural == plural
