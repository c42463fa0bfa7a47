"""A clock and a runtime that tests control."""

from __future__ import annotations

from typing import Any

from dray.node.runtimes.runtime import RuntimeFailure


class Clock:
    """Time that passes only in sleeps."""

    def __init__(self) -> None:
        self.now_seconds = 0.0

    def monotonic(self) -> float:
        return self.now_seconds

    async def sleep(self, seconds: float) -> None:
        self.now_seconds += seconds


class Runtime:
    """Records its calls; `failures` is how often it fails first."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.calls: list[Any] = []

    async def set_cpus(self, container_id: str, cpus: str) -> None:
        self._note((container_id, cpus))

    async def stop_container(self, container_id: str, grace_seconds: float) -> None:
        self._note((container_id, grace_seconds))

    def _note(self, what: Any) -> None:
        self.calls.append(what)
        if self.failures:
            self.failures -= 1
            raise RuntimeFailure("not now")
