"""ReplicaSets."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors
from dray.api.pod_warnings import workload_warnings
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
    """Strategy of ReplicaSets; users or Deployments own the spec, the controller the status."""

    def prepare_for_create(self, obj: Document, context: WriteContext) -> None:
        """Reset the status."""
        obj["status"] = {"replicas": 0}
        start_generation(obj)

    def validate_create(self, obj: Document, context: WriteContext) -> FieldErrors:
        """Validate the spec."""
        return validate_replica_set(obj)

    def prepare_for_update(self, obj: Document, old: Document, context: WriteContext) -> None:
        """Restore the status."""
        restore(obj, old, "status")
        carry_generation(obj, old, changed=spec_changed(obj, old))

    def validate_update(self, obj: Document, old: Document, context: WriteContext) -> FieldErrors:
        """Validate the spec; the selector is immutable."""
        return validate_replica_set_update(obj, old)

    def warnings(self, obj: Document, old: Document | None, context: WriteContext) -> Sequence[str]:
        """Warn of what is probably not meant."""
        return workload_warnings(obj, old)


class ReplicaSetStatusStrategy(Strategy):
    """Strategy of the status."""

    def prepare_for_update(self, obj: Document, old: Document, context: WriteContext) -> None:
        """Restore the spec."""
        restore(obj, old, "spec")
        restore_metadata(obj, old, "generation")

    def validate_update(self, obj: Document, old: Document, context: WriteContext) -> FieldErrors:
        """Validate the counts."""
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
        Column("Desired", "integer", "Desired pods.", _desired),
        Column("Current", "integer", "Existing pods.", _current),
        Column("Ready", "integer", "Ready pods.", _ready),
        AGE,
        *TEMPLATE_COLUMNS,
    ),
    selectable_fields={"status.replicas": lambda replica_set: str(status_number(replica_set, "replicas"))},
)

DEFINITIONS: Final = (REPLICA_SETS,)
