"""Exclusive CPUs on a real agent: everybody else leaves them at once, and comes back when they are free."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.e2e.kubectl.tool import Kubectl
from tests.e2e.node.conftest import BOTH
from tests.e2e.node.devices import until
from tests.e2e.node.harness import Agent, Cluster, is_running, shell

RUNTIMES = BOTH
pytestmark = [
    pytest.mark.skipif(os.sched_getaffinity(0) != {*range(os.cpu_count() or 1)} or os.cpu_count() == 1, reason="CPUs"),
]
# Says where it may run, whenever that changes; a child is moved with it.
TELLS = (
    "before=; while true; do now=$(grep Cpus_allowed_list /proc/self/status | tr -dc '0-9,-'); "
    'test "$now" = "$before" || echo "$now"; before=$now; sleep 0.05; done'
)
ALL = f"0-{(os.cpu_count() or 1) - 1}"


@pytest.fixture(scope="module")
def flags() -> tuple[str, ...]:
    return ("--cpu-manager-policy=static", "--reserved-cpus=0")


def cpusets(kubectl: Kubectl, name: str) -> list[str]:
    return kubectl("logs", name).split()


async def test_shared_cpus_shrink_and_grow(cluster: Cluster, agent: Agent, kubectl: Kubectl) -> None:
    await cluster.run("shared", shell("a", TELLS))
    await cluster.wait("shared", is_running())
    await until(lambda: cpusets(kubectl, "shared") == [ALL])
    amounts: dict[str, Any] = {"cpu": "1", "memory": "20Mi"}
    alone = shell("a", TELLS, resources={"limits": amounts, "requests": amounts})
    await cluster.run("alone", alone)
    await cluster.wait("alone", is_running())
    await until(lambda: len(cpusets(kubectl, "alone")) == 1)
    (mine,) = cpusets(kubectl, "alone")
    assert mine not in ("0", ALL)
    # It was updated before the other started.
    await until(lambda: len(cpusets(kubectl, "shared")) == 2)
    left = cpusets(kubectl, "shared")[1]
    assert mine not in left.replace("-", ",").split(",")
    # The next agent finds them where they are, and leaves them there.
    agent.kill()
    agent.start()
    await cluster.run("late", shell("a", TELLS))
    await cluster.wait("late", is_running())
    await until(lambda: cpusets(kubectl, "late") == [left])
    assert cpusets(kubectl, "shared") == [ALL, left]
    assert cpusets(kubectl, "alone") == [mine]
    await cluster.delete("alone")
    await cluster.gone("alone")
    await until(lambda: cpusets(kubectl, "shared") == [ALL, left, ALL])
    await until(lambda: cpusets(kubectl, "late") == [left, ALL])
    for name in ("shared", "late"):
        await cluster.delete(name, 0)
