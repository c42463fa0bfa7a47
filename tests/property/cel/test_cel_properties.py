"""Random expressions: agreement with Google's implementation, and invariants."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dray import cel
from dray.cel.environments import compile_device_selector, device_view
from dray.cel.errors import CELError, CELRuntimeError
from dray.cel.values import INT_MAX, INT_MIN, Duration, Timestamp, Uint
from tests.property.cel.expressions import Expressions
from tests.property.cel.oracle import VARIABLES, agree

pytestmark = pytest.mark.api_cel

TYPES = {name: pair[0] for name, pair in VARIABLES.items()}
SEEDS = st.integers(0, 2**48)
INT64 = st.integers(INT_MIN, INT_MAX)
# No spaces: the bindings accept them around numbers, Go does not.
TEXT = st.text("aAbé0x1-", max_size=6)
SCALARS = st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from([0.5, 1.0]) | TEXT
TOKENS = [*"()[]{}.,?:!-+*/%<>=&|\"'x1u ", "&&", "in ", "has(", "x.all("]
DATA = st.fixed_dictionaries(
    {
        "i": INT64,
        "j": st.integers(-9, 9),
        "u": st.integers(0, 2**64 - 1).map(Uint),
        "d": st.floats(allow_nan=False),
        "s": TEXT,
        "t": TEXT,
        # The bindings end bytes at the first zero.
        "raw": st.binary(max_size=4).map(lambda data: data.replace(b"\0", b"n")),
        "yes": st.booleans(),
        "l": st.lists(st.integers(-9, 9), max_size=4),
        # One entry: maps are iterated in any order.
        "m": st.dictionaries(st.sampled_from(["a", "b"]), st.integers(-9, 9), max_size=1),
        "names": st.lists(TEXT, max_size=3),
        "any": st.fixed_dictionaries(
            {"a": SCALARS, "nested": st.fixed_dictionaries({"k": SCALARS})},
            optional={"b": SCALARS, "list": st.lists(SCALARS, max_size=3)},
        ),
        "x": SCALARS,
        "when": st.integers(0, 4 * 10**9).map(lambda seconds: Timestamp(seconds * 10**9)),
        "span": st.integers(-(10**6), 10**6).map(lambda millis: Duration(millis * 10**6)),
    }
)


@settings(max_examples=600, deadline=None)
@given(SEEDS, DATA)
def test_same_type_and_value_as_the_oracle(seed: int, data: dict[str, Any]) -> None:
    expression = Expressions(random.Random(seed)).draw(None, 4)
    assert agree(expression, data), expression


@settings(max_examples=300, deadline=None)
@given(SEEDS, DATA)
def test_both_versions_of_the_code_agree(seed: int, data: dict[str, Any]) -> None:
    expression = Expressions(random.Random(seed)).draw(None, 4)
    try:
        program = cel.compile_program(expression, TYPES, homogeneous=False)
        result = program.evaluate(data)
    except (CELError, CELRuntimeError):
        return
    careful = program._run_carefully(tuple(data[name] for name in TYPES), cel.program.COST_LIMIT, None)
    assert repr(careful) == repr(result), expression


@settings(max_examples=300, deadline=None)
@given(SEEDS, DATA)
def test_generated_code_agrees_with_the_exact_evaluation_and_charges_no_less(seed: int, data: dict[str, Any]) -> None:
    expression = Expressions(random.Random(seed)).draw(None, 4)
    try:
        program = cel.compile_program(expression, TYPES, homogeneous=False)
    except CELError:
        return
    values = [data[name] for name in TYPES]
    bounded, measured = program.run_bounded(values, cel.program.COST_LIMIT), program.measure(values)
    assert repr(measured.value) == repr(bounded.value), expression
    assert str(measured.error) == str(bounded.error), expression
    assert measured.cost <= bounded.cost_bound, expression


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=40) | st.lists(st.sampled_from(TOKENS)).map("".join))
def test_any_text_compiles_or_is_rejected(text: str) -> None:
    try:
        cel.compile_program(text, TYPES)
    except CELError as error:
        assert str(error).startswith("ERROR: <input>:")  # noqa: PT017 - the other outcome is success


HERE = 'device.attributes["d"]'
CONDITIONS = [
    'device.driver == "gpu.example.com"',
    # Not startsWith and join: Kubernetes estimates them by less than it charges at run time.
    'device.driver.contains("gpu")',
    f'{HERE}.model == "A100"',
    f'{HERE}.model.matches("^A[0-9]+$")',
    f'{HERE}.all(k, k != "zz")',
    f'{HERE}.exists(k, k.contains("mod"))',
    f"{HERE}.map(k, k + k).size() > 1",
    f'{HERE}.filter(k, k > "a").exists_one(k, k == "model")',
    'device.attributes.exists(domain, device.attributes[domain].exists(k, k == "count"))',
    f"{HERE}.count * 2 > 3",
    f'{HERE}.model.split("").size() > 3',
    f'{HERE}.model.replace("A", "B") != "x"',
    'device.capacity["d"].memory.compareTo(quantity("10Gi")) >= 0',
    f'cel.bind(v, {HERE}.model, v.lowerAscii() + v == "a100A100")',
    f'"model" in {HERE} && {HERE}.model in ["A100", "H100"]',
    f'sets.contains({HERE}.map(k, k), ["model"])',
]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(CONDITIONS), min_size=1, max_size=4), st.text("AB01", max_size=64), st.integers(0, 29))
def test_the_estimate_is_never_exceeded(conditions: list[str], model: str, others: int) -> None:
    selector = compile_device_selector(" && ".join(conditions))
    attributes: dict[str, Any] = {f"d/{f'x{i}'.ljust(32, 'y')}": {"string": "z" * 64} for i in range(others)}
    attributes |= {"d/model": {"string": model}, "d/count": {"int": 4}}
    device = device_view("gpu.example.com", {"attributes": attributes, "capacity": {"d/memory": {"value": "80Gi"}}})
    try:
        selector.evaluate(device, cost_limit=selector.estimated_cost)
    except CELRuntimeError as error:
        pytest.fail(f"{selector.expression}: {error}")
