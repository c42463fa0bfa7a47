"""The claim info cache: the claims in use on the node, their Pods, and their preparation state.

Pure: events in, actions out, in order. A claim is in the checkpoint before any driver is called for it, so that a crash
at any time leaves a record to undo.

A claim's first Pod makes it PREPARING; when every driver has responded it is PREPARED; when its last Pod is gone it is
UNPREPARING, and when every driver has responded it is removed. After a restart a claim is RESTORED: its devices are
known, but only the drivers know whether they are prepared, so that they are called once more. A failed call is not an
event: the phase does not change, and the next `PodAdmitted` or `PodGone` leads to another call.
"""

from __future__ import annotations

import bisect
import enum
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from dray.api.document import UID, NamespacedName
from dray.node.dra.claims import PREPARE, UNPREPARE, AllocatedDevice, ClaimInfo, Device


class Phase(enum.StrEnum):
    """The phases of a claim."""

    RESTORED = "restored"
    PREPARING = "preparing"
    PREPARED = "prepared"
    UNPREPARING = "unpreparing"


class Step(enum.StrEnum):
    """The causes of a transition."""

    ADMITTED = "a pod was admitted"
    ANSWERED = "a driver prepared it"
    COMPLETE = "the last driver prepared it"
    LEFT = "a pod is gone"
    ABANDONED = "the last pod is gone"
    RELEASED = "a driver unprepared it"


# None is a claim that is not in the cache. Anything else is a bug.
NEXT_PHASE: Final[Mapping[tuple[Phase | None, Step], Phase]] = {
    (None, Step.ADMITTED): Phase.PREPARING,
    (Phase.RESTORED, Step.ADMITTED): Phase.PREPARING,
    (Phase.PREPARING, Step.ADMITTED): Phase.PREPARING,
    (Phase.PREPARED, Step.ADMITTED): Phase.PREPARED,
    # Some drivers may have unprepared it already.
    (Phase.UNPREPARING, Step.ADMITTED): Phase.PREPARING,
    (Phase.PREPARING, Step.ANSWERED): Phase.PREPARING,
    (Phase.PREPARING, Step.COMPLETE): Phase.PREPARED,
    (Phase.RESTORED, Step.LEFT): Phase.RESTORED,
    (Phase.PREPARING, Step.LEFT): Phase.PREPARING,
    (Phase.PREPARED, Step.LEFT): Phase.PREPARED,
    (Phase.UNPREPARING, Step.LEFT): Phase.UNPREPARING,
    (Phase.RESTORED, Step.ABANDONED): Phase.UNPREPARING,
    (Phase.PREPARING, Step.ABANDONED): Phase.UNPREPARING,
    (Phase.PREPARED, Step.ABANDONED): Phase.UNPREPARING,
    (Phase.UNPREPARING, Step.ABANDONED): Phase.UNPREPARING,
    (Phase.UNPREPARING, Step.RELEASED): Phase.UNPREPARING,
}


class UnexpectedEventError(AssertionError):
    """An event that the claim's phase does not allow: a bug."""


class OldClaimError(Exception):
    """An earlier claim, or an earlier allocation of the claim, has not been unprepared yet."""


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """A reference to a claim, as sent to drivers."""

    uid: UID
    key: NamespacedName


# --- Events. ---


@dataclass(frozen=True, slots=True)
class PodAdmitted:
    """The Pod was admitted and may use these claims."""

    pod_uid: UID
    claims: tuple[ClaimInfo, ...]


@dataclass(frozen=True, slots=True)
class DriverPrepared:
    """The driver prepared these claims, with these devices."""

    driver: str
    devices: Mapping[UID, tuple[Device, ...]]


@dataclass(frozen=True, slots=True)
class PodGone:
    """All containers of the Pod have ended."""

    pod_uid: UID


@dataclass(frozen=True, slots=True)
class DriverUnprepared:
    """The driver unprepared these claims."""

    driver: str
    uids: tuple[UID, ...]


Event = PodAdmitted | DriverPrepared | PodGone | DriverUnprepared


# --- Actions. ---


@dataclass(frozen=True, slots=True)
class SaveCheckpoint:
    """Write the checkpoint before the next action."""


@dataclass(frozen=True, slots=True)
class CallPrepare:
    """Call the driver to prepare the claims."""

    driver: str
    claims: tuple[ClaimRef, ...]


@dataclass(frozen=True, slots=True)
class CallUnprepare:
    """Call the driver to unprepare the claims."""

    driver: str
    claims: tuple[ClaimRef, ...]


@dataclass(frozen=True, slots=True)
class CountSkip:
    """Count that the driver was not called for a claim."""

    driver: str
    operation: str


Action = SaveCheckpoint | CallPrepare | CallUnprepare | CountSkip


@dataclass(slots=True)
class _Entry:
    info: ClaimInfo
    phase: Phase | None = None
    # The drivers whose response is missing; used in PREPARING and UNPREPARING.
    missing: set[str] = field(default_factory=set)


def _key(entry: _Entry) -> NamespacedName:
    return entry.info.key


def merged(known: Iterable[ClaimInfo], noted: Iterable[ClaimInfo]) -> tuple[ClaimInfo, ...]:
    """Return the claims of both, each once with all its Pods; of two with one name, the one that is known."""
    found = {info.uid: info for info in known}
    names = {info.key: info.uid for info in found.values()}
    for info in noted:
        if names.setdefault(info.key, info.uid) == info.uid:
            before = found.get(info.uid)
            pod_uids = info.pod_uids | (before.pod_uids if before is not None else frozenset())
            found[info.uid] = replace(info, pod_uids=pod_uids)
    return tuple(found.values())


class ClaimInfoCache:
    """The node's claims; changed only by `handle`."""

    def __init__(self, restored: Iterable[ClaimInfo] = ()) -> None:
        # By UID; a namespace and name occurs once, see `OldClaimError`.
        self._entries: dict[UID, _Entry] = {}
        self._by_key: dict[NamespacedName, UID] = {}
        # What follows is known from the entries: no Pod's admission should have to go through all of them.
        self._in_order: list[_Entry] = []
        self._by_pod: dict[UID, set[UID]] = {}
        self._drivers: Counter[str] = Counter()
        self._holders: dict[AllocatedDevice, UID] = {}
        # Changes whenever a claim may have changed.
        self.revision = 0
        for info in restored:
            self._add(info).phase = Phase.RESTORED

    # --- Reading. ---

    def claims(self) -> tuple[ClaimInfo, ...]:
        """Return all claims in use, by namespace and name."""
        return tuple([entry.info for entry in self._in_order])

    def counts(self) -> tuple[int, dict[str, int]]:
        """Return the number of claims in use, and by driver."""
        return len(self._entries), dict(self._drivers)

    def get(self, key: NamespacedName) -> ClaimInfo | None:
        """Return the claim of that name, if it is in use."""
        uid = self._by_key.get(key)
        return None if uid is None else self._entries[uid].info

    def used_by(self, pod_uid: UID, key: NamespacedName) -> ClaimInfo | None:
        """Return the claim of that name, if the Pod uses it."""
        info = self.get(key)
        return info if info is not None and pod_uid in info.pod_uids else None

    def phase(self, uid: UID) -> Phase | None:
        """Return the phase of the claim; None if it is not in use."""
        entry = self._entries.get(uid)
        return None if entry is None else entry.phase

    def claims_of(self, pod_uid: UID) -> tuple[ClaimInfo, ...]:
        """Return the claims that the Pod uses."""
        found = (self._entries[uid].info for uid in self._by_pod.get(pod_uid, ()))
        return tuple(sorted(found, key=lambda info: info.key))

    def pod_uids(self) -> tuple[UID, ...]:
        """Return the UIDs of Pods that use a claim."""
        return tuple(sorted(self._by_pod))

    # --- Changing. ---

    def handle(self, event: Event) -> tuple[Action, ...]:
        """Handle the event and return the actions to perform, in order."""
        self.revision += 1
        match event:
            case PodAdmitted():
                return self._admitted(event)
            case DriverPrepared():
                return self._prepared(event)
            case PodGone():
                return self._gone(event)
            case DriverUnprepared():
                return self._unprepared(event)

    def _admitted(self, event: PodAdmitted) -> tuple[Action, ...]:
        # All claims are checked before the first change.
        for info in event.claims:
            self._check_unused(info)
        calls: dict[str, list[ClaimRef]] = {}
        skips: list[CountSkip] = []
        for info in event.claims:
            entry = self._entries.get(info.uid) or self._add(info)
            before = entry.phase
            self._step(entry, Step.ADMITTED)
            pods = entry.info.pod_uids | {event.pod_uid}
            # The devices are the driver's answer.
            self._update(entry, replace(info, devices=entry.info.devices, pod_uids=pods))
            if entry.phase is Phase.PREPARING:
                skipped = self._ask_all(entry, calls, PREPARE)
                skips += skipped if before is not Phase.PREPARING else ()
                if not entry.missing:
                    # No driver is involved.
                    self._step(entry, Step.COMPLETE)
        if not event.claims:
            return ()
        return (SaveCheckpoint(), *skips, *(CallPrepare(driver, tuple(calls[driver])) for driver in sorted(calls)))

    def _check_unused(self, info: ClaimInfo) -> None:
        known = self._by_key.get(info.key)
        if known is not None and known != info.uid:
            raise OldClaimError(
                f"old ResourceClaim with same name {info.key.name} and different UID {known} still exists "
                "(previous pod force-deleted?!)"
            )
        entry = self._entries.get(info.uid)
        if entry is not None:
            before = entry.info
            if before.allocated and (before.drivers, before.allocated) != (info.drivers, info.allocated):
                raise OldClaimError(f"ResourceClaim {info.key.name}: its former devices are not unprepared yet")
            return
        for device in sorted(info.allocated & self._holders.keys()):
            holder = self._entries[self._holders[device]].info.key
            raise OldClaimError(
                f"ResourceClaim {info.key.name}: device {'/'.join(device)} is not unprepared yet for {holder}, "
                "which had it before"
            )

    def _ask_all(self, entry: _Entry, calls: dict[str, list[ClaimRef]], operation: str) -> list[CountSkip]:
        """Add calls of all drivers but those that skip the operation, which are returned."""
        ref = ClaimRef(entry.info.uid, entry.info.key)
        asked = [driver for driver in entry.info.drivers if not entry.info.skips(driver, operation)]
        entry.missing = set(asked)
        for driver in asked:
            claims = calls.setdefault(driver, [])
            # Two entries of a Pod may refer to the same claim.
            if ref not in claims:
                claims.append(ref)
        return [CountSkip(driver, operation) for driver in entry.info.drivers if driver not in entry.missing]

    def _prepared(self, event: DriverPrepared) -> tuple[Action, ...]:
        for uid in sorted(event.devices):
            entry = self._entry(uid, event)
            entry.missing.discard(event.driver)
            self._step(entry, Step.ANSWERED if entry.missing else Step.COMPLETE)
            # The driver's earlier devices are replaced.
            devices = {**entry.info.devices, event.driver: event.devices[uid]}
            self._update(entry, replace(entry.info, devices=devices))
        return (SaveCheckpoint(),) if event.devices else ()

    def _gone(self, event: PodGone) -> tuple[Action, ...]:
        calls: dict[str, list[ClaimRef]] = {}
        skips: list[CountSkip] = []
        changed = False
        for info in self.claims_of(event.pod_uid):
            entry = self._entries[info.uid]
            if len(info.pod_uids) > 1:
                self._step(entry, Step.LEFT)
                self._update(entry, replace(info, pod_uids=info.pod_uids - {event.pod_uid}))
                changed = True
                continue
            # The Pod stays a user until the drivers are done, so that a failed call is retried.
            before = entry.phase
            self._step(entry, Step.ABANDONED)
            skipped = self._ask_all(entry, calls, UNPREPARE)
            skips += skipped if before is not Phase.UNPREPARING else ()
            if not entry.missing:
                self._forget(entry)
                changed = True
        unprepares = tuple(CallUnprepare(driver, tuple(calls[driver])) for driver in sorted(calls))
        # Claims to be unprepared do not change in the checkpoint.
        return (*((SaveCheckpoint(),) if changed else ()), *skips, *unprepares)

    def _unprepared(self, event: DriverUnprepared) -> tuple[Action, ...]:
        forgotten = False
        for uid in sorted(event.uids):
            entry = self._entry(uid, event)
            self._step(entry, Step.RELEASED)
            entry.missing.discard(event.driver)
            if not entry.missing:
                self._forget(entry)
                forgotten = True
        return (SaveCheckpoint(),) if forgotten else ()

    def _add(self, info: ClaimInfo) -> _Entry:
        entry = self._entries[info.uid] = _Entry(info)
        self._by_key[info.key] = info.uid
        bisect.insort(self._in_order, entry, key=_key)
        self._index(info)
        return entry

    def _update(self, entry: _Entry, info: ClaimInfo) -> None:
        self._unindex(entry.info)
        entry.info = info
        self._index(info)

    def _forget(self, entry: _Entry) -> None:
        del self._entries[entry.info.uid]
        del self._by_key[entry.info.key]
        del self._in_order[bisect.bisect_left(self._in_order, _key(entry), key=_key)]
        self._unindex(entry.info)

    def _index(self, info: ClaimInfo) -> None:
        self._drivers.update(info.devices.keys())
        self._holders.update(dict.fromkeys(info.allocated, info.uid))
        for pod_uid in info.pod_uids:
            self._by_pod.setdefault(pod_uid, set()).add(info.uid)

    def _unindex(self, info: ClaimInfo) -> None:
        for device in info.allocated:
            # A checkpoint may name a device twice.
            self._holders.pop(device, None)
        for driver in info.devices:
            self._drivers[driver] -= 1
            if not self._drivers[driver]:
                del self._drivers[driver]
        for pod_uid in info.pod_uids:
            self._by_pod[pod_uid].discard(info.uid)
            if not self._by_pod[pod_uid]:
                del self._by_pod[pod_uid]

    def _entry(self, uid: UID, event: Event) -> _Entry:
        entry = self._entries.get(uid)
        if entry is None:
            raise UnexpectedEventError(f"{type(event).__name__} for claim {uid}, which is not in use")
        return entry

    def _step(self, entry: _Entry, step: Step) -> None:
        after = NEXT_PHASE.get((entry.phase, step))
        if after is None:
            raise UnexpectedEventError(f"{step} while claim {entry.info.key} ({entry.info.uid}) is {entry.phase}")
        entry.phase = after
