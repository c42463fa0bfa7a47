"""PodGroups and Workloads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors, Path, duplicate, forbidden, invalid, required, too_many
from dray.api.names import dns1123_label, dns1123_subdomain, qualified_name
from dray.api.validation.meta_v1 import validate_conditions, validate_immutable
from dray.api.validation.other_groups import HIGHEST_USER_PRIORITY

_SPEC: Final = Path("spec")
_STATUS: Final = Path("status")
TEMPLATES_MAX: Final = 8
TOPOLOGY_CONSTRAINTS_MAX: Final = 1
CLAIMS_MAX: Final = 4
TEMPLATE_DEPTH_MAX: Final = 4
_POLICIES: Final = ("basic", "gang")
_DISRUPTION_MODES: Final = ("single", "all")
_CLAIM_SOURCES: Final = ("resourceClaimName", "resourceClaimTemplateName")
# The count of a gang policy, by the list of templates that has it.
_MIN_COUNT: Final = "minCount"
_COUNTS: Final = {"podGroupTemplates": _MIN_COUNT, "compositePodGroupTemplates": "minGroupCount"}
_TEMPLATE_LISTS: Final = tuple(_COUNTS)
NOT_SET_LATER: Final = "field cannot be set once created"
NOT_CLEARED: Final = "field cannot be cleared once set"
# Everything but the policy, whose minCount may change.
_IMMUTABLE: Final = (
    "parentCompositePodGroupName",
    "workloadRef",
    "schedulingConstraints",
    "resourceClaims",
    "disruptionMode",
    "priorityClassName",
    "priority",
    "preemptionPolicy",
)


# --- PodGroups. ---


def validate_pod_group(group: Document) -> FieldErrors:
    """Validate a new PodGroup."""
    spec = group.get("spec") or {}
    errors: FieldErrors = []
    reference = spec.get("workloadRef")
    if reference is not None:
        path = _SPEC.child("workloadRef")
        errors += validate_name(reference.get("workloadName"), path.child("workloadName"), dns1123_subdomain)
        errors += validate_name(reference.get("templateName"), path.child("templateName"), dns1123_label)
    return errors + validate_group_settings(spec, _SPEC)


def validate_pod_group_update(new: Document, old: Document) -> FieldErrors:
    """Validate a changed PodGroup: only minCount of its gang policy may change."""
    spec, before = new.get("spec") or {}, old.get("spec") or {}
    return _validate_settings_update(spec, before, _SPEC)


def validate_pod_group_status(group: Document, _old: Document) -> FieldErrors:
    """Validate the conditions, and that each claim is one of the spec."""
    status = group.get("status") or {}
    errors = validate_conditions(status.get("conditions") or (), _STATUS.child("conditions"))
    known = {item.get("name") for item in (group.get("spec") or {}).get("resourceClaims") or ()}
    claims, path = status.get("resourceClaimStatuses") or (), _STATUS.child("resourceClaimStatuses")
    errors += _validate_list(claims, path, CLAIMS_MAX)
    for index, item in enumerate(claims):
        at, name = path.index(index), item.get("name") or ""
        errors += validate_name(name, at.child("name"), dns1123_label)
        if name and name not in known:
            text = "must match the name of an entry in `spec.resourceClaims`"
            errors.append(invalid(at.child("name"), name, text))
        if item.get("resourceClaimName") is not None:
            errors += validate_name(item["resourceClaimName"], at.child("resourceClaimName"), dns1123_subdomain)
    return errors


# --- Settings that PodGroups, templates and Jobs share. ---


def validate_group_settings(spec: Document, path: Path) -> FieldErrors:
    """Validate the policy, constraints, claims, disruption mode and priority of a group or a template."""
    errors = _validate_policy(spec.get("schedulingPolicy") or {}, path.child("schedulingPolicy"), _MIN_COUNT)
    errors += validate_constraints(spec.get("schedulingConstraints"), path.child("schedulingConstraints"))
    errors += validate_claims(spec.get("resourceClaims") or (), path.child("resourceClaims"))
    errors += validate_disruption_mode(spec.get("disruptionMode"), path.child("disruptionMode"))
    return errors + _validate_priority(spec, path)


def _validate_policy(policy: Document, path: Path, count: str) -> FieldErrors:
    errors = validate_union(policy, path, _POLICIES)
    if policy.get("gang") is not None:
        value, at = policy["gang"].get(count), path.child("gang", count)
        if not value:
            errors.append(required(at))
        elif value < 1:
            errors.append(invalid(at, value, "must be greater than or equal to 1"))
    return errors


def validate_constraints(constraints: Document | None, path: Path) -> FieldErrors:
    """Validate the topology constraints, of which there is at most one."""
    topology, at = (constraints or {}).get("topology") or (), path.child("topology")
    if len(topology) > TOPOLOGY_CONSTRAINTS_MAX:
        return [too_many(at, len(topology), TOPOLOGY_CONSTRAINTS_MAX)]
    errors: FieldErrors = []
    for index, item in enumerate(topology):
        errors += validate_name(item.get("key"), at.index(index).child("key"), qualified_name)
    return errors


def validate_claims(claims: Sequence[Document], path: Path) -> FieldErrors:
    """Validate the claims of a group: names, and one source each."""
    errors = _validate_list(claims, path, CLAIMS_MAX)
    if len(claims) > CLAIMS_MAX:
        return errors
    for index, item in enumerate(claims):
        at = path.index(index)
        errors += validate_name(item.get("name"), at.child("name"), dns1123_label)
        errors += validate_union(item, at, _CLAIM_SOURCES)
        for source in _CLAIM_SOURCES:
            if item.get(source) is not None:
                errors += validate_name(item[source], at.child(source), dns1123_subdomain)
    return errors


def validate_disruption_mode(mode: Document | None, path: Path) -> FieldErrors:
    """Validate that exactly one mode is set, if any."""
    return [] if mode is None else validate_union(mode, path, _DISRUPTION_MODES)


def _validate_priority(spec: Document, path: Path) -> FieldErrors:
    errors: FieldErrors = []
    if name := spec.get("priorityClassName"):
        errors += validate_name(name, path.child("priorityClassName"), dns1123_subdomain)
    priority = spec.get("priority")
    if priority is not None and priority > HIGHEST_USER_PRIORITY:
        text = f"must be less than or equal to {HIGHEST_USER_PRIORITY}"
        errors.append(invalid(path.child("priority"), priority, text))
    return errors


def _validate_settings_update(new: Document, old: Document, path: Path, count: str = _MIN_COUNT) -> FieldErrors:
    policy, before = new.get("schedulingPolicy") or {}, old.get("schedulingPolicy") or {}
    at = path.child("schedulingPolicy")
    errors: FieldErrors = []
    if policy != before:
        errors += _validate_policy(policy, at, count)
        errors += validate_immutable_member(policy.get("basic"), before.get("basic"), at.child("basic"))
        errors += validate_fixed(policy.get("gang"), before.get("gang"), at.child("gang"))
    for name in _IMMUTABLE:
        errors += validate_immutable(new.get(name), old.get(name), path.child(name))
    return errors


def validate_immutable_member(new: Document | None, old: Document | None, path: Path) -> FieldErrors:
    """Validate that an empty struct neither appears nor goes: its presence is its value."""
    return [] if (new is None) == (old is None) else [invalid(path, new, "field is immutable")]


def validate_fixed(new: Document | None, old: Document | None, path: Path) -> FieldErrors:
    """Validate that a struct whose fields may change neither appears nor goes."""
    if (new is None) == (old is None):
        return []
    return [invalid(path, None, NOT_CLEARED if new is None else NOT_SET_LATER)]


def validate_union(holder: Mapping[str, Any], path: Path, members: Sequence[str]) -> FieldErrors:
    """Validate that exactly one member is set."""
    given = [name for name in members if holder.get(name) not in (None, [])]
    listed = ", ".join(f"`{name}`" for name in members)
    if not given:
        return [invalid(path, "", f"must specify one of: {listed}")]
    if len(given) > 1:
        return [invalid(path, "{" + ", ".join(given) + "}", f"must specify exactly one of: {listed}")]
    return []


def validate_name(value: str | None, path: Path, rule: Callable[[str], list[str]]) -> FieldErrors:
    """Validate a required name."""
    if not value:
        return [required(path)]
    return [invalid(path, value, problem) for problem in rule(value)]


def _validate_list(items: Sequence[Document], path: Path, count_max: int) -> FieldErrors:
    """Validate the length of a list, and that its items have different names."""
    if len(items) > count_max:
        return [too_many(path, len(items), count_max)]
    seen: set[str] = set()
    errors: FieldErrors = []
    for index, item in enumerate(items):
        name = item.get("name") or ""
        if name in seen:
            errors.append(duplicate(path.index(index), item))
        seen.add(name)
    return errors


# --- Jobs. ---

POLICY_FIXED: Final = (
    "the basic/gang policy variant is immutable after creation; only schedulingPolicy.gang.minCount may be updated"
)


def validate_job_scheduling(scheduling: Document, parallelism: int, path: Path) -> FieldErrors:
    """Validate how the Pods of a Job are scheduled; an absent policy is basic, an absent count the parallelism."""
    errors: FieldErrors = []
    policy, at = scheduling.get("schedulingPolicy"), path.child("schedulingPolicy")
    if policy is not None:
        errors += validate_union(policy, at, _POLICIES)
        count = (policy.get("gang") or {}).get("minCount")
        if count is not None and count < 1:
            errors.append(invalid(at.child("gang", "minCount"), count, "must be greater than or equal to 1"))
        elif count is not None and count > parallelism:
            text = f"must not be greater than parallelism ({parallelism})"
            errors.append(invalid(at.child("gang", "minCount"), count, text))
    errors += validate_constraints(scheduling.get("schedulingConstraints"), path.child("schedulingConstraints"))
    errors += validate_claims(scheduling.get("resourceClaims") or (), path.child("resourceClaims"))
    return errors + validate_disruption_mode(scheduling.get("disruptionMode"), path.child("disruptionMode"))


def validate_job_scheduling_update(new: Document, old: Document, path: Path) -> FieldErrors:
    """Validate that nothing but minCount of a gang changes."""
    policy, before = new.get("schedulingPolicy") or {}, old.get("schedulingPolicy") or {}
    errors: FieldErrors = []
    if any((policy.get(name) is None) != (before.get(name) is None) for name in _POLICIES):
        errors.append(invalid(path.child("schedulingPolicy"), new.get("schedulingPolicy"), POLICY_FIXED))
    for name in ("schedulingConstraints", "disruptionMode", "resourceClaims"):
        errors += validate_immutable(new.get(name), old.get(name), path.child(name))
    return errors


# --- Workloads. ---


def validate_workload(workload: Document) -> FieldErrors:
    """Validate a new Workload: its templates, and the object that it belongs to."""
    spec = workload.get("spec") or {}
    errors = validate_union(spec, _SPEC, _TEMPLATE_LISTS)
    if (reference := spec.get("controllerRef")) is not None:
        path = _SPEC.child("controllerRef")
        if group := reference.get("apiGroup"):
            errors += validate_name(group, path.child("apiGroup"), dns1123_subdomain)
        errors += [required(path.child(name)) for name in ("kind", "name") if not reference.get(name)]
    errors += _validate_templates(spec, _SPEC, 1)
    every = [*_all_templates(spec, _SPEC)]
    names: set[str] = set()
    for template, path in every:
        name = template.get("name") or ""
        if name and name in names and not any(error.path.startswith(str(path)) for error in errors):
            errors.append(duplicate(path.child("name"), name))
        names.add(name)
    return errors + _validate_same_priority(every)


def _validate_templates(holder: Document, path: Path, depth: int) -> FieldErrors:
    errors: FieldErrors = []
    for kind in _TEMPLATE_LISTS:
        templates, at = holder.get(kind) or (), path.child(kind)
        if templates and depth > TEMPLATE_DEPTH_MAX:
            errors.append(forbidden(at, f"maximum template hierarchy depth is {TEMPLATE_DEPTH_MAX}"))
            continue
        errors += _validate_list(templates, at, TEMPLATES_MAX)
        if len(templates) > TEMPLATES_MAX:
            continue
        for index, template in enumerate(templates):
            errors += _validate_template(template, at.index(index), depth, composite=kind != "podGroupTemplates")
    return errors


def _validate_template(template: Document, path: Path, depth: int, *, composite: bool) -> FieldErrors:
    errors = validate_name(template.get("name"), path.child("name"), dns1123_label)
    if not composite:
        return errors + validate_group_settings(template, path)
    policy, at = template.get("schedulingPolicy") or {}, path.child("schedulingPolicy")
    errors += _validate_policy(policy, at, _COUNTS["compositePodGroupTemplates"])
    errors += validate_constraints(template.get("schedulingConstraints"), path.child("schedulingConstraints"))
    errors += validate_disruption_mode(template.get("disruptionMode"), path.child("disruptionMode"))
    errors += validate_union(template, path, _TEMPLATE_LISTS)
    return errors + _validate_priority(template, path) + _validate_templates(template, path, depth + 1)


def _all_templates(holder: Document, path: Path) -> Iterator[tuple[Document, Path]]:
    for kind in _TEMPLATE_LISTS:
        for index, template in enumerate(holder.get(kind) or ()):
            at = path.child(kind).index(index)
            yield template, at
            yield from _all_templates(template, at)


def _validate_same_priority(every: Sequence[tuple[Document, Path]]) -> FieldErrors:
    settings = {(template.get("priorityClassName") or "", template.get("priority")) for template, _ in every}
    if len(settings) < 2:  # noqa: PLR2004 - more than one
        return []
    return [forbidden(_SPEC, "detected multiple priority configurations")]


def validate_workload_update(new: Document, old: Document) -> FieldErrors:
    """Validate a changed Workload: only the counts of gang policies may change."""
    spec, before = new.get("spec") or {}, old.get("spec") or {}
    errors = validate_immutable(spec.get("controllerRef"), before.get("controllerRef"), _SPEC.child("controllerRef"))
    return errors + _validate_templates_update(spec, before, _SPEC)


def _validate_templates_update(new: Document, old: Document, path: Path) -> FieldErrors:
    errors: FieldErrors = []
    for kind in _TEMPLATE_LISTS:
        at = path.child(kind)
        before = {item.get("name"): item for item in old.get(kind) or ()}
        after = {item.get("name") for item in new.get(kind) or ()}
        for index, item in enumerate(new.get(kind) or ()):
            known = before.get(item.get("name"))
            if known is None:
                errors.append(forbidden(at.index(index), "item may not be added"))
                continue
            errors += _validate_settings_update(item, known, at.index(index), _COUNTS[kind])
            errors += _validate_templates_update(item, known, at.index(index))
        errors += [forbidden(at, "item may not be removed") for name in before if name not in after]
    return errors
