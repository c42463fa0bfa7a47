"""Binds the Pods of a gang only when enough of them can be bound.

PreBind writes claims, and each write can fail: another scheduler may have taken a device. Were the others bound, the
gang would hold devices with too few Pods to run, perhaps for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

NOT_TOGETHER: Final = "not enough pods of the gang can be bound"


class GangBinding:
    """The binding cycles of one gang between PreBind and Bind."""

    def __init__(self, needed: int) -> None:
        # How many Pods have to be ready, and the uids of those that are, and of those that are on their way.
        self._needed = needed
        self._ready: set[str] = set()
        self._expected: set[str] = set()
        self._decided: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    @property
    def is_decided(self) -> bool:
        """Return whether it is known if the Pods are bound."""
        return self._decided.done()

    def is_bound(self, uid: str) -> bool:
        """Return whether it is decided that the Pod is bound."""
        decided = self._decided
        return uid in self._ready and decided.done() and not decided.cancelled() and decided.result()

    def on_success(self, act: Callable[[], None]) -> None:
        """Call a function when enough Pods can be bound."""
        self._decided.add_done_callback(lambda decided: act() if not decided.cancelled() and decided.result() else None)

    def expect(self, uid: str) -> None:
        """Add a Pod whose binding cycle begins."""
        self._expected.add(uid)

    def ready(self, uid: str) -> asyncio.Future[bool]:
        """Count a Pod as ready; the result is True as soon as enough are, and False if they will not be."""
        self._expected.discard(uid)
        self._ready.add(uid)
        self._decide()
        return asyncio.shield(self._decided)

    def ended(self, uid: str) -> None:
        """Remove a Pod whose binding cycle has ended; without an effect if it was ready."""
        self._expected.discard(uid)
        self._decide()

    def cancelled(self, uid: str) -> None:
        """Remove a Pod that is preempted, also if it was ready."""
        self._ready.discard(uid)
        self.ended(uid)

    def _decide(self) -> None:
        if self._decided.done():
            return
        if len(self._ready) >= self._needed:
            self._decided.set_result(True)
        elif len(self._ready) + len(self._expected) < self._needed:
            self._decided.set_result(False)
