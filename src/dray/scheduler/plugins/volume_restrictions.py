"""Keeps a claim with the access mode ReadWriteOncePod from being used by two Pods."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from dray.api.document import Document, NamespacedName
from dray.api.persistent_volumes import claim_names
from dray.api.types.core_v1 import Node, Pod
from dray.client.indexer import Lister
from dray.client.resources import PERSISTENT_VOLUME_CLAIMS
from dray.framework.cycle_state import CycleState
from dray.framework.events import ASSIGNED_POD, NODE, Action, ClusterEvent, EventRegistration, Hint
from dray.framework.node_info import NodeInfo
from dray.framework.plugins import PreFilterResult
from dray.framework.pod_info import PodInfo
from dray.framework.status import SKIP, SUCCESS, Status, unschedulable
from dray.scheduler.handle import Handle
from dray.scheduler.plugins.pod_index import NodeChange, pod_index_of

REASON: Final = (
    "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod"
)
_NAME: Final = "VolumeRestrictions"
_IN_USE: Final = unschedulable(REASON).with_plugin(_NAME)
_USERS: Final = (_NAME, "users")
_SINGLE_POD: Final = "ReadWriteOncePod"


def _claims_of(pod: Pod) -> Iterator[NamespacedName]:
    namespace = pod.metadata.namespace or ""
    return (NamespacedName(namespace, name) for name, _ in claim_names(pod))


class ClaimUsers:
    """The number of placed Pods that use each claim; implements `View`."""

    def __init__(self) -> None:
        self.counts: Counter[NamespacedName] = Counter()

    def apply(self, change: NodeChange) -> None:
        """Count the Pods that have come and gone."""
        for info in change.added:
            self.counts.update(_claims_of(info.pod))
        for info in change.removed:
            for claim in _claims_of(info.pod):
                self.counts[claim] -= 1
                if not self.counts[claim]:
                    del self.counts[claim]


class ClaimConflicts:
    """The claims of a Pod that only one Pod may use, and how many other Pods use them; implements `StateData`."""

    __slots__ = ("claims", "users")

    def __init__(self, claims: frozenset[NamespacedName], users: int) -> None:
        self.claims = claims
        self.users = users

    def clone(self) -> ClaimConflicts:
        """Return a copy with a number of its own."""
        return ClaimConflicts(self.claims, self.users)

    def uses_of(self, pod: Pod) -> int:
        """Return how many of the claims a Pod uses."""
        return sum(claim in self.claims for claim in _claims_of(pod))


class VolumeRestrictions:
    """Rejects all nodes while another Pod uses a claim that only one Pod may use; preemption can free it."""

    name = _NAME

    def __init__(self, handle: Handle) -> None:
        self._index = pod_index_of(handle.snapshot, handle.shared)
        self._claims: Lister[Document] = handle.informers.informer(PERSISTENT_VOLUME_CLAIMS).lister

    def pre_filter(self, state: CycleState, pod: Pod) -> tuple[PreFilterResult | None, Status]:
        """Count the Pods that use the claims of the Pod; skip Pods without such claims."""
        if not claim_names(pod):
            return None, SKIP
        claims = frozenset(claim for claim in _claims_of(pod) if self._is_exclusive(claim))
        if not claims:
            return None, SKIP
        counts = self._index.view(_USERS, ClaimUsers).counts
        state[_NAME] = ClaimConflicts(claims, sum(counts[claim] for claim in claims))
        return None, SUCCESS

    def _is_exclusive(self, key: NamespacedName) -> bool:
        claim = self._claims.get(key.name, key.namespace)
        return claim is not None and _SINGLE_POD in (claim["spec"].get("accessModes") or ())

    def add_pod(self, state: CycleState, _pod: Pod, other: PodInfo, _node: NodeInfo) -> Status:
        """Count one more Pod."""
        own: ClaimConflicts = state[_NAME]
        own.users += own.uses_of(other.pod)
        return SUCCESS

    def remove_pod(self, state: CycleState, _pod: Pod, other: PodInfo, _node: NodeInfo) -> Status:
        """Count one Pod less."""
        own: ClaimConflicts = state[_NAME]
        own.users -= own.uses_of(other.pod)
        return SUCCESS

    def filter(self, state: CycleState, _pod: Pod, _node: NodeInfo) -> Status:
        """Reject every node while there are such Pods."""
        own: ClaimConflicts = state[_NAME]
        return _IN_USE if own.users else SUCCESS

    def events_to_register(self) -> Sequence[EventRegistration]:
        """Return deleted Pods and added nodes; the claims' own changes wake the Pod for VolumeBinding."""
        return (
            EventRegistration(ClusterEvent(ASSIGNED_POD, Action.DELETE), _frees_claim),
            EventRegistration(ClusterEvent(NODE, Action.ADD), _any_node),
        )


def _frees_claim(pod: Pod, old: Pod | None, _new: Pod | None) -> Hint:
    freed = set(_claims_of(old)) if old is not None else set()
    return Hint.QUEUE if any(claim in freed for claim in _claims_of(pod)) else Hint.SKIP


def _any_node(_pod: Pod, _old: Node | None, _new: Node | None) -> Hint:
    return Hint.QUEUE
