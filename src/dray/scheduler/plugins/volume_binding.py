"""Checks that a node can use the Pod's persistent volumes, and chooses volumes for claims that wait for a consumer.

Volumes are checked by their node affinity. A claim that waits for its first consumer gets the smallest available volume
that suits it and that the node can use, or a new one of the local provisioner. Not supported are other provisioners,
and volumes other than `local` and `hostPath`, whose attachment limits are not known; Pods with such claims are pending.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from dray.api.codec import from_document
from dray.api.document import Document
from dray.api.persistent_volumes import claim_names, class_of, has_known_nodes, is_delayed
from dray.api.types.core_v1 import NodeSelector, Pod
from dray.client.indexer import Lister
from dray.client.resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, STORAGE_CLASSES
from dray.framework.cycle_state import CycleState
from dray.framework.events import (
    NODE,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    Action,
    ClusterEvent,
    EventRegistration,
    Hint,
)
from dray.framework.node_info import NodeInfo
from dray.framework.node_selectors import NodeMatcher, compile_selector
from dray.framework.plugins import PreFilterResult
from dray.framework.status import SKIP, SUCCESS, Status, unresolvable
from dray.scheduler.handle import Handle
from dray.scheduler.plugins.arguments import Arguments
from dray.scheduler.plugins.volume_choice import Chosen, volume_choices_of
from dray.scheduler.plugins.volume_claims import REASON_UNBOUND, claim_problem, unsupported_reason

REASON_AFFINITY: Final = "node(s) didn't match PersistentVolume's node affinity"
REASON_NONE_AVAILABLE: Final = "node(s) didn't find available persistent volumes to bind"
REASON_NO_VOLUME: Final = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"

_NAME: Final = "VolumeBinding"
_NO_AFFINITY: Final = unresolvable(REASON_AFFINITY).with_plugin(_NAME)
_NO_VOLUME: Final = unresolvable(REASON_NO_VOLUME).with_plugin(_NAME)
_NONE_AVAILABLE: Final = unresolvable(REASON_NONE_AVAILABLE).with_plugin(_NAME)
_BIND_TIMEOUT_SECONDS: Final = 600

# Returns whether a Pod waits for a claim that is missing or not usable; it has the claim's name, and the claim if any.
WaitsForClaim = Callable[[Pod, str, Document | None], bool]


class VolumeState:
    """The volumes of one Pod."""

    __slots__ = ("chosen", "delayed", "matchers")

    def __init__(self, matchers: Sequence[NodeMatcher | None], delayed: Sequence[Document]) -> None:
        # The node affinity of bound volumes; None for one that does not exist.
        self.matchers = matchers
        # The claims that wait for their first consumer, and what they get on each node that was filtered.
        self.delayed = delayed
        self.chosen: dict[str, tuple[Chosen, ...]] = {}

    def clone(self) -> VolumeState:
        """Return a copy whose choices are its own."""
        copy = VolumeState(self.matchers, self.delayed)
        copy.chosen = dict(self.chosen)
        return copy


class VolumeBinding:
    """Filters on volumes, reserves and binds them.

    A lenient one lets pass what it does not support, and claims that are not usable unless the Pod waits for them.
    """

    name = _NAME

    def __init__(
        self, args: Mapping[str, Any], handle: Handle, *, lenient: bool = False, waits: WaitsForClaim | None = None
    ) -> None:
        given = Arguments(args)
        # How long PreBind waits for the controller to bind the claims.
        self._timeout_seconds = given.integer("bindTimeoutSeconds", _BIND_TIMEOUT_SECONDS, -sys.maxsize, None)
        given.end()
        if self._timeout_seconds < 0:
            text = "invalid BindTimeoutSeconds, should not be a negative value"
            raise ValueError(f"bindTimeoutSeconds: Invalid value: {self._timeout_seconds}: {text}")
        self._choices = volume_choices_of(handle)
        self._cancellation = handle.binding_cancellation
        self._classes: Lister[Document] = handle.informers.informer(STORAGE_CLASSES).lister
        self._lenient = lenient
        self._waits = waits
        self._claims: Lister[Document] = handle.informers.informer(PERSISTENT_VOLUME_CLAIMS).lister
        self._volumes: Lister[Document] = handle.informers.informer(PERSISTENT_VOLUMES).lister

    def pre_filter(self, state: CycleState, pod: Pod) -> tuple[PreFilterResult | None, Status]:
        """Check the claims; compile the node affinity of their volumes."""
        if not pod.spec.volumes:
            return None, SKIP
        matchers: list[NodeMatcher | None] = []
        delayed: list[Document] = []
        for name, ephemeral in claim_names(pod):
            claim = self._claims.get(name, pod.metadata.namespace or "")
            problem = claim_problem(name, claim, ephemeral=ephemeral)
            if problem and not self._passes(pod, name, claim, ephemeral=ephemeral and claim is None):
                return None, unresolvable(problem)
            if claim is None:
                continue
            storage_class = self._classes.get(class_of(claim))
            if not claim["spec"].get("volumeName") and is_delayed(storage_class):
                if not self._lenient or has_known_nodes(storage_class):
                    delayed.append(claim)
                continue
            volume = self._volumes.get(claim["spec"].get("volumeName") or "")
            unsupported = unsupported_reason(name, claim, volume)
            supported = unsupported == REASON_UNBOUND
            if unsupported and not (self._passes(pod, name, claim) if supported else self._lenient):
                return None, unresolvable(unsupported)
            if volume is not None or not self._lenient:
                matchers.extend(_matchers(volume))
        if not matchers and not delayed:
            return None, SKIP
        state[_NAME] = VolumeState(matchers, delayed)
        return None, SUCCESS

    def _passes(self, pod: Pod, name: str, claim: Document | None, *, ephemeral: bool = False) -> bool:
        """Return whether the Pod is placed although a claim is not usable; ephemeral ones are yet to be created."""
        return self._lenient and (ephemeral or self._waits is None or not self._waits(pod, name, claim))

    def filter(self, state: CycleState, _pod: Pod, node: NodeInfo) -> Status:
        """Check the node affinity of every volume."""
        own: VolumeState = state[_NAME]
        for matches in own.matchers:
            if matches is None:
                return _NO_VOLUME
            if not matches(node):
                return _NO_AFFINITY
        if own.delayed:
            chosen = self._choices.choose(own.delayed, node)
            if chosen is None:
                return _NONE_AVAILABLE
            own.chosen[node.name] = chosen
        return SUCCESS

    def reserve(self, state: CycleState, _pod: Pod, node_name: str) -> Status:
        """Keep the chosen volumes from other claims."""
        if _NAME in state:
            self._choices.reserve(self._chosen(state, node_name))
        return SUCCESS

    def unreserve(self, state: CycleState, _pod: Pod, node_name: str) -> None:
        """Let other claims have the volumes that are not written."""
        self._choices.release(self._chosen(state, node_name))

    def pre_bind_pre_flight(self, state: CycleState, _pod: Pod, node_name: str) -> Status:
        """Return whether claims have to be bound, which the controller takes part in."""
        return SUCCESS if _NAME in state and self._chosen(state, node_name) else SKIP

    async def pre_bind(self, state: CycleState, pod: Pod, node_name: str) -> Status:
        """Bind the claims that waited for the Pod."""
        chosen = self._chosen(state, node_name) if _NAME in state else ()
        if not chosen:
            return SUCCESS
        cancelled = self._cancellation(pod.metadata.uid or "")
        return await self._choices.bind(chosen, node_name, self._timeout_seconds, cancelled)

    def _chosen(self, state: CycleState, node_name: str) -> tuple[Chosen, ...]:
        own: VolumeState | None = state.get(_NAME)
        return () if own is None else own.chosen.get(node_name, ())

    def events_to_register(self) -> Sequence[EventRegistration]:
        """Return changes of the Pod's claims, of volumes, and of nodes."""
        changed = Action.ADD | Action.UPDATE
        return (
            EventRegistration(ClusterEvent(PERSISTENT_VOLUME_CLAIM, changed), _is_claim_of),
            EventRegistration(ClusterEvent(PERSISTENT_VOLUME, changed)),
            EventRegistration(ClusterEvent(NODE, Action.ADD | Action.UPDATE_NODE_LABEL)),
        )


def _matchers(volume: Document | None) -> list[NodeMatcher | None]:
    """Return the volume's node affinity; None in the list means that there is no such volume."""
    if volume is None:
        return [None]
    required = (volume["spec"].get("nodeAffinity") or {}).get("required")
    return [compile_selector(from_document(NodeSelector, required))] if required else []


def _is_claim_of(pod: Pod, _old: Document | None, new: Document | None) -> Hint:
    if new is None or new["metadata"].get("namespace") != pod.metadata.namespace:
        return Hint.SKIP
    names = {name for name, _ in claim_names(pod)}
    return Hint.QUEUE if new["metadata"]["name"] in names else Hint.SKIP
