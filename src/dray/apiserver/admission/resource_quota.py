"""ResourceQuota: charges what a write uses to the status of each quota of its namespace, before it is stored.

Charging is a compare-and-swap on the quota, so that servers that share a store cannot give out the same amount twice.
Concurrent writes are evaluated together and cost one swap per quota. If the server dies between the charge and the
object's own write, the quota controller corrects the usage.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
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
from dray.api.quota.names import CLAIMS, MEASURED_KINDS, PODS, UNCOUNTED, measures
from dray.api.quota.usage import (
    Usage,
    add_to,
    claim_usage,
    counted_usage,
    extended_resource_pod,
    is_charged_to,
    parse_amounts,
    pod_usage,
    subtract_to_zero,
    write_amounts,
)
from dray.api.types import core_v1
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import ResourceClaim
from dray.apiserver.admission.plugin import AdmissionAttributes, AdmissionPlugin, Operation, Undo
from dray.apiserver.endpoint import KEY_ROOT
from dray.apiserver.malformed import each_shown
from dray.apiserver.object_cache import QUOTAS, ObjectCache
from dray.lib.clock import Clock
from dray.runtime.tasks import ChildTasks
from dray.store.interface import Entry, KeyNotFoundError, RevisionConflictError, Store

_PREFIX: Final = f"{KEY_ROOT}core/resourcequotas/"
_PODS_PREFIX: Final = f"{KEY_ROOT}core/pods/"
_CLAIMS_PREFIX: Final = f"{KEY_ROOT}resource.k8s.io/resourceclaims/"
_SPECIAL: Final = EXTENDED_RESOURCE_ANNOTATION.encode()
# In each lost round another server wrote the quota, as for updates of objects.
_ATTEMPTS_MAX: Final = 64


@dataclass(slots=True)
class Reservation:
    """The charges of one write, by quota."""

    namespace: str
    charged: dict[str, Usage] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Waiter:
    subject: Subject
    name: str
    dry_run: bool
    reservation: Reservation
    decided: asyncio.Future[None]

    def refuse(self, reason: str) -> None:
        if not self.decided.done():
            self.decided.set_exception(ForbiddenError(self.subject.resource, self.name, reason))


class _State:
    """A stored quota and its usage."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.document: Document = orjson.loads(entry.value)
        self.quota = from_document(core_v1.ResourceQuota, self.document)
        self.used = parse_amounts(self.quota.status.used)

    @property
    def name(self) -> str:
        return self.quota.metadata.name or ""

    def with_used(self, used: Usage) -> bytes:
        status = {**(self.document.get("status") or {}), "used": write_amounts(used)}
        return bytes(memoryview(orjson.dumps({**self.document, "status": status})))


class QuotaEvaluator:
    """Charges and releases quotas; one for the whole server. Its work runs in `tasks`."""

    def __init__(self, store: Store, cache: ObjectCache, gates: FeatureGates, clock: Clock, tasks: ChildTasks) -> None:
        self._store = store
        # A claim may be charged to a Pod that is not committed yet: the scheduler of this process sees it earlier.
        self._newest = store.with_asynchronous_commit() or store
        self._cache = cache
        self._clock = clock
        self._tasks = tasks
        self._extended = gates.enabled("DRAExtendedResource")
        # By namespace: writes that wait for a decision. A namespace in `_active` has a task that decides them.
        self._waiting: dict[str, list[_Waiter]] = {}
        self._active: set[str] = set()

    async def reserve(
        self, resource: GroupResource, namespace: str, new: Document, old: Document | None, *, dry_run: bool
    ) -> Reservation | None:
        """Charge a create (`old` is None) or an update, or refuse it; None if no quota measures it.

        A dry run is checked but not charged.
        """
        if not self._is_measured(resource, namespace) or not _may_change_usage(resource, new, old):
            return None
        subject = await self._subject(resource, new, old)
        waiter = _Waiter(
            subject,
            new["metadata"].get("name", ""),
            dry_run,
            Reservation(namespace),
            asyncio.get_running_loop().create_future(),
        )
        self._waiting.setdefault(namespace, []).append(waiter)
        if namespace not in self._active:
            self._active.add(namespace)
            self._tasks.spawn(self._work(namespace), f"resource quota of {namespace}")
        await waiter.decided
        return waiter.reservation

    async def release(self, reservation: Reservation) -> None:
        """Subtract the charges of a write that was not stored."""
        for name, usage in reservation.charged.items():
            await self._subtract(f"{_PREFIX}{reservation.namespace}/{name}", usage)

    def _is_measured(self, resource: GroupResource, namespace: str) -> bool:
        """Return whether any quota of the namespace measures the resource."""
        if resource in UNCOUNTED:
            return False
        return any(
            measures(name, resource, extended=self._extended)
            for quota in self._cache.quotas.get(namespace, {}).values()
            for name in (quota.get("status") or {}).get("hard") or ()
        )

    # --- Usage of the object ---

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
        return Subject(resource, counted_usage(resource, new), None, previous, self._extended)

    async def _charged_to_owner(self, claim: ResourceClaim) -> Usage | None:
        """Return what the Pod of an extended-resource claim has been charged already."""
        owner, namespace = extended_resource_pod(claim), claim.metadata.namespace
        entry = await self._newest.get(f"{_PODS_PREFIX}{namespace}/{owner.name}") if owner is not None else None
        if entry is None:
            return None
        pod = decode(Pod, entry.value)
        siblings: tuple[ResourceClaim, ...] = ()
        if pod.status.extended_resource_claim_status is None:
            page = await self._newest.list_page(f"{_CLAIMS_PREFIX}{namespace}/")
            special = (decode(ResourceClaim, item.value) for item in page.entries if _SPECIAL in item.value)
            siblings = tuple(item for item in special if _owner_uid(item) == pod.metadata.uid)
        if not is_charged_to(claim, pod, siblings):
            return None
        return pod_usage(pod, self._cache.class_names, self._clock.now())

    # --- Evaluation ---

    async def _work(self, namespace: str) -> None:
        try:
            while waiters := self._waiting.pop(namespace, None):
                await self._decide(namespace, [item for item in waiters if not item.decided.cancelled()])
        finally:
            self._active.discard(namespace)

    async def _decide(self, namespace: str, waiters: Sequence[_Waiter]) -> None:
        try:
            states = await self._load(namespace)
            _refuse_excess(states, waiters)
            for state in states:
                await self._charge(state, [item for item in waiters if not item.decided.done()])
            await self._unwind(waiters)
        except Exception as error:  # noqa: BLE001 - reported to the client of every waiting write
            for waiter in waiters:
                if not waiter.decided.done():
                    waiter.decided.set_exception(error)
        for waiter in waiters:
            if not waiter.decided.done():
                waiter.decided.set_result(None)

    async def _load(self, namespace: str) -> list[_State]:
        names = sorted(self._cache.quotas.get(namespace, ()))
        entries = [await self._store.get(f"{_PREFIX}{namespace}/{name}") for name in names]
        # As long as nobody can tell what a quota is, it limits nothing.
        return each_shown(_State, [entry for entry in entries if entry is not None])

    async def _charge(self, state: _State, waiters: Sequence[_Waiter]) -> None:
        """Charge one quota for all writes that fit, and refuse the others."""
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
                # The quota was deleted, and its limits with it.
                return
            for waiter, usage in charges:
                waiter.reservation.charged[state.name] = usage
            for waiter, reason in refusals:
                waiter.refuse(reason)
            return
        raise ConflictError(QUOTAS, state.name)

    async def _unwind(self, waiters: Iterable[_Waiter]) -> None:
        """Release the charges of writes that a later quota refused, or whose client disconnected."""
        for waiter in waiters:
            if waiter.decided.done() and waiter.reservation.charged:
                charged, waiter.reservation.charged = waiter.reservation.charged, {}
                await self.release(Reservation(waiter.reservation.namespace, charged))

    async def _subtract(self, key: str, usage: Usage) -> None:
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


def _refuse_excess(states: Sequence[_State], waiters: Iterable[_Waiter]) -> None:
    """Refuse, before any write, what cannot be measured and what does not fit even alone."""
    for waiter in waiters:
        for find_reason in (_objection, _excess):
            reason = next(filter(None, (find_reason(state, waiter.subject) for state in states)), None)
            if reason is not None:
                waiter.refuse(reason)
                break


def _objection(state: _State, subject: Subject) -> str | None:
    return check.objection(state.quota, subject)


def _excess(state: _State, subject: Subject) -> str | None:
    return check.excess(state.quota, state.used, check.requested(state.quota, subject))


def _fit(
    state: _State, waiters: Iterable[_Waiter]
) -> tuple[Usage, list[tuple[_Waiter, Usage]], list[tuple[_Waiter, str]]]:
    """Return the quota's usage with all writes that fit in order, their charges, and the refusals."""
    used: dict[str, Quantity] = dict(state.used)
    charges: list[tuple[_Waiter, Usage]] = []
    refusals: list[tuple[_Waiter, str]] = []
    for waiter in waiters:
        requested = check.requested(state.quota, waiter.subject)
        if not requested:
            continue
        reason = check.excess(state.quota, used, requested)
        if reason is not None:
            refusals.append((waiter, reason))
        elif not waiter.dry_run:
            add_to(used, requested)
            charges.append((waiter, requested))
    return used, charges, refusals


def _may_change_usage(resource: GroupResource, new: Document, old: Document | None) -> bool:
    if old is None:
        return True
    if resource == PODS:
        # Only a resize changes amounts; other updates can change the scope of a Pod.
        return _resources(new) != _resources(old) or (
            is_terminating(from_document(Pod, new)) != is_terminating(from_document(Pod, old))
        )
    if resource == CLAIMS:
        return _measured_fields(new) != _measured_fields(old)
    return resource in MEASURED_KINDS and counted_usage(resource, new) != counted_usage(resource, old)


def _resources(pod: Document) -> list[Document | None]:
    spec = pod.get("spec") or {}
    containers = (*(spec.get("containers") or ()), *(spec.get("initContainers") or ()))
    return [container.get("resources") for container in containers]


def _measured_fields(claim: Document) -> tuple[object, ...]:
    metadata = claim["metadata"]
    annotation = (metadata.get("annotations") or {}).get(EXTENDED_RESOURCE_ANNOTATION)
    return claim.get("spec"), annotation, metadata.get("ownerReferences")


def _owner_uid(claim: ResourceClaim) -> str | None:
    owner = extended_resource_pod(claim)
    return owner.uid if owner is not None else None


class ResourceQuota(AdmissionPlugin):
    """Refuses writes that exceed a quota of their namespace, and charges the others."""

    name = "ResourceQuota"

    def __init__(self, cache: ObjectCache, evaluator: QuotaEvaluator) -> None:
        self._cache = cache
        self._evaluator = evaluator

    def handles(self, resource: GroupResource, subresource: str, operation: Operation) -> bool:
        """Take part in creates and updates of objects that quotas can count."""
        whole = not subresource or (resource == PODS and subresource == "resize")
        return operation is not Operation.DELETE and whole and resource not in UNCOUNTED

    async def validate(self, attributes: AdmissionAttributes) -> Undo | None:
        """Charge the write."""
        if attributes.namespace not in self._cache.quotas:
            return None
        new = attributes.object
        assert new is not None
        reservation = await self._evaluator.reserve(
            attributes.resource, attributes.namespace, new, attributes.old_object, dry_run=attributes.dry_run
        )
        return None if reservation is None else partial(self._evaluator.release, reservation)
