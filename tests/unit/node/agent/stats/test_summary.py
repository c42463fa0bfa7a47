"""Rates between samples, and their renderings."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from dray.node.agent.stats.samples import (
    ContainerSample,
    FileSystem,
    NodeSample,
    PodSample,
    Sample,
    container_samples,
    rated,
)
from dray.node.agent.stats.summary import resource_metrics, summary
from dray.node.runtimes.usage import Usage

START = datetime(2026, 1, 1, tzinfo=UTC)
LATER = START + timedelta(seconds=10)
FILES = FileSystem(1000, 400, 500, 100, 90)


def pod(*containers: ContainerSample) -> PodSample:
    return PodSample("u", "ns", "p", START, containers)


def container(name: str, rate: int | None) -> ContainerSample:
    return ContainerSample(f"id-{name}", name, START, Sample(LATER, Usage(2_500_000_000, 40, 30, 20), rate))


@pytest.mark.behaviour("EX-48")
def test_a_rate_is_the_cpu_time_between_two_samples() -> None:
    first, second = Sample(START, Usage(1_000_000_000, 1, 1, 1)), Sample(LATER, Usage(6_000_000_000, 1, 1, 1))
    assert rated(first, None).nano_cores is None
    assert rated(second, first).nano_cores == 500_000_000
    # Another process, or a clock that was set back.
    assert rated(Sample(LATER, Usage(5, 1, 1, 1)), first).nano_cores is None
    assert rated(second, second).nano_cores is None


@pytest.mark.behaviour("EX-48")
def test_a_pod_is_the_sum_of_its_containers_and_has_a_rate_when_all_have_one() -> None:
    both = pod(container("a", 5), container("b", 7))
    assert both.sample == Sample(LATER, Usage(5_000_000_000, 80, 60, 40), 12)
    assert pod(container("a", 5), container("b", None)).sample.nano_cores is None
    assert container_samples([both])["id-b"].nano_cores == 7


@pytest.mark.behaviour("EX-48")
def test_the_summary_has_the_fields_of_kubelet() -> None:
    node = NodeSample(Sample(LATER, Usage(9, 8, 7, 6), 5), 100, FILES, (pod(container("a", None)),))
    found = summary("n", START, node, "15s")
    time = "2026-01-01T00:00:10Z"
    assert found["node"] == {
        "nodeName": "n",
        "startTime": "2026-01-01T00:00:00Z",
        "cpu": {"time": time, "usageNanoCores": 5, "usageCoreNanoSeconds": 9},
        "memory": {"time": time, "usageBytes": 8, "workingSetBytes": 7, "rssBytes": 6, "availableBytes": 100},
        "fs": {
            "time": time,
            "availableBytes": 400,
            "capacityBytes": 1000,
            "usedBytes": 500,
            "inodesFree": 90,
            "inodes": 100,
            "inodesUsed": 10,
        },
    }
    (only,) = found["pods"]
    assert only["podRef"] == {"name": "p", "namespace": "ns", "uid": "u"}
    assert only["containers"][0]["cpu"] == {"time": time, "usageCoreNanoSeconds": 2_500_000_000}


@pytest.mark.behaviour("EX-48")
def test_the_metrics_of_resources() -> None:
    node = NodeSample(Sample(LATER, Usage(9_000_000_000, 8, 7, 6), 5), 100, FILES, (pod(container("a", 1)),))
    lines = resource_metrics(node).splitlines()
    stamp = int(LATER.timestamp() * 1000)
    assert [line for line in lines if not line.startswith("#")] == [
        f'container_cpu_usage_seconds_total{{container="a",namespace="ns",pod="p"}} 2.5 {stamp}',
        f'container_memory_working_set_bytes{{container="a",namespace="ns",pod="p"}} 30 {stamp}',
        f'container_start_time_seconds{{container="a",namespace="ns",pod="p"}} {START.timestamp()}',
        f"node_cpu_usage_seconds_total 9.0 {stamp}",
        f"node_memory_working_set_bytes 7 {stamp}",
        f'pod_cpu_usage_seconds_total{{namespace="ns",pod="p"}} 2.5 {stamp}',
        f'pod_memory_working_set_bytes{{namespace="ns",pod="p"}} 30 {stamp}',
        "resource_scrape_error 0",
    ]
    assert resource_metrics(None).splitlines()[-1] == "resource_scrape_error 1"
