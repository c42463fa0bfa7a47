"""Validation of ResourceClaims."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from dray.api.document import Document
from dray.api.validation.resource_claim import validate_claim, validate_claim_update
from tests.conformance.api.resource.resource_rows import (
    COMPILERS,
    IDENTIFIER,
    LABEL,
    SUBDOMAIN,
    changed,
    params,
    row,
    texts,
)

R0 = "spec.devices.requests[0]"
REFERENCE = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
ONE_ATTRIBUTE = 'exactly one of "matchAttribute" or "distinctAttribute" is required, but multiple fields are set'


def exactly(**fields: Any) -> Document:
    return {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1, **fields}


def alternative(name: str, **fields: Any) -> Document:
    return {"name": name, **exactly(**fields)}


def claim(*requests: Document, **devices: Any) -> Document:
    return {
        "metadata": {"name": "c", "namespace": "n"},
        "spec": {"devices": {"requests": list(requests) or [{"name": "r", "exactly": exactly()}], **devices}},
    }


def one(**fields: Any) -> Document:
    """Return a claim with one exact request."""
    return claim({"name": "r", "exactly": exactly(**fields)})


def either(*alternatives: Document, name: str = "r", **devices: Any) -> Document:
    return claim({"name": name, "firstAvailable": list(alternatives)}, **devices)


def opaque(parameters: Any = None, driver: str = "d.example.com", **fields: Any) -> Document:
    value = {"driver": driver} | ({} if parameters is None else {"parameters": parameters})
    return {"opaque": value, **fields}


TWO = either(alternative("a"), alternative("b"))
NOTHING = changed(claim(), "spec.devices.requests", None)

ROWS = {
    "minimal": row("SP-08 SP-09 PL-01", claim()),
    "no requests at all": row("SP-08", NOTHING),
    "32 requests": row("SP-08", claim(*({"name": f"r{i}", "exactly": exactly()} for i in range(32)))),
    "33 requests stop all checks of requests": row(
        "SP-08",
        claim(*({"name": "BAD"} for _ in range(33))),
        "spec.devices.requests: Too many: 33: must have at most 32 items",
    ),
    "bad requests within the limit are all reported": row(
        "SP-08",
        claim({"name": "a/b", "exactly": exactly()}, {"name": "", "exactly": exactly()}),
        f'{R0}.name: Invalid value: "a/b": {LABEL}',
        f'spec.devices.requests[1].name: Invalid value: "": {LABEL}',
    ),
    "same name twice": row(
        "SP-08",
        claim({"name": "r", "exactly": exactly()}, {"name": "r", "exactly": exactly()}),
        'spec.devices.requests[1]: Duplicate value: "r"',
    ),
    "33 constraints": row(
        "SP-08",
        claim(constraints=[{}] * 33),
        "spec.devices.constraints: Too many: 33: must have at most 32 items",
    ),
    "33 configs": row(
        "SP-08", claim(config=[{}] * 33), "spec.devices.config: Too many: 33: must have at most 32 items"
    ),
    "neither kind of request": row(
        "PL-01 PL-03",
        claim({"name": "r"}),
        f"{R0}: Required value: exactly one of `exactly` or `firstAvailable` is required",
    ),
    "empty list of alternatives counts as none": row(
        "PL-01 PL-04",
        claim({"name": "r", "firstAvailable": []}),
        f"{R0}: Required value: exactly one of `exactly` or `firstAvailable` is required",
    ),
    "both kinds of request": row(
        "PL-01 PL-02",
        claim({"name": "r", "exactly": exactly(), "firstAvailable": [alternative("a")]}),
        f"{R0}: Invalid value: null: exactly one of `exactly` or `firstAvailable` is required, "
        "but multiple fields are set",
    ),
    "no class": row("SP-09", one(deviceClassName=""), f"{R0}.exactly.deviceClassName: Required value"),
    "class is no subdomain": row(
        "SP-09",
        one(deviceClassName="G PU"),
        f'{R0}.exactly.deviceClassName: Invalid value: "G PU": {SUBDOMAIN}',
    ),
    "class of 254 bytes": row(
        "SP-09",
        one(deviceClassName="a" * 254),
        f'{R0}.exactly.deviceClassName: Invalid value: "{"a" * 254}": must be no more than 253 characters',
    ),
    "exact count of none": row(
        "SP-09", one(count=0), f"{R0}.exactly.count: Invalid value: 0: must be greater than zero"
    ),
    "negative count": row("SP-09", one(count=-1), f"{R0}.exactly.count: Invalid value: -1: must be greater than zero"),
    "all": row("SP-09", one(allocationMode="All", count=0)),
    "all with a count": row(
        "SP-09",
        one(allocationMode="All"),
        f"{R0}.exactly.count: Invalid value: 1: must not be specified when allocationMode is 'All'",
    ),
    "unknown mode": row(
        "SP-09",
        one(allocationMode="Some"),
        f'{R0}.exactly.allocationMode: Unsupported value: "Some": supported values: "All", "ExactCount"',
    ),
    "selector": row("SP-10", one(selectors=[{"cel": {"expression": "true"}}])),
    "selector without cel": row("SP-10", one(selectors=[{}]), f"{R0}.exactly.selectors[0].cel: Required value"),
    "selector that does not compile": row(
        "SP-10",
        one(selectors=[{"cel": {"expression": "bad("}}]),
        f'{R0}.exactly.selectors[0].cel.expression: Invalid value: "bad(": '
        "compilation failed: ERROR: <input>:1:5: Syntax error",
    ),
    "selector that costs too much": row(
        "SP-10",
        one(selectors=[{"cel": {"expression": "costly"}}]),
        f"{R0}.exactly.selectors[0].cel.expression: Forbidden: too complex, exceeds cost limit",
    ),
    "selector of 10240 bytes": row("SP-10", one(selectors=[{"cel": {"expression": "a" * 10240}}])),
    "selector of 10241 bytes": row(
        "SP-10",
        one(selectors=[{"cel": {"expression": "a" * 10241}}]),
        f"{R0}.exactly.selectors[0].cel.expression: Too long: may not be more than 10240 bytes",
    ),
    "33 selectors": row(
        "SP-09 SP-10",
        one(selectors=[{}] * 33),
        f"{R0}.exactly.selectors: Too many: 33: must have at most 32 items",
    ),
    "match": row("SP-11", claim(constraints=[{"matchAttribute": "d.example.com/numa"}])),
    "match for a request": row("SP-11", claim(constraints=[{"requests": ["r"], "matchAttribute": "d/numa"}])),
    "distinct": row("SP-11", claim(constraints=[{"distinctAttribute": "d.example.com/numa"}])),
    "constraint of nothing": row(
        "SP-11", claim(constraints=[{}]), f"spec.devices.constraints[0]: Required value: {ONE_ATTRIBUTE}"
    ),
    "match and distinct": row(
        "SP-11",
        claim(constraints=[{"matchAttribute": "d/a", "distinctAttribute": "d/b"}]),
        f"spec.devices.constraints[0]: Invalid value: null: {ONE_ATTRIBUTE}",
    ),
    "match without domain": row(
        "SP-11",
        claim(constraints=[{"matchAttribute": "numa"}]),
        'spec.devices.constraints[0].matchAttribute: Invalid value: "numa": '
        "a fully qualified name must be a domain and a name separated by a slash",
    ),
    "match with two slashes": row(
        "SP-06 SP-11",
        claim(constraints=[{"matchAttribute": "a/b/c"}]),
        'spec.devices.constraints[0].matchAttribute: Invalid value: "a/b/c": must not contain more than one slash',
    ),
    "match with empty parts": row(
        "SP-06 SP-11 N-144",
        claim(constraints=[{"matchAttribute": "/"}]),
        'spec.devices.constraints[0].matchAttribute: Invalid value: "": prefix must not be empty',
        'spec.devices.constraints[0].matchAttribute: Invalid value: "": name must not be empty',
    ),
    "match with a bad identifier": row(
        "SP-06 SP-11",
        claim(constraints=[{"distinctAttribute": "d.example.com/1a"}]),
        f'spec.devices.constraints[0].distinctAttribute: Invalid value: "1a": {IDENTIFIER}',
    ),
    "constraint names an unknown request": row(
        "SP-11 PL-09",
        claim(constraints=[{"requests": ["other"], "matchAttribute": "d/a"}]),
        f'spec.devices.constraints[0].requests[0]: Invalid value: "other": {REFERENCE}',
    ),
    "constraint names a request twice": row(
        "SP-11",
        claim(constraints=[{"requests": ["r", "r"], "matchAttribute": "d/a"}]),
        'spec.devices.constraints[0].requests[1]: Duplicate value: "r"',
    ),
    "config": row("SP-12", claim(config=[opaque({"a": 1}), opaque({}, requests=["r"])])),
    "config of nothing": row("SP-12", claim(config=[{}]), "spec.devices.config[0].opaque: Required value"),
    "config without driver and parameters": row(
        "SP-12",
        claim(config=[opaque(driver="")]),
        "spec.devices.config[0].opaque.driver: Required value",
        "spec.devices.config[0].opaque.parameters: Required value",
    ),
    "config that is no object": row(
        "SP-12",
        claim(config=[opaque([1])]),
        'spec.devices.config[0].opaque.parameters: Invalid value: "<value omitted>": must be a valid JSON object',
    ),
    "config of 10 Ki": row("SP-12", claim(config=[opaque({"k": "a" * (10240 - 8)})])),
    "config of more than 10 Ki": row(
        "SP-12",
        claim(config=[opaque({"k": "a" * (10240 - 7)})]),
        "spec.devices.config[0].opaque.parameters: Too long: may not be more than 10240 bytes",
    ),
    "config with a long driver name": row(
        "SP-03 SP-12",
        claim(config=[opaque({}, driver="a" * 64)]),
        "spec.devices.config[0].opaque.driver: Too long: may not be more than 63 characters",
    ),
    "tolerations": row(
        "SP-25",
        one(
            tolerations=[
                {"key": "a.example.com/k", "operator": "Exists", "effect": "NoSchedule"},
                {"operator": "Exists"},
                {"key": "k", "operator": "Equal", "value": "v", "effect": "NoExecute", "tolerationSeconds": 5},
            ]
        ),
    ),
    "bad tolerations": row(
        "SP-25",
        one(
            tolerations=[
                {"operator": "Exists", "value": "x"},
                {"key": "k"},
                {"operator": "In", "effect": "Some"},
            ]
        ),
        f'{R0}.exactly.tolerations[0].value: Invalid value: "x": must be empty for operator `Exists`',
        f"{R0}.exactly.tolerations[1].operator: Required value",
        f'{R0}.exactly.tolerations[2].operator: Unsupported value: "In": supported values: "Equal", "Exists"',
        f'{R0}.exactly.tolerations[2].effect: Unsupported value: "Some": supported values: '
        '"NoExecute", "NoSchedule", "None"',
    ),
    "alternatives": row("PL-01 PL-04 PL-05", TWO),
    "eight alternatives": row("PL-04", either(*(alternative(f"a{i}") for i in range(8)))),
    "nine alternatives": row(
        "PL-04",
        either(*(alternative("BAD") for i in range(9))),
        f"{R0}.firstAvailable: Too many: 9: must have at most 8 items",
    ),
    "alternative without name and class": row(
        "PL-05",
        either({"allocationMode": "All"}),
        f'{R0}.firstAvailable[0].name: Invalid value: "": {LABEL}',
        f"{R0}.firstAvailable[0].deviceClassName: Required value",
    ),
    "alternative with bad mode, count and selector": row(
        "PL-08",
        either(
            alternative("a", allocationMode="Some"),
            alternative("b", count=0),
            alternative("c", allocationMode="All", count=2),
            alternative("d", selectors=[{"cel": {"expression": "bad("}}]),
        ),
        f'{R0}.firstAvailable[0].allocationMode: Unsupported value: "Some": supported values: "All", "ExactCount"',
        f"{R0}.firstAvailable[1].count: Invalid value: 0: must be greater than zero",
        f"{R0}.firstAvailable[2].count: Invalid value: 2: must not be specified when allocationMode is 'All'",
        f'{R0}.firstAvailable[3].selectors[0].cel.expression: Invalid value: "bad(": '
        "compilation failed: ERROR: <input>:1:5: Syntax error",
    ),
    "alternative with 33 selectors and a bad toleration": row(
        "PL-05",
        either(alternative("a", selectors=[{}] * 33, tolerations=[{}])),
        f"{R0}.firstAvailable[0].selectors: Too many: 33: must have at most 32 items",
        f"{R0}.firstAvailable[0].tolerations[0].operator: Required value",
    ),
    "same alternative twice in a request": row(
        "PL-06",
        either(alternative("a"), alternative("a")),
        f'{R0}.firstAvailable[1]: Duplicate value: "a"',
    ),
    "same alternative in two requests": row(
        "PL-06",
        claim(
            {"name": "r", "firstAvailable": [alternative("a")]},
            {"name": "s", "firstAvailable": [alternative("a")]},
        ),
    ),
    "references to alternatives": row(
        "PL-09",
        either(
            alternative("a"),
            alternative("b"),
            constraints=[{"requests": ["r/a", "r/b", "r"], "matchAttribute": "d/a"}],
            config=[opaque({}, requests=["r/b"])],
        ),
    ),
    "references to unknown alternatives": row(
        "PL-09",
        either(
            alternative("a"),
            constraints=[{"requests": ["r/x", "r/a/a", "s/a"], "matchAttribute": "d/a"}],
        ),
        f'spec.devices.constraints[0].requests[0]: Invalid value: "r/x": {REFERENCE}',
        f'spec.devices.constraints[0].requests[1]: Invalid value: "r/a/a": {REFERENCE}',
        f'spec.devices.constraints[0].requests[2]: Invalid value: "s/a": {REFERENCE}',
    ),
    "alternative of an exact request": row(
        "PL-09",
        claim(config=[opaque({}, requests=["r/a"])]),
        f'spec.devices.config[0].requests[0]: Invalid value: "r/a": {REFERENCE}',
    ),
    "alternative on its own": row(
        "PL-10",
        either(alternative("a"), config=[opaque({}, requests=["a"])]),
        f'spec.devices.config[0].requests[0]: Invalid value: "a": {REFERENCE}',
    ),
    "reference that is no label": row(
        "PL-09",
        claim(config=[opaque({}, requests=["R"])]),
        f'spec.devices.config[0].requests[0]: Invalid value: "R": {LABEL}',
        f'spec.devices.config[0].requests[0]: Invalid value: "R": {REFERENCE}',
    ),
    "everything missing": row("SP-08", {"metadata": {}}),
}


@pytest.mark.parametrize(("given", "expected"), params(ROWS))
def test_claim(given: Document, expected: list[str]) -> None:
    before = copy.deepcopy(given)
    assert texts(validate_claim(given, COMPILERS)) == expected
    assert given == before


@pytest.mark.behaviour("SP-16")
def test_spec_is_immutable() -> None:
    new = claim({"name": "other", "exactly": exactly(deviceClassName="gpu.example.com")})
    assert texts(validate_claim_update(new, claim())) == ["spec: Invalid value: null: field is immutable"]


@pytest.mark.behaviour("SP-12", "SP-16", "SP-28")
def test_a_stored_spec_is_not_validated_again() -> None:
    stored = claim(config=[opaque({"k": "a" * 20000})])
    assert validate_claim_update(copy.deepcopy(stored), stored) == []
    assert validate_claim(stored, COMPILERS) != []
