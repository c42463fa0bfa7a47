"""Webhook configurations and admission policies, except their CEL expressions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors, Path, duplicate, invalid, itself, not_supported, required, unique
from dray.api.names import dns1123_subdomain, path_segment_name, qualified_name
from dray.api.validation.meta_v1 import validate_label_selector
from dray.api.validation.webhook_client import validate_webhook_client

_SPEC: Final = Path("spec")
_FAILURE: Final = ("Fail", "Ignore")
_MATCH: Final = ("Equivalent", "Exact")
_REINVOCATION: Final = ("IfNeeded", "Never")
_SIDE_EFFECTS: Final = ("None", "NoneOnDryRun")
_OPERATIONS: Final = ("*", "CONNECT", "CREATE", "DELETE", "UPDATE")
_SCOPES: Final = ("*", "Cluster", "Namespaced")
_ACTIONS: Final = ("Audit", "Deny", "Warn")
_REASONS: Final = ("Forbidden", "Invalid", "RequestEntityTooLarge", "Unauthorized")
_REVIEW_VERSIONS: Final = ("v1", "v1beta1")
_TIMEOUT_SECONDS_MAX: Final = 30
_SEGMENTS_MIN: Final = 3
_MATCH_CONDITIONS_MAX: Final = 64


def _validate_choice(value: str | None, supported: Sequence[str], path: Path) -> FieldErrors:
    return [] if value is None or value in supported else [not_supported(path, value, supported)]


# --- Webhooks.


def validate_webhook_configuration(configuration: Document) -> FieldErrors:
    """Validate the webhooks of a configuration; their names are unique."""
    errors: FieldErrors = []
    names: set[str] = set()
    for i, webhook in enumerate(configuration.get("webhooks") or ()):
        path, name = Path("webhooks").index(i), webhook.get("name") or ""
        errors += _validate_webhook(webhook, path)
        if name and name in names:
            errors.append(duplicate(path.child("name"), name))
        names.add(name)
    return errors


def _validate_webhook(webhook: Document, path: Path) -> FieldErrors:
    errors = _validate_webhook_name(webhook.get("name") or "", path.child("name"))
    for i, rule in enumerate(webhook.get("rules") or ()):
        errors += _validate_rule(rule, path.child("rules").index(i))
    errors += _validate_choice(webhook.get("failurePolicy"), _FAILURE, path.child("failurePolicy"))
    errors += _validate_choice(webhook.get("matchPolicy"), _MATCH, path.child("matchPolicy"))
    effects = webhook.get("sideEffects")
    if not effects:
        errors.append(required(path.child("sideEffects"), f"must specify one of {', '.join(_SIDE_EFFECTS)}"))
    else:
        errors += _validate_choice(effects, _SIDE_EFFECTS, path.child("sideEffects"))
    seconds = webhook.get("timeoutSeconds")
    if seconds is not None and not 0 < seconds <= _TIMEOUT_SECONDS_MAX:
        text = f"the timeout value must be between 1 and {_TIMEOUT_SECONDS_MAX} seconds"
        errors.append(invalid(path.child("timeoutSeconds"), seconds, text))
    errors += _validate_choice(webhook.get("reinvocationPolicy"), _REINVOCATION, path.child("reinvocationPolicy"))
    errors += _validate_review_versions(
        webhook.get("admissionReviewVersions") or [], path.child("admissionReviewVersions")
    )
    for field in ("namespaceSelector", "objectSelector"):
        errors += validate_label_selector(webhook.get(field), path.child(field))
    errors += validate_webhook_client(webhook.get("clientConfig") or {}, path.child("clientConfig"))
    return errors + validate_match_conditions(webhook.get("matchConditions") or (), path.child("matchConditions"))


def _validate_webhook_name(name: str, path: Path) -> FieldErrors:
    if not name:
        return [required(path)]
    errors = [invalid(path, name, problem) for problem in dns1123_subdomain(name)]
    if not errors and len(name.split(".")) < _SEGMENTS_MIN:
        errors.append(invalid(path, name, "should be a domain with at least three segments separated by dots"))
    return errors


def _validate_review_versions(versions: list[str], path: Path) -> FieldErrors:
    if not versions:
        return [required(path, f"must specify one of {', '.join(_REVIEW_VERSIONS)}")]
    errors = unique(versions, itself, path)
    if not set(versions) & set(_REVIEW_VERSIONS):
        text = f"must include at least one of {', '.join(_REVIEW_VERSIONS)}"
        errors.append(invalid(path, versions, text))
    return errors


def _validate_rule(rule: Document, path: Path) -> FieldErrors:
    errors: FieldErrors = []
    for field in ("operations", "apiGroups", "apiVersions", "resources"):
        values, below = rule.get(field) or (), path.child(field)
        if not values:
            errors.append(required(below))
        elif "*" in values and len(values) > 1 and field != "resources":
            word = "operations" if field == "operations" else "API groups" if field == "apiGroups" else "API versions"
            errors.append(invalid(below, list(values), f"if '*' is present, must not specify other {word}"))
    for i, operation in enumerate(rule.get("operations") or ()):
        errors += _validate_choice(operation, _OPERATIONS, path.child("operations").index(i))
    return errors + _validate_choice(rule.get("scope"), _SCOPES, path.child("scope"))


def validate_match_conditions(conditions: Sequence[Document], path: Path) -> FieldErrors:
    """Validate the names of match conditions."""
    errors: FieldErrors = []
    if len(conditions) > _MATCH_CONDITIONS_MAX:
        errors.append(invalid(path, len(conditions), f"must have at most {_MATCH_CONDITIONS_MAX} items"))
    names: set[str] = set()
    for i, condition in enumerate(conditions):
        name, below = condition.get("name") or "", path.index(i).child("name")
        if not (condition.get("expression") or "").strip():
            errors.append(required(path.index(i).child("expression")))
        if not name:
            errors.append(required(below))
            continue
        errors += [invalid(below, name, problem) for problem in qualified_name(name)]
        if name in names:
            errors.append(duplicate(below, name))
        names.add(name)
    return errors


# --- Policies.


def validate_admission_policy(policy: Document) -> FieldErrors:
    """Validate a ValidatingAdmissionPolicy."""
    spec = policy.get("spec") or {}
    errors = _validate_choice(spec.get("failurePolicy"), _FAILURE, _SPEC.child("failurePolicy"))
    if spec.get("paramKind") is not None:
        errors += _validate_param_kind(spec["paramKind"], _SPEC.child("paramKind"))
    constraints, path = spec.get("matchConstraints"), _SPEC.child("matchConstraints")
    if constraints is None:
        errors.append(required(path))
    else:
        errors += _validate_match_resources(constraints, path)
        if not constraints.get("resourceRules"):
            errors.append(required(path.child("resourceRules")))
    errors += validate_match_conditions(spec.get("matchConditions") or (), _SPEC.child("matchConditions"))
    validations, annotations = spec.get("validations") or (), spec.get("auditAnnotations") or ()
    if not validations and not annotations:
        text = "validations or auditAnnotations must contain at least one item"
        errors += [required(_SPEC.child(field), text) for field in ("validations", "auditAnnotations")]
    for i, validation in enumerate(validations):
        errors += _validate_validation(validation, _SPEC.child("validations").index(i))
    for i, annotation in enumerate(annotations):
        path = _SPEC.child("auditAnnotations").index(i)
        errors += [required(path.child(field)) for field in ("key", "valueExpression") if not annotation.get(field)]
    return errors


def _validate_param_kind(kind: Document, path: Path) -> FieldErrors:
    return [required(path.child(field)) for field in ("apiVersion", "kind") if not kind.get(field)]


def _validate_match_resources(constraints: Document, path: Path) -> FieldErrors:
    errors = _validate_choice(constraints.get("matchPolicy"), _MATCH, path.child("matchPolicy"))
    for field in ("namespaceSelector", "objectSelector"):
        if constraints.get(field) is None:
            errors.append(required(path.child(field)))
        errors += validate_label_selector(constraints.get(field), path.child(field))
    for field in ("resourceRules", "excludeResourceRules"):
        for i, rule in enumerate(constraints.get(field) or ()):
            errors += _validate_rule(rule, path.child(field).index(i))
    return errors


def _validate_validation(validation: Document, path: Path) -> FieldErrors:
    errors: FieldErrors = []
    if not (validation.get("expression") or "").strip():
        errors.append(required(path.child("expression"), "expression is not specified"))
    message = validation.get("message") or ""
    if message and not message.strip():
        errors.append(invalid(path.child("message"), message, "must be non-empty if specified"))
    elif {"\n", "\r"} & set(message.strip()):
        errors.append(invalid(path.child("message"), message, "must not contain line breaks"))
    return errors + _validate_choice(validation.get("reason"), _REASONS, path.child("reason"))


def validate_policy_binding(binding: Document) -> FieldErrors:
    """Validate a ValidatingAdmissionPolicyBinding."""
    spec = binding.get("spec") or {}
    name, path = spec.get("policyName") or "", _SPEC.child("policyName")
    errors: FieldErrors = [invalid(path, name, problem) for problem in path_segment_name(name)]
    if not name:
        errors.append(required(path))
    reference = spec.get("paramRef")
    if reference is not None:
        errors += _validate_param_ref(reference, _SPEC.child("paramRef"))
    if spec.get("matchResources") is not None:
        errors += _validate_match_resources(spec["matchResources"], _SPEC.child("matchResources"))
    return errors + _validate_actions(spec.get("validationActions") or [], _SPEC.child("validationActions"))


def _validate_param_ref(reference: Document, path: Path) -> FieldErrors:
    name, selector = reference.get("name") or "", reference.get("selector")
    errors: FieldErrors = [invalid(path.child("name"), name, problem) for problem in path_segment_name(name)]
    if not name and selector is None:
        errors.append(required(path, "one of name or selector must be specified"))
    elif name and selector is not None:
        errors.append(invalid(path.child("name"), name, "name and selector are mutually exclusive"))
    action, below = reference.get("parameterNotFoundAction"), path.child("parameterNotFoundAction")
    if action is None:
        return [*errors, required(below)]
    return errors + _validate_choice(action, ("Deny", "Allow"), below)


def _validate_actions(actions: list[str], path: Path) -> FieldErrors:
    if not actions:
        return [required(path, "at least one validation action is required")]
    errors: FieldErrors = []
    seen: set[str] = set()
    for i, action in enumerate(actions):
        errors += _validate_choice(action, _ACTIONS, path.index(i))
        if action in seen:
            errors.append(duplicate(path.index(i), action))
        seen.add(action)
    if {"Deny", "Warn"} <= set(actions):
        text = (
            "must not contain both Deny and Warn (repeating the same validation failure information in the API "
            "response and headers serves no purpose)"
        )
        errors.append(invalid(path, actions, text))
    return errors
