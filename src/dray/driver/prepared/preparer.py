"""Prepares and unprepares claims by the driver's code, so that no crash loses or doubles anything.

Around each call the record is written: before, that it may have begun; after, that it is done. See `record`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from dray.api.cdi import CdiError
from dray.api.document import UID, NamespacedName
from dray.api.errors import APIError
from dray.client.interface import Client
from dray.client.resources import RESOURCE_CLAIMS
from dray.driver.claims import AllocatedDevice, Claim, ClaimError, PreparedClaim, claim_for
from dray.driver.prepared.cdi import claim_file, claim_spec
from dray.driver.prepared.checkpoint import AnsweredDevice, Entry, Phase
from dray.driver.prepared.checkpoint_files import PreparedClaims, serialized
from dray.lib.clock import Clock
from dray.runtime.locks import KeyedLocks
from dray.runtime.logs import fields
from dray.runtime.metrics import Metrics

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """A claim as the node agent names it."""

    uid: UID
    key: NamespacedName


@dataclass(frozen=True, slots=True)
class Outcome:
    """One claim's result; the devices count only without an error."""

    devices: tuple[AnsweredDevice, ...] = ()
    error: str = ""
    # The error is that there is no such claim.
    missing: bool = False


class ClaimMissingError(ClaimError):
    """There is no such claim."""


class ClaimToPrepare(Protocol):
    """A claim as far as it goes into the record."""

    @property
    def uid(self) -> UID:
        """Which it is."""

    @property
    def key(self) -> NamespacedName:
        """Its name."""

    @property
    def devices(self) -> tuple[AllocatedDevice, ...]:
        """What is to be prepared."""


class Author(Protocol):
    """The driver's code; `Driver` is one."""

    @property
    def name(self) -> str:
        """The driver's name."""

    @property
    def prepare(self) -> Callable[[Any], Any]:
        """As in `Driver`: a plain method or a coroutine, given what was fetched."""

    @property
    def unprepare(self) -> Callable[[PreparedClaim], Any]:
        """As in `Driver`."""


Fetch = Callable[[ClaimRef], Awaitable[ClaimToPrepare]]


def claims_from(client: Client, driver: str) -> Fetch:
    """Asks the API server for claims of resource.k8s.io."""

    async def fetch(ref: ClaimRef) -> Claim:
        try:
            found = await client.get(RESOURCE_CLAIMS, ref.key.name, ref.key.namespace)
        except APIError as error:
            raise ClaimError(f"retrieve claim {ref.key}: {error}") from error
        return claim_for(driver, ref.uid, found)

    return fetch


class Preparer:
    """Answers the node agent's calls for one instance of a driver."""

    def __init__(
        self, driver: Author, fetch: Fetch, claims: PreparedClaims, folder: str, clock: Clock, metrics: Metrics
    ) -> None:
        self._driver = driver
        self._fetch = fetch
        self._claims = claims
        # Where the lock between instances is; empty when calls need not follow each other.
        self._folder = folder
        self._clock = clock
        self._locks = KeyedLocks()
        self._seconds = metrics.histogram(
            "dra_driver_operations_duration_seconds",
            "Time to prepare or unprepare one claim",
            ["driver_name", "operation", "is_error"],
        )
        self._held = metrics.gauge("dra_driver_prepared_claims", "Claims in the driver's record", ["driver_name"])
        self._show()

    async def prepare(self, refs: Sequence[ClaimRef]) -> Mapping[UID, Outcome]:
        """Prepare each claim; one that fails does not keep the others from being prepared."""
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
                outcomes[ref.uid] = await self._guarded(operation, ref, work)
                failed = str(bool(outcomes[ref.uid].error)).lower()
                seconds = self._clock.monotonic() - started
                self._seconds.labels(self._driver.name, operation, failed).observe(seconds)
            self._show()
        return outcomes

    async def _guarded(self, operation: str, ref: ClaimRef, work: Callable[[ClaimRef], Any]) -> Outcome:
        try:
            return Outcome(await work(ref))
        except (ClaimError, APIError, CdiError) as error:
            _log.warning("%s failed", operation, extra=fields(claim=str(ref.key), error=error))
            return Outcome(error=str(error), missing=isinstance(error, ClaimMissingError))
        except Exception as error:  # noqa: BLE001 - the edge to the author's code: one claim must not fail the others
            _log.error("%s failed", operation, exc_info=error, extra=fields(claim=str(ref.key)))
            return Outcome(error=f"{operation} claim {ref.key}: {str(error) or type(error).__name__}")

    @asynccontextmanager
    async def _exclusive(self, refs: Sequence[ClaimRef]) -> AsyncIterator[None]:
        if not self._folder:
            async with self._locks.held(ref.uid for ref in refs):
                yield
        else:
            # The file's lock is the process's, not the task's: our own calls follow each other by the first.
            async with self._locks.held([""]), serialized(self._folder):
                yield

    async def _prepare(self, ref: ClaimRef) -> tuple[AnsweredDevice, ...]:
        known = self._claims.get(ref.uid)
        if known is not None and known.phase is Phase.PREPARED and self._claims.intact(known):
            return known.answer
        claim = await self._fetch(ref)
        held = PreparedClaim(claim.uid, claim.key, claim.devices)
        boot_id = self._claims.boot_id
        self._claims.put(Entry(held, Phase.PREPARING, boot_id))
        prepared = tuple(await _called(self._driver.prepare, claim))
        spec, answer = claim_spec(self._driver.name, ref.uid, prepared)
        name = claim_file(self._driver.name, ref.uid)
        path = self._claims.write_spec(name, spec) if spec is not None else ""
        self._claims.put(Entry(held, Phase.PREPARED, boot_id, answer, path))
        return answer

    async def _unprepare(self, ref: ClaimRef) -> tuple[AnsweredDevice, ...]:
        known = self._claims.get(ref.uid)
        if known is None:
            return ()
        self._claims.put(Entry(known.claim, Phase.UNPREPARING, known.boot_id, cdi_file=known.cdi_file))
        await _called(self._driver.unprepare, known.claim)
        self._claims.remove_spec(claim_file(self._driver.name, ref.uid))
        self._claims.remove(ref.uid)
        return ()

    def _show(self) -> None:
        self._held.labels(self._driver.name).set(len(self._claims.all()))


async def _called(method: Callable[[Any], Any], argument: Any) -> Any:
    """Call the author's method: coroutines here, plain ones in a thread."""
    if inspect.iscoroutinefunction(method):
        return await method(argument)

    def call() -> Any:
        result = method(argument)
        # A generator's work must be done in the thread as well.
        return tuple(result) if isinstance(result, Iterable) else result

    return await asyncio.to_thread(call)
