"""Device selectors: the cases of Kubernetes' dynamic-resource-allocation cel tests, by their names there."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import pytest

from dray.cel.environments import SELECTOR_COST_LIMIT, compile_device_selector, device_view
from dray.cel.errors import CELCostError, CELError, CELInterruptedError, CELRuntimeError
from dray.lib.processor_time import StepMeter, metered

pytestmark = pytest.mark.api_cel

DRIVER = "dra.example.com"
HERE = f'device.attributes["{DRIVER}"]'
SPACE = f'device.capacity["{DRIVER}"]'
VALUE_MAX = 64
# More values than a device can have.
LONG = 49

ALL = f"""
{SPACE}.quantity.isGreaterThan(quantity("1Ki")) &&
{HERE}.bool &&
{HERE}.int > 0 &&
{HERE}.string == "fish" &&
{HERE}.version.isGreaterThan(semver("0.0.1")) &&
{SPACE}["quantity"].isGreaterThan(quantity("1Ki")) &&
{HERE}["bool"] &&
{HERE}["int"] > 0 &&
{HERE}["string"] == "fish" &&
{HERE}["version"].isGreaterThan(semver("0.0.1"))
"""
TEN = "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]"
EXPENSIVE = "int('1'.find('[0-9]*')) < 100"
for _variable in ("z5", "z4", "z3", "z2", "z", "y", "x"):
    EXPENSIVE = f"{TEN}.all({_variable}, {EXPENSIVE})"


@dataclass(frozen=True)
class Case:
    expression: str
    match: bool | None = None
    cost: int | None = None
    error: str = ""
    compile_error: str = ""
    attributes: dict[str, Any] = field(default_factory=dict)
    capacity: dict[str, Any] = field(default_factory=dict)
    driver: str = DRIVER
    allow_multiple: bool | None = None
    options: dict[str, bool] = field(default_factory=dict)
    behaviours: tuple[str, ...] = ()


def loop(base: int, each: int) -> int:
    return base + each * VALUE_MAX


def includes(argument: str, value: dict[str, Any], *, match: bool, extra: int = 0) -> Case:
    return Case(
        f"{HERE}.name.includes({argument})",
        match,
        4 + VALUE_MAX + extra,
        attributes={"name": value},
        behaviours=("SP-44", "N-61"),
    )


def many(count: int) -> list[str]:
    return [f"value-{i}" for i in range(count)]


CASES: dict[str, Case] = {
    "true": Case("true", True, 0),
    "false": Case("false", False, 0),
    "syntax-error": Case("?!", compile_error="Syntax error", behaviours=("SP-40",)),
    "type-error": Case(
        "1", compile_error="must evaluate to bool or the unknown type, not int", behaviours=("SP-40", "SP-10")
    ),
    "runtime-error-lookup-identifier": Case(
        'device.attributes["no-such-domain"].noSuchAttr.isGreaterThan(quantity("0"))',
        error="no such key: noSuchAttr",
        cost=6,
        behaviours=("SP-39",),
    ),
    "runtime-error-lookup-map": Case(
        'device.attributes["no-such-domain"]["noSuchAttr"].isGreaterThan(quantity("0"))',
        error="no such key: noSuchAttr",
        cost=6,
        behaviours=("SP-39",),
    ),
    "domain-check-negative": Case('"no-such-domain" in device.attributes', False, 3, behaviours=("SP-39",)),
    "domain-check-empty": Case('"x" in device.attributes["no-such-domain"]', False, 4, behaviours=("SP-39",)),
    "domain-check-positive": Case(
        f'"{DRIVER}" in device.attributes',
        True,
        3,
        attributes={f"{DRIVER}/something": {"bool": True}},
        behaviours=("SP-39",),
    ),
    "empty-driver-name": Case('device.driver == ""', True, 2, driver=""),
    "real-driver-name": Case(f'device.driver == "{DRIVER}"', True, 4, behaviours=("SP-37",)),
    "driver-name-qualifier": Case(f"{HERE}.name", True, 4, attributes={"name": {"bool": True}}, behaviours=("SP-38",)),
    "driver-name-qualifier-map-lookup": Case(f'{HERE}["name"]', True, 4, attributes={"name": {"bool": True}}),
    "bind": Case(
        f"cel.bind(dra, {HERE}, dra.name)", True, 15, attributes={"name": {"bool": True}}, behaviours=("SP-41",)
    ),
    "qualified-attribute-name": Case(
        'device.attributes["other.example.com"].name',
        True,
        4,
        attributes={"other.example.com/name": {"bool": True}},
        behaviours=("SP-38",),
    ),
    "bool": Case(f"{HERE}.name", True, 4, attributes={"name": {"bool": True}}, behaviours=("SP-37",)),
    "int": Case(f"{HERE}.name > 0", True, 5, attributes={"name": {"int": 1}}, behaviours=("SP-37",)),
    "string": Case(f'{HERE}.name == "fish"', True, 5, attributes={"name": {"string": "fish"}}, behaviours=("SP-37",)),
    "macro-exists-on-int": Case(
        f"{HERE}.name.exists(x, x > 0)",
        error="got 'types.Int', expected iterable type",
        cost=loop(5, 6),
        attributes={"name": {"int": 1}},
    ),
    "macro-exists-on-bool": Case(
        f"{HERE}.name.exists(x, x == true)",
        error="got 'types.Bool', expected iterable type",
        cost=loop(5, 6),
        attributes={"name": {"bool": True}},
    ),
    "macro-exists-on-string": Case(
        f'{HERE}.name.exists(x, x == "fish")',
        error="got 'types.String', expected iterable type",
        cost=loop(5, 6),
        attributes={"name": {"string": "fish"}},
    ),
    "macro-exists-on-version": Case(
        f'{HERE}.name.exists(x, x.isGreaterThan(semver("0.0.1")))',
        error="got 'cel.Semver', expected iterable type",
        cost=loop(5, 7),
        attributes={"name": {"version": "1.0.0"}},
    ),
    "list-result-type-causes-match-error": Case(
        f"{HERE}.names",
        error="CEL result of type list could not be converted to bool",
        cost=4,
        attributes={"names": {"strings": ["fish", "bird"]}},
        behaviours=("SP-40", "N-61"),
    ),
    "list-of-bool": Case(
        f"{HERE}.names.size() == 2", True, 6, attributes={"names": {"bools": [True, False]}}, behaviours=("SP-44",)
    ),
    "list-of-int": Case(
        f"{HERE}.names.size() == 2", True, 6, attributes={"names": {"ints": [1, 2]}}, behaviours=("SP-44",)
    ),
    "list-of-string": Case(
        f"{HERE}.names.size() == 2", True, 6, attributes={"names": {"strings": ["a", "b"]}}, behaviours=("SP-44",)
    ),
    "list-of-semver": Case(
        f"{HERE}.names.size() == 2",
        True,
        6,
        attributes={"names": {"versions": ["1.0.0", "2.0.0"]}},
        behaviours=("SP-44",),
    ),
    "macro-on-list-of-int": Case(
        f"{HERE}.names.exists(x, x > 0)", True, loop(5, 6), attributes={"names": {"ints": [1, 2]}}
    ),
    "macro-on-list-of-string": Case(
        f'{HERE}.names.all(x, x != "")', True, loop(5, 4), attributes={"names": {"strings": ["fish", "bird"]}}
    ),
    "macro-on-list-of-semver": Case(
        f'{HERE}.names.all(x, x.isGreaterThan(semver("0.0.1")))',
        True,
        loop(5, 6),
        attributes={"names": {"versions": ["1.0.0", "2.0.0"]}},
    ),
    "includes-function-compilation-error": Case(
        f'{HERE}.attr.includes("fish")',
        compile_error="undeclared reference to 'includes'",
        options={"list_attributes": False},
        behaviours=("SP-44",),
    ),
    "macro-without-list-attributes": Case(
        f"{HERE}.attr.exists(x, x > 0)",
        compile_error="expression of type 'any' cannot be range of a comprehension (must be list, map, or dynamic)",
        options={"list_attributes": False},
    ),
    "includes-function-on-bool-scalar-positive": includes("true", {"bool": True}, match=True),
    "includes-function-on-bool-scalar-negative": includes("true", {"bool": False}, match=False),
    "includes-function-on-bool-list-positive": includes("true", {"bools": [True, False]}, match=True),
    "includes-function-on-bool-list-negative": includes("false", {"bools": [True, True]}, match=False),
    "includes-function-on-int-scalar-positive": includes("1", {"int": 1}, match=True),
    "includes-function-on-int-scalar-negative": includes("1", {"int": 2}, match=False),
    "includes-function-on-int-list-positive": includes("1", {"ints": [1, 2]}, match=True),
    "includes-function-on-int-list-negative": includes("3", {"ints": [1, 2]}, match=False),
    "includes-function-on-string-scalar-positive": includes('"fish"', {"string": "fish"}, match=True),
    "includes-function-on-string-scalar-negative": includes('"bird"', {"string": "fish"}, match=False),
    "includes-function-on-string-list-positive": includes('"fish"', {"strings": ["fish", "bird"]}, match=True),
    "includes-function-on-string-list-negative": includes('"cat"', {"strings": ["fish", "bird"]}, match=False),
    "includes-function-on-semver-scalar-positive": includes(
        'semver("1.0.0")', {"version": "1.0.0"}, match=True, extra=1
    ),
    "includes-function-on-semver-scalar-negative": includes(
        'semver("2.0.0")', {"version": "1.0.0"}, match=False, extra=1
    ),
    "includes-function-on-semver-list-positive": includes(
        'semver("1.0.0")', {"versions": ["1.0.0", "2.0.0"]}, match=True, extra=1
    ),
    "includes-function-on-semver-list-negative": includes(
        'semver("3.0.0")', {"versions": ["1.0.0", "2.0.0"]}, match=False, extra=1
    ),
    "includes-function-on-very-long-list-positive": includes(
        f'"value-{LONG - 1}"', {"strings": many(LONG)}, match=True
    ),
    "includes-function-on-very-long-list-negative": includes(f'"value-{LONG}"', {"strings": many(LONG)}, match=False),
    "includes-function-on-typed-list": Case("[1, 2, 3].includes(3)", match=True, cost=13, behaviours=("N-61",)),
    "list-result-type-causes-compile-error": Case(
        "[true]",
        compile_error="must evaluate to bool or the unknown type, not list(bool)",
        behaviours=("N-61",),
    ),
    "includes-of-another-type": Case(
        f'{HERE}.name.includes("1.0.0") || {HERE}.names.includes("1.0.0")',
        False,
        attributes={"name": {"version": "1.0.0"}, "names": {"versions": ["1.0.0"]}},
        cost=2 * (4 + VALUE_MAX),
        behaviours=("SP-44",),
    ),
    "equality-with-another-type": Case(
        f'!({HERE}.name == "1.0.0")', error="no such overload", cost=6, attributes={"name": {"version": "1.0.0"}}
    ),
    "inequality-with-another-type": Case(
        f'{HERE}.name != "1.0.0" && "1.0.0" != {HERE}.name && {HERE}.name != null',
        True,
        cost=15,
        attributes={"name": {"version": "1.0.0"}},
    ),
    "in-operator-on-list": Case(
        f"1 in {HERE}.names", True, 4 + VALUE_MAX, attributes={"names": {"ints": [1, 2, 3]}}, behaviours=("SP-44",)
    ),
    "version": Case(
        f'{HERE}.name.isGreaterThan(semver("0.0.1"))',
        True,
        6,
        attributes={"name": {"version": "1.0.0"}},
        behaviours=("SP-41",),
    ),
    "version_v": Case(
        f'{HERE}.name.isGreaterThan(semver("v0.0.1", true)) && isSemver("v1.0.0", true)',
        True,
        7,
        attributes={"name": {"version": "1.0.0"}},
        behaviours=("SP-41",),
    ),
    "quantity": Case(
        f'{SPACE}.name.isGreaterThan(quantity("1Ki"))',
        True,
        6,
        capacity={"name": {"value": "1Mi"}},
        behaviours=("SP-37", "SP-41"),
    ),
    "check-positive": Case(
        f'"name" in {SPACE} && {SPACE}.name.isGreaterThan(quantity("1Ki"))',
        True,
        10,
        capacity={"name": {"value": "1Mi"}},
    ),
    "check-negative": Case(f'!("name" in {SPACE}) || {SPACE}.name.isGreaterThan(quantity("1Ki"))', True, 11),
    "all": Case(
        ALL,
        True,
        52,
        attributes={
            "bool": {"bool": True},
            "int": {"int": 1},
            "string": {"string": "fish"},
            "version": {"version": "1.0.0"},
        },
        capacity={"quantity": {"value": "1Mi"}},
        behaviours=("SP-37",),
    ),
    "many": Case(
        f"{HERE}.a && {HERE}.b && {HERE}.c",
        True,
        12,
        attributes={"a": {"bool": True}, "b": {"bool": True}, "c": {"bool": True}},
    ),
    "check_attribute_domains": Case(
        f'device.attributes.exists_one(x, x == "{DRIVER}")',
        True,
        164,
        attributes={"services": {"string": "some_example_value"}},
        behaviours=("SP-39",),
    ),
    "check_attribute_ids": Case(
        f'{HERE}.exists_one(x, x == "services")', True, 133, attributes={"services": {"string": "some_example_value"}}
    ),
    "split_attribute": Case(
        f'{HERE}.services.split("example").size() >= 2',
        True,
        19,
        attributes={"services": {"string": "some_example_value"}},
        behaviours=("SP-41",),
    ),
    "regexp_attribute": Case(
        f'{HERE}.services.matches("[^a]?sym")',
        True,
        18,
        attributes={"services": {"string": "asymetric"}},
        behaviours=("SP-41",),
    ),
    "check_capacity_domains": Case(
        f'device.capacity.exists_one(x, x == "{DRIVER}")', True, 164, capacity={"memory": {"value": "1Mi"}}
    ),
    "check_capacity_ids": Case(
        f'{SPACE}.exists_one(x, x == "memory")', True, 133, capacity={"memory": {"value": "1Mi"}}
    ),
    "expensive": Case(
        EXPENSIVE,
        error="actual cost limit exceeded",
        cost=85555551,
        attributes={f"{DRIVER}/{f'-{i}'.rjust(32, 'x')}": {"string": "abc"} for i in range(32)},
        behaviours=("SP-42",),
    ),
    "allow_multiple_allocations": Case(
        "device.allowMultipleAllocations == true", True, 3, allow_multiple=True, behaviours=("SP-37",)
    ),
    "allow_multiple_allocations_default": Case("device.allowMultipleAllocations == false", True, 3),
    "allow_multiple_allocations_false": Case("device.allowMultipleAllocations == false", True, 3, allow_multiple=False),
    "allow_multiple_allocations_disabled": Case(
        "device.allowMultipleAllocations == false",
        compile_error="undefined field 'allowMultipleAllocations'",
        options={"consumable_capacity": False},
    ),
}


def rows() -> list[Any]:
    return [
        pytest.param(case, id=name, marks=[pytest.mark.behaviour(*case.behaviours)] if case.behaviours else [])
        for name, case in CASES.items()
    ]


@pytest.mark.parametrize("case", rows())
def test_selector(case: Case) -> None:
    if case.compile_error:
        with pytest.raises(CELError) as refused:
            compile_device_selector(case.expression, **case.options)
        assert case.compile_error in str(refused.value)
        return
    selector = compile_device_selector(case.expression, **case.options)
    document: dict[str, Any] = {"name": "d", "attributes": case.attributes, "capacity": case.capacity}
    if case.allow_multiple is not None:
        document["allowMultipleAllocations"] = case.allow_multiple
    device = device_view(case.driver, document)
    assert selector.estimated_cost == case.cost
    # As in Kubernetes' own test, what an evaluation costs in fact is never more than estimated.
    measured = selector.program.measure([device])
    assert measured.cost <= selector.estimated_cost
    if case.error:
        with pytest.raises(CELRuntimeError) as failed:
            selector.evaluate(device)
        assert case.error in str(failed.value)
    else:
        assert selector.evaluate(device) is case.match


@pytest.mark.behaviour("SP-10")
def test_syntax_error_text_of_the_real_server() -> None:
    with pytest.raises(CELError) as refused:
        compile_device_selector("device.foo(")
    assert refused.value.detail == (
        "compilation failed: ERROR: <input>:1:12: Syntax error: mismatched input '<EOF>' expecting {'[', '{', '(', "
        "')', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}\n"
        " | device.foo(\n"
        " | ...........^"
    )


@pytest.mark.behaviour("SP-10")
def test_estimated_cost_above_the_limit_is_reported() -> None:
    assert compile_device_selector(EXPENSIVE).estimated_cost > SELECTOR_COST_LIMIT


@pytest.mark.behaviour("SP-42")
def test_interrupt_ends_the_evaluation() -> None:
    expression = f"{HERE}.map(key, {HERE}[key] * 20).filter(e, e > 50).exists(e, e == 60)"
    selector = compile_device_selector(expression)
    device = device_view("", {"attributes": {f"{DRIVER}/attr{i}": {"int": i} for i in range(1000)}})
    with pytest.raises(CELInterruptedError, match="operation interrupted"):
        selector.evaluate(device, interrupt=lambda: True)
    assert selector.evaluate(device, interrupt=lambda: False) is True


@pytest.mark.behaviour("SP-42")
def test_the_processor_time_of_a_request_ends_the_evaluation() -> None:
    expression = f"{HERE}.map(key, {HERE}[key] * 20).filter(e, e > 50).exists(e, e == 60)"
    selector = compile_device_selector(expression)
    device = device_view("", {"attributes": {f"{DRIVER}/attr{i}": {"int": i} for i in range(1000)}})
    seconds = itertools.count()

    def suspend() -> None:
        meter.end()
        meter.begin()

    meter = StepMeter(
        lambda: float(next(seconds)),
        lambda: float(next(seconds)),
        suspend,
        lambda call: (call(), 0.0),
        slice_seconds=1.0,
        expression_seconds=3.0,
    )
    meter.begin()
    with metered(meter), pytest.raises(CELInterruptedError, match="operation interrupted"):
        selector.evaluate(device)


@pytest.mark.behaviour("SP-42")
def test_cost_limit_counts_at_run_time() -> None:
    selector = compile_device_selector(f"{HERE}.all(key, {HERE}[key] >= 0)")
    device = device_view("", {"attributes": {f"{DRIVER}/attr{i}": {"int": i} for i in range(32)}})
    assert selector.evaluate(device, cost_limit=selector.estimated_cost) is True
    with pytest.raises(CELCostError):
        selector.evaluate(device, cost_limit=50)
