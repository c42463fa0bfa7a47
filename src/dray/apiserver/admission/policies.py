"""Compiled validating admission policies, and what they decide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from dray.api.document import Document
from dray.apiserver.admission.conditions import CompiledConditions, ConditionsError
from dray.apiserver.admission.matching import MatchResources
from dray.cel.admission import (
    BudgetExhaustedError,
    CostBudget,
    Environment,
    LazyVariables,
    arguments,
    with_budget,
)
from dray.cel.environments import RULES_COST_LIMIT
from dray.cel.errors import CELError
from dray.cel.program import Program

_MESSAGE_BYTES_MAX: Final = 5 * 1024
_ANNOTATION_BYTES_MAX: Final = 10 * 1024
_CODES: Final = {"Unauthorized": 401, "Forbidden": 403, "RequestEntityTooLarge": 413}
_INVALID: Final = "Invalid"


def status_code(reason: str) -> int:
    """Return the HTTP status of a denial with this reason."""
    return _CODES.get(reason, 422)


class Violation(msgspec.Struct, frozen=True):
    """A validation that does not hold, or that could not be evaluated."""

    message: str
    reason: str = _INVALID
    # The position of the validation in the policy.
    index: int = 0
    is_error: bool = False


class Verdict(msgspec.Struct, frozen=True):
    """What a policy says about a write with one set of parameters."""

    violations: tuple[Violation, ...] = ()
    # Audit annotations by their full key.
    annotations: Mapping[str, str] = msgspec.field(default_factory=dict)


_NO_VERDICT: Final = Verdict()


class _Validation(msgspec.Struct, frozen=True):
    expression: str
    program: Program
    message: str
    message_program: Program | None
    reason: str


class _Annotation(msgspec.Struct, frozen=True):
    key: str
    expression: str
    program: Program


class CompiledPolicy:
    """One generation of a policy. Raises `CELError` if an expression does not compile."""

    def __init__(self, document: Document) -> None:
        spec = document.get("spec") or {}
        self.name: Final[str] = document["metadata"]["name"]
        self.fails_closed: Final = spec.get("failurePolicy") != "Ignore"
        environment = Environment(has_params=spec.get("paramKind") is not None)
        self._conditions: Final = CompiledConditions(spec.get("matchConditions") or (), environment)
        environment.has_variables = True
        self._variables: Final = _compile_variables(spec.get("variables") or (), environment)
        self._validations: Final = [_compile_validation(item, environment) for item in spec.get("validations") or ()]
        self._annotations: Final = [
            _Annotation(
                f"{self.name}/{item.get('key', '')}",
                item["valueExpression"],
                environment.compile(item["valueExpression"], authorizer=False),
            )
            for item in spec.get("auditAnnotations") or ()
        ]

    def evaluate(self, values: Mapping[str, Any]) -> Verdict:
        """Evaluate the policy; `values` has the variables by name, `params` and `authorizer` included.

        With `failurePolicy: Ignore`, errors are no violations.
        """
        try:
            if not self._conditions.hold(values):
                return _NO_VERDICT
            verdict: Verdict = with_budget(RULES_COST_LIMIT, partial(self._evaluate, values))
        except (ConditionsError, BudgetExhaustedError) as error:
            return self._failure(str(error))
        if self.fails_closed or not any(violation.is_error for violation in verdict.violations):
            return verdict
        kept = tuple(violation for violation in verdict.violations if not violation.is_error)
        return Verdict(kept, verdict.annotations)

    def _failure(self, message: str) -> Verdict:
        return Verdict((Violation(message, is_error=True),)) if self.fails_closed else _NO_VERDICT

    def _evaluate(self, values: Mapping[str, Any], budget: CostBudget) -> Verdict:
        variables = LazyVariables(self._variables, values, budget)
        violations = []
        for index, validation in enumerate(self._validations):
            outcome = budget.run(validation.program, arguments(validation.program, values, variables))
            if outcome.error is not None:
                text = f"expression '{validation.expression}' resulted in error: {outcome.error}"
                violations.append(Violation(text, index=index, is_error=True))
            elif outcome.value is not True:
                text = _message(validation, values, variables, budget)
                violations.append(Violation(text, validation.reason, index))
        annotations: dict[str, str] = {}
        for annotation in self._annotations:
            outcome = budget.run(annotation.program, arguments(annotation.program, values, variables))
            if outcome.error is not None:
                text = f"expression '{annotation.expression}' resulted in error: {outcome.error}"
                violations.append(Violation(text, is_error=True))
            elif isinstance(outcome.value, str) and outcome.value.strip():
                annotations[annotation.key] = _shortened(outcome.value.strip())
        return Verdict(tuple(violations), annotations)


def _message(validation: _Validation, values: Mapping[str, Any], variables: LazyVariables, budget: CostBudget) -> str:
    program = validation.message_program
    if program is not None:
        outcome = budget.run(program, arguments(program, values, variables))
        text = outcome.value.strip() if isinstance(outcome.value, str) else ""
        if text and "\n" not in text and len(text.encode()) <= _MESSAGE_BYTES_MAX:
            return text
    return validation.message or f"failed expression: {validation.expression}"


def _shortened(text: str) -> str:
    data = text.encode()
    return text if len(data) <= _ANNOTATION_BYTES_MAX else data[:_ANNOTATION_BYTES_MAX].decode(errors="ignore")


def _compile_variables(variables: Sequence[Document], environment: Environment) -> dict[str, Program]:
    programs: dict[str, Program] = {}
    for variable in variables:
        program = environment.compile(variable["expression"], authorizer=True)
        environment.declare(variable["name"], program.result_type)
        programs[variable["name"]] = program
    return programs


def _compile_validation(validation: Document, environment: Environment) -> _Validation:
    expression = validation["expression"].strip()
    message = validation.get("messageExpression") or ""
    return _Validation(
        expression,
        environment.compile(validation["expression"], authorizer=True),
        (validation.get("message") or "").strip(),
        environment.compile(message, authorizer=False) if message else None,
        validation.get("reason") or _INVALID,
    )


class Binding:
    """One binding of a policy."""

    def __init__(self, document: Document) -> None:
        spec = document.get("spec") or {}
        self.name: Final[str] = document["metadata"]["name"]
        self.policy_name: Final[str] = spec.get("policyName") or ""
        self.actions: Final = tuple(spec.get("validationActions") or ())
        self.param_ref: Final[Document | None] = spec.get("paramRef")
        resources = spec.get("matchResources")
        self.match: Final = None if resources is None else MatchResources(resources)


class PolicySource:
    """A policy as it is stored, compiled when it is first needed."""

    def __init__(self, document: Document) -> None:
        spec = document.get("spec") or {}
        self.document: Final = document
        self.name: Final[str] = document["metadata"]["name"]
        self.fails_closed: Final = spec.get("failurePolicy") != "Ignore"
        self.param_kind: Final[Document | None] = spec.get("paramKind")
        # Whether a write matches is known before anything is compiled.
        self.match: Final = MatchResources(spec.get("matchConstraints") or {})
        self._compiled: CompiledPolicy | None = None
        # Why it does not compile: refused when it is written, so it was stored by a server with other functions.
        self.problem = ""

    def compiled(self) -> CompiledPolicy | None:
        """Return the compiled policy; None if there is a problem."""
        if self._compiled is None and not self.problem:
            try:
                self._compiled = CompiledPolicy(self.document)
            except CELError as error:
                self.problem = f"compilation error: {error}"
        return self._compiled


class BoundPolicy(msgspec.Struct, frozen=True):
    """A policy with its bindings, by name."""

    source: PolicySource
    bindings: tuple[Binding, ...]
