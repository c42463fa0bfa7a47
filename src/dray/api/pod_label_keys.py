"""Merges `matchLabelKeys` and `mismatchLabelKeys` of a new Pod into the label selectors of its terms.

The selectors then hold the values that the Pod's labels had when it was created; later changes do not change them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from dray.api.document import Document

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"


def merge_label_keys(pod: Document) -> None:
    """Add a requirement for each key that the Pod has as a label; a term without a selector stays as it is."""
    labels: Mapping[str, str] = (pod.get("metadata") or {}).get("labels") or {}
    spec = pod.get("spec") or {}
    if affinity := spec.get("affinity"):
        for term in _pod_affinity_terms(affinity):
            _merge(term, "matchLabelKeys", "In", labels)
            _merge(term, "mismatchLabelKeys", "NotIn", labels)
    for constraint in spec.get("topologySpreadConstraints") or ():
        _merge(constraint, "matchLabelKeys", "In", labels)


def _pod_affinity_terms(affinity: Document) -> Iterator[Document]:
    for kind in ("podAffinity", "podAntiAffinity"):
        given = affinity.get(kind) or {}
        yield from given.get(_REQUIRED) or ()
        for weighted in given.get(_PREFERRED) or ():
            if (term := weighted.get("podAffinityTerm")) is not None:
                yield term


def _merge(term: Document, field: str, operator: str, labels: Mapping[str, str]) -> None:
    selector = term.get("labelSelector")
    present = [key for key in term.get(field) or () if key in labels]
    if selector is None or not present:
        return
    added = [{"key": key, "operator": operator, "values": [labels[key]]} for key in present]
    term["labelSelector"] = {**selector, "matchExpressions": [*(selector.get("matchExpressions") or ()), *added]}
