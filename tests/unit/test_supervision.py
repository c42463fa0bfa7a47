"""Every task has a supervisor: only `dray.runtime.tasks` starts tasks by asyncio's own functions."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).parents[2] / "src" / "dray"
TASKS: Final = "runtime/tasks.py"
FORBIDDEN: Final = frozenset({"create_task", "ensure_future"})
# Modules that still start tasks themselves. Remove entries; never add one.
ALLOWED: Final = frozenset(
    {
        "src/dray/apiserver/flow/fanout.py",
        "src/dray/apiserver/flow/follower.py",
        "src/dray/apiserver/flow/quotas.py",
        "src/dray/apiserver/http.py",
        "src/dray/cli/conformance/checks/recovery.py",
        "src/dray/cli/conformance/objects.py",
        "src/dray/client/leader_election/loop.py",
        "src/dray/client/loop.py",
        "src/dray/cmd/apiserver.py",
        "src/dray/cmd/demo/cluster.py",
        "src/dray/cmd/demo/loop.py",
        "src/dray/cmd/demo/telling.py",
        "src/dray/cmd/testing/drivers.py",
        "src/dray/controllers/namespace/reconciler.py",
        "src/dray/node/agent/loop.py",
        "src/dray/node/runtimes/cri/cri.py",
        "src/dray/node/runtimes/shim/files.py",
        "src/dray/node/runtimes/simulated/memory.py",
        "src/dray/runtime/http/dialing.py",
        "src/dray/runtime/http/server.py",
        "src/dray/scheduler/binding/loop.py",
        "src/dray/scheduler/loop.py",
        "src/dray/scheduler/plugins/classic_resources/loop.py",
        "src/dray/scheduler/plugins/dynamic_resources/loop.py",
        "src/dray/store/etcd.py",
    }
)


def starts_tasks(path: Path) -> bool:
    """Whether the module names a function of asyncio that starts a task."""
    tree = ast.parse(path.read_bytes())
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    return not FORBIDDEN.isdisjoint(names | imported)


def test_tasks_are_started_by_one_module() -> None:
    found = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py") if starts_tasks(path)}
    assert TASKS in found
    assert sorted(found - {TASKS} - {entry.removeprefix("src/dray/") for entry in ALLOWED}) == []
