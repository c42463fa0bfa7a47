"""ReplicaSets."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors
from dray.api.validation.apps_v1 import validate_replica_set, validate_replica_set_update, validate_replica_status
from dray.apiserver.registry.columns import AGE, NAME, TEMPLATE_COLUMNS, status_number
from dray.apiserver.registry.strategy import (
    Column,
    ResourceDefinition,
    Strategy,
    WriteContext,
    carry_generation,
    restore,
    restore_metadata,
    spec_changed,
    start_generation,
)


class ReplicaSetStrategy(Strategy):
    """The spec is the user's or the Deployment's, the status the controller's."""

    def prepare_for_create(self, obj: Document, context: WriteContext) -> None:
        """Nothing is running yet."""
        obj["status"] = {"replicas": 0}
        start_generation(obj)

    def validate_create(self, obj: Document, context: WriteContext) -> FieldErrors:
        """The whole spec."""
        return validate_replica_set(obj)

    def prepare_for_update(self, obj: Document, old: Document, context: WriteContext) -> None:
        """Keep the status."""
        restore(obj, old, "status")
        carry_generation(obj, old, changed=spec_changed(obj, old))

    def validate_update(self, obj: Document, old: Document, context: WriteContext) -> FieldErrors:
        """The selector is fixed."""
        return validate_replica_set_update(obj, old)


class ReplicaSetStatusStrategy(Strategy):
    """What the controller reports."""

    def prepare_for_update(self, obj: Document, old: Document, context: WriteContext) -> None:
        """Keep the spec."""
        restore(obj, old, "spec")
        restore_metadata(obj, old, "generation")

    def validate_update(self, obj: Document, old: Document, context: WriteContext) -> FieldErrors:
        """The counts fit together."""
        return validate_replica_status(obj)


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
    strategy=ReplicaSetStrategy(),
    status_strategy=ReplicaSetStatusStrategy(),
    subresources=("scale",),
    short_names=("rs",),
    categories=("all",),
    columns=(
        NAME,
        Column("Desired", "integer", "Pods that are wanted.", _desired),
        Column("Current", "integer", "Pods that are there.", _current),
        Column("Ready", "integer", "Pods that are ready.", _ready),
        AGE,
        *TEMPLATE_COLUMNS,
    ),
    selectable_fields={"status.replicas": lambda replica_set: str(status_number(replica_set, "replicas"))},
)

DEFINITIONS: Final = (REPLICA_SETS,)
