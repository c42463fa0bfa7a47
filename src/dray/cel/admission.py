"""The CEL environment of admission: policies and the match conditions of webhooks.

`object`, `oldObject` and `params` are dynamic, `request` and `namespaceObject` have declared fields. The variables of a
policy are fields of `variables`; each is computed on first use, once for each evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from dray.cel import types
from dray.cel.errors import CELCostError, CELError, CELRuntimeError
from dray.cel.library import authorization
from dray.cel.library.times import parse_timestamp
from dray.cel.program import COST_LIMIT, STANDARD, Bounded, Program, compile_program
from dray.cel.runtime import FAILURES
from dray.cel.types import BOOL, DYN, INT, STRING, TIMESTAMP, Field, Kind, Type

_FUNCTIONS: Final = STANDARD.merged(authorization.REGISTRY)
_TEXTS: Final = types.list_of(STRING)
_TEXT_MAP: Final = types.map_of(STRING, STRING)


def _object(type_name: str, /, **fields: Type) -> Type:
    return types.object_type(type_name, {field: Field(kind, field) for field, kind in fields.items()})


def _request_type() -> Type:
    kind = _object("kubernetes.GroupVersionKind", group=STRING, version=STRING, kind=STRING)
    resource = _object("kubernetes.GroupVersionResource", group=STRING, version=STRING, resource=STRING)
    user = _object(
        "kubernetes.UserInfo", username=STRING, uid=STRING, groups=_TEXTS, extra=types.map_of(STRING, _TEXTS)
    )
    return _object(
        "kubernetes.AdmissionRequest",
        kind=kind,
        resource=resource,
        subResource=STRING,
        requestKind=kind,
        requestResource=resource,
        requestSubResource=STRING,
        name=STRING,
        namespace=STRING,
        operation=STRING,
        userInfo=user,
        dryRun=BOOL,
        options=DYN,
    )


def _namespace_type() -> Type:
    metadata = _object(
        "kubernetes.NamespaceMetadata",
        name=STRING,
        generateName=STRING,
        namespace=STRING,
        labels=_TEXT_MAP,
        annotations=_TEXT_MAP,
        UID=STRING,
        creationTimestamp=TIMESTAMP,
        deletionGracePeriodSeconds=INT,
        deletionTimestamp=TIMESTAMP,
        generation=INT,
        resourceVersion=STRING,
        finalizers=_TEXTS,
    )
    condition = _object(
        "kubernetes.NamespaceCondition",
        status=STRING,
        type=STRING,
        lastTransitionTime=TIMESTAMP,
        message=STRING,
        reason=STRING,
    )
    return _object(
        "kubernetes.Namespace",
        metadata=metadata,
        spec=_object("kubernetes.NamespaceSpec", finalizers=_TEXTS),
        status=_object("kubernetes.NamespaceStatus", conditions=types.list_of(condition), phase=STRING),
    )


_REQUEST: Final = _request_type()
_NAMESPACE: Final = _namespace_type()
_BASE: Final[Mapping[str, Type]] = {
    "object": DYN,
    "oldObject": DYN,
    "request": _REQUEST,
    "namespaceObject": _NAMESPACE,
}


_TIMES: Final = ("creationTimestamp", "deletionTimestamp")


def namespace_value(namespace: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return a namespace as the value of `namespaceObject`."""
    if namespace is None:
        return None
    metadata = dict(namespace.get("metadata") or {})
    metadata |= {name: parse_timestamp(metadata[name]) for name in _TIMES if metadata.get(name)}
    return {"metadata": metadata, "spec": namespace.get("spec") or {}, "status": namespace.get("status") or {}}


class Environment:
    """The variables that the expressions of one policy or webhook can use; grows with each named variable."""

    def __init__(self, *, has_params: bool = False, objects: Mapping[str, Type] | None = None) -> None:
        base = {**_BASE, **(objects or {})}
        if has_params:
            base.setdefault("params", DYN)
        self._base: Final = base
        self._named: dict[str, Field] = {}
        self.has_variables = False

    def compile(self, expression: str, *, authorizer: bool) -> Program:
        """Compile an expression; raises `CELError`."""
        variables = dict(self._base)
        if authorizer:
            variables["authorizer"] = authorization.AUTHORIZER
        if self.has_variables:
            variables["variables"] = types.object_type("kubernetes.variables", dict(self._named))
        return compile_program(expression, variables, registry=_FUNCTIONS)

    def declare(self, name: str, result: Type) -> None:
        """Add a variable that later expressions can use."""
        self._named[name] = Field(result, name)


def check_result(program: Program, *wanted: Kind) -> None:
    """Raise `CELError` unless the expression has a result of one of the kinds, or an unknown one."""
    found = program.result_type.kind
    if found not in (*wanted, Kind.DYN, Kind.ANY):
        names = ["null_type" if kind is Kind.NULL else kind.value for kind in wanted]
        raise CELError(f"must evaluate to {names[0] if len(names) == 1 else 'one of [' + ' '.join(names) + ']'}")


class CostsUncertainError(Exception):
    """Upper bounds of the costs exceed a limit, so that the evaluation must be repeated with exact costs."""


class CostBudget:
    """The cost that a group of expressions may have together, as in Kubernetes."""

    def __init__(self, limit: int, *, exact: bool) -> None:
        self._remaining = limit
        self._exact = exact

    def run(self, program: Program, values: Sequence[Any]) -> Bounded:
        """Evaluate and charge; raises `BudgetExhaustedError` when nothing is left."""
        if self._exact:
            outcome = Bounded(*program.measure(values))
        elif (plain := program.plain) is not None and plain.bound <= self._remaining:
            try:
                value = plain.function(None, *values)
            except FAILURES:
                outcome = Bounded(*program.measure(values))
            else:
                self._remaining -= plain.bound
                return Bounded(value, None, plain.bound)
        else:
            outcome = program.run_bounded(values, COST_LIMIT)
            if isinstance(outcome.error, CELCostError) or outcome.cost_bound > self._remaining:
                raise CostsUncertainError
        self._remaining -= outcome.cost_bound
        if self._remaining < 0:
            raise BudgetExhaustedError
        return outcome


class BudgetExhaustedError(Exception):
    """The budget of a group of expressions is used up."""

    def __init__(self) -> None:
        super().__init__("validation failed due to running out of cost budget, no further validation rules will be run")


def with_budget(limit: int, evaluate: Callable[[CostBudget], Any]) -> Any:
    """Return the result of an evaluation, which is repeated with exact costs if their bounds exceed the limit."""
    try:
        return evaluate(CostBudget(limit, exact=False))
    except CostsUncertainError:
        return evaluate(CostBudget(limit, exact=True))


class LazyVariables(dict[str, Any]):
    """The values of named variables: a variable is computed when it is first looked up."""

    __slots__ = ("_budget", "_failures", "_programs", "_values")

    def __init__(self, programs: Mapping[str, Program], values: Mapping[str, Any], budget: CostBudget) -> None:
        super().__init__()
        self._programs = programs
        self._values = values
        self._budget = budget
        self._failures: dict[str, CELRuntimeError] = {}

    def __missing__(self, name: str) -> Any:
        failure = self._failures.get(name)
        if failure is None:
            program = self._programs.get(name)
            if program is None:
                raise KeyError(name)
            outcome = self._budget.run(program, arguments(program, self._values, self))
            if outcome.error is None:
                self[name] = outcome.value
                return outcome.value
            failure = CELRuntimeError(f'composited variable "{name}" fails to evaluate: {outcome.error}')
            self._failures[name] = failure
        raise failure


def arguments(program: Program, values: Mapping[str, Any], variables: LazyVariables | None) -> list[Any]:
    """Return the values of an expression's variables in the order of their declaration, None for unused ones."""
    return [None if name is None else variables if name == "variables" else values[name] for name in program.inputs]


class LazyValues(dict[str, Any]):
    """Values that are computed when an expression first uses them."""

    __slots__ = ("_sources",)

    def __init__(self, sources: Mapping[str, Callable[[], Any]]) -> None:
        super().__init__()
        self._sources = sources

    def __missing__(self, name: str) -> Any:
        value = self[name] = self._sources[name]()
        return value
