"""Prepares and unprepares claims by the author's code, so that a crash neither loses nor repeats work.

The checkpoint is written around each call of the author's code: before, that it may have begun; after, that it is done.
A servicer calls the `Preparer`, and the `Preparer` calls the author's method: there is no layer in between.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from dray.api.cdi import CdiError
from dray.api.document import UID, NamespacedName
from dray.api.errors import APIError
from dray.client.interface import Client
from dray.client.resources import RESOURCE_CLAIMS
from dray.driver.author_errors import prepared_by
from dray.driver.claims import Claim, ClaimError, PreparedClaim, PreparedDevice, claim_for
from dray.driver.interface import Driver
from dray.driver.metadata.writer import MetadataWriter
from dray.driver.prepared.cdi import claim_file, claim_spec
from dray.driver.prepared.checkpoint import AnsweredDevice, Entry, Phase
from dray.driver.prepared.checkpoint_files import PreparedClaims, serialized
from dray.driver.program import call_author
from dray.lib.clock import Clock
from dray.runtime.logs import fields
from dray.runtime.metrics import Metrics
from dray.runtime.tasks import KeyedLocks

_log = logging.getLogger(__name__)

# After which the log says that a call is running: kubelet waits for 45 seconds.
SLOW_SECONDS: Final = 4.0

C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """A claim as kubelet identifies it."""

    uid: UID
    key: NamespacedName


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result for one claim; the devices are valid only without an error."""

    devices: tuple[AnsweredDevice, ...] = ()
    error: str = ""
    # Whether the error is that the claim does not exist.
    missing: bool = False


class ClaimMissingError(ClaimError):
    """The claim does not exist."""


@dataclass(frozen=True, slots=True)
class PreparerOptions:
    """What the preparers of all kinds of drivers need."""

    # The driver's name.
    name: str
    claims: PreparedClaims
    # Folder of the lock between instances; empty if their calls may overlap.
    lock_folder: str
    clock: Clock
    metrics: Metrics


class Preparer(ABC, Generic[C]):
    """Handles kubelet's calls for one instance of a driver; `C` is the claim type of the author's methods."""

    def __init__(self, options: PreparerOptions) -> None:
        self._name = options.name
        self._claims = options.claims
        self._lock_folder = options.lock_folder
        self._clock = options.clock
        self._locks = KeyedLocks()
        self._seconds = options.metrics.histogram(
            "dra_driver_operations_duration_seconds",
            "Time to prepare or unprepare one claim",
            ["driver_name", "operation", "is_error"],
        )
        self._prepared = options.metrics.gauge(
            "dra_driver_prepared_claims", "Prepared claims in the driver's checkpoint", ["driver_name"]
        )
        self._update_gauge()

    # --- The author's code. ---

    @abstractmethod
    async def _fetch(self, ref: ClaimRef) -> tuple[C, PreparedClaim]:
        """Read a claim: as the author's `prepare` gets it, and as the checkpoint stores it."""

    @abstractmethod
    async def _call_prepare(self, claim: C) -> Iterable[PreparedDevice]:
        """Call the author's `prepare`."""

    @abstractmethod
    async def _call_unprepare(self, claim: PreparedClaim) -> None:
        """Call the author's `unprepare`."""

    # --- Files beside the claim's CDI file. ---

    def _is_intact(self, entry: Entry) -> bool:
        """Whether a prepared claim still is."""
        return self._claims.intact(entry)

    def _add_files(
        self, _claim: C, _prepared: Sequence[PreparedDevice], answer: tuple[AnsweredDevice, ...]
    ) -> tuple[AnsweredDevice, ...]:
        """Write further files of a prepared claim; return the answer with their CDI devices."""
        return answer

    def _remove_files(self, _claim: PreparedClaim) -> None:
        """Remove what `_add_files` wrote."""

    # --- Calls of kubelet. ---

    async def prepare(self, refs: Sequence[ClaimRef]) -> Mapping[UID, Outcome]:
        """Prepare each claim; the failure of one does not affect the others."""
        return await self._each("prepare", refs, self._prepare)

    async def unprepare(self, refs: Sequence[ClaimRef]) -> Mapping[UID, Outcome]:
        """Unprepare each claim; unknown ones are unprepared already."""
        return await self._each("unprepare", refs, self._unprepare)

    async def _each(
        self, operation: str, refs: Sequence[ClaimRef], work: Callable[[ClaimRef], Any]
    ) -> dict[UID, Outcome]:
        outcomes: dict[UID, Outcome] = {}
        async with self._exclusive(refs):
            for ref in refs:
                started = self._clock.monotonic()
                outcomes[ref.uid] = await self._outcome(operation, ref, work)
                failed = str(bool(outcomes[ref.uid].error)).lower()
                seconds = self._clock.monotonic() - started
                self._seconds.labels(self._name, operation, failed).observe(seconds)
            self._update_gauge()
        return outcomes

    async def _outcome(self, operation: str, ref: ClaimRef, work: Callable[[ClaimRef], Any]) -> Outcome:
        slow = asyncio.get_running_loop().call_later(SLOW_SECONDS, self._log_slow, operation, ref)
        try:
            return Outcome(await work(ref))
        except (ClaimError, APIError, CdiError) as error:
            _log.warning("%s failed", operation, extra=fields(claim=str(ref.key), error=error))
            return Outcome(error=str(error), missing=isinstance(error, ClaimMissingError))
        except Exception as error:  # noqa: BLE001 - the author's code: one claim must not fail the others
            _log.error("%s failed", operation, exc_info=error, extra=fields(claim=str(ref.key)))
            return Outcome(error=f"{operation} claim {ref.key}: {str(error) or type(error).__name__}")
        finally:
            slow.cancel()

    def _log_slow(self, operation: str, ref: ClaimRef) -> None:
        _log.warning(
            "%s is still running", operation, extra=fields(driver=self._name, claim=str(ref.key), seconds=SLOW_SECONDS)
        )

    @asynccontextmanager
    async def _exclusive(self, refs: Sequence[ClaimRef]) -> AsyncIterator[None]:
        if not self._lock_folder:
            async with self._locks.held(ref.uid for ref in refs):
                yield
        else:
            # The file lock belongs to the process, not to the task: calls of this process need a lock of their own.
            async with self._locks.held([""]), serialized(self._lock_folder):
                yield

    async def _prepare(self, ref: ClaimRef) -> tuple[AnsweredDevice, ...]:
        known = self._claims.get(ref.uid)
        if known is not None and known.phase is Phase.PREPARED and self._is_intact(known):
            return known.answer
        claim, record = await self._fetch(ref)
        boot_id = self._claims.boot_id
        self._claims.put(Entry(record, Phase.PREPARING, boot_id))
        prepared = tuple(await self._call_prepare(claim))
        spec, answer = claim_spec(self._name, ref.uid, prepared)
        path = self._claims.write_spec(claim_file(self._name, ref.uid), spec) if spec is not None else ""
        answer = self._add_files(claim, prepared, answer)
        self._claims.put(Entry(record, Phase.PREPARED, boot_id, answer, path))
        return answer

    async def _unprepare(self, ref: ClaimRef) -> tuple[AnsweredDevice, ...]:
        known = self._claims.get(ref.uid)
        if known is None:
            return ()
        self._claims.put(Entry(known.claim, Phase.UNPREPARING, known.boot_id, cdi_file=known.cdi_file))
        await self._call_unprepare(known.claim)
        self._remove_files(known.claim)
        self._claims.remove_spec(claim_file(self._name, ref.uid))
        self._claims.remove(ref.uid)
        return ()

    def _update_gauge(self) -> None:
        self._prepared.labels(self._name).set(len(self._claims.all()))


class DriverPreparer(Preparer[Claim]):
    """Prepares claims of resource.k8s.io by a `Driver`."""

    def __init__(
        self, driver: Driver, client: Client, options: PreparerOptions, metadata: MetadataWriter | None = None
    ) -> None:
        super().__init__(options)
        self._driver = driver
        self._client = client
        self._metadata = metadata

    async def _fetch(self, ref: ClaimRef) -> tuple[Claim, PreparedClaim]:
        try:
            found = await self._client.get(RESOURCE_CLAIMS, ref.key.name, ref.key.namespace)
        except APIError as error:
            raise ClaimError(f"retrieve claim {ref.key}: {error}") from error
        claim = claim_for(self._driver.name, ref.uid, found)
        return claim, PreparedClaim(claim.uid, claim.key, claim.devices)

    async def _call_prepare(self, claim: Claim) -> Iterable[PreparedDevice]:
        return prepared_by(self._driver, await call_author(self._driver.prepare, claim))

    async def _call_unprepare(self, claim: PreparedClaim) -> None:
        await call_author(self._driver.unprepare, claim)

    def _is_intact(self, entry: Entry) -> bool:
        return super()._is_intact(entry) and (self._metadata is None or self._metadata.is_intact(entry.answer))

    def _add_files(
        self, claim: Claim, prepared: Sequence[PreparedDevice], answer: tuple[AnsweredDevice, ...]
    ) -> tuple[AnsweredDevice, ...]:
        return answer if self._metadata is None else self._metadata.add(claim, prepared, answer)

    def _remove_files(self, claim: PreparedClaim) -> None:
        if self._metadata is None:
            return
        try:
            self._metadata.remove(claim)
        except OSError as error:
            raise ClaimError(f"clean up device metadata: {error}") from error
