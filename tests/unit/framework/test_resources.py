"""What a Pod asks for in all: containers, sidecars, init containers, overhead, pod-level, resizes."""

from __future__ import annotations

from typing import Any

import pytest

from dray.framework.pod_info import PodInfo, host_ports, ports_conflict
from dray.framework.resources import Resources, pod_requests
from tests.unit.scheduler.builders import container, node_info, pod, pod_info

CPU_1 = {"cpu": "1"}


def sidecar(requests: dict[str, str], **more: Any) -> dict[str, Any]:
    return container(requests, restartPolicy="Always", **more)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param({"containers": [container()]}, {}, id="nothing asked"),
        pytest.param({"containers": [container(CPU_1), container({"cpu": "500m"})]}, {"cpu": 1500}, id="sum"),
        pytest.param(
            {"containers": [container(CPU_1)], "initContainers": [container({"cpu": "3"})]},
            {"cpu": 3000},
            id="the largest init container alone",
        ),
        pytest.param(
            {"containers": [container(CPU_1)], "initContainers": [container({"cpu": "500m"})]},
            {"cpu": 1000},
            id="a small init container does not count",
        ),
        pytest.param(
            {"containers": [container(CPU_1)], "initContainers": [sidecar({"cpu": "2"})]},
            {"cpu": 3000},
            id="a sidecar runs beside the containers",
        ),
        pytest.param(
            {"containers": [container(CPU_1)], "initContainers": [sidecar({"cpu": "2"}), container({"cpu": "4"})]},
            {"cpu": 6000},
            id="an init container runs beside the sidecars before it",
        ),
        pytest.param(
            {"containers": [container(CPU_1)], "initContainers": [container({"cpu": "4"}), sidecar({"cpu": "2"})]},
            {"cpu": 4000},
            id="and not beside those after it",
        ),
        pytest.param(
            {"containers": [container(CPU_1)], "overhead": {"cpu": "250m", "memory": "1Mi"}},
            {"cpu": 1250, "memory": 1024 * 1024},
            id="overhead comes on top",
        ),
        pytest.param(
            {"containers": [container({"cpu": "1", "example.com/gpu": "1"})], "resources": {"requests": {"cpu": "5"}}},
            {"cpu": 5000, "example.com/gpu": 1},
            id="pod-level requests replace the sum",
        ),
        pytest.param(
            {
                "containers": [container(CPU_1)],
                "status": {
                    "containerStatuses": [{"name": "c", "image": "", "imageID": "", "allocatedResources": {"cpu": "3"}}]
                },
            },
            {"cpu": 3000},
            id="a shrinking container keeps what it was granted",
        ),
    ],
)
def test_pod_requests(spec: dict[str, Any], expected: dict[str, int]) -> None:
    assert pod_requests(pod(**spec)) == expected


def test_what_asks_for_nothing_still_counts_in_scores() -> None:
    info = pod_info(containers=[container(), container({"cpu": "1"})])
    assert (info.requests.milli_cpu, info.requests.memory) == (1000, 0)
    assert (info.non_zero_milli_cpu, info.non_zero_memory) == (1100, 2 * 200 * 1024 * 1024)


def test_resources_add_and_take_away() -> None:
    some = Resources(100, 5, 7, {"a/b": 1})
    assert some.plus(some).plus(some, -1) == some
    assert some.plus(some, -1) == Resources()
    assert some.amount("cpu") == 100
    assert some.amount("a/b") == 1
    assert some.amount("missing/one") == 0


def test_host_ports_of_containers_and_sidecars() -> None:
    ports = [{"containerPort": 80, "hostPort": 8080}, {"containerPort": 81}]
    init = [
        container(ports=[{"containerPort": 1, "hostPort": 1}]),
        sidecar({}, ports=[{"containerPort": 2, "hostPort": 2}]),
    ]
    found = host_ports(pod(containers=[container(ports=ports)], initContainers=init))
    assert found == (("0.0.0.0", "TCP", 8080), ("0.0.0.0", "TCP", 2))


@pytest.mark.parametrize(
    ("wanted", "taken", "conflict"),
    [
        (("0.0.0.0", "TCP", 80), ("127.0.0.1", "TCP", 80), True),
        (("127.0.0.1", "TCP", 80), ("127.0.0.2", "TCP", 80), False),
        (("127.0.0.1", "TCP", 80), ("127.0.0.1", "TCP", 80), True),
        (("0.0.0.0", "TCP", 80), ("0.0.0.0", "UDP", 80), False),
        (("0.0.0.0", "TCP", 80), ("0.0.0.0", "TCP", 81), False),
    ],
)
def test_ports_conflict(wanted: Any, taken: Any, conflict: bool) -> None:
    assert ports_conflict(wanted, taken) is conflict


def test_node_info_is_a_value() -> None:
    before = node_info()
    first = pod_info("a", requests={"cpu": "1", "example.com/gpu": "2"})
    after = before.with_pod(first)
    assert before.free_milli_cpu == 4000
    assert before.pods == {}
    assert (after.free_milli_cpu, after.free_pods) == (3000, 9)
    assert after.requested.scalars == {"example.com/gpu": 2}
    again = after.without_pod(first.uid)
    assert (again.free_milli_cpu, again.free_pods, again.requested) == (4000, 10, Resources())


def test_a_pod_on_its_node_keeps_its_needs() -> None:
    info = pod_info("a", requests=CPU_1)
    placed = info.on_node("n1")
    assert placed.pod.spec.node_name == "n1"
    assert placed.requests is info.requests
    assert PodInfo(placed.pod).requests == info.requests
