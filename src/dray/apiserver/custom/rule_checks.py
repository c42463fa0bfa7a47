"""Validation of the CEL rules of a definition: compilation and estimated cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors, Path, forbidden, invalid
from dray.api.structural.correlation import correlates_members
from dray.api.structural.types import LIST_TYPE, RULES
from dray.api.validation.apiextensions_v1 import schemas_of
from dray.apiserver.custom.rules import Rule, RuleCompileError, RulePathError
from dray.cel.schema import schema_type

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
    total: int = 0
    by_path: list[tuple[int, Path]] = field(default_factory=list)


def validate_rules(definition: Document) -> FieldErrors:
    """Return the validation errors of the rules of a definition whose schemas are valid."""
    errors: FieldErrors = []
    for schema, path in schemas_of(definition["spec"]):
        costs = _Costs()
        errors += _validate(schema, path, _Context(is_root=True), costs)
        if costs.total > _TOTAL_COST_MAX:
            errors += _too_expensive(path, costs)
    return errors


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
    try:
        compiled = Rule(rule, schema, is_root=context.is_root)
    except RuleCompileError as error:
        return [invalid(path.child(error.field), _shown(rule), error.error.detail)]
    except RulePathError as error:
        text = f"fieldPath must be a valid path: {error}"
        return [invalid(path.child("fieldPath"), rule.get("fieldPath"), text)]
    errors: FieldErrors = []
    # Message expressions are limited at run time; estimates have no bound for formatted numbers.
    cost = compiled.program.estimated_cost * (context.count if context.count is not None else _most_values(schema))
    costs.total += cost
    costs.by_path.append((cost, path.child("rule")))
    if cost > _RULE_COST_MAX:
        errors.append(forbidden(path.child("rule"), _cost_text("estimated rule cost", cost, _RULE_COST_MAX)))
    if compiled.program.uses_old_self and context.uncorrelatable is not None:
        text = f"oldSelf cannot be used on the uncorrelatable portion of the schema within {context.uncorrelatable}"
        errors.append(invalid(path.child("rule"), rule["rule"], text))
    return errors


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


def _most_values(schema: Document) -> int:
    """Return the maximum number of the schema's values in a request."""
    listed = schema_type({"type": "array", "items": schema})
    return 1 if listed is None or listed.size_max is None else listed.size_max


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
