"""Whether a migration is whole: nothing counted twice, every Pod has its devices, quotas agree. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dray.allocator import claim_label
from dray.api.document import NamespacedName
from dray.api.pod_claims import extended_resource_claim_name, is_reserved_for
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import ResourceClaim
from dray.cli.migrate.plan import Ground, Migration, NodeRow, Server, quota_keys


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with what."""

    about: str
    reason: str


def findings(found: Ground, migration: Migration) -> tuple[Finding, ...]:
    """Everything that is wrong; nothing when the migration is whole."""
    return (
        *_of_the_class(migration),
        *(finding for row in migration.nodes for finding in _of_a_node(found, row)),
        *_devices_held_twice(found),
        *_of_pods(found),
        *_of_quotas(found, migration),
    )


def _of_the_class(migration: Migration) -> Iterator[Finding]:
    name = f"deviceclass/{migration.device_class}"
    if migration.class_action:
        yield Finding(name, f"no class serves {migration.resource}; {migration.class_action} it first")
    if len(migration.claimants) > 1:
        others = ", ".join(migration.claimants[1:])
        yield Finding(name, f"{others} ask for {migration.resource} too and do not have it")


def _of_a_node(found: Ground, row: NodeRow) -> Iterator[Finding]:
    name = f"node/{row.node}"
    if row.served_by is Server.BOTH:
        yield Finding(
            name,
            f"{found.resource} counts twice: {row.allocatable} of a device plugin and {row.devices} of class "
            f"{found.class_name}",
        )
    if row.served_by is Server.PLUGIN and row.from_plugin > row.allocatable:
        yield Finding(name, f"Pods have {row.from_plugin} of {row.allocatable} that the device plugin offers")
    in_use = row.from_plugin + row.devices_in_use
    if row.served_by is Server.DEVICES and in_use > row.devices:
        yield Finding(
            name,
            f"{in_use} are in use ({row.from_plugin} of a former device plugin, {row.devices_in_use} of claims) and "
            f"there are {row.devices} devices",
        )
    if row.served_by is Server.NOBODY and row.from_plugin:
        yield Finding(name, f"Pods have {row.from_plugin} of a device plugin that is gone, and no driver has come")


def _devices_held_twice(found: Ground) -> Iterator[Finding]:
    holders: dict[str, list[str]] = {}
    for claim in found.snapshot.claims:
        for result in claim.status.allocation.devices.results if claim.status.allocation is not None else ():
            if not result.admin_access and result.share_id is None:
                device = f"{result.driver}/{result.pool}/{result.device}"
                holders.setdefault(device, []).append(claim_label(claim))
    for device, labels in sorted(holders.items()):
        if len(labels) > 1:
            yield Finding(f"device/{device}", f"is held by {' and '.join(sorted(labels))}")


def _of_pods(found: Ground) -> Iterator[Finding]:
    for info in found.infos:
        for pod_info in info.pods.values():
            if found.resource in pod_info.device_resources:
                reason = _claim_problem(found, pod_info.pod)
                if reason:
                    yield Finding(f"pod/{pod_info.key}", reason)


def _claim_problem(found: Ground, pod: Pod) -> str:
    """What is wrong with the special claim of a Pod on a node; empty when nothing is."""
    name = extended_resource_claim_name(pod)
    claim = found.snapshot.claims_by_key.get(NamespacedName(pod.metadata.namespace or "", name))
    if claim is None:
        return f"its claim {name} is gone"
    if not is_reserved_for(claim, pod):
        return f"its claim {name} is not reserved for it"
    missing = _missing_requests(claim, pod)
    return f"its claim {name} has no device for {', '.join(missing)}" if missing else ""


def _missing_requests(claim: ResourceClaim, pod: Pod) -> list[str]:
    status, allocation = pod.status.extended_resource_claim_status, claim.status.allocation
    given = {result.request for result in allocation.devices.results} if allocation is not None else set()
    wanted = {mapping.request_name for mapping in status.request_mappings} if status is not None else set()
    return sorted(wanted - given)


def _of_quotas(found: Ground, migration: Migration) -> Iterator[Finding]:
    for row in migration.quotas:
        other = f"is {row.other_hard}" if row.other_hard else "is missing"
        yield Finding(f"resourcequota/{row.quota}", f"{row.key} is {row.hard} and {row.other_key} {other}")
    first, second = quota_keys(found)
    for quota in found.snapshot.documents.get("ResourceQuota", ()):
        used = (quota.get("status") or {}).get("used") or {}
        if first in used and second in used and str(used[first]) != str(used[second]):
            name = f"resourcequota/{quota['metadata'].get('namespace', '')}/{quota['metadata']['name']}"
            yield Finding(name, f"{used[first]} of {first} are used and {used[second]} of {second}")
