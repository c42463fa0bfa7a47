"""The PreBind step of ClassicResources: requests allocations, reserves claims, and undoes reservations."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from dray.api import classic_claims as classic
from dray.api.classic_claims import State
from dray.api.errors import APIError
from dray.api.types.cdi_v1alpha1 import ResourceClaim
from dray.api.types.core_v1 import Pod
from dray.api.types.meta_v1 import Condition
from dray.framework.status import SUCCESS, Code, Status, error, unschedulable
from dray.runtime.logs import fields
from dray.scheduler.handle import Handle
from dray.scheduler.plugins.classic_resources import writes
from dray.scheduler.plugins.classic_resources.claim_writer import ClassicWriter
from dray.scheduler.plugins.classic_resources.pod_state import Placed, PodState, Wanted
from dray.scheduler.plugins.classic_resources.writes import ClaimChangedError, InUseError

_log = logging.getLogger(__name__)

WAIT_ALLOCATION: Final = "waiting for resource driver to allocate resource"
WAIT_INFORMATION: Final = "waiting for resource driver to provide information"
_WHY: Final[Mapping[str, str]] = {classic.NO_ROOM: "no room", classic.DRIVER_FAILED: "driver failed"}
WITHOUT: Final = "ResourceClaimNotAvailable"
_NORMAL: Final = "Normal"


class ClassicBinder:
    """Runs PreBind and undoes it; `optional_seconds` is how long a driver may take for optional claims."""

    def __init__(self, handle: Handle, writer: ClassicWriter, optional_seconds: float) -> None:
        self._handle = handle
        self._writer = writer
        self._optional_seconds = optional_seconds

    async def pre_bind(self, own: PodState, pod: Pod, node_name: str) -> Status:
        """Return Success if all claims are reserved; Pending if a driver must allocate first."""
        try:
            if own.pending:
                return await self._ask(own, node_name)
            got = await self._optional_claims(own, pod, node_name)
            if isinstance(got, Status):
                return got
            for item in (*(item.claim for item in own.needed), *got):
                await self._reserve(own, item, pod)
        except InUseError as why:
            return unschedulable(str(why))
        except (ClaimChangedError, APIError) as failure:
            return error(str(failure))
        return SUCCESS

    # --- Allocation. ---

    async def _ask(self, own: PodState, node_name: str) -> Status:
        """Return whether several drivers must report unsuitable nodes before a node is selected."""
        pending = own.pending
        select = len(pending) == 1 or all(_has_answered(item.claim) for item in pending)
        potential = writes.potential_nodes(own.nodes, node_name)
        node = self._handle.snapshot.get(node_name)
        wished = [item for item in own.optional if _is_open(item) and node is not None and item.may_be_on(node)]
        for item in (*pending, *wished):
            await self._select(item.claim, potential, node_name if select else "")
        if not select:
            return _pending(WAIT_INFORMATION, pending[0].claim)
        return _pending(WAIT_ALLOCATION, pending[0].claim, node_name)

    async def _select(self, claim: ResourceClaim, potential: tuple[str, ...], node_name: str) -> ResourceClaim:
        return await self._writer.write(claim, lambda now: writes.asked(now, claim, potential, node_name))

    # --- What the Pod can do without. ---

    async def _optional_claims(self, own: PodState, pod: Pod, node_name: str) -> list[ResourceClaim] | Status:
        """Reserve the optional claims that are allocated in time; reject the node if a driver excludes it."""
        node = self._handle.snapshot.get(node_name)
        potential = writes.potential_nodes(own.nodes, node_name)
        got: list[ResourceClaim] = []
        for item in own.optional:
            if node is None or not item.may_be_on(node):
                self._record(pod, item.claim)
                continue
            found = item.claim if item.allocated else await self._allocated(item, potential, node_name)
            if found is None:
                self._record(pod, item.claim)
            elif not classic.is_allocated(found) or not Placed(Wanted(found)).may_be_on(node):
                # The driver may have reported since the node was chosen.
                return _pending(WAIT_ALLOCATION, found, node_name)
            elif classic.is_reservable(found) or classic.is_reserved_for(found, pod):
                got.append(found)
            else:
                self._record(pod, item.claim)
        return got

    async def _allocated(self, item: Placed, potential: tuple[str, ...], node_name: str) -> ResourceClaim | None:
        """Request the allocation for the node, and wait for a limited time."""
        claim = item.claim
        if classic.is_immediate(claim) or classic.selected_node(claim):
            asked = claim
        else:
            asked = await self._select(claim, potential, node_name)
        found = await self._writer.until(asked, _is_answered, self._optional_seconds)
        if found is None or _is_answered(found):
            return found
        # The deadline has passed; deselect the node unless the driver was faster.
        found = await self._writer.write(found, writes.deselected)
        return found if classic.is_allocated(found) else None

    def _record(self, pod: Pod, claim: ResourceClaim) -> None:
        text = f"Placed without optional resource claim {classic.label(claim)}."
        self._handle.record(pod, _NORMAL, WITHOUT, text)

    # --- Reservation. ---

    async def _reserve(self, own: PodState, claim: ResourceClaim, pod: Pod) -> None:
        if classic.is_reserved_for(claim, pod):
            return
        # Recorded first, because the write may succeed without a response.
        own.written[claim.metadata.uid or ""] = claim
        await self._writer.reserve(claim, pod)

    async def undo(self, own: PodState, pod: Pod) -> None:
        """Remove the reservations that were written, or may have been."""
        for claim in own.written.values():
            await self.unreserve(claim, pod)
        own.written.clear()

    async def unreserve(self, claim: ResourceClaim, pod: Pod) -> None:
        """Remove one reservation."""
        try:
            await self._writer.unreserve(claim, pod)
        except APIError as failure:
            # The entry is harmless: the Pod is retried, or the claim controller removes it.
            _log.info("not unreserved", extra=fields(claim=classic.label(claim), error=str(failure)))


def _is_open(item: Placed) -> bool:
    return classic.state_of(item.claim) is State.PENDING


def _has_answered(claim: ResourceClaim) -> bool:
    """Return whether the driver has reported unsuitable nodes; available ones it may report unasked."""
    return classic.has_driver_status(claim) and bool(classic.scheduler_status(claim).potential_nodes)


def _is_answered(claim: ResourceClaim) -> bool:
    return classic.state_of(claim) is not State.ALLOCATING


def _pending(reason: str, claim: ResourceClaim, node_name: str = "") -> Status:
    return Status(Code.PENDING, (waiting(reason, claim, node_name),))


def waiting(reason: str, claim: ResourceClaim, node_name: str = "", driver: str = "") -> str:
    """Return what the Pod waits for, and why the driver's last attempt failed."""
    parts = [f"resourceclaim {classic.label(claim)}"]
    if driver:
        parts.append(f"driver {driver}")
    if node_name:
        parts.append(f"node {node_name}")
    text = f"{reason} ({', '.join(parts)})"
    failure = classic.failure_of(claim)
    # The nodes that had no room are not the one that is selected now.
    if failure is None or (node_name and failure.reason == classic.NO_ROOM):
        return text
    return f"{text}: {explained(failure)}"


def explained(failure: Condition) -> str:
    """Return a failure of the driver for the Pod's condition."""
    return f"{_WHY.get(failure.reason, failure.reason)}: {failure.message}"
