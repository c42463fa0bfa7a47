"""Conversion of HorizontalPodAutoscalers between `autoscaling/v1` and `autoscaling/v2`, the storage version.

`v1` has one target, the utilization of CPU. What else an autoscaler has is kept there in annotations, as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from dray.api.document import Document

OLD_VERSION: Final = "v1"
METRICS: Final = "autoscaling.alpha.kubernetes.io/metrics"
_CURRENT_METRICS: Final = "autoscaling.alpha.kubernetes.io/current-metrics"
_CONDITIONS: Final = "autoscaling.alpha.kubernetes.io/conditions"
_BEHAVIOR: Final = "autoscaling.alpha.kubernetes.io/behavior"
_ANNOTATIONS: Final = (METRICS, _CURRENT_METRICS, _CONDITIONS, _BEHAVIOR)

# The member of a metric that has its fields, by the type of the metric.
_SOURCES: Final = {
    "ContainerResource": "containerResource",
    "External": "external",
    "Object": "object",
    "Pods": "pods",
    "Resource": "resource",
}
# The amounts of `target` and `current` in `v2`, and the types of target that they imply, by preference.
_AMOUNTS: Final = {"averageUtilization": "Utilization", "averageValue": "AverageValue", "value": "Value"}
_TARGET, _CURRENT = "target", "current"


def to_hub(version: str, _kind: str, document: Document) -> Document:
    """Convert to `v2`; the argument is not changed."""
    if version != OLD_VERSION:
        return document
    annotations: Document = dict((document.get("metadata") or {}).get("annotations") or {})
    kept = {name: _parsed(annotations.pop(name, None)) for name in _ANNOTATIONS}
    spec, status = dict(document.get("spec") or {}), dict(document.get("status") or {})
    metrics = [_metric_up(metric, _TARGET) for metric in kept[METRICS]]
    if (percentage := spec.pop("targetCPUUtilizationPercentage", None)) is not None:
        metrics.append(cpu_metric(percentage))
    if metrics:
        spec["metrics"] = metrics
    if kept[_BEHAVIOR]:
        spec["behavior"] = kept[_BEHAVIOR]
    current = [_metric_up(metric, _CURRENT) for metric in kept[_CURRENT_METRICS]]
    if (percentage := status.pop("currentCPUUtilizationPercentage", None)) is not None:
        source = {"name": "cpu", _CURRENT: {"averageUtilization": percentage}}
        current.append({"type": "Resource", "resource": source})
    if current:
        status["currentMetrics"] = current
    if kept[_CONDITIONS]:
        status["conditions"] = kept[_CONDITIONS]
    return _with_parts(document, "autoscaling/v2", annotations, spec, status)


def from_hub(_version: str, _kind: str, document: Document) -> Document:
    """Convert from `v2` to `v1`; the argument is not changed."""
    annotations: Document = dict((document.get("metadata") or {}).get("annotations") or {})
    spec, status = dict(document.get("spec") or {}), dict(document.get("status") or {})
    percentage, others = _without_cpu(spec.pop("metrics", None) or [], _TARGET)
    if percentage is not None:
        spec["targetCPUUtilizationPercentage"] = percentage
    usage, current = _without_cpu(status.pop("currentMetrics", None) or [], _CURRENT)
    if usage is not None:
        status["currentCPUUtilizationPercentage"] = usage
    for name, value in (
        (METRICS, [_metric_down(metric, _TARGET) for metric in others]),
        (_CURRENT_METRICS, [_metric_down(metric, _CURRENT) for metric in current]),
        (_CONDITIONS, status.pop("conditions", None)),
        (_BEHAVIOR, spec.pop("behavior", None)),
    ):
        if value:
            annotations[name] = json.dumps(value, separators=(",", ":"))
    return _with_parts(document, "autoscaling/v1", annotations, spec, status)


def cpu_metric(percentage: int) -> Document:
    """Return the metric for a target utilization of CPU."""
    target = {"type": "Utilization", "averageUtilization": percentage}
    return {"type": "Resource", "resource": {"name": "cpu", _TARGET: target}}


def _with_parts(
    document: Document, api_version: str, annotations: Document, spec: Document, status: Document
) -> Document:
    found: Document = {**document, "apiVersion": api_version}
    metadata = {name: value for name, value in (document.get("metadata") or {}).items() if name != "annotations"}
    if annotations:
        metadata["annotations"] = annotations
    for name, part in (("metadata", metadata), ("spec", spec), ("status", status)):
        if part or name in document:
            found[name] = part
    return found


def _parsed(text: Any) -> Any:
    """Return the value of an annotation; one that is not JSON counts as absent, as in Kubernetes."""
    try:
        return json.loads(text) if text else []
    except ValueError:
        return []


def _without_cpu(metrics: list[Document], amounts: str) -> tuple[int | None, list[Document]]:
    """Return the utilization of CPU, and the other metrics."""
    percentage, others = None, []
    for metric in metrics:
        source = metric.get("resource") or {}
        found = (source.get(amounts) or {}).get("averageUtilization")
        if metric.get("type") == "Resource" and source.get("name") == "cpu" and found is not None:
            percentage = found
        else:
            others.append(metric)
    return percentage, others


def _metric_down(metric: Document, amounts: str) -> Document:
    """Return a metric in the form of `v1`, which has no nested targets: `targetAverageValue` and the like."""
    name = _SOURCES.get(metric.get("type") or "", "")
    source = metric.get(name)
    if source is None:
        return metric
    flat = {key: value for key, value in source.items() if key not in ("metric", "describedObject", amounts)}
    identifier = source.get("metric") or {}
    if "name" in identifier:
        flat["metricName"] = identifier["name"]
    if "selector" in identifier:
        flat["metricSelector" if name == "external" else "selector"] = identifier["selector"]
    if "describedObject" in source:
        flat["target"] = source["describedObject"]
    for amount in _AMOUNTS:
        if (value := (source.get(amounts) or {}).get(amount)) is not None:
            flat[_flat_name(name, amounts, amount)] = value
    return {**metric, name: flat}


def _metric_up(metric: Document, amounts: str) -> Document:
    name = _SOURCES.get(metric.get("type") or "", "")
    flat = metric.get(name)
    if flat is None:
        return metric
    names = {_flat_name(name, amounts, amount): amount for amount in _AMOUNTS}
    found = {amount: flat[key] for key, amount in names.items() if key in flat}
    if amounts == _TARGET and found:
        found = {"type": next(kind for amount, kind in _AMOUNTS.items() if amount in found), **found}
    moved = {"metricName", "metricSelector", "selector", *names, *(("target",) if name == "object" else ())}
    source: Document = {key: value for key, value in flat.items() if key not in moved}
    if identifier := _identifier(flat):
        source["metric"] = identifier
    if name == "object" and "target" in flat:
        source["describedObject"] = flat["target"]
    return {**metric, name: {**source, amounts: found}}


def _identifier(flat: Mapping[str, Any]) -> Document:
    selector = flat.get("metricSelector") or flat.get("selector")
    identifier = {"name": flat.get("metricName"), "selector": selector}
    return {key: value for key, value in identifier.items() if value is not None}


def _flat_name(source: str, amounts: str, amount: str) -> str:
    """Return the field of `v1` for an amount; `averageValue` of an Object has no prefix."""
    if source == "object" and amount == "averageValue":
        return amount
    return f"{amounts}{amount[0].upper()}{amount[1:]}"
