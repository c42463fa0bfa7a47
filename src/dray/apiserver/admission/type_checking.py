"""Checks the expressions of a policy against the types of the objects that it matches.

Expressions see objects as dynamic values, so that a wrong field shows only when it is evaluated. The checks find such
errors when the policy is written; they are warnings in its status.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Final

from dray.api.document import Document
from dray.api.schema.model import ListOf, MapOf, Scalar, StructType
from dray.api.schema.model import Type as SchemaType
from dray.apiserver.endpoint import Endpoint
from dray.cel import types
from dray.cel.admission import Environment
from dray.cel.errors import CELError
from dray.cel.types import BOOL, BYTES, DOUBLE, DURATION, DYN, INT, STRING, TIMESTAMP, Field, Type

# Kubernetes' limit; more kinds are not checked.
KINDS_MAX: Final = 10
# Types nest deeper only where they contain themselves.
_DEPTH_MAX: Final = 24
_ANY: Final = "*"
_SCALARS: Final = {
    Scalar.STRING: STRING,
    Scalar.INT32: INT,
    Scalar.INT64: INT,
    Scalar.DOUBLE: DOUBLE,
    Scalar.BOOL: BOOL,
    Scalar.BYTES: BYTES,
    Scalar.TIME: TIMESTAMP,
    Scalar.MICRO_TIME: TIMESTAMP,
    Scalar.DURATION: DURATION,
    Scalar.QUANTITY: STRING,
}

Find = Callable[[str, str, str], Endpoint | None]


def type_warnings(policy: Document, find: Find) -> list[Document]:
    """Return the warnings of a policy: the field of an expression, and what is wrong with it for which kinds."""
    endpoints = list(matched_endpoints(policy, find))
    warnings = []
    for field, expression, variables in _expressions(policy.get("spec") or {}):
        problems = [problem for item in endpoints if (problem := _problem(expression, variables, item, policy))]
        if problems:
            warnings.append({"fieldRef": field, "warning": "\n".join(problems)})
    return warnings


def matched_endpoints(policy: Document, find: Find) -> Iterator[Endpoint]:
    """Return the endpoints that the rules name; wildcards name none."""
    spec = policy.get("spec") or {}
    found: dict[int, Endpoint] = {}
    for rule in (spec.get("matchConstraints") or {}).get("resourceRules") or ():
        for group in rule.get("apiGroups") or ():
            for version in rule.get("apiVersions") or ():
                for resource in rule.get("resources") or ():
                    endpoint = None if _ANY in (group, version, resource) else find(group, version, resource)
                    if endpoint is not None:
                        found.setdefault(id(endpoint), endpoint)
    yield from list(found.values())[:KINDS_MAX]


def _expressions(spec: Document) -> Iterator[tuple[str, str, list[Document]]]:
    """Return the expressions with their fields, and the variables that are declared before them."""
    variables = list(spec.get("variables") or ())
    for index, variable in enumerate(variables):
        yield f"spec.variables[{index}].expression", variable["expression"], variables[:index]
    for index, validation in enumerate(spec.get("validations") or ()):
        for name in ("expression", "messageExpression"):
            if validation.get(name):
                yield f"spec.validations[{index}].{name}", validation[name], variables


def _problem(expression: str, variables: list[Document], endpoint: Endpoint, policy: Document) -> str:
    object_type = cel_type(endpoint.struct)
    environment = Environment(
        has_params=policy["spec"].get("paramKind") is not None,
        objects={"object": object_type, "oldObject": object_type},
    )
    environment.has_variables = True
    for variable in variables:
        try:
            result = environment.compile(variable["expression"], authorizer=True).result_type
        except CELError:
            # It has a warning of its own.
            result = DYN
        environment.declare(variable["name"], result)
    try:
        environment.compile(expression, authorizer=True)
    except CELError as error:
        return f"{endpoint.api_version}, Kind={endpoint.definition.kind}: {error}"
    return ""


@lru_cache(maxsize=64)
def cel_type(struct: StructType) -> Type:
    """Return the type of a kind's objects in expressions."""
    return _object(struct, ())


def _object(struct: StructType, above: tuple[str, ...]) -> Type:
    # A type within itself, such as a schema, has unknown fields from there on.
    if struct.open or struct.name in above or len(above) >= _DEPTH_MAX or not struct.fields:
        return DYN
    inside = (*above, struct.name)
    fields = {name: Field(_type(field.type, inside), name) for name, field in struct.fields.items()}
    return types.object_type(struct.name, fields)


def _type(kind: SchemaType, above: tuple[str, ...]) -> Type:
    if isinstance(kind, StructType):
        return _object(kind, above)
    if isinstance(kind, ListOf):
        return types.list_of(_type(kind.element, above))
    if isinstance(kind, MapOf):
        return types.map_of(STRING, _type(kind.element, above))
    return _SCALARS.get(kind, DYN)
