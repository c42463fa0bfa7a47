"""Translates the Summary of a node's agent to NodeMetrics and PodMetrics. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from dray.api.document import Document
from dray.api.timestamps import parse_duration_nanoseconds

# Kubelet does not tell what its rates are a mean of.
WINDOW: Final = "15s"
_KIBIBYTE: Final = 1024
_RATE: Final = "usageNanoCores"
_WORKING_SET: Final = "workingSetBytes"


@dataclass(frozen=True, slots=True)
class Metrics:
    """What a node, or a Pod, uses: all but the metadata; `owner` is the UID of a Pod."""

    content: Document
    owner: str = ""


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """What a node's agent has measured; Pods are by UID. What is younger than one window is left out."""

    node: Metrics | None
    pods: dict[str, Metrics]


def read_summary(summary: Any) -> NodeAnswer:
    """Return the metrics in a Summary; raises KeyError, TypeError or ValueError for anything else."""
    window = summary.get("window") or WINDOW
    parse_duration_nanoseconds(window)
    node = summary["node"]
    measured = {"timestamp": node["cpu"]["time"], "window": window, "usage": _usage(node)} if _rated(node) else None
    pods = {item.owner: item for item in _pods(summary.get("pods") or (), window)}
    return NodeAnswer(Metrics(measured) if measured is not None else None, pods)


def _pods(items: Any, window: str) -> Iterator[Metrics]:
    for item in items:
        containers = item.get("containers") or ()
        if not containers or not all(map(_rated, containers)):
            continue
        content = {
            "timestamp": min(str(container["cpu"]["time"]) for container in containers),
            "window": window,
            "containers": [{"name": str(entry["name"]), "usage": _usage(entry)} for entry in containers],
        }
        yield Metrics(content, str(item["podRef"]["uid"]))


def _rated(stats: Any) -> bool:
    return _RATE in (stats.get("cpu") or {}) and _WORKING_SET in (stats.get("memory") or {})


def _usage(stats: Any) -> Document:
    cpu, memory = int(stats["cpu"][_RATE]), int(stats["memory"][_WORKING_SET])
    return {"cpu": f"{cpu}n" if cpu else "0", "memory": f"{memory // _KIBIBYTE}Ki" if memory else "0"}


def with_metadata(metrics: Metrics, source: Document, created: str) -> Document:
    """Return metrics with the name, the namespace and the labels of their node or Pod."""
    named = source["metadata"]
    metadata: Document = {"name": named["name"]}
    if named.get("namespace"):
        metadata["namespace"] = named["namespace"]
    metadata["creationTimestamp"] = created
    if named.get("labels"):
        metadata["labels"] = named["labels"]
    return {"metadata": metadata, **metrics.content}
