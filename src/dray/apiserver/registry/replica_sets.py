"""ReplicaSets."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from dray.api.document import Document
from dray.api.pod_warnings import workload_warnings
from dray.api.validation.apps_v1 import validate_replica_set, validate_replica_set_update, validate_replica_status
from dray.apiserver.registry.columns import AGE, NAME, TEMPLATE_COLUMNS, status_number
from dray.apiserver.registry.gated_fields import TEMPLATE_FIELDS
from dray.apiserver.registry.generic import GenericStatusStrategy, GenericStrategy
from dray.apiserver.registry.strategy import (
    SCALE,
    Column,
    ResourceDefinition,
)


def _desired(replica_set: Document, now: datetime) -> int:
    return (replica_set.get("spec") or {}).get("replicas") or 0


def _current(replica_set: Document, now: datetime) -> int:
    return status_number(replica_set, "replicas")


def _ready(replica_set: Document, now: datetime) -> int:
    return status_number(replica_set, "readyReplicas")


REPLICA_SETS: Final = ResourceDefinition(
    group="apps",
    resource="replicasets",
    singular="replicaset",
    kind="ReplicaSet",
    namespaced=True,
    versions=("v1",),
    storage_version="v1",
    strategy=GenericStrategy(
        validate_replica_set,
        validate_replica_set_update,
        initial_status={"replicas": 0},
        warn=workload_warnings,
        fields=TEMPLATE_FIELDS,
    ),
    status_strategy=GenericStatusStrategy(validate_replica_status),
    subresources=(SCALE,),
    short_names=("rs",),
    categories=("all",),
    columns=(
        NAME,
        Column("Desired", "integer", "Desired pods.", _desired),
        Column("Current", "integer", "Existing pods.", _current),
        Column("Ready", "integer", "Ready pods.", _ready),
        AGE,
        *TEMPLATE_COLUMNS,
    ),
    selectable_fields={"status.replicas": lambda replica_set: str(status_number(replica_set, "replicas"))},
)

DEFINITIONS: Final = (REPLICA_SETS,)
