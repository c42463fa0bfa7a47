"""HorizontalPodAutoscalers in both versions, as Kubernetes' `pkg/apis/autoscaling/v1` converts and defaults them."""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from dray.api.conversion.autoscaling import from_hub, to_hub
from dray.api.defaults.autoscaling import DEFAULTERS
from dray.api.document import Document, GroupVersionKind

pytestmark = pytest.mark.api_kinds

NOW = datetime(2026, 11, 17, tzinfo=UTC)
ANNOTATION = "autoscaling.alpha.kubernetes.io/"
TARGET = {"kind": "Deployment", "name": "d"}
SELECTOR = {"matchLabels": {"a": "b"}}
# A metric of `v2` and of `v1`, for each type of metric.
METRICS = [
    (
        {"type": "Pods", "pods": {"metric": {"name": "m"}, "target": {"type": "AverageValue", "averageValue": "5"}}},
        {"type": "Pods", "pods": {"metricName": "m", "targetAverageValue": "5"}},
    ),
    (
        {
            "type": "Object",
            "object": {
                "metric": {"name": "q", "selector": SELECTOR},
                "describedObject": TARGET,
                "target": {"type": "Value", "value": "7"},
            },
        },
        {"type": "Object", "object": {"metricName": "q", "selector": SELECTOR, "target": TARGET, "targetValue": "7"}},
    ),
    (
        {
            "type": "Object",
            "object": {
                "metric": {"name": "q"},
                "describedObject": TARGET,
                "target": {"type": "AverageValue", "averageValue": "7"},
            },
        },
        {"type": "Object", "object": {"metricName": "q", "target": TARGET, "averageValue": "7"}},
    ),
    (
        {
            "type": "External",
            "external": {
                "metric": {"name": "q", "selector": SELECTOR},
                "target": {"type": "AverageValue", "averageValue": "3"},
            },
        },
        {"type": "External", "external": {"metricName": "q", "metricSelector": SELECTOR, "targetAverageValue": "3"}},
    ),
    (
        {
            "type": "ContainerResource",
            "containerResource": {
                "name": "cpu",
                "container": "c",
                "target": {"type": "Utilization", "averageUtilization": 50},
            },
        },
        {
            "type": "ContainerResource",
            "containerResource": {"name": "cpu", "container": "c", "targetAverageUtilization": 50},
        },
    ),
]
CPU = {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 60}}}
CURRENT_CPU = {"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": 40}}}


def scaler(version: str, spec: dict[str, Any], status: dict[str, Any] | None = None, **annotations: str) -> Document:
    metadata: Document = {"name": "d"}
    if annotations:
        metadata["annotations"] = {f"{ANNOTATION}{name}": value for name, value in annotations.items()}
    return {
        "apiVersion": f"autoscaling/{version}",
        "kind": "HorizontalPodAutoscaler",
        "metadata": metadata,
        "spec": {"maxReplicas": 3, **spec},
        "status": status or {},
    }


def convert(document: Document) -> Document:
    before = copy.deepcopy(document)
    change = from_hub if document["apiVersion"].endswith("v2") else to_hub
    found = change("v1", "HorizontalPodAutoscaler", document)
    assert document == before
    return found


def test_the_utilization_of_cpu_is_a_field_of_v1() -> None:
    new = scaler("v2", {"metrics": [CPU]}, {"currentMetrics": [CURRENT_CPU]})
    old = scaler("v1", {"targetCPUUtilizationPercentage": 60}, {"currentCPUUtilizationPercentage": 40})
    assert convert(new) == old
    assert convert(old) == new


@pytest.mark.parametrize(("new", "old"), METRICS)
def test_other_metrics_are_an_annotation_of_v1(new: Document, old: Document) -> None:
    document = scaler("v2", {"metrics": [new, CPU]})
    found = convert(document)
    assert json.loads(found["metadata"]["annotations"][f"{ANNOTATION}metrics"]) == [old]
    assert found["spec"] == {"maxReplicas": 3, "targetCPUUtilizationPercentage": 60}
    assert convert(found) == document


def test_behavior_and_conditions_are_annotations_of_v1() -> None:
    conditions = [{"type": "AbleToScale", "status": "True"}]
    document = scaler("v2", {"behavior": {"scaleUp": {"selectPolicy": "Min"}}}, {"conditions": conditions})
    found = convert(document)
    assert found["status"] == {}
    assert set(found["metadata"]["annotations"]) == {f"{ANNOTATION}behavior", f"{ANNOTATION}conditions"}
    assert convert(found) == document


def test_an_annotation_that_is_no_json_is_dropped() -> None:
    assert convert(scaler("v1", {}, metrics="[")) == scaler("v2", {})


def defaulted(version: str, spec: dict[str, Any], **annotations: str) -> Any:
    document = scaler(version, spec, None, **annotations)
    DEFAULTERS[GroupVersionKind("autoscaling", version, "HorizontalPodAutoscaler")](document, NOW)
    return document["spec"]


def test_defaults() -> None:
    assert defaulted("v1", {}) == {"maxReplicas": 3, "minReplicas": 1, "targetCPUUtilizationPercentage": 80}
    assert defaulted("v1", {"minReplicas": 2}, metrics="[{}]") == {"maxReplicas": 3, "minReplicas": 2}
    (metric,) = defaulted("v2", {})["metrics"]
    assert metric["resource"] == {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}


def test_defaults_of_behavior() -> None:
    found = defaulted("v2", {"behavior": {"scaleDown": {"selectPolicy": "Disabled"}}})["behavior"]
    percent = {"type": "Percent", "value": 100, "periodSeconds": 15}
    assert found["scaleDown"] == {"selectPolicy": "Disabled", "policies": [percent]}
    pods = {"type": "Pods", "value": 4, "periodSeconds": 15}
    assert found["scaleUp"] == {
        "selectPolicy": "Max",
        "stabilizationWindowSeconds": 0,
        "policies": [pods, percent],
    }
