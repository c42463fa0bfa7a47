"""Webhook configurations, and admission policies with their bindings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors, Path, invalid
from dray.api.validation.admissionregistration_v1 import (
    validate_admission_policy,
    validate_policy_binding,
    validate_webhook_configuration,
)
from dray.apiserver.registry.columns import AGE, NAME, text_cell
from dray.apiserver.registry.generic import GenericStatusStrategy, GenericStrategy
from dray.apiserver.registry.strategy import Column, ResourceDefinition
from dray.cel import types
from dray.cel.errors import CELError
from dray.cel.program import compile_program
from dray.cel.types import Kind

_GROUP: Final = "admissionregistration.k8s.io"
_SPEC: Final = Path("spec")
# The variables of expressions; `params` only of policies with parameters.
_VARIABLES: Final = ("object", "oldObject", "request", "namespaceObject", "variables")
# Checks of permissions are functions of a type that rules for objects do not have.
_UNCHECKED: Final = "authorizer"


def expression_errors(obj: Document, old: Document | None = None) -> FieldErrors:
    """Compile the expressions of a policy or of a webhook's match conditions; stored ones are not compiled again."""
    known = {text for _, text, _ in _expressions(old)} if old is not None else set()
    spec = obj.get("spec") or {}
    names = (*_VARIABLES, "params") if spec.get("paramKind") else _VARIABLES
    variables = dict.fromkeys(names, types.DYN)
    errors: FieldErrors = []
    for path, text, kind in _expressions(obj):
        if not text.strip() or text in known or _UNCHECKED in text:
            continue
        try:
            found = compile_program(text, variables).result_type.kind
        except CELError as error:
            errors.append(invalid(path, text, f"compilation failed: {error}"))
            continue
        if kind is not None and found not in (kind, Kind.DYN):
            errors.append(invalid(path, text, f"must evaluate to {kind.value}"))
    return errors


def _expressions(obj: Document) -> Iterator[tuple[Path, str, Kind | None]]:
    spec = obj.get("spec") or {}
    for i, validation in enumerate(spec.get("validations") or ()):
        path = _SPEC.child("validations").index(i)
        yield path.child("expression"), validation.get("expression") or "", Kind.BOOL
        yield path.child("messageExpression"), validation.get("messageExpression") or "", Kind.STRING
    for i, variable in enumerate(spec.get("variables") or ()):
        yield _SPEC.child("variables").index(i).child("expression"), variable.get("expression") or "", None
    for i, annotation in enumerate(spec.get("auditAnnotations") or ()):
        path = _SPEC.child("auditAnnotations").index(i).child("valueExpression")
        yield path, annotation.get("valueExpression") or "", None
    yield from _conditions(spec, _SPEC)
    for i, webhook in enumerate(obj.get("webhooks") or ()):
        yield from _conditions(webhook, Path("webhooks").index(i))


def _conditions(document: Document, path: Path) -> Iterator[tuple[Path, str, Kind | None]]:
    for i, condition in enumerate(document.get("matchConditions") or ()):
        yield path.child("matchConditions").index(i).child("expression"), condition.get("expression") or "", Kind.BOOL


def _strategy(validate: Callable[[Document], FieldErrors], *, has_status: bool = False) -> GenericStrategy:
    return GenericStrategy(
        lambda obj: validate(obj) + expression_errors(obj),
        lambda obj, old: validate(obj) + expression_errors(obj, old),
        initial_status={} if has_status else None,
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
        strategy=_strategy(validate_webhook_configuration),
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
    strategy=_strategy(validate_admission_policy, has_status=True),
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
