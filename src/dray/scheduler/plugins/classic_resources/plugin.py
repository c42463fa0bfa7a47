"""The ClassicResources plugin.

Costs a Pod without classic claims one look at its entries. Runs before DynamicResources, so that nothing is
written for a Pod's other claims before every driver has done its part.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dray.api import classic_claims as classic
from dray.api.classic_claims import State
from dray.api.errors import APIError
from dray.api.timestamps import TimeFormatError, parse_duration
from dray.api.types.cdi_v1alpha1 import ResourceClaim
from dray.api.types.core_v1 import Pod
from dray.client.objects import key_of
from dray.framework.cycle_state import CycleState
from dray.framework.events import (
    CLASSIC_CLAIM,
    CLASSIC_CLASS,
    NODE,
    RESOURCE_CLAIM,
    Action,
    ClusterEvent,
    EventRegistration,
)
from dray.framework.node_info import NodeInfo
from dray.framework.plugins import SCORE_MAX, PostFilterResult, PreFilterResult
from dray.framework.pod_info import PodInfo
from dray.framework.status import SKIP, SUCCESS, Code, Status, error, unresolvable, unschedulable
from dray.scheduler.handle import Handle
from dray.scheduler.plugins.classic_resources import writes
from dray.scheduler.plugins.classic_resources.classic_state import ABANDONED, NAME, classic_state_of
from dray.scheduler.plugins.classic_resources.hints import CLAIM_KEYS, Hints, same_name
from dray.scheduler.plugins.classic_resources.nominated_places import NominatedPlaces
from dray.scheduler.plugins.classic_resources.pod_state import PodState, Wanted, claims_of, may_use_classic
from dray.scheduler.plugins.classic_resources.pre_binder import (
    WAIT_ALLOCATION,
    ClassicBinder,
    explained,
    waiting,
)
from dray.scheduler.plugins.classic_resources.writes import ClaimChangedError
from dray.scheduler.plugins.dynamic_resources.checks import NotReadyError

UNALLOCATED_IMMEDIATE: Final = "unallocated immediate resourceclaim"
WAIT_DEALLOCATION: Final = "waiting for resource driver to deallocate resource"
IN_USE: Final = "resourceclaim in use"
NOT_AVAILABLE: Final = "resourceclaim not available on the node"
UNSUITABLE: Final = "resourceclaim cannot be allocated for the node (unsuitable)"
REFUSED: Final = "resource driver has refused the node"
DEALLOCATING: Final = "deallocation of ResourceClaim requested"
SETTLING: Final = "waiting for preempted pods to be removed from claims"
UNRESERVED: Final = "reservation of ResourceClaim removed"

# With the plugin's name, so that no copies are needed.
_NOT_AVAILABLE: Final = unresolvable(NOT_AVAILABLE).with_plugin(NAME)
_UNSUITABLE: Final = unresolvable(UNSUITABLE).with_plugin(NAME)
_REFUSED: Final = unresolvable(REFUSED).with_plugin(NAME)


class ClassicResources:
    """Implements the extension points from PreEnqueue to PreBind."""

    name = NAME

    def __init__(self, given: Mapping[str, Any], handle: Handle) -> None:
        arguments = read_arguments(given)
        shared = self._shared = classic_state_of(handle)
        self._handle = handle
        self._tracker = shared.tracker
        self._writer = shared.writer
        self._places = shared.places
        self._preempts = handle.features.enabled("DRAPreemption")
        self._hints = Hints(self._tracker.get, shared.has_structured)
        self._binder = ClassicBinder(handle, shared.writer, arguments.optional_timeout_seconds)

    # --- The queue. ---

    def pre_enqueue(self, pod: Pod) -> Status:
        """Check that the Pod's claims exist, belong to it, and are not being deleted."""
        if not may_use_classic(pod):
            return SUCCESS
        try:
            self._claims_of(pod)
        except NotReadyError as why:
            # Of a group that does not exist, GangScheduling says that the Pod waits for it.
            return SUCCESS if self._handle.waits_for_group(pod) else unresolvable(str(why))
        return SUCCESS

    def events_to_register(self) -> Sequence[EventRegistration]:
        """Return the events for claims, classes and nodes."""
        nodes = Action.ADD | Action.UPDATE_NODE_LABEL | Action.DELETE
        return (
            EventRegistration(ClusterEvent(CLASSIC_CLAIM, Action.ALL), self._hints.claim_changed, CLAIM_KEYS),
            # Of two claims with the same name, either may be deleted.
            EventRegistration(ClusterEvent(RESOURCE_CLAIM, Action.DELETE), same_name, CLAIM_KEYS),
            EventRegistration(ClusterEvent(NODE, nodes), self._hints.node_changed),
            EventRegistration(ClusterEvent(CLASSIC_CLASS, Action.ADD), self._hints.class_added),
        )

    def _claims_of(self, pod: Pod) -> list[Wanted]:
        return claims_of(pod, self._tracker.get, self._shared.has_structured)

    # --- Finding nodes. ---

    def pre_filter(self, state: CycleState, pod: Pod) -> tuple[PreFilterResult | None, Status]:
        """Skip Pods without classic claims; wait for claims that a driver is working on."""
        if not may_use_classic(pod):
            return None, SKIP
        try:
            wanted = self._claims_of(pod)
            if not wanted:
                return None, SKIP
            for item in wanted:
                if not item.optional:
                    problem = self._problem(item.claim, pod)
                    if problem is not None:
                        # PostFilter may have to remove a reservation.
                        state[NAME] = self._pod_state(wanted)
                        return None, problem
        except NotReadyError as why:
            return None, unresolvable(str(why))
        own = state[NAME] = self._pod_state(wanted)
        for placed in own.needed:
            users = self._tracker.users_besides(placed.claim, pod) if placed.allocated else None
            if users is not None:
                own.users[placed.claim.metadata.uid or ""] = users
        return None, SUCCESS

    def _pod_state(self, wanted: Sequence[Wanted]) -> PodState:
        now = self._handle.clock.monotonic()
        return PodState(wanted, lambda claim: self._shared.refusals.refused(claim, now))

    def _problem(self, claim: ResourceClaim, pod: Pod) -> Status | None:
        """Return why no node can be feasible."""
        match classic.state_of(claim):
            case State.ALLOCATING:
                return self._waits_for_driver(claim)
            case State.REALLOCATE:
                return self._pending(WAIT_DEALLOCATION, claim)
            case State.PENDING:
                return self._cannot_be_placed(claim, pod)
            case _:
                return None

    def _waits_for_driver(self, claim: ResourceClaim) -> Status | None:
        if classic.is_immediate(claim):
            return self._without_class(claim) or self._pending(UNALLOCATED_IMMEDIATE, claim)
        node_name = classic.selected_node(claim)
        if self._handle.snapshot.get(node_name) is None:
            # The node does not exist any more: another one is selected.
            return None
        return self._pending(WAIT_ALLOCATION, claim, node_name)

    def _without_class(self, claim: ResourceClaim) -> Status | None:
        class_name = claim.spec.resource_class_name
        if self._shared.classes.get(class_name) is not None:
            return None
        return unresolvable(f"resourceclaim {classic.label(claim)}: resource class {class_name} does not exist")

    def _cannot_be_placed(self, claim: ResourceClaim, pod: Pod) -> Status | None:
        without_class = self._without_class(claim)
        if without_class is not None:
            return without_class
        if self._tracker.is_meant_by_others(claim, pod):
            return unresolvable(f"resource claim {classic.label(claim)} is in the process of being allocated")
        if self._shared.refusals.is_paused(claim, self._handle.clock.monotonic()):
            return _REFUSED
        return None

    def _refused(self, claim: ResourceClaim) -> str:
        """Return which nodes the driver has refused; empty if none."""
        nodes = self._shared.refusals.describe(claim)
        driver = self._driver_of(claim) or "of its class"
        return f"resourceclaim {classic.label(claim)}: driver {driver} {nodes}" if nodes else ""

    def _driver_of(self, claim: ResourceClaim) -> str:
        known = self._shared.classes.get(claim.spec.resource_class_name)
        return classic.status_of(claim).driver_name or (known.driver_name if known is not None else "")

    def _pending(self, reason: str, claim: ResourceClaim, node_name: str = "") -> Status:
        return Status(Code.PENDING, (waiting(reason, claim, node_name, self._driver_of(claim)),))

    def filter(self, state: CycleState, _pod: Pod, node: NodeInfo) -> Status:
        """Check that allocated claims are available on the node and have a place, and the driver's unsuitable nodes."""
        own: PodState = state[NAME]
        answer = SUCCESS
        for position, item in enumerate(own.needed):
            if item.may_be_on(node):
                continue
            if item.allocated:
                own.blamed.add(position)
                answer = _NOT_AVAILABLE
            elif answer is SUCCESS:
                answer = _REFUSED if node.name in item.refused else _UNSUITABLE
        if answer is _UNSUITABLE or answer is _REFUSED:
            # The allocated claims are useless here without the others.
            own.blamed.update(position for position, item in enumerate(own.needed) if item.allocated)
        if answer is SUCCESS and own.users:
            return self._without_place(own, state.pod_info, node)
        return answer

    def _without_place(self, own: PodState, pod: PodInfo, node: NodeInfo) -> Status:
        """Return the first claim that is in use; preempting helps, or has helped, if users here are less important."""
        for item in own.needed:
            if own.is_full(item.claim):
                here = (node.pods.get(uid) for uid in own.users_of(item.claim) if self._preempts)
                helps = any(user is not None and user.priority < pod.priority for user in here)
                helps = helps or self._places.is_settling(pod.uid, node.name)
                return (unschedulable if helps else unresolvable)(f"{IN_USE} ({classic.label(item.claim)})")
        return SUCCESS

    # --- Preemption and nominations. ---

    def add_pod(self, state: CycleState, _pod: Pod, other: PodInfo, node: NodeInfo) -> Status:
        """Give a removed user its place back; hold those of a nominated Pod."""
        own: PodState = state[NAME]
        if own.removed.pop(other.uid, None) is None:
            self._places.hold(own, other.uid, node.name)
        return SUCCESS

    def remove_pod(self, state: CycleState, _pod: Pod, other: PodInfo, _node: NodeInfo) -> Status:
        """Take a user's places in claims; what a driver has allocated for it stays allocated."""
        if self._preempts:
            own: PodState = state[NAME]
            own.removed[other.uid] = other.key
        return SUCCESS

    def check_preemption(self, pod: Pod, node: NodeInfo) -> Status:
        """Let a preemptor wait until its victims have left `reservedFor`."""
        return unschedulable(SETTLING) if self._places.is_settling(pod.metadata.uid or "", node.name) else SUCCESS

    def pod_nominated(self, state: CycleState, pod: Pod, node: NodeInfo) -> Status:
        """Keep the places that the Pod gets from its victims."""
        own: PodState = state[NAME]
        claims = {item.claim.metadata.uid or "": item.claim for item in own.needed}
        users = frozenset[str]().union(*own.users.values())
        victims = {uid: key for uid, key in own.removed.items() if uid in users}
        if victims:
            kept = {uid: key_of(claims[uid]) for uid, before in own.users.items() if not before.isdisjoint(victims)}
            self._places.keep(pod.metadata.uid or "", NominatedPlaces(node.name, kept, victims))
        return SUCCESS

    async def post_filter(
        self, state: CycleState, pod: Pod, _statuses: Mapping[str, Status]
    ) -> tuple[PostFilterResult | None, Status]:
        """Request deallocation of one unused claim that excluded nodes; its update requeues the Pod."""
        own: PodState | None = state.get(NAME)
        if own is None:
            return None, unschedulable()
        held = [item.claim for item in (*own.needed, *own.optional) if classic.is_reserved_for(item.claim, pod)]
        for claim in held:
            # Left by an attempt with unknown result; a Pod without a node uses nothing.
            await self._binder.unreserve(claim, pod)
        # Seeded, so that the choice is reproducible; random, so that it is not always the same claim.
        order = random.Random(f"{pod.metadata.uid} {pod.metadata.resource_version}")  # noqa: S311 - not for security
        candidates = [own.needed[position].claim for position in sorted(own.blamed)]
        candidates = [claim for claim in candidates if writes.may_reallocate(claim)]
        order.shuffle(candidates)
        for claim in candidates[:1]:
            if self._tracker.is_meant_by_others(claim, pod):
                continue
            try:
                await self._writer.write(claim, writes.reallocated)
            except (ClaimChangedError, APIError) as failure:
                return None, error(str(failure))
            # What is freed may suffice, so nothing is preempted in this attempt.
            return None, unresolvable(DEALLOCATING)
        refused = [said for item in own.needed if not item.allocated and (said := self._refused(item.claim))]
        return None, unschedulable(UNRESERVED) if held else unschedulable(*_failures(own), *refused)

    # --- Preferring nodes. ---

    def pre_score(self, state: CycleState, _pod: Pod, nodes: Sequence[NodeInfo]) -> Status:
        """Record the feasible nodes for the driver."""
        own: PodState | None = state.get(NAME)
        if own is None:
            return SKIP
        own.nodes = tuple(node.name for node in nodes)
        return SUCCESS if own.pending else SKIP

    def score(self, _state: CycleState, _pod: Pod, node: NodeInfo) -> int:
        """Return a higher score for nodes selected for fewer claims: waiting Pods do not count on a node yet."""
        return -self._tracker.waiting_on(node.name)

    def normalize_scores(self, _state: CycleState, _pod: Pod, scores: list[int]) -> None:
        """Scale so that the worst node has 0 and the best 100; equal scores are all 100."""
        least, most = min(scores), max(scores)
        spread = most - least
        scores[:] = [(score - least) * SCORE_MAX // spread if spread else SCORE_MAX for score in scores]

    # --- Taking and giving back. ---

    def reserve(self, state: CycleState, pod: Pod, node_name: str) -> Status:
        """Announce the intended writes to other attempts; nothing is written yet."""
        own: PodState | None = state.get(NAME)
        if own is not None:
            own.touched = [item.claim for item in own.pending or own.needed]
            for claim in own.touched:
                self._tracker.start(claim, pod.metadata.uid or "", node_name)
        return SUCCESS

    def unreserve(self, state: CycleState, pod: Pod, _node_name: str) -> None:
        """Withdraw the announcement, and requeue Pods that waited for it."""
        own: PodState | None = state.get(NAME)
        for claim in own.touched if own is not None else ():
            if self._tracker.end(claim, pod.metadata.uid or ""):
                current = self._tracker.get(key_of(claim)) or claim
                # As if the Pod had been removed from reservedFor: there is no other event for the waiting Pods.
                self._handle.notify(ABANDONED, classic.with_user(current, pod), current)

    async def unreserve_writes(self, state: CycleState, pod: Pod, _node_name: str) -> None:
        """Remove the reservations that were written."""
        own: PodState | None = state.get(NAME)
        if own is not None:
            await self._binder.undo(own, pod)

    def pre_bind_pre_flight(self, state: CycleState, _pod: Pod, _node_name: str) -> Status:
        """Return whether a driver gets time to allocate optional claims."""
        own: PodState | None = state.get(NAME)
        waits = own is not None and not own.pending and any(not item.allocated for item in own.optional)
        return SUCCESS if waits else SKIP

    async def pre_bind(self, state: CycleState, pod: Pod, node_name: str) -> Status:
        """Write the claims."""
        own: PodState | None = state.get(NAME)
        return SUCCESS if own is None else await self._binder.pre_bind(own, pod, node_name)

    def post_bind(self, state: CycleState, pod: Pod, _node_name: str) -> None:
        """Withdraw the announcement; the claims are written."""
        own: PodState | None = state.get(NAME)
        for claim in own.touched if own is not None else ():
            self._tracker.end(claim, pod.metadata.uid or "")


def _failures(own: PodState) -> list[str]:
    """Return why drivers could not allocate claims on nodes that are now unsuitable."""
    found = [(item.claim, classic.failure_of(item.claim)) for item in own.needed if item.unsuitable]
    return [f"resourceclaim {classic.label(claim)}: {explained(why)}" for claim, why in found if why is not None]


class SwitchedOff:
    """Used while the feature is disabled: classic claims are ignored."""

    name = NAME


def make_classic_resources(given: Mapping[str, Any], handle: Handle) -> ClassicResources | SwitchedOff:
    """Return the plugin, or its replacement if the feature is disabled."""
    features = handle.features
    if features.enabled("DynamicResourceAllocation") and features.enabled("DRAControlPlaneController"):
        return ClassicResources(given, handle)
    return SwitchedOff()


_META: Final = frozenset({"apiVersion", "kind"})


@dataclass(frozen=True, slots=True)
class Arguments:
    """The timeouts of the plugin."""

    # For a driver to allocate optional claims; the Pod stays assumed on the node meanwhile.
    optional_timeout_seconds: float = 10.0


def read_arguments(given: Mapping[str, Any]) -> Arguments:
    """Read `pluginConfig` args; raises `ValueError` naming what is wrong."""
    unknown = sorted(given.keys() - _META - {"optionalTimeout"})
    if unknown:
        raise ValueError(f"unknown field {unknown[0]!r}")
    text = given.get("optionalTimeout")
    if text is None:
        return Arguments()
    try:
        seconds = parse_duration(str(text)).total_seconds()
    except TimeFormatError as error:
        raise ValueError(f"optionalTimeout: {error}") from error
    if seconds < 0:
        raise ValueError("optionalTimeout: must be zero or greater")
    return Arguments(seconds)
