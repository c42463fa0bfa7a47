"""Renders samples as kubelet's Summary and as the text of /metrics/resource. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from dray.api.document import Document
from dray.api.timestamps import format_time
from dray.node.agent.stats.samples import ContainerSample, FileSystem, NodeSample, PodSample, Sample

_NANOSECONDS = 1_000_000_000


def summary(node_name: str, started_at: datetime, round_: NodeSample, window: str) -> Document:
    """Return the Summary; `window`, which kubelet does not have, is the time that rates are computed over."""
    node = {
        "nodeName": node_name,
        "startTime": format_time(started_at),
        "cpu": _cpu(round_.sample),
        "memory": _memory(round_.sample) | {"availableBytes": round_.available_bytes},
        "fs": _file_system(round_.file_system, round_.sample.time),
    }
    return {"node": node, "pods": [_pod(pod) for pod in round_.pods], "window": window}


def _pod(pod: PodSample) -> Document:
    return {
        "podRef": {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid},
        "startTime": format_time(pod.started_at),
        "containers": [_container(container) for container in pod.containers],
        "cpu": _cpu(pod.sample),
        "memory": _memory(pod.sample),
    }


def _container(container: ContainerSample) -> Document:
    return {
        "name": container.name,
        "startTime": format_time(container.started_at),
        "cpu": _cpu(container.sample),
        "memory": _memory(container.sample),
    }


def _cpu(sample: Sample) -> Document:
    rate = {} if sample.nano_cores is None else {"usageNanoCores": sample.nano_cores}
    return {"time": format_time(sample.time), **rate, "usageCoreNanoSeconds": sample.usage.cpu_nanoseconds}


def _memory(sample: Sample) -> Document:
    usage = sample.usage
    return {
        "time": format_time(sample.time),
        "usageBytes": usage.memory_bytes,
        "workingSetBytes": usage.working_set_bytes,
        "rssBytes": usage.rss_bytes,
    }


def _file_system(found: FileSystem, time: datetime) -> Document:
    return {
        "time": format_time(time),
        "availableBytes": found.available_bytes,
        "capacityBytes": found.capacity_bytes,
        "usedBytes": found.used_bytes,
        "inodesFree": found.inodes_free,
        "inodes": found.inodes,
        "inodesUsed": found.inodes - found.inodes_free,
    }


def resource_metrics(round_: NodeSample | None) -> str:
    """Return the text of /metrics/resource; without any sample only the error."""
    return "".join(f"{line}\n" for line in _metric_lines(round_))


def _metric_lines(round_: NodeSample | None) -> Iterator[str]:
    if round_ is not None:
        containers = [(_container_labels(pod, item), item) for pod in round_.pods for item in pod.containers]
        yield from _head("container_cpu_usage_seconds_total", "counter", "CPU time of the container in core-seconds")
        yield from (_cpu_line("container", labels, item.sample) for labels, item in containers)
        yield from _head("container_memory_working_set_bytes", "gauge", "Working set of the container in bytes")
        yield from (_memory_line("container", labels, item.sample) for labels, item in containers)
        yield from _head("container_start_time_seconds", "gauge", "Start of the container in seconds since 1970")
        for labels, item in containers:
            yield f"container_start_time_seconds{labels} {item.started_at.timestamp()}"
        yield from _head("node_cpu_usage_seconds_total", "counter", "CPU time of the node in core-seconds")
        yield _cpu_line("node", "", round_.sample)
        yield from _head("node_memory_working_set_bytes", "gauge", "Working set of the node in bytes")
        yield _memory_line("node", "", round_.sample)
        yield from _head("pod_cpu_usage_seconds_total", "counter", "CPU time of the Pod in core-seconds")
        yield from (_cpu_line("pod", _pod_labels(pod), pod.sample) for pod in round_.pods)
        yield from _head("pod_memory_working_set_bytes", "gauge", "Working set of the Pod in bytes")
        yield from (_memory_line("pod", _pod_labels(pod), pod.sample) for pod in round_.pods)
    yield from _head("resource_scrape_error", "gauge", "1 if there was an error while usage was read, else 0")
    yield f"resource_scrape_error {int(round_ is None or round_.failed)}"


def _head(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP {name} [STABLE] {text}"
    yield f"# TYPE {name} {kind}"


# Names of Pods, namespaces and containers have no characters that would need an escape.
def _container_labels(pod: PodSample, container: ContainerSample) -> str:
    return f'{{container="{container.name}",namespace="{pod.namespace}",pod="{pod.name}"}}'


def _pod_labels(pod: PodSample) -> str:
    return f'{{namespace="{pod.namespace}",pod="{pod.name}"}}'


def _cpu_line(scope: str, labels: str, sample: Sample) -> str:
    seconds = sample.usage.cpu_nanoseconds / _NANOSECONDS
    return f"{scope}_cpu_usage_seconds_total{labels} {seconds} {_milliseconds(sample.time)}"


def _memory_line(scope: str, labels: str, sample: Sample) -> str:
    return f"{scope}_memory_working_set_bytes{labels} {sample.usage.working_set_bytes} {_milliseconds(sample.time)}"


def _milliseconds(time: datetime) -> int:
    return int(time.timestamp() * 1000)
