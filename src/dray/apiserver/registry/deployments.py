"""Deployments."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors
from dray.api.pod_warnings import workload_warnings
from dray.api.validation.apps_v1 import validate_deployment, validate_deployment_update, validate_replica_status
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


class DeploymentStrategy(Strategy):
    """Strategy of Deployments; users own the spec, the controller the status."""

    def prepare_for_create(self, obj: Document, context: WriteContext) -> None:
        """Reset the status."""
        obj["status"] = {}
        start_generation(obj)

    def validate_create(self, obj: Document, context: WriteContext) -> FieldErrors:
        """Validate the spec."""
        return validate_deployment(obj)

    def prepare_for_update(self, obj: Document, old: Document, context: WriteContext) -> None:
        """Restore the status; annotations count as desired state, since rollbacks use them."""
        restore(obj, old, "status")
        annotations = [(item.get("metadata") or {}).get("annotations") or {} for item in (obj, old)]
        carry_generation(obj, old, changed=spec_changed(obj, old) or annotations[0] != annotations[1])

    def validate_update(self, obj: Document, old: Document, context: WriteContext) -> FieldErrors:
        """Validate the spec; the selector is immutable."""
        return validate_deployment_update(obj, old)

    def warnings(self, obj: Document, old: Document | None, context: WriteContext) -> Sequence[str]:
        """Warn of what is probably not meant."""
        return workload_warnings(obj, old)


class DeploymentStatusStrategy(Strategy):
    """Strategy of the status."""

    def prepare_for_update(self, obj: Document, old: Document, context: WriteContext) -> None:
        """Restore spec and labels."""
        restore(obj, old, "spec")
        restore_metadata(obj, old, "labels", "generation")

    def validate_update(self, obj: Document, old: Document, context: WriteContext) -> FieldErrors:
        """Validate the counts."""
        return validate_replica_status(obj)


def _ready(deployment: Document, now: datetime) -> str:
    return f"{status_number(deployment, 'readyReplicas')}/{(deployment.get('spec') or {}).get('replicas') or 0}"


def _updated(deployment: Document, now: datetime) -> int:
    return status_number(deployment, "updatedReplicas")


def _available(deployment: Document, now: datetime) -> int:
    return status_number(deployment, "availableReplicas")


DEPLOYMENTS: Final = ResourceDefinition(
    group="apps",
    resource="deployments",
    singular="deployment",
    kind="Deployment",
    namespaced=True,
    versions=("v1",),
    storage_version="v1",
    strategy=DeploymentStrategy(),
    status_strategy=DeploymentStatusStrategy(),
    subresources=("scale",),
    short_names=("deploy",),
    categories=("all",),
    columns=(
        NAME,
        Column("Ready", "string", "Ready pods / desired pods.", _ready),
        Column("Up-to-date", "string", "Pods of the current template.", _updated),
        Column("Available", "string", "Pods that have been ready long enough.", _available),
        AGE,
        *TEMPLATE_COLUMNS,
    ),
)

DEFINITIONS: Final = (DEPLOYMENTS,)
