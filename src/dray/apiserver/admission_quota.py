"""Quotas at the door: what a write would use is reserved in the status of each quota before it is written.

Reserving is a compare-and-swap on the quota, so that servers that share a store cannot give out the same
amount twice. Writes that come at the same time are decided together and cost one swap per quota. Between the
reservation and the object's own write the server may die: then the quota controller finds out and gives back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import orjson

from dray.api.codec import decode, from_document
from dray.api.document import Document, GroupResource
from dray.api.errors import ConflictError, ForbiddenError
from dray.api.features import FeatureGates
from dray.api.pod_claims import EXTENDED_RESOURCE_ANNOTATION
from dray.api.quantity import Quantity
from dray.api.quota import check
from dray.api.quota.check import Subject, is_terminating
from dray.api.quota.names import CLAIMS, PODS, UNCOUNTED, count_names, measures
from dray.api.quota.usage import (
    ONE,
    Usage,
    add_to,
    claim_usage,
    extended_resource_pod,
    is_charged_to,
    parse_amounts,
    pod_usage,
    subtract_to_zero,
    write_amounts,
)
from dray.api.types.core_v1 import Pod, ResourceQuota
from dray.api.types.resource_v1 import ResourceClaim
from dray.apiserver.endpoint import KEY_ROOT, Endpoint
from dray.apiserver.object_cache import QUOTAS, ObjectCache
from dray.lib.clock import Clock
from dray.store.interface import Entry, KeyNotFoundError, RevisionConflictError, Store

_PREFIX: Final = f"{KEY_ROOT}core/resourcequotas/"
_PODS_PREFIX: Final = f"{KEY_ROOT}core/pods/"
_CLAIMS_PREFIX: Final = f"{KEY_ROOT}resource.k8s.io/resourceclaims/"
_SPECIAL: Final = EXTENDED_RESOURCE_ANNOTATION.encode()
# In each lost round somebody else wrote the quota; as for changes of objects.
_ATTEMPTS_MAX: Final = 64


@dataclass(slots=True)
class Reservation:
    """What was charged for one write, by quota."""

    namespace: str
    charged: dict[str, Usage] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Waiter:
    subject: Subject
    name: str
    dry_run: bool
    reservation: Reservation
    decided: asyncio.Future[None]

    def refuse(self, why: str) -> None:
        if not self.decided.done():
            self.decided.set_exception(ForbiddenError(self.subject.resource, self.name, why))


class _State:
    """A quota as the store has it."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.document: Document = orjson.loads(entry.value)
        self.quota = from_document(ResourceQuota, self.document)
        self.used = parse_amounts(self.quota.status.used)

    @property
    def name(self) -> str:
        return self.quota.metadata.name or ""

    def with_used(self, used: Usage) -> bytes:
        status = {**(self.document.get("status") or {}), "used": write_amounts(used)}
        return bytes(memoryview(orjson.dumps({**self.document, "status": status})))


class Quotas:
    """Reserves and gives back; one for the whole server."""

    def __init__(
        self, store: Store, cache: ObjectCache, gates: FeatureGates, clock: Clock, *, enabled: bool = True
    ) -> None:
        self._enabled = enabled
        self._store = store
        self._cache = cache
        self._clock = clock
        self._extended = gates.enabled("DRAExtendedResource")
        # By namespace: writes that wait to be decided, and the task that decides.
        self._waiting: dict[str, list[_Waiter]] = {}
        self._workers: dict[str, asyncio.Task[None]] = {}

    async def reserve(
        self, endpoint: Endpoint, namespace: str, new: Document, old: Document | None, *, dry_run: bool
    ) -> Reservation | None:
        """Charge a create (`old` is None) or an update, or refuse it; None when no quota cares.

        A dry run is judged but not charged.
        """
        if not self._concerned(endpoint.resource, namespace) or not _handled(endpoint.resource, new, old):
            return None
        subject = await self._subject(endpoint.resource, new, old)
        waiter = _Waiter(
            subject,
            new["metadata"].get("name", ""),
            dry_run,
            Reservation(namespace),
            asyncio.get_running_loop().create_future(),
        )
        self._waiting.setdefault(namespace, []).append(waiter)
        if namespace not in self._workers:
            self._workers[namespace] = asyncio.create_task(self._work(namespace), name=f"quotas of {namespace}")
        await waiter.decided
        return waiter.reservation

    async def release(self, reservation: Reservation | None) -> None:
        """Give back what a write that did not happen had reserved."""
        if reservation is None:
            return
        for name, usage in reservation.charged.items():
            await self._give_back(f"{_PREFIX}{reservation.namespace}/{name}", usage)

    def _concerned(self, resource: GroupResource, namespace: str) -> bool:
        """Whether any quota of the namespace measures the kind."""
        if resource in UNCOUNTED or not self._enabled:
            return False
        return any(
            measures(name, resource, extended=self._extended)
            for quota in self._cache.quotas.get(namespace, {}).values()
            for name in (quota.get("status") or {}).get("hard") or ()
        )

    # --- What the object uses. ---

    async def _subject(self, resource: GroupResource, new: Document, old: Document | None) -> Subject:
        previous = await self._subject(resource, old, None) if old is not None else None
        classes = self._cache.class_names if self._extended else None
        if resource == PODS:
            pod = from_document(Pod, new)
            return Subject(resource, pod_usage(pod, classes, self._clock.now()), pod, previous, self._extended)
        if resource == CLAIMS:
            claim = from_document(ResourceClaim, new)
            charged = await self._charged_to_owner(claim) if self._extended else None
            return Subject(resource, claim_usage(claim, classes, charged), None, previous, self._extended)
        return Subject(resource, dict.fromkeys(count_names(resource), ONE), None, previous, self._extended)

    async def _charged_to_owner(self, claim: ResourceClaim) -> Usage | None:
        """What the Pod of a special claim has paid already."""
        owner, namespace = extended_resource_pod(claim), claim.metadata.namespace
        entry = await self._store.get(f"{_PODS_PREFIX}{namespace}/{owner.name}") if owner is not None else None
        if entry is None:
            return None
        pod = decode(Pod, entry.value)
        siblings: tuple[ResourceClaim, ...] = ()
        if pod.status.extended_resource_claim_status is None:
            page = await self._store.list_page(f"{_CLAIMS_PREFIX}{namespace}/")
            special = (decode(ResourceClaim, item.value) for item in page.entries if _SPECIAL in item.value)
            siblings = tuple(item for item in special if _owner_uid(item) == pod.metadata.uid)
        if not is_charged_to(claim, pod, siblings):
            return None
        return pod_usage(pod, self._cache.class_names, self._clock.now())

    # --- Deciding. ---

    async def _work(self, namespace: str) -> None:
        try:
            while waiters := self._waiting.pop(namespace, None):
                await self._decide(namespace, [item for item in waiters if not item.decided.cancelled()])
        finally:
            del self._workers[namespace]

    async def _decide(self, namespace: str, waiters: Sequence[_Waiter]) -> None:
        try:
            states = await self._load(namespace)
            _judge(states, waiters)
            for state in states:
                await self._charge(state, [item for item in waiters if not item.decided.done()])
            await self._unwind(waiters)
        except Exception as error:  # noqa: BLE001 - each of those who wait is told, and tells its client
            for waiter in waiters:
                if not waiter.decided.done():
                    waiter.decided.set_exception(error)
        for waiter in waiters:
            if not waiter.decided.done():
                waiter.decided.set_result(None)

    async def _load(self, namespace: str) -> list[_State]:
        names = sorted(self._cache.quotas.get(namespace, ()))
        entries = [await self._store.get(f"{_PREFIX}{namespace}/{name}") for name in names]
        return [_State(entry) for entry in entries if entry is not None]

    async def _charge(self, state: _State, waiters: Sequence[_Waiter]) -> None:
        """Charge one quota for all who fit, and refuse the others."""
        for _ in range(_ATTEMPTS_MAX):
            used, charges, refusals = _fit(state, waiters)
            try:
                if charges:
                    value = state.with_used(used)
                    await self._store.update(state.entry.key, value, expected_revision=state.entry.revision)
            except RevisionConflictError as error:
                state = _State(error.current)
                continue
            except KeyNotFoundError:
                # The quota went; so did its limits.
                return
            for waiter, usage in charges:
                waiter.reservation.charged[state.name] = usage
            for waiter, why in refusals:
                waiter.refuse(why)
            return
        raise ConflictError(QUOTAS, state.name)

    async def _unwind(self, waiters: Iterable[_Waiter]) -> None:
        """Give back what those had reserved who were refused by a later quota, or who went away."""
        for waiter in waiters:
            if waiter.decided.done() and waiter.reservation.charged:
                charged, waiter.reservation.charged = waiter.reservation.charged, {}
                await self.release(Reservation(waiter.reservation.namespace, charged))

    async def _give_back(self, key: str, usage: Usage) -> None:
        for _ in range(_ATTEMPTS_MAX):
            entry = await self._store.get(key)
            if entry is None:
                return
            state = _State(entry)
            used = {
                **state.used,
                **subtract_to_zero({name: state.used[name] for name in usage if name in state.used}, usage),
            }
            try:
                await self._store.update(key, state.with_used(used), expected_revision=entry.revision)
            except RevisionConflictError:
                continue
            except KeyNotFoundError:
                return
            return


def _judge(states: Sequence[_State], waiters: Iterable[_Waiter]) -> None:
    """Refuse what cannot be judged, and what does not fit although nobody else is charged, before any write."""
    for waiter in waiters:
        for judge in (_objection, _excess):
            why = next(filter(None, (judge(state, waiter.subject) for state in states)), None)
            if why is not None:
                waiter.refuse(why)
                break


def _objection(state: _State, subject: Subject) -> str | None:
    return check.objection(state.quota, subject)


def _excess(state: _State, subject: Subject) -> str | None:
    return check.excess(state.quota, state.used, check.requested(state.quota, subject))


def _fit(
    state: _State, waiters: Iterable[_Waiter]
) -> tuple[Usage, list[tuple[_Waiter, Usage]], list[tuple[_Waiter, str]]]:
    """Who fits, one after the other, with what the quota's usage comes to."""
    used: dict[str, Quantity] = dict(state.used)
    charges: list[tuple[_Waiter, Usage]] = []
    refusals: list[tuple[_Waiter, str]] = []
    for waiter in waiters:
        wanted = check.requested(state.quota, waiter.subject)
        if not wanted:
            continue
        why = check.excess(state.quota, used, wanted)
        if why is not None:
            refusals.append((waiter, why))
        elif not waiter.dry_run:
            add_to(used, wanted)
            charges.append((waiter, wanted))
    return used, charges, refusals


def _handled(resource: GroupResource, new: Document, old: Document | None) -> bool:
    """Whether the write can change what the object uses."""
    if old is None:
        return True
    if resource == PODS:
        # Amounts are fixed; only the scope of a Pod can change.
        return is_terminating(from_document(Pod, new)) != is_terminating(from_document(Pod, old))
    return resource == CLAIMS and _claim_facts(new) != _claim_facts(old)


def _claim_facts(claim: Document) -> tuple[object, ...]:
    metadata = claim["metadata"]
    annotation = (metadata.get("annotations") or {}).get(EXTENDED_RESOURCE_ANNOTATION)
    return claim.get("spec"), annotation, metadata.get("ownerReferences")


def _owner_uid(claim: ResourceClaim) -> str | None:
    owner = extended_resource_pod(claim)
    return owner.uid if owner is not None else None
