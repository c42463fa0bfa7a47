"""Binds the Pods of a gang only when enough of them can be bound.

PreBind writes claims, and each write can fail: another scheduler may have taken a device. Were the others bound, the
gang would hold devices with too few Pods to run, perhaps for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

NOT_TOGETHER: Final = "not enough pods of the gang can be bound"


def _ignore() -> None:
    pass


class GangBinding:
    """The binding cycles of one gang between PreBind and Bind."""

    def __init__(self, needed: int, still_needed: Callable[[], int] | None = None) -> None:
        # How many Pods have to be ready, and the uids of those that are.
        self._needed = needed
        # Returns how many Pods the gang lacks after all, when some are bound; for Pods that are ready later.
        self._still_needed = still_needed
        self._ready: set[str] = set()
        # The uids of those that are on their way, each with what is called if too few others can be bound.
        self._expected: dict[str, Callable[[], object]] = {}
        # Whether the ready Pods are bound; None until that is known.
        self._decision: bool | None = None
        # The futures of the ready Pods, by uid, and other callbacks; until it is decided.
        self._waiting: dict[str, asyncio.Future[bool]] = {}
        self._listeners: list[Callable[[bool], None]] = []

    @property
    def ready_uids(self) -> frozenset[str]:
        """Return the uids of the Pods that are ready."""
        return frozenset(self._ready)

    def is_bound(self, uid: str) -> bool:
        """Return whether it is decided that the Pod is bound."""
        return self._decision is True and uid in self._ready

    def on_decision(self, act: Callable[[bool], None]) -> None:
        """Call a function with whether enough Pods can be bound, as soon as that is known."""
        if self._decision is None:
            self._listeners.append(act)
        else:
            act(self._decision)

    def need(self, needed: int) -> None:
        """Change how many Pods have to be ready; without an effect if it is decided."""
        self._needed = needed
        self._decide()

    def on_failure(self, uid: str, act: Callable[[], object]) -> None:
        """Call this function, the last one of the Pod, if it is not ready yet when too few others can be bound."""
        if self._decision is False:
            act()
        elif uid in self._expected:
            self._expected[uid] = act

    def expect(self, uid: str) -> None:
        """Add a Pod whose binding cycle begins."""
        self._expected[uid] = _ignore

    def ready(self, uid: str) -> asyncio.Future[bool]:
        """Count a Pod as ready; the result is True as soon as enough are, and False if they or this one will not be."""
        self._expected.pop(uid, None)
        self._ready.add(uid)
        self._decide()
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        if self._decision is None:
            self._waiting[uid] = future
            return future
        if self._lacks_others():
            self._ready.discard(uid)
        future.set_result(self.is_bound(uid))
        return future

    def _lacks_others(self) -> bool:
        """Return whether so many Pods are gone since they were bound that one more is not enough."""
        return self._still_needed is not None and self._still_needed() > 1

    def ended(self, uid: str) -> None:
        """Remove a Pod whose binding cycle has ended; without an effect if it was ready."""
        self._expected.pop(uid, None)
        self._decide()

    def cancelled(self, uid: str) -> None:
        """Remove a Pod that is preempted or deleted, also if it was ready."""
        self._ready.discard(uid)
        self._answer(uid, is_bound=False)
        self.ended(uid)

    def _decide(self) -> None:
        if self._decision is not None:
            return
        if len(self._ready) >= self._needed:
            self._decision = True
        elif len(self._ready) + len(self._expected) < self._needed:
            self._decision = False
        else:
            return
        listeners, self._listeners = self._listeners, []
        for act in listeners:
            act(self._decision)
        for uid in list(self._waiting):
            self._answer(uid, is_bound=self._decision)
        if not self._decision:
            for cancel in list(self._expected.values()):
                cancel()

    def _answer(self, uid: str, *, is_bound: bool) -> None:
        """Set the result for a Pod, if it is ready and its binding cycle was not stopped meanwhile."""
        future = self._waiting.pop(uid, None)
        if future is not None and not future.done():
            future.set_result(is_bound)
