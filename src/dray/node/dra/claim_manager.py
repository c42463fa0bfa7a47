"""Performs what the claim book decides: the checkpoint before the calls, calls of different Pods side by side.

What a call is, and to whom, is for the owner to know. Calls that share a Pod or a claim wait for each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Final

from dray.api.document import UID
from dray.lib.clock import Clock
from dray.node.checkpoint_file import CheckpointFile, read_checkpoint
from dray.node.dra import checkpoint
from dray.node.dra.checkpoint import CheckpointError, decode, recovery_advice
from dray.node.dra.claim_info_cache import (
    Action,
    CallPrepare,
    CallUnprepare,
    ClaimInfoCache,
    DriverPrepared,
    DriverUnprepared,
    OldClaimError,
    PodAdmitted,
    PodGone,
    SaveCheckpoint,
)
from dray.node.dra.claims import ClaimError, ClaimInfo
from dray.node.dra.driver_client import ResponseError
from dray.runtime.locks import KeyedLocks
from dray.runtime.tasks import CoalescedCall, pause

RECONCILE_SECONDS: Final = 60.0

Call = Callable[[CallPrepare | CallUnprepare], Awaitable[DriverPrepared | DriverUnprepared]]


class SaveError(Exception):
    """The checkpoint could not be written, so nothing may be asked of drivers."""


# What may go wrong without being a bug; told to the Pod, and tried again.
EXPECTED: Final = (ClaimError, OldClaimError, ResponseError, SaveError)


class ClaimKeeper:
    """The book, its file and its calls; raises `CheckpointError` when the file is damaged.

    Without `batched` each claim is a call of its own, so that one that fails takes no other with it.
    """

    def __init__(
        self,
        path: str,
        call: Call,
        clock: Clock,
        on_save: Callable[[], None] = lambda: None,
        *,
        batched: bool = True,
    ) -> None:
        self._file = CheckpointFile(path)
        self._call_driver = call
        self._clock = clock
        # Hears of each change that is about to be written.
        self._on_save = on_save
        self._batched = batched
        self.book = ClaimInfoCache(load_checkpoint(path))
        self._locks = KeyedLocks()
        self._save = CoalescedCall(self._write)
        self._written: checkpoint.Written = {}
        self._wake = asyncio.Event()

    async def admit(self, pod_uid: UID, infos: tuple[ClaimInfo, ...]) -> tuple[ClaimInfo, ...]:
        """Have the Pod's claims prepared; those that are prepared already are left alone."""
        # A Pod's lock always comes before those of claims: two callers cannot wait for each other.
        async with self._locks.held([f"pod/{pod_uid}"]), self._locks.held(info.uid for info in infos):
            await self._perform(self.book.handle(PodAdmitted(pod_uid, infos)))
            return self.book.claims_of(pod_uid)

    async def leave(self, pod_uid: UID) -> None:
        """Give the Pod's claims up; drivers are asked for those that no other Pod uses."""
        # Under the Pod's lock its claims do not change; their own locks keep other Pods' calls away.
        async with (
            self._locks.held([f"pod/{pod_uid}"]),
            self._locks.held(info.uid for info in self.book.claims_of(pod_uid)),
        ):
            await self._perform(self.book.handle(PodGone(pod_uid)))

    # --- Pods that are gone. ---

    def look_again(self) -> None:
        """Something has come or gone that may allow to give claims up."""
        self._wake.set()

    def left_behind(self, known_pods: Collection[UID]) -> tuple[UID, ...]:
        """Pods that use claims and that the node no longer has."""
        return tuple(uid for uid in self.book.pod_uids() if uid not in known_pods)

    async def run(
        self,
        known_pods: Callable[[], Collection[UID] | None],
        reconcile: Callable[[Collection[UID]], Awaitable[None]],
    ) -> None:
        """Reconcile every minute, and whenever there is a reason, until cancelled; None means not known yet."""
        while True:
            self._wake.clear()
            known = known_pods()
            if known is not None:
                await reconcile(known)
            await pause(self._clock, self._wake, RECONCILE_SECONDS)

    # --- Inside. ---

    async def _perform(self, actions: Sequence[Action]) -> None:
        """Save first, then call all drivers at once."""
        calls = []
        for action in actions:
            if isinstance(action, SaveCheckpoint):
                self._on_save()
                await self._save()
            else:
                calls += [self._call(part) for part in self._parts(action)]
        if len(calls) == 1:
            # As most Pods have it: that needs no task of its own.
            await calls[0]
        elif calls:
            await _all(calls)

    def _parts(self, action: CallPrepare | CallUnprepare) -> Iterator[CallPrepare | CallUnprepare]:
        if self._batched:
            yield action
        else:
            yield from (replace(action, claims=(claim,)) for claim in action.claims)

    async def _call(self, action: CallPrepare | CallUnprepare) -> None:
        await self._perform(self.book.handle(await self._call_driver(action)))

    async def _write(self) -> None:
        try:
            await asyncio.to_thread(self._write_down, self.book.claims())
        except OSError as error:
            raise SaveError(f"checkpoint ResourceClaim cache: {error}") from error

    def _write_down(self, claims: Sequence[ClaimInfo]) -> None:
        self._file.replace(checkpoint.encode(claims, self._written))


async def _all(calls: Sequence[Awaitable[None]]) -> None:
    """Make the calls side by side; the first failure counts once every call has ended."""
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    # A bug must not hide behind an expected failure.
    failures.sort(key=lambda failure: isinstance(failure, EXPECTED))
    if failures:
        raise failures[0]


def load_checkpoint(path: str) -> tuple[ClaimInfo, ...]:
    """The claims of the last checkpoint, none when there is no file; raises with advice when it is damaged."""
    content = read_checkpoint(path)
    try:
        return () if content is None else decode(content)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}; {recovery_advice(path)}") from error
