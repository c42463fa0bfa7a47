"""Checks that a node can use the Pod's persistent volumes, which must be bound already.

Volumes are checked by their node affinity. Not supported are claims that wait for their first consumer, and volumes
other than `local` and `hostPath`, whose attachment limits are not known; Pods with such claims stay pending.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from dray.api.codec import from_document
from dray.api.document import Document
from dray.api.types.core_v1 import NodeSelector, Pod
from dray.client.indexer import Lister
from dray.client.resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES
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
from dray.scheduler.plugins.volume_claims import claim_names, claim_problem, unsupported_reason

REASON_AFFINITY: Final = "node(s) didn't match PersistentVolume's node affinity"
REASON_NO_VOLUME: Final = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"

_NAME: Final = "VolumeBinding"
_NO_AFFINITY: Final = unresolvable(REASON_AFFINITY).with_plugin(_NAME)
_NO_VOLUME: Final = unresolvable(REASON_NO_VOLUME).with_plugin(_NAME)
_BIND_TIMEOUT_SECONDS: Final = 600


class VolumeBinding:
    """Filters on the node affinity of bound volumes; a lenient one lets pass what it does not support."""

    name = _NAME

    def __init__(self, args: Mapping[str, Any], handle: Handle, *, lenient: bool = False) -> None:
        given = Arguments(args)
        # Accepted without effect: nothing is bound here.
        given.integer("bindTimeoutSeconds", _BIND_TIMEOUT_SECONDS, 0, None)
        given.end()
        self._lenient = lenient
        self._claims: Lister[Document] = handle.informers.informer(PERSISTENT_VOLUME_CLAIMS).lister
        self._volumes: Lister[Document] = handle.informers.informer(PERSISTENT_VOLUMES).lister

    def pre_filter(self, state: CycleState, pod: Pod) -> tuple[PreFilterResult | None, Status]:
        """Check the claims; compile the node affinity of their volumes."""
        if not pod.spec.volumes:
            return None, SKIP
        matchers: list[NodeMatcher | None] = []
        for name, ephemeral in claim_names(pod):
            claim = self._claims.get(name, pod.metadata.namespace or "")
            problem = claim_problem(name, claim, ephemeral=ephemeral)
            if problem and not self._lenient:
                return None, unresolvable(problem)
            if claim is None:
                continue
            volume = self._volumes.get(claim["spec"].get("volumeName") or "")
            unsupported = unsupported_reason(name, claim, volume)
            if unsupported and not self._lenient:
                return None, unresolvable(unsupported)
            if volume is not None or not unsupported:
                matchers.extend(_matchers(volume))
        if not matchers:
            return None, SKIP
        state[_NAME] = matchers
        return None, SUCCESS

    def filter(self, state: CycleState, _pod: Pod, node: NodeInfo) -> Status:
        """Check the node affinity of every volume."""
        for matches in state[_NAME]:
            if matches is None:
                return _NO_VOLUME
            if not matches(node):
                return _NO_AFFINITY
        return SUCCESS

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
