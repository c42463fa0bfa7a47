"""Checks of a migration: nothing is counted twice, every Pod has its devices, quotas agree. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dray.allocator import claim_label
from dray.api.devices import results_of
from dray.api.document import NamespacedName
from dray.api.pod_claims import extended_resource_claim_name, is_reserved_for
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import ResourceClaim
from dray.cli.migrate.plan import Migration, MigrationContext, NodeRow, Server, quota_keys


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem of one object."""

    about: str
    reason: str


def findings(context: MigrationContext, migration: Migration) -> tuple[Finding, ...]:
    """Return all problems; none if the migration is complete."""
    return (
        *_class_findings(migration),
        *(finding for row in migration.nodes for finding in _node_findings(context, row)),
        *_double_allocations(context),
        *_pod_findings(context),
        *_quota_findings(context, migration),
    )


def _class_findings(migration: Migration) -> Iterator[Finding]:
    name = f"deviceclass/{migration.device_class}"
    if migration.class_action:
        yield Finding(name, f"no class serves {migration.resource}; {migration.class_action} it first")
    if len(migration.candidates) > 1:
        others = ", ".join(migration.candidates[1:])
        yield Finding(name, f"{others} also set extendedResourceName {migration.resource}, without effect")


def _node_findings(context: MigrationContext, row: NodeRow) -> Iterator[Finding]:
    name = f"node/{row.node}"
    if row.served_by is Server.BOTH:
        yield Finding(
            name,
            f"{context.resource} is counted twice: {row.allocatable} of a device plugin and {row.devices} of class "
            f"{context.class_name}",
        )
    if row.served_by is Server.PLUGIN and row.from_plugin > row.allocatable:
        yield Finding(name, f"Pods use {row.from_plugin}, but the device plugin has {row.allocatable}")
    in_use = row.from_plugin + row.devices_in_use
    if row.served_by is Server.DEVICES and in_use > row.devices:
        yield Finding(
            name,
            f"{in_use} are in use ({row.from_plugin} of a removed device plugin, {row.devices_in_use} by claims), but "
            f"there are {row.devices} devices",
        )
    if row.served_by is Server.NONE and row.from_plugin:
        yield Finding(name, f"Pods use {row.from_plugin} of a removed device plugin, and no driver publishes devices")


def _double_allocations(context: MigrationContext) -> Iterator[Finding]:
    holders: dict[str, list[str]] = {}
    for claim in context.snapshot.claims:
        for result in results_of(claim.status.allocation):
            if not result.admin_access and result.share_id is None:
                device = f"{result.driver}/{result.pool}/{result.device}"
                holders.setdefault(device, []).append(claim_label(claim))
    for device, labels in sorted(holders.items()):
        if len(labels) > 1:
            yield Finding(f"device/{device}", f"is allocated to {' and '.join(sorted(labels))}")


def _pod_findings(context: MigrationContext) -> Iterator[Finding]:
    for info in context.infos:
        for pod_info in info.pods.values():
            if context.resource in pod_info.device_resources:
                reason = _claim_problem(context, pod_info.pod)
                if reason:
                    yield Finding(f"pod/{pod_info.key}", reason)


def _claim_problem(context: MigrationContext, pod: Pod) -> str:
    """Return the problem of the extended-resource claim of a scheduled Pod; empty if there is none."""
    name = extended_resource_claim_name(pod)
    claim = context.snapshot.claims_by_key.get(NamespacedName(pod.metadata.namespace or "", name))
    if claim is None:
        return f"claim {name} does not exist"
    if not is_reserved_for(claim, pod):
        return f"claim {name} is not reserved for the Pod"
    missing = _missing_requests(claim, pod)
    return f"claim {name} has no device for {', '.join(missing)}" if missing else ""


def _missing_requests(claim: ResourceClaim, pod: Pod) -> list[str]:
    status = pod.status.extended_resource_claim_status
    allocated = {result.request for result in results_of(claim.status.allocation)}
    requested = {mapping.request_name for mapping in status.request_mappings} if status is not None else set()
    return sorted(requested - allocated)


def _quota_findings(context: MigrationContext, migration: Migration) -> Iterator[Finding]:
    for row in migration.quotas:
        other = f"is {row.other_hard}" if row.other_hard else "is missing"
        yield Finding(f"resourcequota/{row.quota}", f"{row.key} is {row.hard}, but {row.other_key} {other}")
    first, second = quota_keys(context)
    for quota in context.snapshot.documents.get("ResourceQuota", ()):
        used = (quota.get("status") or {}).get("used") or {}
        if first in used and second in used and str(used[first]) != str(used[second]):
            name = f"resourcequota/{quota['metadata'].get('namespace', '')}/{quota['metadata']['name']}"
            yield Finding(name, f"used {first} is {used[first]}, but used {second} is {used[second]}")
