"""Webhook configurations, and admission policies with their bindings."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors, Path, duplicate, invalid, required
from dray.api.validation.admissionregistration_v1 import (
    validate_admission_policy,
    validate_policy_binding,
    validate_webhook_configuration,
)
from dray.apiserver.registry.columns import AGE, NAME, text_cell
from dray.apiserver.registry.generic import GenericStatusStrategy, GenericStrategy
from dray.apiserver.registry.strategy import Column, ResourceDefinition
from dray.cel.admission import Environment, check_result
from dray.cel.errors import CELError
from dray.cel.lexer import KEYWORDS, RESERVED
from dray.cel.types import Kind

_GROUP: Final = "admissionregistration.k8s.io"
_SPEC: Final = Path("spec")
_IDENTIFIER: Final = re.compile(r"[_a-zA-Z][_a-zA-Z0-9]*", re.ASCII)
_VARIABLES: Final = _SPEC.child("variables")
_ANNOTATIONS: Final = _SPEC.child("auditAnnotations")
_ANNOTATIONS_MAX: Final = 20


def policy_expression_errors(policy: Document) -> FieldErrors:
    """Compile the expressions of a policy, each with the variables that are declared before it."""
    spec = policy.get("spec") or {}
    environment = Environment(has_params=spec.get("paramKind") is not None)
    errors = _condition_errors(spec, _SPEC, environment)
    environment.has_variables = True
    names: set[str] = set()
    for i, variable in enumerate(spec.get("variables") or ()):
        errors += _variable_errors(variable, _VARIABLES.index(i), names, environment)
    for i, validation in enumerate(spec.get("validations") or ()):
        errors += _validation_errors(validation, _SPEC.child("validations").index(i), environment)
    annotations = spec.get("auditAnnotations") or ()
    if len(annotations) > _ANNOTATIONS_MAX:
        text = f"must not have more than {_ANNOTATIONS_MAX} auditAnnotations"
        errors.append(invalid(_ANNOTATIONS, len(annotations), text))
    keys: set[str] = set()
    for i, annotation in enumerate(annotations):
        path = _ANNOTATIONS.index(i)
        key = annotation.get("key") or ""
        if key in keys:
            errors.append(duplicate(path.child("key"), key))
        keys.add(key)
        text = annotation.get("valueExpression") or ""
        errors += _compile(text, path.child("valueExpression"), environment, Kind.STRING, Kind.NULL, authorizer=False)
    return errors


def _variable_errors(variable: Document, path: Path, names: set[str], environment: Environment) -> FieldErrors:
    name, text = variable.get("name") or "", variable.get("expression") or ""
    errors: FieldErrors = []
    if not name:
        errors.append(required(path.child("name"), "name is not specified"))
    elif _IDENTIFIER.fullmatch(name) is None or name in KEYWORDS | RESERVED:
        errors.append(invalid(path.child("name"), name, "name is not a valid CEL identifier"))
    elif name in names:
        errors.append(duplicate(path.child("name"), name))
    names.add(name)
    if not text.strip():
        return [*errors, required(path.child("expression"), "expression is not specified")]
    try:
        program = environment.compile(text, authorizer=True)
    except CELError as error:
        # Others that use it report its name as undeclared.
        return [*errors, invalid(path.child("expression"), text, f"compilation failed: {error}")]
    if name:
        environment.declare(name, program.result_type)
    return errors


def _validation_errors(validation: Document, path: Path, environment: Environment) -> FieldErrors:
    errors = _compile(validation.get("expression") or "", path.child("expression"), environment, Kind.BOOL)
    message = validation.get("messageExpression")
    if message:
        errors += _compile(message, path.child("messageExpression"), environment, Kind.STRING, authorizer=False)
    return errors


def webhook_expression_errors(configuration: Document) -> FieldErrors:
    """Compile the match conditions of webhooks."""
    errors: FieldErrors = []
    for i, webhook in enumerate(configuration.get("webhooks") or ()):
        errors += _condition_errors(webhook, Path("webhooks").index(i), Environment())
    return errors


def _condition_errors(document: Document, path: Path, environment: Environment) -> FieldErrors:
    errors: FieldErrors = []
    for i, condition in enumerate(document.get("matchConditions") or ()):
        place = path.child("matchConditions").index(i).child("expression")
        errors += _compile(condition.get("expression") or "", place, environment, Kind.BOOL)
    return errors


def _compile(text: str, path: Path, environment: Environment, *wanted: Kind, authorizer: bool = True) -> FieldErrors:
    if not text.strip():
        return []
    try:
        program = environment.compile(text, authorizer=authorizer)
    except CELError as error:
        return [invalid(path, text, f"compilation failed: {error}")]
    try:
        check_result(program, *wanted)
    except CELError as error:
        return [invalid(path, text, str(error))]
    return []


def _strategy(
    validate: Callable[[Document], FieldErrors],
    compile_all: Callable[[Document], FieldErrors],
    *,
    has_status: bool = False,
) -> GenericStrategy:
    def validate_update(obj: Document, old: Document) -> FieldErrors:
        # Expressions that are stored already are not compiled again.
        unchanged = obj.get("spec") == old.get("spec") and obj.get("webhooks") == old.get("webhooks")
        return validate(obj) + ([] if unchanged else compile_all(obj))

    return GenericStrategy(
        lambda obj: validate(obj) + compile_all(obj), validate_update, initial_status={} if has_status else None
    )


def _webhooks(kind: str) -> ResourceDefinition:
    return ResourceDefinition(
        group=_GROUP,
        resource=f"{kind.lower()}s",
        singular=kind.lower(),
        kind=kind,
        namespaced=False,
        versions=("v1",),
        storage_version="v1",
        strategy=_strategy(validate_webhook_configuration, webhook_expression_errors),
        categories=("api-extensions",),
        columns=(
            NAME,
            Column("Webhooks", "integer", "Its webhooks.", lambda obj, now: len(obj.get("webhooks") or ())),
            AGE,
        ),
    )


def _param_kind(policy: Document) -> str:
    kind = (policy.get("spec") or {}).get("paramKind") or {}
    return f"{kind.get('apiVersion', '')}/{kind.get('kind', '')}" if kind else "<unset>"


def _param_ref(binding: Document) -> str:
    reference = (binding.get("spec") or {}).get("paramRef") or {}
    namespace = f"{reference['namespace']}/" if reference.get("namespace") else "*/"
    return f"{namespace}{reference.get('name') or '*'}" if reference else "<unset>"


POLICIES: Final = ResourceDefinition(
    group=_GROUP,
    resource="validatingadmissionpolicies",
    singular="validatingadmissionpolicy",
    kind="ValidatingAdmissionPolicy",
    namespaced=False,
    versions=("v1",),
    storage_version="v1",
    strategy=_strategy(validate_admission_policy, policy_expression_errors, has_status=True),
    status_strategy=GenericStatusStrategy(),
    categories=("api-extensions",),
    columns=(
        NAME,
        Column(
            "Validations",
            "integer",
            "Its validations.",
            lambda obj, now: len((obj.get("spec") or {}).get("validations") or ()),
        ),
        Column("ParamKind", "string", "The kind of its parameters.", lambda obj, now: _param_kind(obj)),
        AGE,
    ),
)
POLICY_BINDINGS: Final = ResourceDefinition(
    group=_GROUP,
    resource="validatingadmissionpolicybindings",
    singular="validatingadmissionpolicybinding",
    kind="ValidatingAdmissionPolicyBinding",
    namespaced=False,
    versions=("v1",),
    storage_version="v1",
    strategy=GenericStrategy(validate_policy_binding),
    categories=("api-extensions",),
    columns=(
        NAME,
        Column("PolicyName", "string", "The policy that is bound.", text_cell("spec", "policyName")),
        Column("ParamRef", "string", "Its parameters.", lambda obj, now: _param_ref(obj)),
        AGE,
    ),
)

DEFINITIONS: Final = (
    _webhooks("MutatingWebhookConfiguration"),
    _webhooks("ValidatingWebhookConfiguration"),
    POLICIES,
    POLICY_BINDINGS,
)
