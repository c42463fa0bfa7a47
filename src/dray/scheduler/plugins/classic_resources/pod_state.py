"""The plugin's state for one scheduling attempt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from dray.api import classic_claims as classic
from dray.api.classic_claims import classic_entries, is_for_pod
from dray.api.document import NamespacedName
from dray.api.types.cdi_v1alpha1 import ResourceClaim
from dray.api.types.core_v1 import Pod
from dray.framework.node_info import NodeInfo
from dray.framework.node_selectors import NodeMatcher, compile_selector
from dray.scheduler.plugins.dynamic_resources.checks import NotReadyError, ambiguous


class Placed:
    """A claim and the nodes where it is available, or may be allocated."""

    __slots__ = ("allocated", "claim", "optional", "reaches", "refused", "unsuitable")

    def __init__(self, wanted: Wanted, refused: frozenset[str] = frozenset()) -> None:
        self.claim: ResourceClaim = wanted.claim
        self.optional = wanted.optional
        self.allocated = classic.is_allocated(wanted.claim)
        driver = classic.driver_status(wanted.claim)
        selector = driver.available_on_nodes
        self.reaches: NodeMatcher | None = None if selector is None else compile_selector(selector)
        # The nodes that the driver excluded; nodes without information are allowed.
        self.unsuitable = frozenset() if self.allocated else frozenset(driver.unsuitable_nodes)
        # The nodes that the driver has refused a short time ago.
        self.refused = frozenset() if self.allocated else refused

    def may_be_on(self, node: NodeInfo) -> bool:
        """Return whether the claim is available, or may be allocated, on the node."""
        if node.name in self.unsuitable or node.name in self.refused:
            return False
        return self.reaches is None or self.reaches(node)


class PodState:
    """Created by PreFilter; claims are in the order of the Pod's entries."""

    __slots__ = (
        "blamed",
        "holders",
        "leaving",
        "needed",
        "nodes",
        "optional",
        "removed",
        "touched",
        "users",
        "written",
    )

    def __init__(
        self, wanted: Sequence[Wanted], refused: Callable[[ResourceClaim], frozenset[str]] = lambda _claim: frozenset()
    ) -> None:
        placed = [Placed(item, refused(item.claim)) for item in wanted]
        self.needed = tuple(item for item in placed if not item.optional)
        self.optional = tuple(item for item in placed if item.optional)
        # Positions in `needed` of allocated claims that excluded a node, or are useless there.
        self.blamed: set[int] = set()
        # By uid of a claim that not everybody may use: its users besides the Pod, written and announced.
        self.users: dict[str, frozenset[str]] = {}
        # Users that do not count, by uid: removed by a dry run, or victims of a nominated Pod.
        self.removed: dict[str, NamespacedName] = {}
        self.leaving: set[str] = set()
        # By uid of the claim: nominated Pods that will use it.
        self.holders: dict[str, set[str]] = {}
        # The feasible nodes of PreScore; empty if there was only one.
        self.nodes: tuple[str, ...] = ()
        # Claims whose reservedFor this attempt has changed, or may have, by uid.
        self.written: dict[str, ResourceClaim] = {}
        # Claims announced by Reserve.
        self.touched: list[ResourceClaim] = []

    def clone(self) -> PodState:
        """Return a copy whose results of filters are its own."""
        copy = PodState(())
        copy.needed, copy.optional, copy.nodes = self.needed, self.optional, self.nodes
        copy.blamed = set(self.blamed)
        copy.users, copy.removed, copy.leaving = self.users, dict(self.removed), set(self.leaving)
        copy.holders = {uid: set(pods) for uid, pods in self.holders.items()}
        return copy

    def users_of(self, claim: ResourceClaim) -> AbstractSet[str]:
        """Return the Pods that count as users of a claim, besides the Pod itself."""
        uid = claim.metadata.uid or ""
        return (self.users[uid] - self.removed.keys() - self.leaving) | self.holders.get(uid, set())

    def is_full(self, claim: ResourceClaim) -> bool:
        """Return whether the claim has no place for the Pod."""
        return (claim.metadata.uid or "") in self.users and len(self.users_of(claim)) >= classic.user_limit(claim)

    @property
    def pending(self) -> tuple[Placed, ...]:
        """Return the needed claims that are not allocated."""
        return tuple(item for item in self.needed if not item.allocated)


FindClaim = Callable[[NamespacedName], ResourceClaim | None]
# Returns whether resource.k8s.io has a claim with the name.
HasStructured = Callable[[NamespacedName], bool]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A required or optional claim of the Pod."""

    claim: ResourceClaim
    optional: bool = False


def may_use_classic(pod: Pod) -> bool:
    """Return whether an entry of the Pod may be of cdi.k8s.io: most are templates of resource.k8s.io, and cannot."""
    for entry in pod.spec.resource_claims:
        if entry.template is not None or entry.resource_claim_name is not None:
            return True
    return False


def claims_of(pod: Pod, find: FindClaim, has_structured: HasStructured) -> list[Wanted]:
    """Return the Pod's classic claims in the order of its entries, each once; raises `NotReadyError`.

    Optional ones that cannot be had are left out, but one that is about to be made is waited for.
    """
    namespace = pod.metadata.namespace or ""
    found: dict[str, Wanted] = {}
    for entry in classic_entries(pod, lambda name: find(NamespacedName(namespace, name)) is not None):
        key = NamespacedName(namespace, entry.claim_name)
        claim = find(key)
        if claim is None:
            raise NotReadyError(f'pod "{namespace}/{pod.metadata.name}": ResourceClaim not created yet')
        if not entry.generated and has_structured(key):
            raise NotReadyError(ambiguous(entry.claim_name))
        problem = _problem(pod, claim, generated=entry.generated)
        if not problem:
            known = found.get(claim.metadata.uid or "")
            optional = entry.optional and (known is None or known.optional)
            found[claim.metadata.uid or ""] = Wanted(claim, optional)
        elif not entry.optional:
            raise NotReadyError(problem)
    return list(found.values())


def _problem(pod: Pod, claim: ResourceClaim, *, generated: bool) -> str:
    namespace, name = pod.metadata.namespace, claim.metadata.name
    if generated and not is_for_pod(claim, pod):
        owner = f"pod {namespace}/{pod.metadata.name}"
        return f"ResourceClaim {namespace}/{name} was not created for {owner} (pod is not owner)"
    if claim.metadata.deletion_timestamp is not None:
        return f'resourceclaim "{name}" is being deleted'
    return ""
