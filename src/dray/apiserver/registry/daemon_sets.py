"""DaemonSets."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Final

from dray.api.document import Document
from dray.api.pod_warnings import workload_warnings
from dray.api.validation.apps_v1 import validate_daemon_set, validate_daemon_set_status, validate_daemon_set_update
from dray.apiserver.registry.columns import AGE, NAME, TEMPLATE_COLUMNS, status_number
from dray.apiserver.registry.gated_fields import TEMPLATE_FIELDS
from dray.apiserver.registry.generic import GenericStatusStrategy, GenericStrategy
from dray.apiserver.registry.strategy import Column, ResourceDefinition

_COUNTS: Final = (
    "currentNumberScheduled",
    "numberMisscheduled",
    "desiredNumberScheduled",
    "numberReady",
)


def _number(field: str) -> Callable[[Document, datetime], int]:
    return lambda daemon_set, now: status_number(daemon_set, field)


def _node_selector(daemon_set: Document, now: datetime) -> str:
    template = (daemon_set.get("spec") or {}).get("template") or {}
    selector = (template.get("spec") or {}).get("nodeSelector") or {}
    return ",".join(f"{key}={value}" for key, value in sorted(selector.items())) or "<none>"


DAEMON_SETS: Final = ResourceDefinition(
    group="apps",
    resource="daemonsets",
    singular="daemonset",
    kind="DaemonSet",
    namespaced=True,
    versions=("v1",),
    storage_version="v1",
    strategy=GenericStrategy(
        validate_daemon_set,
        validate_daemon_set_update,
        initial_status=dict.fromkeys(_COUNTS, 0),
        warn=partial(workload_warnings, names_pods=False),
        fields=TEMPLATE_FIELDS,
    ),
    status_strategy=GenericStatusStrategy(validate_daemon_set_status),
    short_names=("ds",),
    categories=("all",),
    columns=(
        NAME,
        Column("Desired", "integer", "Nodes that should run the pod.", _number("desiredNumberScheduled")),
        Column("Current", "integer", "Nodes that run the pod.", _number("currentNumberScheduled")),
        Column("Ready", "integer", "Nodes whose pod is ready.", _number("numberReady")),
        Column("Up-to-date", "integer", "Nodes with the current template.", _number("updatedNumberScheduled")),
        Column("Available", "integer", "Nodes whose pod has been ready long enough.", _number("numberAvailable")),
        Column("Node Selector", "string", "The labels of eligible nodes.", _node_selector),
        AGE,
        *TEMPLATE_COLUMNS,
    ),
)

DEFINITIONS: Final = (DAEMON_SETS,)
