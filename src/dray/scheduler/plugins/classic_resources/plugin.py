"""The ClassicResources plugin: each extension point in a few lines; the work is in its neighbours.

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
from dray.api.document import NamespacedName
from dray.api.errors import APIError
from dray.api.timestamps import TimeFormatError, parse_duration
from dray.api.types.cdi_v1alpha1 import ResourceClaim
from dray.api.types.core_v1 import Pod
from dray.client.objects import key_of
from dray.client.resources import CLASSIC_CLAIMS, CLASSIC_CLASSES, RESOURCE_CLAIMS
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
from dray.framework.status import SKIP, SUCCESS, Code, Status, error, unresolvable, unschedulable
from dray.scheduler.handle import Handle
from dray.scheduler.plugins.classic_resources import writes
from dray.scheduler.plugins.classic_resources.claim_writer import ClassicWriter
from dray.scheduler.plugins.classic_resources.hints import CLAIM_KEYS, Hints, same_name
from dray.scheduler.plugins.classic_resources.pod_state import PodState, Wanted, claims_of
from dray.scheduler.plugins.classic_resources.pre_binder import WAIT_ALLOCATION, ClassicBinder, waiting
from dray.scheduler.plugins.classic_resources.tracker import ClassicTracker
from dray.scheduler.plugins.classic_resources.writes import ClaimChangedError
from dray.scheduler.plugins.dynamic_resources.checks import NotReadyError

NAME: Final = "ClassicResources"
UNALLOCATED_IMMEDIATE: Final = "unallocated immediate resourceclaim"
WAIT_DEALLOCATION: Final = "waiting for resource driver to deallocate resource"
IN_USE: Final = "resourceclaim in use"
NOT_AVAILABLE: Final = "resourceclaim not available on the node"
UNSUITABLE: Final = "resourceclaim cannot be allocated for the node (unsuitable)"
DEALLOCATING: Final = "deallocation of ResourceClaim requested"
UNRESERVED: Final = "reservation of ResourceClaim removed"
ABANDONED: Final = ClusterEvent(CLASSIC_CLAIM, Action.UPDATE, "ClassicClaimAbandoned")

# With their author, so that nobody has to make copies that have one.
_NOT_AVAILABLE: Final = unresolvable(NOT_AVAILABLE).with_plugin(NAME)
_UNSUITABLE: Final = unresolvable(UNSUITABLE).with_plugin(NAME)


class Shared:
    """What the plugins of all profiles share."""

    def __init__(self, handle: Handle) -> None:
        claims = handle.informers.informer(CLASSIC_CLAIMS)
        self.tracker = ClassicTracker(claims.lister.get_key)
        self.writer = ClassicWriter(handle.client, handle.clock, self.tracker)
        self.classes = handle.informers.informer(CLASSIC_CLASSES).lister
        self._structured = handle.informers.informer(RESOURCE_CLAIMS).lister
        claims.add_handler(self.tracker.changed)

    def has_structured(self, key: NamespacedName) -> bool:
        """Whether resource.k8s.io has a claim of the name."""
        return self._structured.get_key(key) is not None


def shared_of(handle: Handle) -> Shared:
    """The part that all profiles of the scheduler share."""
    shared = handle.shared.get(NAME)
    if shared is None:
        shared = handle.shared[NAME] = Shared(handle)
    assert isinstance(shared, Shared)
    return shared


class ClassicResources:
    """Takes part in every point from PreEnqueue to PreBind."""

    name = NAME

    def __init__(self, given: Mapping[str, Any], handle: Handle) -> None:
        arguments = read_arguments(given)
        shared = self._shared = shared_of(handle)
        self._handle = handle
        self._tracker = shared.tracker
        self._writer = shared.writer
        self._hints = Hints(self._tracker.get, shared.has_structured)
        self._binder = ClassicBinder(handle, shared.writer, arguments.optional_timeout_seconds)

    # --- The queue. ---

    def pre_enqueue(self, pod: Pod) -> Status:
        """Claims must be there, be the Pod's, and stay."""
        if not pod.spec.resource_claims:
            return SUCCESS
        try:
            self._claims_of(pod)
        except NotReadyError as why:
            return unresolvable(str(why))
        return SUCCESS

    def events_to_register(self) -> Sequence[EventRegistration]:
        """The Pod's own claims above all; a Pod that waits for a driver ignores the rest."""
        nodes = Action.ADD | Action.UPDATE_NODE_LABEL | Action.DELETE
        return (
            EventRegistration(ClusterEvent(CLASSIC_CLAIM, Action.ALL), self._hints.claim_changed, CLAIM_KEYS),
            # Of two claims with one name, either may go.
            EventRegistration(ClusterEvent(RESOURCE_CLAIM, Action.DELETE), same_name, CLAIM_KEYS),
            EventRegistration(ClusterEvent(NODE, nodes), self._hints.node_changed),
            EventRegistration(ClusterEvent(CLASSIC_CLASS, Action.ADD), self._hints.class_added),
        )

    def _claims_of(self, pod: Pod) -> list[Wanted]:
        return claims_of(pod, self._tracker.get, self._shared.has_structured)

    # --- Finding nodes. ---

    def pre_filter(self, state: CycleState, pod: Pod) -> tuple[PreFilterResult | None, Status]:
        """Skip Pods without classic claims; what a driver is at work on is waited for."""
        if not pod.spec.resource_claims:
            return None, SKIP
        try:
            wanted = self._claims_of(pod)
            if not wanted:
                return None, SKIP
            for item in wanted:
                if not item.optional:
                    problem = self._problem(item.claim, pod)
                    if problem is not None:
                        # Known to PostFilter, which may have to take a reservation back.
                        state[NAME] = PodState(wanted)
                        return None, problem
        except NotReadyError as why:
            return None, unresolvable(str(why))
        state[NAME] = PodState(wanted)
        return None, SUCCESS

    def _problem(self, claim: ResourceClaim, pod: Pod) -> Status | None:
        """Why the Pod cannot be placed whatever the node."""
        match classic.state_of(claim):
            case State.ALLOCATING:
                return self._waits_for_driver(claim)
            case State.REALLOCATE:
                return self._pending(WAIT_DEALLOCATION, claim)
            case State.PENDING:
                return self._cannot_be_placed(claim, pod)
            case _:
                if self._tracker.has_room_for(claim, pod):
                    return None
                return unresolvable(f"{IN_USE} ({classic.label(claim)})")

    def _waits_for_driver(self, claim: ResourceClaim) -> Status | None:
        if classic.is_immediate(claim):
            return self._pending(UNALLOCATED_IMMEDIATE, claim)
        node_name = classic.selected_node(claim)
        if self._handle.snapshot.get(node_name) is None:
            # Nobody can allocate there any more: another node is selected.
            return None
        return self._pending(WAIT_ALLOCATION, claim, node_name)

    def _cannot_be_placed(self, claim: ResourceClaim, pod: Pod) -> Status | None:
        class_name = claim.spec.resource_class_name
        if self._shared.classes.get(class_name) is None:
            return unresolvable(f"resourceclaim {classic.label(claim)}: resource class {class_name} does not exist")
        if self._tracker.is_meant_by_others(claim, pod):
            return unresolvable(f"resource claim {classic.label(claim)} is in the process of being allocated")
        return None

    def _pending(self, reason: str, claim: ResourceClaim, node_name: str = "") -> Status:
        driver = classic.status_of(claim).driver_name or ""
        known = self._shared.classes.get(claim.spec.resource_class_name)
        if not driver and known is not None:
            driver = known.driver_name
        return Status(Code.PENDING, (waiting(reason, claim, node_name, driver),))

    def filter(self, state: CycleState, _pod: Pod, node: NodeInfo) -> Status:
        """Allocated claims must reach the node; the others must not have been refused there."""
        own: PodState = state[NAME]
        answer = SUCCESS
        for position, item in enumerate(own.needed):
            if item.may_be_on(node):
                continue
            if item.allocated:
                own.blamed.add(position)
                answer = _NOT_AVAILABLE
            elif answer is SUCCESS:
                answer = _UNSUITABLE
        if answer is _UNSUITABLE:
            # Those that are allocated are of no use here without the others.
            own.blamed.update(position for position, item in enumerate(own.needed) if item.allocated)
        return answer

    async def post_filter(
        self, state: CycleState, pod: Pod, _statuses: Mapping[str, Status]
    ) -> tuple[PostFilterResult | None, Status]:
        """Have one unused claim that kept the Pod from nodes allocated elsewhere; its update wakes the Pod."""
        own: PodState | None = state.get(NAME)
        if own is None:
            return None, unschedulable()
        held = [item.claim for item in (*own.needed, *own.optional) if classic.is_reserved_for(item.claim, pod)]
        for claim in held:
            # Left by an attempt whose end nobody heard of; a Pod without a node uses nothing.
            await self._binder.unreserve(claim, pod)
        # Seeded, so that the choice can be repeated; random, so that no claim is freed over and over.
        order = random.Random(f"{pod.metadata.uid} {pod.metadata.resource_version}")  # noqa: S311 - guards nothing
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
            return None, unschedulable(DEALLOCATING)
        return None, unschedulable(UNRESERVED) if held else unschedulable()

    # --- Preferring nodes. ---

    def pre_score(self, state: CycleState, _pod: Pod, nodes: Sequence[NodeInfo]) -> Status:
        """Remember the nodes for the driver; claims that are yet to be allocated prefer nodes where few others wait."""
        own: PodState | None = state.get(NAME)
        if own is None:
            return SKIP
        own.nodes = tuple(node.name for node in nodes)
        return SUCCESS if own.pending else SKIP

    def score(self, _state: CycleState, _pod: Pod, node: NodeInfo) -> int:
        """The fewer wait, the better: Pods that wait for a driver are on no node yet, and all would go to the same."""
        return -self._tracker.waiting_on(node.name)

    def normalize_scores(self, _state: CycleState, _pod: Pod, scores: list[int]) -> None:
        """The worst node gets 0 and the best 100; when all are the same, all get 100."""
        least, most = min(scores), max(scores)
        spread = most - least
        scores[:] = [(score - least) * SCORE_MAX // spread if spread else SCORE_MAX for score in scores]

    # --- Taking and giving back. ---

    def reserve(self, state: CycleState, pod: Pod, node_name: str) -> Status:
        """Tell other attempts what this one is about to do; nothing is written yet."""
        own: PodState | None = state.get(NAME)
        if own is not None:
            own.touched = [item.claim for item in own.pending or own.needed]
            for claim in own.touched:
                self._tracker.start(claim, pod.metadata.uid or "", node_name)
        return SUCCESS

    def unreserve(self, state: CycleState, pod: Pod, _node_name: str) -> None:
        """The attempt is over; whoever held back for it may think again."""
        own: PodState | None = state.get(NAME)
        for claim in own.touched if own is not None else ():
            if self._tracker.end(claim, pod.metadata.uid or ""):
                current = self._tracker.get(key_of(claim)) or claim
                # As if the Pod had been a user and left: no change of the claim would tell the others.
                self._handle.notify(ABANDONED, classic.with_user(current, pod), current)

    async def unreserve_writes(self, state: CycleState, pod: Pod, _node_name: str) -> None:
        """Remove the reservations that were written."""
        own: PodState | None = state.get(NAME)
        if own is not None:
            await self._binder.undo(own, pod)

    async def pre_bind(self, state: CycleState, pod: Pod, node_name: str) -> Status:
        """Write the claims."""
        own: PodState | None = state.get(NAME)
        return SUCCESS if own is None else await self._binder.pre_bind(own, pod, node_name)

    def post_bind(self, state: CycleState, pod: Pod, _node_name: str) -> None:
        """What was meant is written."""
        own: PodState | None = state.get(NAME)
        for claim in own.touched if own is not None else ():
            self._tracker.end(claim, pod.metadata.uid or "")


class SwitchedOff:
    """Stands in while the feature is off: Pods are placed as if they had no classic claims."""

    name = NAME


def make_classic_resources(given: Mapping[str, Any], handle: Handle) -> ClassicResources | SwitchedOff:
    """The plugin's factory."""
    features = handle.features
    if features.enabled("DynamicResourceAllocation") and features.enabled("DRAControlPlaneController"):
        return ClassicResources(given, handle)
    return SwitchedOff()


_META: Final = frozenset({"apiVersion", "kind"})


@dataclass(frozen=True, slots=True)
class Arguments:
    """How long things may take."""

    # For a driver to allocate what a Pod can do without; the Pod keeps its place on the node meanwhile.
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
