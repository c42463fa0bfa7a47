"""The purity check: what makes a module impure is reported, and nothing else."""

from __future__ import annotations

import ast

import pytest
from tools.check_purity import (
    declared_modules,
    dependencies,
    problems,
    pure_modules,
    suggestions,
    undeclared_claims,
)

PURE = ast.parse("def double(value: int) -> int:\n    return 2 * value\n")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("async def work() -> None: ...", ["1: coroutine work"]),
        ("import time\n\ndef now() -> float:\n    return time.time()", ["1: imports time"]),
        ("from datetime import datetime\nSTARTED = datetime.now()", ["2: calls datetime.now"]),
        ("import asyncio.events", ["1: imports asyncio.events"]),
        ("from urllib import request", ["1: imports urllib.request"]),
        ("import random\nCHANCE = random.random()", ["2: calls random.random"]),
        ("TEXT = open('notes').read()", ["1: calls open"]),
    ],
    ids=["coroutine", "clock", "wall clock", "submodule", "imported name", "randomness", "file"],
)
def test_an_impure_module_is_reported_with_the_line(source: str, expected: list[str]) -> None:
    assert list(problems(ast.parse(source))) == expected


@pytest.mark.parametrize(
    "source",
    [
        "from typing import Protocol\n\nclass Clock(Protocol):\n    async def sleep(self) -> None: ...",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import asyncio",
        "import random\nSOURCE = random.Random(7)",
        "from datetime import datetime\n\ndef age(now: datetime, then: datetime) -> float:\n"
        "    return (now - then).total_seconds()",
    ],
    ids=["protocol", "types only", "seeded randomness", "time as an argument"],
)
def test_a_pure_module_is_not_reported(source: str) -> None:
    assert list(problems(ast.parse(source))) == []


def test_what_imports_an_impure_module_is_impure_too() -> None:
    modules = {
        "dray.pure": PURE,
        "dray.socket": ast.parse("import socket"),
        "dray.near": ast.parse("from dray.socket import connect"),
        "dray.far": ast.parse("from dray import near, pure"),
    }
    assert dependencies(modules["dray.far"], modules) == {"dray.near", "dray.pure"}
    assert pure_modules(modules) == {"dray.pure"}


def test_patterns_cover_a_package_and_what_is_below_it() -> None:
    names = ["dray.cel", "dray.cel.lexer", "dray.celery"]
    assert list(declared_modules(["dray.cel.*", "dray.gone"], names)) == [
        ("dray.cel.*", ["dray.cel", "dray.cel.lexer"]),
        ("dray.gone", []),
    ]


def test_suggestions_name_whole_packages_where_they_can() -> None:
    modules = dict.fromkeys(["dray.a", "dray.a.x", "dray.a.y", "dray.b", "dray.b.x", "dray.b.y"], PURE)
    assert list(suggestions(modules, set(modules) - {"dray.b.y"})) == ["dray.a.*", "dray.b.x"]


def test_a_module_that_says_pure_must_be_declared_with_its_package() -> None:
    modules = {
        "dray.plan": ast.parse('"""Decides. Pure."""'),
        "dray.rules": ast.parse('"""Rules. Pure."""'),
        "dray.rules.pods": ast.parse('"""Rules for Pods."""'),
        "dray.report": ast.parse('"""Each has a pure plan."""'),
    }
    assert list(undeclared_claims(modules, {"dray.plan", "dray.rules"})) == [
        "dray.rules.pods is not declared pure, but the docstring of dray.rules says so"
    ]
