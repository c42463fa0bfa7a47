"""The CPUs of running containers."""

from __future__ import annotations

from typing import Any, cast

from dray.node.agent.cpuset_reconciler import CpusetReconciler, RunningContainer
from tests.unit.node.agent.builders import pod
from tests.unit.node.agent.fakes import Clock, Runtime

A, B = (RunningContainer(pod(), name, f"id-{name}") for name in ("a", "b"))


async def test_containers_are_updated_once_per_change_of_their_cpus() -> None:
    runtime, shared = Runtime(), ["0-3"]
    cpusets = CpusetReconciler(
        cast(Any, runtime), cast(Any, Clock()), lambda _pod, name: (shared[0] if name == "a" else "7", "")
    )
    cpusets.started("id-a", "0-3")
    # The other one was started by an earlier agent.
    await cpusets.reconcile([A, B])
    assert runtime.calls == [("id-b", "7")]
    shared[0] = "0-1"
    await cpusets.reconcile([A, B])
    await cpusets.reconcile([A, B])
    assert runtime.calls == [("id-b", "7"), ("id-a", "0-1")]


async def test_a_container_that_was_not_moved_is_tried_again() -> None:
    runtime = Runtime(failures=1)
    cpusets = CpusetReconciler(cast(Any, runtime), cast(Any, Clock()), lambda _pod, _name: ("0", ""))
    for _ in range(3):
        await cpusets.reconcile([A])
    assert runtime.calls == [("id-a", "0")] * 2


async def test_nothing_is_updated_if_no_container_is_pinned() -> None:
    runtime = Runtime()
    cpusets = CpusetReconciler(cast(Any, runtime), cast(Any, Clock()), None)
    assert cpusets.lookup(pod(), "a") == ("", "")
    await cpusets.reconcile([A])
    assert runtime.calls == []
