"""PodGroups and Workloads."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from dray.api.document import Document
from dray.api.pod_groups import DISRUPTION_TARGET, INITIALLY_SCHEDULED
from dray.api.validation.scheduling_v1beta1 import (
    validate_pod_group,
    validate_pod_group_status,
    validate_pod_group_update,
    validate_workload,
    validate_workload_update,
)
from dray.apiserver.registry.columns import AGE, NAME
from dray.apiserver.registry.gated_fields import (
    POD_GROUP_FIELDS,
    WORKLOAD_FIELDS,
    drop_disabled_status_fields,
)
from dray.apiserver.registry.generic import OWN_METADATA, GenericStatusStrategy, GenericStrategy
from dray.apiserver.registry.strategy import Column, ResourceDefinition, WriteContext

# Fields of features that are not built: groups of groups, and a preemption policy of groups.
_NOT_BUILT: Final = ("parentCompositePodGroupName", "preemptionPolicy")


class _GroupStrategy(GenericStrategy):
    """Strategy that also drops what is not built."""

    def prepare_for_create(self, obj: Document, context: WriteContext) -> None:
        """Drop such fields, and reset the status."""
        super().prepare_for_create(obj, context)
        _drop_not_built(obj)

    def prepare_for_update(self, obj: Document, old: Document, context: WriteContext) -> None:
        """Drop such fields, and restore the status."""
        super().prepare_for_update(obj, old, context)
        _drop_not_built(obj)


class PodGroupStatusStrategy(GenericStatusStrategy):
    """Strategy of the status, which the scheduler and the claim controller write."""

    def prepare_for_update(self, obj: Document, old: Document, context: WriteContext) -> None:
        """Restore everything else."""
        super().prepare_for_update(obj, old, context)
        drop_disabled_status_fields(POD_GROUP_FIELDS, obj, old, context.gates)


def _drop_not_built(obj: Document) -> None:
    spec = obj.get("spec") or {}
    for holder in (spec, *(spec.get("podGroupTemplates") or ())):
        for name in _NOT_BUILT:
            holder.pop(name, None)


def _policy(group: Document, now: datetime) -> str:
    policy = (group.get("spec") or {}).get("schedulingPolicy") or {}
    return "Gang" if policy.get("gang") is not None else "Basic"


def _workload(group: Document, now: datetime) -> str:
    return ((group.get("spec") or {}).get("workloadRef") or {}).get("workloadName") or "<none>"


def _status(group: Document, now: datetime) -> str:
    conditions = {item.get("type"): item for item in (group.get("status") or {}).get("conditions") or ()}
    target = conditions.get(DISRUPTION_TARGET) or {}
    if target.get("status") == "True":
        return str(target.get("reason") or "")
    status = (conditions.get(INITIALLY_SCHEDULED) or {}).get("status")
    return {"True": "Scheduled", "False": "Unschedulable"}.get(status or "", "Pending")


POD_GROUPS: Final = ResourceDefinition(
    group="scheduling.k8s.io",
    resource="podgroups",
    singular="podgroup",
    kind="PodGroup",
    namespaced=True,
    versions=("v1beta1",),
    storage_version="v1beta1",
    strategy=_GroupStrategy(
        validate_pod_group,
        validate_pod_group_update,
        initial_status={},
        generation=False,
        unconditional_update=False,
        fields=POD_GROUP_FIELDS,
    ),
    status_strategy=PodGroupStatusStrategy(
        validate_pod_group_status, unconditional_update=False, restored_metadata=OWN_METADATA
    ),
    columns=(
        NAME,
        Column("Policy", "string", "How the pods of the group are scheduled.", _policy),
        Column("Workload", "string", "The Workload whose template the group was made from.", _workload),
        Column("Status", "string", "Whether the group has been scheduled.", _status),
        AGE,
    ),
)

WORKLOADS: Final = ResourceDefinition(
    group="scheduling.k8s.io",
    resource="workloads",
    singular="workload",
    kind="Workload",
    namespaced=True,
    versions=("v1beta1",),
    storage_version="v1beta1",
    strategy=_GroupStrategy(
        validate_workload,
        validate_workload_update,
        generation=False,
        unconditional_update=False,
        fields=WORKLOAD_FIELDS,
    ),
    columns=(NAME, AGE),
)

DEFINITIONS: Final = (POD_GROUPS, WORKLOADS)
