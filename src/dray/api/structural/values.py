"""Validation of values by a schema: types, ranges, lengths, patterns, formats, alternatives.

Texts are those of Kubernetes' OpenAPI validator. Errors of unchanged values are ignored on update (ratcheting), so that
a stricter schema does not block updates of existing objects.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import re2

from dray.api.document import Document
from dray.api.field_errors import (
    FieldErrors,
    Path,
    invalid,
    not_supported,
    quote,
    required,
    too_long,
    too_many,
    type_invalid,
)
from dray.api.patterns import search
from dray.api.structural.correlation import MISSING, OldItems, correlates_members, old_member, same
from dray.api.structural.formats import FORMATS
from dray.api.structural.types import INT_OR_STRING
from dray.lib.processor_time import tick, ticking

# Validates a value at a path, given the old value (or MISSING), and appends errors.
Check: TypeAlias = Callable[[Any, str, Any, FieldErrors], None]

_JSON_TYPES: Final = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}


_NUMBERS: Final = frozenset({"integer", "number"})
# The formats that Kubernetes sees in numbers.
_FORMATS_OF_TYPES: Final = {"integer": "int64", "number": "float64"}
_JSON_INTEGERS_MAX: Final = 2**53
_INTEGERS: Final = {"int32": (-(2**31), 2**31 - 1), "int64": (-(2**63), 2**63 - 1)}


def compile_values(schema: Document) -> Callable[[Document, Any], FieldErrors]:
    """Return a function that validates an object, given the one it replaces (or `MISSING`)."""
    check = _compile(schema)

    def validate(document: Document, old: Any = MISSING) -> FieldErrors:
        errors: FieldErrors = []
        check(document, "", old, errors)
        return errors

    return validate


def _compile(schema: Document) -> Check:
    always = _steps((_types_step, _enum_step), schema)
    others = _steps((_alternatives_step, _string_step, _number_step, _list_step, _object_step), schema)

    def check(value: Any, path: str, old: Any, errors: FieldErrors) -> None:
        mark = len(errors)
        for step in always:
            step(value, path, old, errors)
        if value is not None:
            for step in others:
                step(value, path, old, errors)
        if len(errors) > mark and old is not MISSING and same(value, old):
            del errors[mark:]

    return check


def _steps(makers: Sequence[Callable[[Document], Check | None]], schema: Document) -> tuple[Check, ...]:
    return tuple(step for maker in makers if (step := maker(schema)) is not None)


def _number_text(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else str(value)


# --- Any value.


def _types_step(schema: Document) -> Check | None:
    allowed = ["integer", "string"] if schema.get(INT_OR_STRING) else [schema["type"]] if schema.get("type") else []
    if not allowed:
        return None
    listed, nullable = ",".join(allowed), bool(schema.get("nullable"))
    accepted = frozenset(allowed) | ({"integer"} if "number" in allowed else frozenset())
    named_format = _known_format(schema)

    def check(value: Any, path: str, _old: Any, errors: FieldErrors) -> None:
        given = _JSON_TYPES[type(value)]
        if given in accepted or (value is None and nullable):
            return
        if given == "number" and "integer" in accepted and _is_whole(value):
            return
        wanted = listed
        if named_format and given in ("string", "array") and not accepted & _NUMBERS:
            # Kubernetes leaves these to the check of the format, which heeds texts alone.
            return
        if named_format and given not in ("string", "array", "null"):
            wanted, given = named_format, _FORMATS_OF_TYPES.get(given, "")
        errors.append(type_invalid(Path(path), given, f'{path} in body must be of type {wanted}: "{given}"'))

    return check


def _known_format(schema: Document) -> str:
    name: str = schema.get("format") or ""
    return name if name in FORMATS or name in _INTEGERS else ""


def _enum_step(schema: Document) -> Check | None:
    values = schema.get("enum")
    if not values:
        return None
    shown = tuple(value if isinstance(value, str) else _json(value) for value in values)
    texts = frozenset(value for value in values if isinstance(value, str))

    def check(value: Any, path: str, _old: Any, errors: FieldErrors) -> None:
        if isinstance(value, str) and value in texts:
            return
        tick(len(values))
        if not any(_equal(value, allowed) for allowed in values):
            errors.append(not_supported(Path(path), value, shown))

    return check


def _equal(value: Any, allowed: Any) -> bool:
    numbers = (int, float)
    if type(value) in numbers and type(allowed) in numbers:
        return bool(value == allowed)
    return same(value, allowed)


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


# --- Strings and numbers.


def _string_step(schema: Document) -> Check | None:
    tests = [test for maker in (_length_tests, _pattern_tests, _format_tests) for test in maker(schema)]
    if not tests:
        return None

    def check(value: Any, path: str, _old: Any, errors: FieldErrors) -> None:
        if type(value) is not str:
            return
        for test in tests:
            mark = len(errors)
            test(value, path, errors)
            if len(errors) > mark:
                return

    return check


_StringTest: TypeAlias = Callable[[str, str, FieldErrors], None]


def _length_tests(schema: Document) -> list[_StringTest]:
    longest, shortest = schema.get("maxLength"), schema.get("minLength")
    tests: list[_StringTest] = []
    if longest is not None:
        tests.append(
            lambda value, path, errors: errors.append(too_long(Path(path), longest)) if len(value) > longest else None
        )
    if shortest:
        tests.append(
            lambda value, path, errors: (
                errors.append(invalid(Path(path), value, f"{path} in body should be at least {shortest} chars long"))
                if len(value) < shortest
                else None
            )
        )
    return tests


def _pattern_tests(schema: Document) -> list[_StringTest]:
    pattern = schema.get("pattern")
    if not pattern:
        return []
    try:
        compiled = re2.compile(pattern)
    except re2.error:
        # Rejected when the definition is written; one that was stored before does not block its objects.
        return []

    def test(value: str, path: str, errors: FieldErrors) -> None:
        if search(compiled, value) is None:
            errors.append(invalid(Path(path), value, f"{path} in body should match '{pattern}'"))

    return [test]


def _format_tests(schema: Document) -> list[_StringTest]:
    name = schema.get("format")
    fits = FORMATS.get(name or "")
    if fits is None or schema.get("type") not in ("string", None):
        return []

    def test(value: str, path: str, errors: FieldErrors) -> None:
        if not fits(value):
            detail = f"{path} in body must be of type {name}: {quote(value)}"
            errors.append(type_invalid(Path(path), value, detail))

    return [test]


def _number_step(schema: Document) -> Check | None:
    tests: list[tuple[Callable[[float], bool], str]] = []
    factor, high, low = schema.get("multipleOf"), schema.get("maximum"), schema.get("minimum")
    if factor:
        tests.append((lambda value: not _is_multiple(value, factor), f"a multiple of {_number_text(factor)}"))
    if high is not None:
        tests.append(_high_test(high, exclusive=bool(schema.get("exclusiveMaximum"))))
    if low is not None:
        tests.append(_low_test(low, exclusive=bool(schema.get("exclusiveMinimum"))))
    limits = _INTEGERS.get(_known_format(schema), _INTEGERS["int64"]) if schema.get("type") == "integer" else None
    if not tests and limits is None:
        return None

    def check(value: Any, path: str, _old: Any, errors: FieldErrors) -> None:
        if type(value) not in (int, float):
            return
        if limits is not None and not (limits[0] <= value <= limits[1] and float(value).is_integer()):
            name = f"with format {schema['format']}" if _known_format(schema) else "(default format)"
            errors.append(invalid(Path(), "", f"Checked value must be of type integer {name} in {path}"))
        for broken, text in tests:
            if broken(value):
                errors.append(invalid(Path(path), value, f"{path} in body should be {text}"))

    return check


def _is_whole(value: float) -> bool:
    """Report whether a number is an integer that JavaScript can represent."""
    return value.is_integer() and abs(value) < _JSON_INTEGERS_MAX


def _is_multiple(value: float, factor: float) -> bool:
    if type(value) is int and float(factor).is_integer():
        return value % int(factor) == 0
    return _is_whole(float(value / factor))


def _high_test(high: float, *, exclusive: bool) -> tuple[Callable[[float], bool], str]:
    if exclusive:
        return lambda value: value >= high, f"less than {_number_text(high)}"
    return lambda value: value > high, f"less than or equal to {_number_text(high)}"


def _low_test(low: float, *, exclusive: bool) -> tuple[Callable[[float], bool], str]:
    if exclusive:
        return lambda value: value <= low, f"greater than {_number_text(low)}"
    return lambda value: value < low, f"greater than or equal to {_number_text(low)}"


# --- Lists and objects.


def _list_step(schema: Document) -> Check | None:
    items = schema.get("items")
    inner = _compile(items) if isinstance(items, dict) else None
    most, fewest, old_items = schema.get("maxItems"), schema.get("minItems") or 0, OldItems(schema)
    if inner is None and most is None and not fewest:
        return None

    def check(value: Any, path: str, old: Any, errors: FieldErrors) -> None:
        if type(value) is not list:
            return
        if inner is not None:
            index = old_items.by_key(old)
            for position, item in enumerate(ticking(value)):
                inner(item, f"{path}[{position}]", old_items.find(index, item), errors)
        count = len(value)
        if count < fewest:
            errors.append(invalid(Path(path), count, f"{path} in body should have at least {fewest} items"))
        if most is not None and count > most:
            errors.append(too_many(Path(path), count, most))

    return check


def _object_step(schema: Document) -> Check | None:
    properties: Mapping[str, Check] = {
        name: _compile(inner) for name, inner in (schema.get("properties") or {}).items()
    }
    additional = schema.get("additionalProperties")
    other = _compile(additional) if isinstance(additional, dict) else None
    needed, correlates = tuple(schema.get("required") or ()), correlates_members(schema)
    counts = _count_test(schema)

    def check(value: Any, path: str, old: Any, errors: FieldErrors) -> None:
        if type(value) is not dict:
            return
        counts(value, path, errors)
        prefix = f"{path}." if path else ""
        for name, item in ticking(value.items()):
            inner = properties.get(name, other)
            if inner is not None:
                # Entries of a map have the dot even if the map has no path.
                place = prefix + name if name in properties else f"{path}.{name}"
                inner(item, place, old_member(old, name) if correlates else MISSING, errors)
        errors.extend(required(Path(prefix + name)) for name in needed if name not in value)

    return check


def _count_test(schema: Document) -> Callable[[Document, str, FieldErrors], None]:
    most, fewest = schema.get("maxProperties"), schema.get("minProperties") or 0

    def check(value: Document, path: str, errors: FieldErrors) -> None:
        count = len(value)
        if count < fewest:
            errors.append(invalid(Path(path), count, f"{path} in body should have at least {fewest} properties"))
        if most is not None and count > most:
            errors.append(too_many(Path(path), count, most))

    return check


# --- Alternatives.


def _alternatives_step(schema: Document) -> Check | None:
    checks = [maker(schema) for maker in (_any_of, _one_of, _all_of, _not)]
    steps = [step for step in checks if step is not None]
    if not steps:
        return None

    def check(value: Any, path: str, old: Any, errors: FieldErrors) -> None:
        for step in steps:
            step(value, path, old, errors)

    return check


def _errors_by_alternative(alternatives: Sequence[Check], value: Any, path: str) -> list[FieldErrors]:
    """Return the errors of the value by each alternative, which validates the whole value, changed or not."""
    results: list[FieldErrors] = []
    for alternative in alternatives:
        errors: FieldErrors = []
        alternative(value, path, MISSING, errors)
        results.append(errors)
    return results


def _closest(results: Sequence[FieldErrors]) -> FieldErrors:
    fewest = min(len(result) for result in results)
    return next(result for result in results if len(result) == fewest)


def _alternatives_error(path: str, text: str) -> Any:
    return invalid(Path(), "", f"{quote(path)} must {text}")


def _alternatives(schema: Document, keyword: str) -> list[Check]:
    return [_compile(inner) for inner in schema.get(keyword) or ()]


def _any_of(schema: Document) -> Check | None:
    alternatives = _alternatives(schema, "anyOf")
    if not alternatives:
        return None

    def check(value: Any, path: str, _old: Any, errors: FieldErrors) -> None:
        results = _errors_by_alternative(alternatives, value, path)
        if all(results):
            errors.append(_alternatives_error(path, "validate at least one schema (anyOf)"))
            errors.extend(_closest(results))

    return check


def _one_of(schema: Document) -> Check | None:
    alternatives = _alternatives(schema, "oneOf")
    if not alternatives:
        return None

    def check(value: Any, path: str, _old: Any, errors: FieldErrors) -> None:
        results = _errors_by_alternative(alternatives, value, path)
        valid = sum(not result for result in results)
        if valid == 1:
            return
        found = f"Found {valid} valid alternatives" if valid else "Found none valid"
        errors.append(_alternatives_error(path, f"validate one and only one schema (oneOf). {found}"))
        if not valid:
            errors.extend(_closest(results))

    return check


def _all_of(schema: Document) -> Check | None:
    alternatives = _alternatives(schema, "allOf")
    if not alternatives:
        return None

    def check(value: Any, path: str, _old: Any, errors: FieldErrors) -> None:
        results = _errors_by_alternative(alternatives, value, path)
        for result in results:
            errors.extend(result)
        if any(results):
            none = ". None validated" if all(results) else ""
            errors.append(_alternatives_error(path, f"validate all the schemas (allOf){none}"))

    return check


def _not(schema: Document) -> Check | None:
    if schema.get("not") is None:
        return None
    inner = _compile(schema["not"])

    def check(value: Any, path: str, _old: Any, errors: FieldErrors) -> None:
        if not _errors_by_alternative([inner], value, path)[0]:
            errors.append(_alternatives_error(path, "not validate the schema (not)"))

    return check
