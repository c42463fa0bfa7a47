"""The order in which a namespace's content is deleted, and the conditions that report it. Pure.

Condition types, reasons and messages are those of Kubernetes, as shown by `kubectl describe namespace`.
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

# type -> (reason, message) when there is no problem.
_RESOLVED: Final[Mapping[str, tuple[str, str]]] = {
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
    """Result of one pass over a namespace's content."""

    discovery_error: str = ""
    deletion_errors: list[str] = field(default_factory=list)
    # Number of remaining objects by kind, and by finalizer.
    remaining: dict[GroupResource, int] = field(default_factory=dict)
    finalizers: dict[str, int] = field(default_factory=dict)

    def count(self, resource: GroupResource, documents: Sequence[Document]) -> None:
        """Count the remaining objects of a kind."""
        if not documents:
            return
        self.remaining[resource] = len(documents)
        for document in documents:
            for finalizer in document["metadata"].get("finalizers") or ():
                self.finalizers[finalizer] = self.finalizers.get(finalizer, 0) + 1

    @property
    def failed(self) -> bool:
        """Whether discovery or a deletion failed."""
        return bool(self.discovery_error or self.deletion_errors)

    @property
    def empty(self) -> bool:
        """Whether the namespace can be finalized."""
        return not (self.failed or self.remaining)


def deletable(served: Iterable[ServedResource]) -> tuple[ServedResource, ...]:
    """Return the namespaced kinds, one version each; Pods first, since they may use the others until they end."""
    kinds = [item for item in served if item.namespaced and item.preferred and item.verbs >= NEEDED_VERBS]
    return tuple(sorted(kinds, key=lambda item: GroupResource(item.group, item.plural) != PODS))


def incomplete_discovery(failing: int, error: str) -> str:
    """Return the message of the condition when some groups could not be read."""
    return f"Discovery failed for some groups, {failing} failing: {error}"


def plan_conditions(current: Sequence[Document], outcome: Outcome, now: datetime) -> list[Document] | None:
    """Return the namespace's conditions after a pass; None if they do not change."""
    problems = _problems(outcome)
    before = {condition["type"]: condition for condition in current}
    after = [item for item in current if item["type"] not in _RESOLVED]
    for kind, resolved in _RESOLVED.items():
        reason, message = problems.get(kind, resolved)
        status = "True" if kind in problems else "False"
        after.append(_condition(before.get(kind), kind, (status, reason, message), now))
    return None if after == list(current) else after


def _problems(outcome: Outcome) -> dict[str, tuple[str, str]]:
    problems: dict[str, tuple[str, str]] = {}
    if outcome.discovery_error:
        problems["NamespaceDeletionDiscoveryFailure"] = ("DiscoveryFailed", outcome.discovery_error)
    if outcome.deletion_errors:
        problems["NamespaceDeletionContentFailure"] = (
            "ContentDeletionFailed",
            f"Failed to delete all resource types, {len(outcome.deletion_errors)} remaining: "
            + ", ".join(sorted(outcome.deletion_errors)),
        )
    if outcome.remaining:
        # Kubernetes prints the dot for the core group as well.
        listed = (f"{item.resource}.{item.group} has {n} resource instances" for item, n in _sorted(outcome.remaining))
        problems["NamespaceContentRemaining"] = (
            "SomeResourcesRemain",
            f"Some resources are remaining: {', '.join(listed)}",
        )
    if outcome.finalizers:
        listed = (f"{name} in {n} resource instances" for name, n in sorted(outcome.finalizers.items()))
        problems["NamespaceFinalizersRemaining"] = (
            "SomeFinalizersRemain",
            f"Some content in the namespace has finalizers remaining: {', '.join(listed)}",
        )
    return problems


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
    """Return the namespace without the finalizer `kubernetes`."""
    spec = namespace.get("spec") or {}
    kept = [item for item in spec.get("finalizers") or () if item != FINALIZER]
    return {**namespace, "spec": {**spec, "finalizers": kept}}


def is_terminating(namespace: Document) -> bool:
    """Return whether the namespace is being deleted and still has this controller's finalizer."""
    metadata, spec = namespace.get("metadata") or {}, namespace.get("spec") or {}
    return bool(metadata.get("deletionTimestamp")) and FINALIZER in (spec.get("finalizers") or ())
