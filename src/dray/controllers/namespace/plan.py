"""What a namespace's status says while its contents go, and which kinds go when; pure.

Condition types, reasons and messages are Kubernetes' own: users read them in `kubectl describe namespace`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from dray.api.document import Document, GroupResource
from dray.api.timestamps import format_time
from dray.client.interface import ServedResource

FINALIZER: Final = "kubernetes"
PODS: Final = GroupResource("", "pods")
NEEDED_VERBS: Final = frozenset({"delete", "list"})

# type -> (reason, message) when nothing is wrong.
_FINE: Final[Mapping[str, tuple[str, str]]] = {
    "NamespaceDeletionDiscoveryFailure": ("ResourcesDiscovered", "All resources successfully discovered"),
    "NamespaceDeletionGroupVersionParsingFailure": (
        "ParsedGroupVersions",
        "All legacy kube types successfully parsed",
    ),
    "NamespaceDeletionContentFailure": (
        "ContentDeleted",
        "All content successfully deleted, may be waiting on finalization",
    ),
    "NamespaceContentRemaining": ("ContentRemoved", "All content successfully removed"),
    "NamespaceFinalizersRemaining": ("ContentHasNoFinalizers", "All content-preserving finalizers finished"),
}


@dataclass(slots=True)
class Outcome:
    """What one pass over a namespace's contents found."""

    discovery_error: str = ""
    deletion_errors: list[str] = field(default_factory=list)
    # How many objects of a kind are still there, and how many hold which finalizer.
    remaining: dict[GroupResource, int] = field(default_factory=dict)
    finalizers: dict[str, int] = field(default_factory=dict)

    def count(self, resource: GroupResource, documents: Sequence[Document]) -> None:
        """Note what is left of a kind."""
        if not documents:
            return
        self.remaining[resource] = len(documents)
        for document in documents:
            for finalizer in document["metadata"].get("finalizers") or ():
                self.finalizers[finalizer] = self.finalizers.get(finalizer, 0) + 1

    @property
    def failed(self) -> bool:
        """Whether something could not be found out or deleted."""
        return bool(self.discovery_error or self.deletion_errors)

    @property
    def empty(self) -> bool:
        """Whether the namespace can go."""
        return not (self.failed or self.remaining)


def deletable(served: Iterable[ServedResource]) -> tuple[ServedResource, ...]:
    """The kinds a namespace can contain, one version each, Pods first: the others may be what they run on."""
    kinds = [item for item in served if item.namespaced and item.preferred and item.verbs >= NEEDED_VERBS]
    return tuple(sorted(kinds, key=lambda item: GroupResource(item.group, item.plural) != PODS))


def plan_conditions(current: Sequence[Document], outcome: Outcome, now: datetime) -> list[Document] | None:
    """The namespace's conditions after a pass; None when they stay as they are."""
    wrong = _wrong(outcome)
    before = {condition["type"]: condition for condition in current}
    after = [item for item in current if item["type"] not in _FINE]
    for kind, fine in _FINE.items():
        reason, message = wrong.get(kind, fine)
        status = "True" if kind in wrong else "False"
        after.append(_condition(before.get(kind), kind, (status, reason, message), now))
    return None if after == list(current) else after


def _wrong(outcome: Outcome) -> dict[str, tuple[str, str]]:
    wrong: dict[str, tuple[str, str]] = {}
    if outcome.discovery_error:
        wrong["NamespaceDeletionDiscoveryFailure"] = (
            "DiscoveryFailed",
            f"Discovery failed for some groups, {outcome.discovery_error}",
        )
    if outcome.deletion_errors:
        wrong["NamespaceDeletionContentFailure"] = (
            "ContentDeletionFailed",
            f"Failed to delete all resource types, {len(outcome.deletion_errors)} remaining: "
            + ", ".join(sorted(outcome.deletion_errors)),
        )
    if outcome.remaining:
        # The dot stays for the core group, as Kubernetes prints it.
        listed = (f"{item.resource}.{item.group} has {n} resource instances" for item, n in _sorted(outcome.remaining))
        wrong["NamespaceContentRemaining"] = (
            "SomeResourcesRemain",
            f"Some resources are remaining: {', '.join(listed)}",
        )
    if outcome.finalizers:
        listed = (f"{name} in {n} resource instances" for name, n in sorted(outcome.finalizers.items()))
        wrong["NamespaceFinalizersRemaining"] = (
            "SomeFinalizersRemain",
            f"Some content in the namespace has finalizers remaining: {', '.join(listed)}",
        )
    return wrong


def _sorted(remaining: Mapping[GroupResource, int]) -> list[tuple[GroupResource, int]]:
    return sorted(remaining.items(), key=lambda pair: (pair[0].resource, pair[0].group))


def _condition(old: Document | None, kind: str, content: tuple[str, str, str], now: datetime) -> Document:
    status, reason, message = content
    same = old is not None and old.get("status") == status
    return {
        "type": kind,
        "status": status,
        "lastTransitionTime": old["lastTransitionTime"] if old is not None and same else format_time(now),
        "reason": reason,
        "message": message,
    }


def without_finalizer(namespace: Document) -> Document:
    """The namespace with Kubernetes' own finalizer done."""
    spec = namespace.get("spec") or {}
    kept = [item for item in spec.get("finalizers") or () if item != FINALIZER]
    return {**namespace, "spec": {**spec, "finalizers": kept}}


def is_waiting(namespace: Document) -> bool:
    """Whether the namespace is being deleted and waits for this controller."""
    metadata, spec = namespace.get("metadata") or {}, namespace.get("spec") or {}
    return bool(metadata.get("deletionTimestamp")) and FINALIZER in (spec.get("finalizers") or ())
