"""Writes claims so that no device is in two allocations: checks the ledger and reserves before the write.

The check and the reservation are one step of the event loop, so of two requests to this server that take a device one
is refused. Several API servers share etcd: there a write also names a guard for every device that it takes, and is
committed only if no other write has named it since the revision that this server has observed. Otherwise the server
catches up and checks again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import orjson

from dray.api.document import Document
from dray.api.errors import ConflictError, DeviceInUseError
from dray.apiserver.device_ledger import Conflict, DeviceLedger, Use, label_of, uses_of
from dray.apiserver.endpoint import KEY_ROOT
from dray.apiserver.object_cache import CLAIMS
from dray.lib.clock import Clock
from dray.store.interface import NO_GUARDS, Entry, GuardConflictError, Store, StoreFullError, StoreUnavailableError

# Writes by other API servers that take from the same pool; in each round one of them made progress.
_ATTEMPTS_MAX: Final = 64
# The events of other API servers arrive within milliseconds, unless the watch of the store has an outage.
CATCH_UP_SECONDS: Final = 5.0
# Guards that were written here and whose events are still on their way; older ones are dropped.
_OWN_GUARDS_MAX: Final = 4096
# Claims that are read again before a write is refused on a shared store.
_HOLDERS_MAX: Final = 8


class AllocationWriter:
    """Replaces and deletes stored claims."""

    def __init__(self, store: Store, ledger: DeviceLedger, clock: Clock) -> None:
        self._store = store
        self._ledger = ledger
        self._clock = clock
        # Guard -> revision of the last write here.
        self._own_guards: dict[str, int] = {}
        self._progress: asyncio.Future[None] | None = None
        ledger.on_progress = self._on_progress

    async def check(self, old: Document, new: Document) -> None:
        """Refuse a claim whose allocation takes what another one holds."""
        await self._check(label_of(new), uses_of(old), uses_of(new))

    async def update(self, entry: Entry, old: Document, new: Document, value: bytes) -> Entry:
        """Replace the claim; raise `DeviceInUseError` if its allocation takes what another claim holds."""
        if _allocation(old) == _allocation(new):
            return await self._store.update(entry.key, value, expected_revision=entry.revision)
        claim, held, uses = label_of(new), uses_of(old), uses_of(new)
        for _ in range(_ATTEMPTS_MAX):
            await self._check(claim, held, uses)
            guards = self._guards(held, uses) if self._store.shared else NO_GUARDS
            try:
                return await self._write(entry, claim, uses, value, guards)
            except GuardConflictError as error:
                await self._catch_up(error.revisions)
        raise ConflictError(CLAIMS, new["metadata"]["name"])

    async def delete(self, entry: Entry, old: Document) -> Entry:
        """Delete the claim, and free its devices before the event arrives."""
        removed = await self._store.delete(entry.key, expected_revision=entry.revision)
        self._ledger.observe(label_of(old), (), removed.revision)
        return removed

    def roll_back(self, revision: int, committed: Callable[[str], Entry | None]) -> None:
        """Return to the durable state of all claims, given its revision: later writes could not be stored after all."""
        for claim in self._ledger.observed_after(revision):
            entry = committed(_key(claim))
            if entry is None:
                self._ledger.restore(claim, (), 0)
            else:
                self._ledger.restore(claim, uses_of(orjson.loads(entry.value)), entry.revision)

    async def _write(
        self, entry: Entry, claim: str, uses: tuple[Use, ...], value: bytes, guards: Mapping[str, int]
    ) -> Entry:
        reservation = self._ledger.reserve(claim, uses, entry.revision)
        expected = entry.revision
        try:
            if guards:
                written = await self._store.update(entry.key, value, expected_revision=expected, guards=guards)
            else:
                written = await self._store.update(entry.key, value, expected_revision=expected)
        except BaseException as error:
            if _is_in_doubt(error):
                self._ledger.doubt(reservation, self._clock.monotonic())
            else:
                self._ledger.release(reservation)
            raise
        self._ledger.confirm(reservation, written.revision)
        self._own_guards.update(dict.fromkeys(guards, written.revision))
        return written

    async def _check(self, claim: str, old: tuple[Use, ...], new: tuple[Use, ...]) -> None:
        """Refuse what conflicts; the last check and the return are one step of the event loop."""
        conflict = self._ledger.check(claim, old, new)
        if conflict is None:
            return
        # The holder may be a write that was in doubt for too long, or has let go through another API server.
        self._ledger.expire(self._clock.monotonic())
        if self._store.shared:
            await self._read_holders(conflict)
        conflict = self._ledger.check(claim, old, new)
        if conflict is not None:
            raise DeviceInUseError(CLAIMS, claim.rpartition("/")[2], conflict.message)

    async def _read_holders(self, conflict: Conflict) -> None:
        for holder in conflict.holders[:_HOLDERS_MAX]:
            entry = await self._store.get(_key(holder))
            if entry is not None:
                self._ledger.observe(holder, uses_of(orjson.loads(entry.value)), entry.revision)

    # --- Several API servers. ---

    def _guards(self, held: tuple[Use, ...], uses: tuple[Use, ...]) -> dict[str, int]:
        """Return the guards of what the write takes, with the revisions up to which their writes are in the ledger."""
        observed, own = self._ledger.revision, self._own_guards
        if len(own) > _OWN_GUARDS_MAX:
            self._own_guards = own = {name: at for name, at in own.items() if at > observed}
        names = self._ledger.guards(use for use in uses if use not in held)
        return {name: max(observed, own.get(name, 0)) for name in names}

    async def _catch_up(self, revisions: Mapping[str, int]) -> None:
        """Wait until the ledger has the writes of these guards."""
        missing = [at for name, at in revisions.items() if self._own_guards.get(name, 0) < at]
        target = max(missing, default=0)
        try:
            async with asyncio.timeout(CATCH_UP_SECONDS):
                while self._ledger.revision < target:
                    if self._progress is None:
                        self._progress = asyncio.get_running_loop().create_future()
                    await asyncio.shield(self._progress)
        except TimeoutError as error:
            raise StoreUnavailableError("the writes of other API servers are not observed in time") from error

    def _on_progress(self) -> None:
        if self._progress is not None:
            self._progress.set_result(None)
            self._progress = None


def _is_in_doubt(error: BaseException) -> bool:
    """Return whether a write that ended with the error may have been committed, or may still be."""
    return isinstance(error, StoreUnavailableError | asyncio.CancelledError) and not isinstance(error, StoreFullError)


def _key(claim: str) -> str:
    """Return the key of a claim, given its name in the ledger."""
    return f"{KEY_ROOT}{CLAIMS.group}/{CLAIMS.resource}/{claim}"


def _allocation(claim: Document) -> object:
    return (claim.get("status") or {}).get("allocation")
