"""The policies and bindings of a cluster, by what is written. Changed only by `observe`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dray.api.document import Document, GroupResource
from dray.apiserver.admission.match_cache import MatchCache
from dray.apiserver.admission.matching import Equivalents
from dray.apiserver.admission.policies import Binding, BoundPolicy, PolicySource

POLICIES: Final = GroupResource("admissionregistration.k8s.io", "validatingadmissionpolicies")
BINDINGS: Final = GroupResource("admissionregistration.k8s.io", "validatingadmissionpolicybindings")
# Objects, deleted ones included, whose newest revision is remembered.
_REVISIONS_MAX: Final = 10_000


class PolicyIndex:
    """Bound policies by the writes that they are about, in the order of their names."""

    def __init__(self, equivalents: Equivalents) -> None:
        self._policies: dict[str, PolicySource] = {}
        self._bindings: dict[str, Binding] = {}
        self.matches: Final = MatchCache[BoundPolicy](equivalents, lambda bound: bound.source.match)

    def observe(self, resource: GroupResource, name: str, document: Document | None) -> None:
        """Process the newest state of a policy or binding; None if it was deleted."""
        if resource == POLICIES:
            known = self._policies.get(name)
            if document is None:
                self._policies.pop(name, None)
            elif known is None or _changed(known.document, document):
                self._policies[name] = PolicySource(document)
            else:
                # Only status or metadata.
                return
        elif resource != BINDINGS:
            return
        elif document is None:
            self._bindings.pop(name, None)
        else:
            self._bindings[name] = Binding(document)
        self._rebuild()

    def get(self, name: str) -> PolicySource | None:
        """Return a policy, bound or not."""
        return self._policies.get(name)

    def _rebuild(self) -> None:
        by_policy: dict[str, list[Binding]] = {}
        for name in sorted(self._bindings):
            binding = self._bindings[name]
            by_policy.setdefault(binding.policy_name, []).append(binding)
        # A policy without a binding does nothing.
        self.matches.replace(
            [
                BoundPolicy(self._policies[name], tuple(by_policy[name]))
                for name in sorted(self._policies)
                if name in by_policy
            ]
        )


class AdmissionObserver:
    """Passes on the newest states of policies and webhooks, each no older than the one before.

    A write is passed on as soon as it is answered, and its event arrives later.
    """

    def __init__(self, *listeners: Callable[[GroupResource, str, Document | None], None]) -> None:
        self._listeners = listeners
        self._revisions: dict[tuple[GroupResource, str], int] = {}

    def observe(self, resource: GroupResource, name: str, document: Document | None, revision: int) -> None:
        """Process the state that an object has since the revision; None if it was deleted."""
        if revision and revision < self._revisions.get((resource, name), 0):
            return
        if len(self._revisions) >= _REVISIONS_MAX:
            # Only an event that is older than a deletion could be taken for new, until its own deletion follows.
            self._revisions.clear()
        self._revisions[resource, name] = revision
        for listener in self._listeners:
            listener(resource, name, document)


def _changed(before: Document, after: Document) -> bool:
    return before["metadata"].get("uid") != after["metadata"].get("uid") or before.get("spec") != after.get("spec")
