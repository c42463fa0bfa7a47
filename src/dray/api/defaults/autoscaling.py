"""Defaults of HorizontalPodAutoscalers."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from dray.api.conversion.autoscaling import METRICS, cpu_metric
from dray.api.defaults import Defaulters
from dray.api.document import Document, GroupVersion

_CPU_UTILIZATION: Final = 80
_PERIOD_SECONDS: Final = 15


def _default_v1(obj: Document, _now: datetime) -> None:
    spec: Document = obj.setdefault("spec", {})
    spec.setdefault("minReplicas", 1)
    others = ((obj.get("metadata") or {}).get("annotations") or {}).get(METRICS)
    if spec.get("targetCPUUtilizationPercentage") is None and not others:
        spec["targetCPUUtilizationPercentage"] = _CPU_UTILIZATION


def _default_v2(obj: Document, _now: datetime) -> None:
    spec: Document = obj.setdefault("spec", {})
    spec.setdefault("minReplicas", 1)
    if not spec.get("metrics"):
        spec["metrics"] = [cpu_metric(_CPU_UTILIZATION)]
    behavior = spec.get("behavior")
    if behavior is None:
        return
    # Up: the larger of doubling and four Pods more, at once. Down: to any number, after the server's own window.
    percent = {"type": "Percent", "value": 100, "periodSeconds": _PERIOD_SECONDS}
    pods = {"type": "Pods", "value": 4, "periodSeconds": _PERIOD_SECONDS}
    _default_rules(behavior, "scaleUp", {"stabilizationWindowSeconds": 0, "policies": [pods, percent]})
    _default_rules(behavior, "scaleDown", {"policies": [percent]})


def _default_rules(behavior: Document, direction: str, defaults: Document) -> None:
    rules: Document = behavior.get(direction) or {}
    behavior[direction] = {"selectPolicy": "Max", **defaults, **{k: v for k, v in rules.items() if v is not None}}


DEFAULTERS: Final[Defaulters] = {
    GroupVersion("autoscaling", "v1").kind("HorizontalPodAutoscaler"): _default_v1,
    GroupVersion("autoscaling", "v2").kind("HorizontalPodAutoscaler"): _default_v2,
}
