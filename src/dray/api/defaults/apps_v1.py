"""Defaults of Deployments, ReplicaSets and DaemonSets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

from dray.api.defaults.core_v1 import default_template
from dray.api.document import Document, GroupVersion, GroupVersionKind

_REVISION_HISTORY: Final = 10
_PROGRESS_DEADLINE_SECONDS: Final = 600
_ROLLING: Final = "RollingUpdate"


def _set(spec: Document, name: str, value: object) -> None:
    if spec.get(name) is None:
        spec[name] = value


def _default_deployment(obj: Document, _now: datetime) -> None:
    spec = obj.setdefault("spec", {})
    default_template(spec.get("template"))
    _set(spec, "replicas", 1)
    _set(spec, "strategy", {})
    strategy = spec["strategy"]
    if not strategy.get("type"):
        strategy["type"] = _ROLLING
    if strategy["type"] == _ROLLING:
        _set(strategy, "rollingUpdate", {})
        _set(strategy["rollingUpdate"], "maxUnavailable", "25%")
        _set(strategy["rollingUpdate"], "maxSurge", "25%")
    _set(spec, "revisionHistoryLimit", _REVISION_HISTORY)
    _set(spec, "progressDeadlineSeconds", _PROGRESS_DEADLINE_SECONDS)


def _default_replica_set(obj: Document, _now: datetime) -> None:
    spec = obj.setdefault("spec", {})
    default_template(spec.get("template"))
    _set(spec, "replicas", 1)


def _default_daemon_set(obj: Document, _now: datetime) -> None:
    spec = obj.setdefault("spec", {})
    default_template(spec.get("template"))
    _set(spec, "updateStrategy", {})
    strategy = spec["updateStrategy"]
    if not strategy.get("type"):
        strategy["type"] = _ROLLING
    if strategy["type"] == _ROLLING:
        _set(strategy, "rollingUpdate", {})
        _set(strategy["rollingUpdate"], "maxUnavailable", 1)
        _set(strategy["rollingUpdate"], "maxSurge", 0)
    _set(spec, "revisionHistoryLimit", _REVISION_HISTORY)


_V1: Final = GroupVersion("apps", "v1")

DEFAULTERS: Final[Mapping[GroupVersionKind, Callable[[Document, datetime], None]]] = {
    _V1.kind("Deployment"): _default_deployment,
    _V1.kind("ReplicaSet"): _default_replica_set,
    _V1.kind("DaemonSet"): _default_daemon_set,
}
