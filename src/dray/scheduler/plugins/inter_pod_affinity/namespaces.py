"""The labels of namespaces, and the namespaces that the selector of a term matches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from dray.api.document import Document
from dray.client.resources import NAMESPACES
from dray.framework.pod_affinity import Term
from dray.scheduler.handle import Handle
from dray.scheduler.plugins.inter_pod_affinity.counts import NO_LABELS

_SHARED: Final = "Namespaces"


class Namespaces:
    """Labels by namespace; a namespace that is not known has none."""

    def __init__(self) -> None:
        self._labels: dict[str, Mapping[str, str]] = {}

    def changed(self, old: Document | None, new: Document | None) -> None:
        """Handle a change of a namespace."""
        if new is not None:
            self._labels[new["metadata"]["name"]] = new["metadata"].get("labels") or NO_LABELS
        elif old is not None:
            self._labels.pop(old["metadata"]["name"], None)

    def labels(self, name: str) -> Mapping[str, str]:
        """Return the labels of a namespace."""
        return self._labels.get(name, NO_LABELS)

    def resolve(self, terms: Iterable[Term]) -> tuple[Term, ...]:
        """Return the terms with the names of the namespaces that their selectors match."""
        return tuple(self._resolve(term) if term.selects_namespaces else term for term in terms)

    def _resolve(self, term: Term) -> Term:
        matches: Callable[[Mapping[str, str]], bool] = term.namespace_selector.matches
        return term.with_namespaces(name for name, labels in self._labels.items() if matches(labels))


def namespaces_of(handle: Handle) -> Namespaces:
    """Return the namespaces that the plugins of all profiles share."""
    namespaces: Namespaces | None = handle.shared.get(_SHARED)
    if namespaces is None:
        namespaces = handle.shared[_SHARED] = Namespaces()
        handle.informers.informer(NAMESPACES).add_handler(namespaces.changed)
    return namespaces
