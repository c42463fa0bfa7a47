"""Changes of a Pod with scheduling gates, which may still be restricted to fewer nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors, Path, invalid

_SPEC: Final = Path("spec")
_TERMS: Final = _SPEC.child(
    "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms"
)


def validate_gated_changes(spec: Document, old: Document) -> FieldErrors:
    """Validate that the changes of node selector and node affinity only add requirements."""
    errors: FieldErrors = []
    selector = spec.get("nodeSelector") or {}
    if not (old.get("nodeSelector") or {}).items() <= selector.items():
        text = "only additions to spec.nodeSelector are allowed (no mutations or deletions)"
        errors.append(invalid(_SPEC.child("nodeSelector"), selector, text))
    return errors + _validate_terms(_required_terms(spec), _required_terms(old))


def undo_gated_changes(spec: Document, old: Document) -> Document:
    """Return the new spec with the node selector and the node affinity of the old one."""
    undone = {name: value for name, value in spec.items() if name != "nodeSelector"}
    if "nodeSelector" in old:
        undone["nodeSelector"] = old["nodeSelector"]
    affinity, node_affinity = dict(spec.get("affinity") or {}), (old.get("affinity") or {}).get("nodeAffinity")
    if affinity.pop("nodeAffinity", None) == node_affinity:
        return undone
    if node_affinity is not None:
        affinity["nodeAffinity"] = node_affinity
    undone.pop("affinity", None)
    if affinity or old.get("affinity") is not None:
        undone["affinity"] = affinity
    return undone


def _validate_terms(terms: Sequence[Document], old: Sequence[Document]) -> FieldErrors:
    if not old:
        return []
    if len(terms) != len(old):
        text = "no additions/deletions to non-empty NodeSelectorTerms list are allowed"
        return [invalid(_TERMS, [_internal(term) for term in terms] or None, text)]
    text = "only additions are allowed (no mutations or deletions)"
    return [
        invalid(_TERMS.index(i), _internal(term), text)
        for i, (term, before) in enumerate(zip(terms, old, strict=True))
        if not _is_extended(term, before)
    ]


def _is_extended(term: Document, old: Document) -> bool:
    """Report whether the term has the old requirements, then others; a term without any matches no node and stays."""
    parts = [(term.get(name) or [], old.get(name) or []) for name in ("matchExpressions", "matchFields")]
    if not any(before for _, before in parts):
        return not any(now for now, _ in parts)
    return all(now[: len(before)] == before for now, before in parts)


def _required_terms(spec: Document) -> Sequence[Document]:
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required: Mapping[str, Any] = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    return required.get("nodeSelectorTerms") or ()


def _internal(term: Document) -> Document:
    """Return a term with the names of Kubernetes' internal form, which its messages show."""
    return {
        name[0].upper() + name[1:]: [_requirement(item) for item in term[name]] if term.get(name) else None
        for name in ("matchExpressions", "matchFields")
    }


def _requirement(item: Document) -> Document:
    return {"Key": item.get("key", ""), "Operator": item.get("operator", ""), "Values": item.get("values")}
