"""Scheduling constraints: tolerations, taints, node selectors, affinity and topology spread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from dray.api.document import Document
from dray.api.field_errors import (
    ErrorType,
    FieldError,
    FieldErrors,
    Path,
    duplicate,
    forbidden,
    invalid,
    not_supported,
    required,
)
from dray.api.names import dns1123_label, dns1123_subdomain, label_value
from dray.api.validation.meta_v1 import validate_label_name, validate_label_selector

_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_WEIGHT_MAX: Final = 100
_REQUIRED_TERMS: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED_TERMS: Final = "preferredDuringSchedulingIgnoredDuringExecution"


def validate_tolerations(tolerations: Sequence[Document], path: Path) -> FieldErrors:
    """Validate a pod's tolerations."""
    errors: FieldErrors = []
    for i, toleration in enumerate(tolerations):
        if toleration not in _ADDED_BY_ADMISSION:
            errors += _validate_toleration(toleration, path.index(i))
    return errors


# Nearly every pod has exactly these two.
_ADDED_BY_ADMISSION: Final = tuple(
    {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    for key in ("not-ready", "unreachable")
)


def _validate_toleration(toleration: Document, path: Path) -> FieldErrors:
    errors: FieldErrors = []
    key, operator = toleration.get("key") or "", toleration.get("operator") or ""
    effect = toleration.get("effect") or ""
    if key:
        errors += validate_label_name(key, path.child("key"))
    elif operator != "Exists":
        text = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
        errors.append(invalid(path.child("operator"), operator, text))
    if toleration.get("tolerationSeconds") is not None and effect != "NoExecute":
        text = "effect must be 'NoExecute' when `tolerationSeconds` is set"
        errors.append(invalid(path.child("effect"), effect, text))
    errors += _validate_toleration_value(operator, toleration.get("value") or "", path.child("operator"))
    if effect and effect not in _EFFECTS:
        errors.append(not_supported(path.child("effect"), effect, _EFFECTS))
    return errors


def _validate_toleration_value(operator: str, value: str, path: Path) -> FieldErrors:
    if operator in ("", "Equal"):
        problems = label_value(value)
        return [invalid(path, value, ";".join(problems))] if problems else []
    if operator == "Exists":
        return [invalid(path, value, "value must be empty when `operator` is 'Exists'")] if value else []
    return [not_supported(path, operator, ("Equal", "Exists"))]


def validate_only_added_tolerations(new: Sequence[Document], old: Sequence[Document], path: Path) -> FieldErrors:
    """Validate that tolerations were only added; of existing ones only the seconds may change."""
    kept = [_without_seconds(item) for item in new]
    if any(_without_seconds(item) not in kept for item in old):
        return [forbidden(path, "existing toleration can not be modified except its tolerationSeconds")]
    return validate_tolerations(new, path)


def _without_seconds(toleration: Document) -> Document:
    return {name: value for name, value in toleration.items() if name != "tolerationSeconds" and value}


def validate_taints(taints: Sequence[Document], path: Path) -> FieldErrors:
    """Validate a node's taints, unique by key and effect."""
    errors: FieldErrors = []
    seen: set[tuple[str, str]] = set()
    for i, taint in enumerate(taints):
        key, effect = taint.get("key") or "", taint.get("effect") or ""
        errors += validate_label_name(key, path.index(i).child("key"))
        problems = label_value(taint.get("value") or "")
        if problems:
            errors.append(invalid(path.index(i).child("value"), taint.get("value"), ";".join(problems)))
        if not effect:
            errors.append(required(path.index(i).child("effect")))
        elif effect not in _EFFECTS:
            errors.append(not_supported(path.index(i).child("effect"), effect, _EFFECTS))
        if (key, effect) in seen:
            text = "taints must be unique by key and effect pair"
            errors.append(FieldError(ErrorType.DUPLICATE, str(path.index(i)), taint, text))
        seen.add((key, effect))
    return errors


def validate_node_selector(selector: Document, path: Path) -> FieldErrors:
    """Validate a `NodeSelector`, which has at least one term."""
    terms = selector.get("nodeSelectorTerms") or ()
    path = path.child("nodeSelectorTerms")
    if not terms:
        return [required(path, "must have at least one node selector term")]
    errors: FieldErrors = []
    for i, term in enumerate(terms):
        errors += validate_node_selector_term(term, path.index(i))
    return errors


def validate_node_selector_term(term: Document, path: Path, *, any_value: bool = False) -> FieldErrors:
    """Validate requirements on a node's labels and fields; `any_value` accepts values that no label can have."""
    errors: FieldErrors = []
    for i, condition in enumerate(term.get("matchExpressions") or ()):
        errors += _validate_node_condition(condition, path.child("matchExpressions").index(i), any_value=any_value)
    for i, condition in enumerate(term.get("matchFields") or ()):
        errors += _validate_node_field(condition, path.child("matchFields").index(i))
    return errors


def _validate_node_condition(condition: Document, path: Path, *, any_value: bool) -> FieldErrors:
    operator, values = condition.get("operator") or "", condition.get("values") or ()
    errors = _validate_node_operator(operator, values, path)
    errors += validate_label_name(condition.get("key") or "", path.child("key"))
    if not any_value:
        for i, value in enumerate(values):
            errors += [invalid(path.child("values").index(i), value, problem) for problem in label_value(value)]
    return errors


def _validate_node_operator(operator: str, values: Sequence[str], path: Path) -> FieldErrors:
    if operator in ("In", "NotIn"):
        text = "must be specified when `operator` is 'In' or 'NotIn'"
        return [] if values else [required(path.child("values"), text)]
    if operator in ("Exists", "DoesNotExist"):
        text = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
        return [forbidden(path.child("values"), text)] if values else []
    if operator in ("Gt", "Lt"):
        text = "must be specified single value when `operator` is 'Lt' or 'Gt'"
        return [] if len(values) == 1 else [required(path.child("values"), text)]
    return [invalid(path.child("operator"), operator, "not a valid selector operator")]


def _validate_node_field(condition: Document, path: Path) -> FieldErrors:
    errors: FieldErrors = []
    operator, values = condition.get("operator") or "", condition.get("values") or ()
    if operator not in ("In", "NotIn"):
        errors.append(invalid(path.child("operator"), operator, "not a valid selector operator"))
    elif len(values) != 1:
        text = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
        errors.append(required(path.child("values"), text))
    if condition.get("key") != "metadata.name":
        errors.append(invalid(path.child("key"), condition.get("key") or "", "not a valid field selector key"))
        return errors
    for i, value in enumerate(values):
        errors += [invalid(path.child("values").index(i), value, problem) for problem in dns1123_subdomain(value)]
    return errors


def validate_affinity(affinity: Document, path: Path) -> FieldErrors:
    """Validate node affinity, pod affinity and pod anti-affinity."""
    errors: FieldErrors = []
    if node := affinity.get("nodeAffinity"):
        errors += validate_node_affinity(node, path.child("nodeAffinity"))
    for kind in ("podAffinity", "podAntiAffinity"):
        if neighbours := affinity.get(kind):
            errors += _validate_pod_affinity(neighbours, path.child(kind))
    return errors


def validate_node_affinity(affinity: Document, path: Path) -> FieldErrors:
    """Check the terms and weights of node affinity."""
    errors: FieldErrors = []
    if affinity.get(_REQUIRED_TERMS) is not None:
        errors += validate_node_selector(affinity[_REQUIRED_TERMS], path.child(_REQUIRED_TERMS))
    for i, term in enumerate(affinity.get(_PREFERRED_TERMS) or ()):
        at = path.child(_PREFERRED_TERMS).index(i)
        errors += _validate_weight(term, at)
        errors += validate_node_selector_term(term.get("preference") or {}, at.child("preference"), any_value=True)
    return errors


def _validate_weight(term: Document, path: Path) -> FieldErrors:
    weight = term.get("weight") or 0
    if 0 < weight <= _WEIGHT_MAX:
        return []
    return [invalid(path.child("weight"), weight, "must be in the range 1-100")]


def _validate_pod_affinity(affinity: Document, path: Path) -> FieldErrors:
    errors: FieldErrors = []
    for i, term in enumerate(affinity.get(_REQUIRED_TERMS) or ()):
        errors += _validate_pod_affinity_term(term, path.child(_REQUIRED_TERMS).index(i))
    for i, weighted in enumerate(affinity.get(_PREFERRED_TERMS) or ()):
        at = path.child(_PREFERRED_TERMS).index(i)
        errors += _validate_weight(weighted, at)
        errors += _validate_pod_affinity_term(weighted.get("podAffinityTerm") or {}, at.child("podAffinityTerm"))
    return errors


def _validate_pod_affinity_term(term: Document, path: Path) -> FieldErrors:
    errors = validate_label_selector(term.get("labelSelector"), path.child("labelSelector"))
    errors += validate_label_selector(term.get("namespaceSelector"), path.child("namespaceSelector"))
    for namespace in term.get("namespaces") or ():
        errors += [invalid(path.child("namespace"), namespace, problem) for problem in dns1123_label(namespace)]
    errors += _validate_label_keys(term, path)
    key = term.get("topologyKey") or ""
    if not key:
        errors.append(required(path.child("topologyKey"), "can not be empty"))
    return errors + validate_label_name(key, path.child("topologyKey"))


def _validate_label_keys(term: Document, path: Path) -> FieldErrors:
    """Validate label keys of a term or constraint; those of a created Pod are merged into the selector already."""
    errors: FieldErrors = []
    selector = term.get("labelSelector")
    for field in ("matchLabelKeys", "mismatchLabelKeys"):
        keys, at = term.get(field) or (), path.child(field)
        if keys and selector is None:
            errors.append(forbidden(at, "must not be specified when labelSelector is not set"))
            continue
        for i, key in enumerate(keys):
            errors += validate_label_name(key, at.index(i))
    matching = term.get("matchLabelKeys") or ()
    repeated = set(_repeated_keys(selector or {}))
    errors += [
        invalid(path.index(i), key, "exists in both matchLabelKeys and labelSelector")
        for i, key in enumerate(matching)
        if key in repeated
    ]
    mismatching = term.get("mismatchLabelKeys") or ()
    errors += [
        invalid(path.child("matchLabelKeys").index(i), key, "exists in both matchLabelKeys and mismatchLabelKeys")
        for i, key in enumerate(matching)
        if key in mismatching
    ]
    return errors


def _repeated_keys(selector: Document) -> Iterator[str]:
    """Yield the keys of expressions that the selector has before."""
    seen = set(selector.get("matchLabels") or {})
    for expression in selector.get("matchExpressions") or ():
        key = expression.get("key") or ""
        if key in seen:
            yield key
        seen.add(key)


_WHEN_UNSATISFIABLE: Final = ("DoNotSchedule", "ScheduleAnyway")
_POLICIES: Final = ("Honor", "Ignore")


def validate_topology_spread(constraints: Sequence[Document], path: Path) -> FieldErrors:
    """Validate topology spread constraints."""
    errors: FieldErrors = []
    pairs = [(item.get("topologyKey") or "", item.get("whenUnsatisfiable") or "") for item in constraints]
    last = {pair: i for i, pair in enumerate(pairs)}
    for i, (constraint, (key, action)) in enumerate(zip(constraints, pairs, strict=True)):
        at = path.index(i)
        errors += _validate_spread_constraint(constraint, key, action, at)
        if last[key, action] > i:
            errors.append(duplicate(at.child("{topologyKey, whenUnsatisfiable}"), f"{{{key}, {action}}}"))
    return errors


def _validate_spread_constraint(constraint: Document, key: str, action: str, path: Path) -> FieldErrors:
    errors: FieldErrors = []
    skew, domains = constraint.get("maxSkew") or 0, constraint.get("minDomains")
    if skew <= 0:
        errors.append(invalid(path.child("maxSkew"), skew, "must be greater than zero"))
    if not key:
        errors.append(required(path.child("topologyKey"), "can not be empty"))
    else:
        errors += validate_label_name(key, path.child("topologyKey"))
    if action not in _WHEN_UNSATISFIABLE:
        errors.append(not_supported(path.child("whenUnsatisfiable"), action, _WHEN_UNSATISFIABLE))
    if domains is not None and domains <= 0:
        errors.append(invalid(path.child("minDomains"), domains, "must be greater than zero"))
    elif domains is not None and action != "DoNotSchedule":
        text = f"can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}"
        errors.append(invalid(path.child("minDomains"), domains, text))
    for field in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
        policy = constraint.get(field)
        if policy is not None and policy not in _POLICIES:
            errors.append(not_supported(path.child(field), policy, _POLICIES))
    errors += _validate_label_keys(constraint, path)
    return errors + validate_label_selector(constraint.get("labelSelector"), path.child("labelSelector"))


def validate_scheduling_gates(gates: Sequence[Document], path: Path) -> FieldErrors:
    """Validate scheduling gates, unique by name."""
    errors: FieldErrors = []
    seen: set[str] = set()
    for i, gate in enumerate(gates):
        name = gate.get("name") or ""
        errors += validate_label_name(name, path.index(i))
        if name in seen:
            errors.append(duplicate(path.index(i), name))
        seen.add(name)
    return errors


def validate_only_deleted_gates(new: Sequence[Document], old: Sequence[Document], path: Path) -> FieldErrors:
    """Validate that scheduling gates were only removed."""
    known = {gate.get("name") for gate in old}
    return [
        forbidden(
            path.index(i).child("name"),
            f"only deletion is allowed, but found new scheduling gate '{gate.get('name', '')}'",
        )
        for i, gate in enumerate(new)
        if gate.get("name") not in known
    ]
