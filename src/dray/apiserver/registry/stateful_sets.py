"""StatefulSets and ReplicationControllers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from dray.api.document import Document
from dray.api.pod_warnings import workload_warnings
from dray.api.validation.apps_v1 import (
    validate_replica_status,
    validate_replication_controller,
    validate_stateful_set,
    validate_stateful_set_status,
    validate_stateful_set_update,
)
from dray.apiserver.registry.columns import AGE, NAME, TEMPLATE_COLUMNS, status_number
from dray.apiserver.registry.gated_fields import TEMPLATE_FIELDS
from dray.apiserver.registry.generic import GenericStatusStrategy, GenericStrategy
from dray.apiserver.registry.strategy import (
    SCALE,
    Column,
    ResourceDefinition,
)

_KEEPS_ALL: Final = (
    "spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended"
)


def _replicas(obj: Document) -> int:
    replicas: int = (obj.get("spec") or {}).get("replicas") or 0
    return replicas


def _warnings(obj: Document, old: Document | None) -> Sequence[str]:
    found = workload_warnings(obj, old, names_pods=False)
    if ((obj.get("spec") or {}).get("revisionHistoryLimit") or 0) < 0:
        found.append(_KEEPS_ALL)
    return found


STATEFUL_SETS: Final = ResourceDefinition(
    group="apps",
    resource="statefulsets",
    singular="statefulset",
    kind="StatefulSet",
    namespaced=True,
    versions=("v1",),
    storage_version="v1",
    strategy=GenericStrategy(
        validate_stateful_set,
        validate_stateful_set_update,
        initial_status={"replicas": 0, "availableReplicas": 0},
        warn=_warnings,
        fields=TEMPLATE_FIELDS,
    ),
    status_strategy=GenericStatusStrategy(validate_stateful_set_status),
    subresources=(SCALE,),
    short_names=("sts",),
    categories=("all",),
    columns=(
        NAME,
        Column(
            "Ready",
            "string",
            "Ready pods / desired pods.",
            lambda obj, now: f"{status_number(obj, 'readyReplicas')}/{_replicas(obj)}",
        ),
        AGE,
        *TEMPLATE_COLUMNS[:2],
    ),
)


def _selector(controller: Document, now: datetime) -> str:
    selector = (controller.get("spec") or {}).get("selector") or {}
    return ",".join(f"{key}={selector[key]}" for key in sorted(selector)) or "<none>"


REPLICATION_CONTROLLERS: Final = ResourceDefinition(
    group="",
    resource="replicationcontrollers",
    singular="replicationcontroller",
    kind="ReplicationController",
    namespaced=True,
    versions=("v1",),
    storage_version="v1",
    strategy=GenericStrategy(validate_replication_controller, initial_status={"replicas": 0}, fields=TEMPLATE_FIELDS),
    status_strategy=GenericStatusStrategy(validate_replica_status),
    subresources=(SCALE,),
    short_names=("rc",),
    categories=("all",),
    columns=(
        NAME,
        Column("Desired", "integer", "The pods that are wanted.", lambda obj, now: _replicas(obj)),
        Column("Current", "integer", "The pods that exist.", lambda obj, now: status_number(obj, "replicas")),
        Column("Ready", "integer", "The pods that are ready.", lambda obj, now: status_number(obj, "readyReplicas")),
        AGE,
        *TEMPLATE_COLUMNS[:2],
        Column("Selector", "string", "The labels of its pods.", _selector, priority=1),
    ),
    selectable_fields={"status.replicas": lambda obj: str(status_number(obj, "replicas"))},
)

DEFINITIONS: Final = (STATEFUL_SETS, REPLICATION_CONTROLLERS)
