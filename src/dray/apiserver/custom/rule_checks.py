"""Validation of the CEL rules of a definition: compilation and estimated cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors, Path, forbidden, invalid
from dray.api.structural.correlation import correlates_members
from dray.api.structural.types import LIST_TYPE, RULES
from dray.api.validation.apiextensions_v1 import schemas_of
from dray.apiserver.custom.rules import RulePathError, rule_path
from dray.cel.environments import compile_message_expression, compile_rule
from dray.cel.errors import CELError
from dray.cel.schema import cardinality_max
from dray.cel.values import UINT_MAX

# StaticEstimatedCostLimit and StaticEstimatedCRDCostLimit of Kubernetes.
_RULE_COST_MAX: Final = 10_000_000
_TOTAL_COST_MAX: Final = 100_000_000
_LISTED_PATHS_MAX: Final = 4
_FACTOR_LARGE: Final = 100.0
_FACTOR_SMALL: Final = 1.5


@dataclass(frozen=True, slots=True)
class _Context:
    """The maximum number of a schema's values (None: unbounded), and what prevents their correlation."""

    is_root: bool = False
    count: int | None = 1
    uncorrelatable: Path | None = None


@dataclass(slots=True)
class _Costs:
    # Whether the cost of each expression is limited, and not only their sum.
    each_limited: bool = True
    total: int = 0
    by_path: list[tuple[int, Path]] = field(default_factory=list)


def validate_rules(definition: Document, old: Document | None = None) -> FieldErrors:
    """Return the validation errors of the rules of a definition whose schemas are valid.

    An update validates only the schemas that it changes. If the stored definition has a rule that exceeds the limit of
    a single rule, because it was accepted by a server with other costs, only the total counts.
    """
    errors: FieldErrors = []
    before = [] if old is None else [schema for schema, _ in schemas_of(old["spec"])]
    changed = [(schema, path) for schema, path in schemas_of(definition["spec"]) if schema not in before]
    ratcheted = bool(changed) and any(_exceeds_limit(schema) for schema in before)
    for schema, path in changed:
        costs = _Costs(each_limited=not ratcheted)
        errors += _validate(schema, path, _Context(is_root=True), costs)
        if costs.total > _TOTAL_COST_MAX:
            errors += _too_expensive(path, costs)
    return errors


def _exceeds_limit(schema: Document) -> bool:
    costs = _Costs()
    _validate(schema, Path(""), _Context(is_root=True), costs)
    return any(cost > _RULE_COST_MAX for cost, _ in costs.by_path)


def _validate(schema: Document, path: Path, context: _Context, costs: _Costs) -> FieldErrors:
    errors: FieldErrors = []
    for inner, inner_path, inner_context in _children(schema, path, context):
        errors += _validate(inner, inner_path, inner_context, costs)
    for position, rule in enumerate(schema.get(RULES) or ()):
        errors += _validate_rule(rule, schema, path.child(RULES).index(position), context, costs)
    return errors


def _children(schema: Document, path: Path, context: _Context) -> Iterator[tuple[Document, Path, _Context]]:
    inner = replace(context, is_root=False)
    additional, items = schema.get("additionalProperties"), schema.get("items")
    if isinstance(additional, dict):
        count = _times(context.count, schema.get("maxProperties"))
        yield additional, path.child("additionalProperties"), replace(inner, count=count)
    named = inner if correlates_members(schema) else _hidden(inner, path)
    for name, value in (schema.get("properties") or {}).items():
        yield value, path.child("properties").key(name), named
    if isinstance(items, dict):
        item = inner if schema.get(LIST_TYPE) == "map" else _hidden(inner, path)
        yield items, path.child("items"), replace(item, count=_times(context.count, schema.get("maxItems")))


def _hidden(context: _Context, path: Path) -> _Context:
    return context if context.uncorrelatable is not None else replace(context, uncorrelatable=path)


def _times(count: int | None, most: int | None) -> int | None:
    return None if count is None or most is None else count * most


def _validate_rule(rule: Document, schema: Document, path: Path, context: _Context, costs: _Costs) -> FieldErrors:
    errors = _validate_field_path(rule, schema, path)
    if errors:
        return errors
    options = {"optional_old_self": bool(rule.get("optionalOldSelf")), "is_root": context.is_root}
    uses_old_self = False
    try:
        compiled = compile_rule(rule["rule"], schema, **options)
    except CELError as error:
        errors.append(invalid(path.child("rule"), _shown(rule), error.detail))
    else:
        uses_old_self = compiled.uses_old_self
        count = context.count if context.count is not None else cardinality_max(schema)
        cost = min(compiled.estimated_cost * count, UINT_MAX)
        errors += _validate_cost("estimated rule cost", cost, path.child("rule"), costs)
    errors += _validate_message(rule, schema, path.child("messageExpression"), options, costs)
    if uses_old_self and context.uncorrelatable is not None:
        text = f"oldSelf cannot be used on the uncorrelatable portion of the schema within {context.uncorrelatable}"
        errors.append(invalid(path.child("rule"), rule["rule"], text))
    elif not uses_old_self and rule.get("optionalOldSelf") is not None:
        text = "may not be set if oldSelf is not used in rule"
        errors.append(invalid(path.child("optionalOldSelf"), rule["optionalOldSelf"], text))
    return errors


def _validate_field_path(rule: Document, schema: Document, path: Path) -> FieldErrors:
    text = rule.get("fieldPath") or ""
    try:
        rule_path(schema, text)
    except RulePathError:
        return [invalid(path.child("fieldPath"), text, "fieldPath must be a valid path")]
    return []


def _validate_message(
    rule: Document, schema: Document, path: Path, options: Mapping[str, bool], costs: _Costs
) -> FieldErrors:
    expression = rule.get("messageExpression")
    if not expression:
        return []
    try:
        compiled = compile_message_expression(expression, schema, **options)
    except CELError as error:
        return [invalid(path, _shown(rule), error.detail)]
    return _validate_cost("estimated messageExpression cost", compiled.estimated_cost, path, costs)


def _validate_cost(what: str, cost: int, path: Path, costs: _Costs) -> FieldErrors:
    """Add an estimated cost to the total, and return the error if it is too high alone."""
    costs.total += cost
    costs.by_path.append((cost, path))
    if cost <= _RULE_COST_MAX or not costs.each_limited:
        return []
    return [forbidden(path, _cost_text(what, cost, _RULE_COST_MAX))]


def _shown(rule: Document) -> Document:
    """Return the rule as messages print it."""
    return {
        "Rule": rule.get("rule", ""),
        "Message": rule.get("message", ""),
        "MessageExpression": rule.get("messageExpression", ""),
        "Reason": rule.get("reason"),
        "FieldPath": rule.get("fieldPath", ""),
        "OptionalOldSelf": rule.get("optionalOldSelf"),
    }


def _too_expensive(path: Path, costs: _Costs) -> FieldErrors:
    text = "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema"
    worst = sorted(costs.by_path, key=lambda item: -item[0])[:_LISTED_PATHS_MAX]
    errors = [forbidden(context, text) for cost, context in worst if cost]
    what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema"
    return [*errors, forbidden(path, _cost_text(what, costs.total, _TOTAL_COST_MAX))]


def _cost_text(what: str, cost: int, limit: int) -> str:
    factor = cost / limit
    shown = f"{factor:.1f}x"
    if factor > _FACTOR_LARGE:
        shown = "more than 100x"
    elif factor < _FACTOR_SMALL:
        shown = f"{factor:f}x"
    return (
        f"{what} exceeds budget by factor of {shown} (try simplifying the rule, or adding maxItems, maxProperties, "
        "and maxLength where arrays, maps, and strings are declared)"
    )
