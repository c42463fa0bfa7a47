"""Every task has a supervisor: only `dray.runtime.tasks` starts tasks by asyncio's own functions."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

import pytest
from tools.reference.source import parse

TOP: Final = Path(__file__).parents[2]
SOURCE: Final = TOP / "src" / "dray"
TASKS: Final = SOURCE / "runtime" / "tasks.py"
FORBIDDEN: Final = frozenset({"create_task", "ensure_future"})
PACKAGES: Final = sorted(path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists())


def starts_tasks(path: Path) -> bool:
    """Whether the module names a function of asyncio that starts a task."""
    tree = parse(path)
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    return not FORBIDDEN.isdisjoint(names | imported)


@pytest.mark.parametrize("package", PACKAGES)
def test_tasks_are_started_by_one_module(package: str) -> None:
    found = [str(path) for path in (SOURCE / package).rglob("*.py") if path != TASKS and starts_tasks(path)]
    assert found == []


@pytest.mark.parametrize("folder", ["bench", "tools"])
def test_benchmarks_and_tools_use_it_too(folder: str) -> None:
    assert [str(path) for path in (TOP / folder).rglob("*.py") if starts_tasks(path)] == []


def test_the_forbidden_calls_are_found() -> None:
    assert starts_tasks(TASKS)
