"""Deployments."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from dray.api.document import Document
from dray.api.pod_warnings import workload_warnings
from dray.api.validation.apps_v1 import validate_deployment, validate_deployment_update, validate_replica_status
from dray.apiserver.registry.columns import AGE, NAME, TEMPLATE_COLUMNS, status_number
from dray.apiserver.registry.gated_fields import TEMPLATE_FIELDS
from dray.apiserver.registry.generic import GenericStatusStrategy, GenericStrategy, desired_state_or_annotations_changed
from dray.apiserver.registry.strategy import (
    SCALE,
    Column,
    ResourceDefinition,
)


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
    # Annotations are copied to ReplicaSets, and rollbacks restore them.
    strategy=GenericStrategy(
        validate_deployment,
        validate_deployment_update,
        initial_status={},
        changed=desired_state_or_annotations_changed,
        warn=workload_warnings,
        fields=TEMPLATE_FIELDS,
    ),
    status_strategy=GenericStatusStrategy(validate_replica_status, restored_metadata=("labels",)),
    subresources=(SCALE,),
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
