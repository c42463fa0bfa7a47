"""The CEL specification's own conformance cases, read from `spec/simple.json`, and how to run one.

The cases are those of `tests/simple/testdata` in google/cel-spec without protobuf messages, and without extension
libraries that Kubernetes does not have. See `spec/README.md`.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from dray import cel
from dray.cel import runtime, types
from dray.cel.errors import CELError, CELRuntimeError
from dray.cel.types import Type
from dray.cel.values import Duration, Timestamp, Uint

_FILE = Path(__file__).with_name("spec") / "simple.json"
# Enough for every case; Kubernetes' limits are not what these cases are about.
_COST_LIMIT = 100_000_000

_PRIMITIVES = {
    "BOOL": types.BOOL,
    "INT64": types.INT,
    "UINT64": types.UINT,
    "DOUBLE": types.DOUBLE,
    "STRING": types.STRING,
    "BYTES": types.BYTES,
}
_WELL_KNOWN = {"TIMESTAMP": types.TIMESTAMP, "DURATION": types.DURATION}


class SpecCase(NamedTuple):
    name: str
    test: Mapping[str, Any]


@lru_cache(maxsize=1)
def _document() -> dict[str, dict[str, list[dict[str, Any]]]]:
    loaded: dict[str, dict[str, list[dict[str, Any]]]] = json.loads(_FILE.read_text())
    return loaded


def spec_cases() -> Iterator[SpecCase]:
    for file, sections in _document().items():
        for section, tests in sections.items():
            for test in tests:
                yield SpecCase(f"{file}/{section}/{test['name']}", test)


def outcome(case: SpecCase) -> str | None:
    """Return how the outcome differs from what the case says; None if it does not."""
    test = case.test
    variables = dict(_declared(test))
    data = {name: value_of(item["value"]) for name, item in test.get("bindings", {}).items()}
    for name in data:
        variables.setdefault(name, types.DYN)
    variables = {name: given for name, given in variables.items() if name in data or "bindings" not in test}
    try:
        program = cel.compile_program(test["expr"], variables, homogeneous=False)
    except CELError as error:
        # Kubernetes checks the types of every expression: what is refused cannot fail at run time, and cases without
        # a type check cannot be run.
        return None if "evalError" in test or test.get("disableCheck") else f"refused: {error}"
    if "typedResult" in test:
        deduced = type_from(test["typedResult"].get("deducedType", {"dyn": {}}))
        if program.result_type != deduced:
            return f"has the type {program.result_type}, not {deduced}"
    if test.get("checkOnly"):
        return None
    return _evaluated(program, test, data)


def _evaluated(program: Any, test: Mapping[str, Any], data: Mapping[str, Any]) -> str | None:
    try:
        result = program.evaluate(data, cost_limit=_COST_LIMIT)
    except CELRuntimeError as error:
        return None if "evalError" in test else f"failed: {error}"
    if "evalError" in test:
        return f"is {result!r} and not an error"
    expected = test.get("value") or test.get("typedResult", {}).get("result") or {"boolValue": True}
    wanted = value_of(expected)
    return None if equal(result, wanted) else f"is {result!r}, not {wanted!r}"


def _declared(test: Mapping[str, Any]) -> Iterator[tuple[str, Type]]:
    for item in test.get("typeEnv", ()):
        if "ident" in item:
            yield item["name"], type_from(item["ident"]["type"])


def type_from(document: Mapping[str, Any]) -> Type:
    """Return the type of a declaration."""
    ((kind, value),) = document.items()
    read = _TYPES.get(kind)
    return types.DYN if read is None else read(value)


_ANY: Mapping[str, Any] = {"dyn": {}}
_TYPES: Mapping[str, Callable[[Any], Type]] = {
    "primitive": _PRIMITIVES.__getitem__,
    "wellKnown": _WELL_KNOWN.__getitem__,
    "null": lambda _: types.NULL,
    "listType": lambda value: types.list_of(type_from(value.get("elemType", _ANY))),
    "mapType": lambda value: types.map_of(type_from(value["keyType"]), type_from(value["valueType"])),
    "type": lambda value: types.type_of(type_from(value or _ANY)),
    "abstractType": lambda value: types.optional_of(type_from(value["parameterTypes"][0])),
}


def value_of(document: Mapping[str, Any]) -> Any:
    """Return the value of a case as ours."""
    ((kind, value),) = document.items()
    read = _VALUES.get(kind)
    return value if read is None else read(value)


_VALUES: Mapping[str, Callable[[Any], Any]] = {
    "int64Value": int,
    "uint64Value": Uint,
    "doubleValue": float,
    "bytesValue": base64.b64decode,
    "nullValue": lambda _: None,
    "typeValue": lambda name: types.TYPE_NAMES.get(name, name),
    "listValue": lambda value: [value_of(item) for item in value.get("values", ())],
    "mapValue": lambda value: {
        _key(value_of(item["key"])): value_of(item["value"]) for item in value.get("entries", ())
    },
}


def _key(key: Any) -> Any:
    return ("bool", key) if isinstance(key, bool) else key


def equal(result: Any, wanted: Any) -> bool:
    """Report whether two values have the same type and are equal; NaN equals itself."""
    if isinstance(wanted, float) and isinstance(result, float):
        return result == wanted or (math.isnan(result) and math.isnan(wanted))
    if isinstance(wanted, list) and isinstance(result, (list, tuple)):
        return len(result) == len(wanted) and all(map(equal, result, wanted))
    if isinstance(wanted, dict) and isinstance(result, dict):
        found = {_key(runtime.unkey(key)): value for key, value in result.items()}
        return found.keys() == wanted.keys() and all(equal(found[key], value) for key, value in wanted.items())
    if isinstance(wanted, Type) and isinstance(result, Type):
        return result.type_name == wanted.type_name
    if isinstance(result, (Timestamp, Duration)):
        return False
    return type(result) is type(wanted) and bool(result == wanted)
