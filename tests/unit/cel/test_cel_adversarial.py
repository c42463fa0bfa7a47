"""No expression may hang, exhaust memory or access Python."""

from __future__ import annotations

from typing import Any

import pytest

from dray import cel
from dray.cel import types
from dray.cel.environments import compile_device_selector, compile_rule, device_view
from dray.cel.errors import CELCostError, CELError, CELRuntimeError

pytestmark = pytest.mark.timeout(10)

VARIABLES = {"x": types.DYN, "s": types.STRING, "l": types.list_of(types.INT)}
DATA: dict[str, Any] = {"x": {"a": 1}, "s": "a" * 1000, "l": list(range(100))}


def binds(count: int, first: str, step: str, body: str) -> str:
    """Return nested binds a0, a1, … each computed from the previous one."""
    text = f"cel.bind(a0, {first}, "
    for place in range(1, count):
        text += f"cel.bind(a{place}, {step.replace('@', f'a{place - 1}')}, "
    return text + body.replace("@", f"a{count - 1}") + ")" * count


def loops(count: int) -> str:
    text = "true"
    for place in range(count):
        text = f"l.all(e{place}, {text})"
    return text


REFUSED = {
    "deep parentheses": "(" * 5000 + "1" + ")" * 5000,
    "deep lists": "[" * 5000 + "]" * 5000,
    "unclosed": "(" * 10_000,
    "long chain": "+".join(["1"] * 3000),
    "long path": "x" + ".a" * 4000,
    "deep conditional": "true ? 1 : " * 900 + "1",
    "too long": "'" + "a" * 10_240 + "'",
    "too many bytes": "'" + "é" * 5_120 + "'",
    "many digits": "9" * 10_000,
    "bad string": "'" + "\\" * 9_999,
    "only dots": "." * 10_000,
    "doubling types": binds(150, "{1: 1}", "{@: @}", "@"),
}


@pytest.mark.parametrize("expression", REFUSED.values(), ids=REFUSED.keys())
def test_rejected_quickly(expression: str) -> None:
    with pytest.raises(CELError):
        cel.compile_program(expression, VARIABLES)


TOO_EXPENSIVE = {
    "doubling text": binds(60, "s", "@ + @", "@.size() > 0"),
    "doubling list": binds(60, "[1, 2]", "@ + @", "@.size() > 0"),
    "shared structure compared": binds(60, "[1, 2]", "[@, @]", "[@] == [@ + []]"),
    "shared structure searched": binds(60, "[1, 2]", "[@, @]", "@ in [@ + []]"),
    "shared structure printed": binds(60, "[dyn(1), 2]", "[dyn(@), @]", "'%s'.format([@]) == ''"),
    "shared structure flattened": binds(60, "[dyn(1), 2]", "[dyn(@), @]", "@.flatten(100).size() > 0"),
    "nested loops": loops(9),
    "range": "lists.range(10000000000).size() > 0",
    "replace": binds(9, "s", "@.replace('', @)", "@.size() > 0"),
    "join": "l.map(e, l.map(f, s).join(s)).join().size() > 0",
    "nested maps": "l.map(a, l.map(b, l.map(c, a))).size() > 0",
    "distinct": "lists.range(5000).distinct().size() > 0",
    "sets": "sets.contains(lists.range(2000), lists.range(2000))",
    "big regex": "l.all(e, l.all(f, s.matches('(a|b|c|d|e)*(a|b|c|d|e)*x') || true))",
}


@pytest.mark.parametrize("expression", TOO_EXPENSIVE.values(), ids=TOO_EXPENSIVE.keys())
@pytest.mark.behaviour("SP-42")
def test_ends_for_its_cost(expression: str) -> None:
    program = cel.compile_program(expression, VARIABLES)
    with pytest.raises(CELCostError, match="actual cost limit exceeded"):
        program.evaluate(DATA)


def test_cost_errors_are_never_absorbed() -> None:
    program = cel.compile_program(f"{loops(9)} || true", VARIABLES)
    with pytest.raises(CELCostError):
        program.evaluate(DATA)


FAILING = {
    "catastrophic repetition": "s.matches('((((a{1000}){1000}){1000}){1000})' + '')",
    "precision": "('%.' + '100000000f').format([1.0]) == ''",
    "digits": "int('9999999999999999999999999999999999999999999' + '') == 1",
    "quantity exponent": "quantity('1e999999999').sign() == 1",
    "duration": "duration('99999999999999999' + 'h') > duration('1s')",
    "class of an object": "x.__class__ == 1",
    "method of a dict": "x.keys == 1",
    "dunder of a text": "dyn(s).__len__ == 1",
    "builtins": "x['__builtins__'] == 1",
}


@pytest.mark.parametrize("expression", FAILING.values(), ids=FAILING.keys())
def test_fails_quickly(expression: str) -> None:
    program = cel.compile_program(expression, VARIABLES)
    with pytest.raises(CELRuntimeError):
        program.evaluate(DATA)


QUICK = {
    "catastrophic regex": ("(s + '!').matches('^(a+)+$')", False),
    "long and": (" && ".join(["true"] * 1200), True),
    "many nots": ("!" * 10_000 + "true", True),
    "wide list": (f"[{', '.join(['1'] * 3000)}].size() == 3000", True),
}


@pytest.mark.parametrize(("expression", "expected"), QUICK.values(), ids=QUICK.keys())
def test_evaluates_quickly(expression: str, expected: bool) -> None:
    assert cel.compile_program(expression, VARIABLES).evaluate(DATA) is expected


def test_fields_of_a_device_are_the_declared_ones() -> None:
    for field in ("__class__", "__init__", "allow_multiple", "__slots__"):
        with pytest.raises(CELError, match=f"undefined field '{field}'"):
            compile_device_selector(f"device.{field} == 1")


def test_names_of_the_generated_code_are_out_of_reach() -> None:
    for name in ("budget", "object_1", "variable_2", "local_3", "__builtins__", "__import__"):
        with pytest.raises(CELError, match="undeclared reference"):
            cel.compile_program(f"{name} == 1", VARIABLES)
    program = cel.compile_program("budget + object_1", {"budget": types.INT, "object_1": types.INT})
    assert program.evaluate({"budget": 1, "object_1": 2}) == 3


def test_generated_code_sees_no_builtins() -> None:
    program = cel.compile_program("l.map(e, e + 1)", VARIABLES)
    assert program._strict.function.__globals__["__builtins__"] == {}


def test_deep_documents_are_compared_or_rejected() -> None:
    deep: Any = []
    for _ in range(5000):
        deep = [deep]
    rule = compile_rule("self == oldSelf", {"type": "object", "x-kubernetes-int-or-string": True})
    other: Any = []
    for _ in range(5000):
        other = [other]
    with pytest.raises(CELRuntimeError):
        rule.evaluate(deep, other)


def test_an_error_in_one_device_does_not_stick() -> None:
    selector = compile_device_selector('device.attributes["d"].ok')
    good = device_view("d", {"attributes": {"ok": {"bool": True}}})
    with pytest.raises(CELRuntimeError, match="no such key: ok"):
        selector.evaluate(device_view("d", {}))
    assert selector.evaluate(good) is True
