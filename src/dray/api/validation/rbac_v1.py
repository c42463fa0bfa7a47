"""Roles, cluster roles and their bindings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors, Path, invalid, not_supported, required
from dray.api.names import dns1123_subdomain, path_segment_name
from dray.api.validation.meta_v1 import validate_label_selector

GROUP: Final = "rbac.authorization.k8s.io"
_RULES: Final = Path("rules")
_ROLE_REF: Final = Path("roleRef")
_SUBJECT_KINDS: Final = ("ServiceAccount", "User", "Group")


def validate_role(role: Document) -> FieldErrors:
    """Validate a Role; its rules refer to resources only."""
    return _validate_rules(role.get("rules") or (), namespaced=True)


def validate_cluster_role(role: Document) -> FieldErrors:
    """Validate a ClusterRole; it may also refer to paths, or aggregate other roles."""
    errors = _validate_rules(role.get("rules") or (), namespaced=False)
    aggregation = role.get("aggregationRule")
    if aggregation is None:
        return errors
    path = Path("aggregationRule.clusterRoleSelectors")
    selectors = aggregation.get("clusterRoleSelectors") or ()
    if not selectors:
        text = "at least one clusterRoleSelector required if aggregationRule is non-nil"
        errors.append(required(path, text))
    for i, selector in enumerate(selectors):
        errors += validate_label_selector(selector, path.index(i))
    return errors


def _validate_rules(rules: Sequence[Document], *, namespaced: bool) -> FieldErrors:
    errors: FieldErrors = []
    for i, rule in enumerate(rules):
        errors += _validate_rule(rule, _RULES.index(i), namespaced=namespaced)
    return errors


def _validate_rule(rule: Document, path: Path, *, namespaced: bool) -> FieldErrors:
    errors: FieldErrors = []
    if not rule.get("verbs"):
        errors.append(required(path.child("verbs"), "verbs must contain at least one value"))
    urls = rule.get("nonResourceURLs")
    if urls:
        at = path.child("nonResourceURLs")
        if namespaced:
            errors.append(invalid(at, urls, "namespaced rules cannot apply to non-resource URLs"))
        if rule.get("apiGroups") or rule.get("resources") or rule.get("resourceNames"):
            errors.append(invalid(at, urls, "rules cannot apply to both regular resources and non-resource URLs"))
        return errors
    if not rule.get("apiGroups"):
        errors.append(required(path.child("apiGroups"), "resource rules must supply at least one api group"))
    if not rule.get("resources"):
        errors.append(required(path.child("resources"), "resource rules must supply at least one resource"))
    return errors


def validate_role_binding(binding: Document) -> FieldErrors:
    """Validate a RoleBinding, which refers to a Role or a ClusterRole."""
    return _validate_binding(binding, ("Role", "ClusterRole"), namespaced=True)


def validate_cluster_role_binding(binding: Document) -> FieldErrors:
    """Validate a ClusterRoleBinding, which refers to a ClusterRole."""
    return _validate_binding(binding, ("ClusterRole",), namespaced=False)


def validate_binding_update(new: Document, old: Document) -> FieldErrors:
    """Validate a changed binding; its role is immutable, its subjects are not."""
    if new.get("roleRef") != old.get("roleRef"):
        return [invalid(_ROLE_REF, new.get("roleRef"), "cannot change roleRef")]
    return []


def _validate_binding(binding: Document, kinds: Sequence[str], *, namespaced: bool) -> FieldErrors:
    role = binding.get("roleRef") or {}
    errors: FieldErrors = []
    if role.get("apiGroup") != GROUP:
        errors.append(not_supported(_ROLE_REF.child("apiGroup"), role.get("apiGroup") or "", (GROUP,)))
    if role.get("kind") not in kinds:
        errors.append(not_supported(_ROLE_REF.child("kind"), role.get("kind") or "", kinds))
    name = role.get("name") or ""
    if not name:
        errors.append(required(_ROLE_REF.child("name")))
    else:
        errors += [invalid(_ROLE_REF.child("name"), name, problem) for problem in path_segment_name(name)]
    for i, subject in enumerate(binding.get("subjects") or ()):
        errors += _validate_subject(subject, Path("subjects").index(i), namespaced=namespaced)
    return errors


def _validate_subject(subject: Document, path: Path, *, namespaced: bool) -> FieldErrors:
    errors: FieldErrors = []
    kind, name, group = (subject.get(field) or "" for field in ("kind", "name", "apiGroup"))
    if not name:
        errors.append(required(path.child("name")))
    if kind == "ServiceAccount":
        if name:
            errors += [invalid(path.child("name"), name, problem) for problem in dns1123_subdomain(name)]
        if group:
            errors.append(not_supported(path.child("apiGroup"), group, ("",)))
        if not namespaced and not subject.get("namespace"):
            errors.append(required(path.child("namespace")))
    elif kind in _SUBJECT_KINDS:
        if group != GROUP:
            errors.append(not_supported(path.child("apiGroup"), group, (GROUP,)))
    else:
        errors.append(not_supported(path.child("kind"), kind, _SUBJECT_KINDS))
    return errors
