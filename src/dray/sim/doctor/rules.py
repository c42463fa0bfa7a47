"""The rules of `dray doctor`: each checks the whole snapshot and yields findings. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from dray.allocator.gates import Gates
from dray.allocator.pools import pool_key
from dray.api.document import NamespacedName
from dray.api.pod_claims import is_pod_done, pod_claims
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import ResourceClaim
from dray.sim.devices import holders_by_device
from dray.sim.doctor.classic_rules import CLASSIC_RULES, unserved_classic
from dray.sim.doctor.device_rules import DEVICE_RULES
from dray.sim.doctor.findings import STUCK_AFTER, Finding, Rule, Severity, dead_pod_text, free_claim, remove_reservation
from dray.sim.doctor.group_rules import GROUP_RULES
from dray.sim.doctor.path_rules import PATH_RULES
from dray.sim.doctor.version_rules import VERSION_RULES
from dray.sim.explain.answers import Stage, Verdict
from dray.sim.explain.before_scheduling import (
    class_names,
    class_obstacle,
    dead_users,
    deleted_claim,
    missing_class,
    obstacle_before_scheduling,
    refused_claim,
)
from dray.sim.explain.pod_group import group_of
from dray.sim.explain.similar_names import did_you_mean, listed
from dray.sim.scheduler_messages import scheduler_message, without_preemption
from dray.sim.snapshot import Snapshot

# The condition of nodes with networks for Pods.
SERVICE_NETWORK: Final = "dray.dev/ServiceNetwork"
# Stages at which a Pod does not go on until somebody changes something.
_BROKEN: Final = frozenset((Stage.QUOTA, Stage.ADMISSION, Stage.CLAIM, Stage.VOLUME))


def dead_reservations(snapshot: Snapshot, _now: datetime) -> Iterator[Finding]:
    """Yield claims reserved for Pods that do not exist or have finished."""
    for claim in snapshot.claims:
        for user in dead_users(snapshot, claim):
            index = claim.status.reserved_for.index(user)
            text = dead_pod_text(snapshot.pods_by_uid.get(user.uid))
            yield Finding(
                Severity.ERROR,
                "dead-reservation",
                _claim(claim),
                f"is reserved for Pod {user.name} (uid {user.uid}), which {text}",
                "the claim controller removes such reservations: check that it is running; --fix removes this one",
                free_claim(claim)
                if len(claim.status.reserved_for) == 1
                else remove_reservation(
                    "ResourceClaim", claim.metadata.namespace or "", claim.metadata.name or "", index, user.uid
                ),
            )


def double_allocations(snapshot: Snapshot, _now: datetime) -> Iterator[Finding]:
    """Yield devices that are allocated exclusively to several claims."""
    shareable = _shareable(snapshot)
    for device, holders in sorted(holders_by_device(snapshot).items()):
        claims = sorted({holder.claim for holder in holders if not holder.admin_access and holder.consumed is None})
        if len(claims) > 1 and device not in shareable:
            yield Finding(
                Severity.ERROR,
                "double-allocation",
                f"device {device}",
                f"is allocated to {', '.join(claims)}",
                "delete the Pods of all but one of these claims; check that only one scheduler allocates devices",
            )


def _shareable(snapshot: Snapshot) -> set[str]:
    return {
        f"{pool_key(item.spec.driver, item.spec.pool.name)}/{device.name}"
        for item in snapshot.slices
        for device in item.spec.devices
        if device.allow_multiple_allocations
    }


def stuck_deletions(snapshot: Snapshot, now: datetime) -> Iterator[Finding]:
    """Yield claims that are stuck in deletion, with their finalizers and consumers."""
    for claim in snapshot.claims:
        deleted = claim.metadata.deletion_timestamp
        if deleted is None or now - deleted < STUCK_AFTER:
            continue
        why, advice = deleted_claim(snapshot, claim)
        what = f"has been terminating since {deleted:%Y-%m-%d %H:%M} UTC: {why}"
        yield Finding(Severity.ERROR, "stuck-deletion", _claim(claim), what, advice)


def unused_allocations(snapshot: Snapshot, now: datetime) -> Iterator[Finding]:
    """Yield allocated claims without consumers."""
    for claim in snapshot.claims:
        allocation = claim.status.allocation
        if allocation is None or claim.status.reserved_for or claim.metadata.deletion_timestamp is not None:
            continue
        since = allocation.allocation_timestamp
        if since is None or now - since < STUCK_AFTER:
            continue
        count = len(allocation.devices.results)
        yield Finding(
            Severity.WARNING,
            "unused-allocation",
            _claim(claim),
            f"has {count} device(s) allocated since {since:%Y-%m-%d %H:%M} UTC and no consumers",
            "use it or delete it: its devices cannot be allocated to other claims",
        )


def lost_devices(snapshot: Snapshot, _now: datetime) -> Iterator[Finding]:
    """Yield allocated devices that no driver publishes any more."""
    if not snapshot.covers("ResourceSlice", "ResourceClaim"):
        return
    known = {
        f"{pool_key(item.spec.driver, item.spec.pool.name)}/{device.name}"
        for item in snapshot.slices
        for device in item.spec.devices
    }
    drivers = {item.spec.driver for item in snapshot.slices}
    for device, holders in sorted(holders_by_device(snapshot).items()):
        if device in known:
            continue
        driver = device.partition("/")[0]
        gone = "its driver publishes others" if driver in drivers else f"driver {driver} publishes no devices"
        yield Finding(
            Severity.WARNING,
            "lost-device",
            f"device {device}",
            f"is allocated to {', '.join(holder.claim for holder in holders)} but is in no ResourceSlice; {gone}",
            "running Pods keep it; the driver must be running on its node to unprepare it",
        )


def unserved_pods(snapshot: Snapshot, _now: datetime) -> Iterator[Finding]:
    """Yield scheduled Pods whose claims are missing, not allocated, or not reserved for them."""
    if not snapshot.covers("ResourceClaim", "Pod"):
        return
    for pod in snapshot.pods:
        if not pod.spec.node_name or is_pod_done(pod) or pod.metadata.deletion_timestamp is not None:
            continue
        entries = {entry.entry: _unserved(pod, entry.claim_name, snapshot) for entry in pod_claims(pod)}
        entries |= {entry.entry: unserved_classic(pod, entry, snapshot) for entry in snapshot.classic_entries(pod)}
        optional = {entry.name for entry in pod.spec.resource_claims if entry.optional}
        for entry, problem in entries.items():
            if problem and entry not in optional:
                advice = "the node cannot start the Pod; delete it so that its replacement is scheduled again"
                yield Finding(Severity.ERROR, "unserved-pod", _pod(pod), f"{problem} ({entry})", advice)


def _unserved(pod: Pod, name: str | None, snapshot: Snapshot) -> str:
    if name is None:
        return "is scheduled but has no claim yet"
    claim = snapshot.claims_by_key.get(NamespacedName(pod.metadata.namespace or "", name))
    if claim is None:
        return f"uses claim {name}, which does not exist"
    if claim.status.allocation is None:
        return f"uses claim {name}, which is not allocated"
    if all(user.uid != pod.metadata.uid for user in claim.status.reserved_for):
        return f"uses claim {name}, which is not reserved for it"
    return ""


def missing_classes(snapshot: Snapshot, _now: datetime) -> Iterator[Finding]:
    """Yield device classes that are requested and do not exist, with the Pods that wait for them."""
    if not snapshot.covers("DeviceClass", "ResourceClaim"):
        return
    classes = {item.metadata.name or "" for item in snapshot.classes}
    asked: dict[str, list[str]] = {}
    for claim in snapshot.claims:
        if claim.status.allocation is None:
            for name in class_names(claim.spec):
                asked.setdefault(name, []).append(_claim(claim))
    for template in snapshot.templates:
        for name in class_names(template.spec.spec):
            key = f"{template.metadata.namespace}/{template.metadata.name}"
            asked.setdefault(name, []).append(f"resourceclaimtemplate {key}")
    missing = sorted(asked.keys() - classes)
    waiting = _waiting_by_class(snapshot) if missing else {}
    for name in missing:
        few = ", ".join(asked[name][:3])
        pods = waiting.get(name, ())
        wait = f"; {listed(pods)} {'waits' if len(pods) == 1 else 'wait'} for it" if pods else ""
        what = f"does not exist{did_you_mean(name, classes)} and is requested by {few}{wait}"
        advice = "create the DeviceClass, or correct the name"
        yield Finding(Severity.ERROR, "missing-class", f"deviceclass {name}", what, advice)


def _waiting_by_class(snapshot: Snapshot) -> dict[str, list[str]]:
    """Return the Pods that wait for each class that does not exist."""
    found: dict[str, list[str]] = {}
    for pod in snapshot.pods:
        missing = None if pod.spec.node_name or is_pod_done(pod) else missing_class(snapshot, pod)
        if missing is not None:
            found.setdefault(missing[1], []).append(_pod(pod))
    return found


def broken_pools(snapshot: Snapshot, _now: datetime) -> Iterator[Finding]:
    """Yield incomplete and invalid pools, which are not allocated from."""
    inventory = snapshot.inventory()
    for pool in inventory.pools():
        pool.refresh(Gates(compatibility_groups=True))
        entries = list(pool.entries())
        if not pool.complete:
            wanted = max(entry.slice_count for entry in entries)
            yield Finding(
                Severity.WARNING,
                "incomplete-pool",
                f"pool {pool.key}",
                f"has {len(entries)} of {wanted} slices of generation {pool.generation}: its devices are not allocated",
                "its driver is still publishing it, or stopped halfway: check that it is running",
            )
        elif pool.problem is not None:
            advice = "the driver must publish it correctly"
            yield Finding(Severity.ERROR, "invalid-pool", f"pool {pool.key}", pool.problem, advice)


def former_nodes(snapshot: Snapshot, _now: datetime) -> Iterator[Finding]:
    """Yield slices that belong to a Node which was deleted, and registered again with another UID."""
    uids = {item.metadata.name: item.metadata.uid for item in snapshot.nodes}
    for item in snapshot.slices:
        for owner in item.metadata.owner_references:
            uid = uids.get(owner.name) if owner.kind == "Node" else None
            if uid is None or owner.uid == uid:
                continue
            yield Finding(
                Severity.ERROR,
                "former-node",
                f"resourceslice {item.metadata.name}",
                f"belongs to an earlier Node {owner.name} (uid {owner.uid}, now {uid}) and will be garbage-collected",
                f"if the devices do not come back within a minute, restart driver {item.spec.driver} on the node",
            )


def orphaned_slices(snapshot: Snapshot, _now: datetime) -> Iterator[Finding]:
    """Yield slices of nodes that do not exist."""
    nodes = {item.metadata.name for item in snapshot.nodes} if snapshot.covers("Node", "ResourceSlice") else set()
    for item in snapshot.slices:
        name = item.spec.node_name
        if name and nodes and name not in nodes:
            yield Finding(
                Severity.WARNING,
                "orphaned-slice",
                f"resourceslice {item.metadata.name}",
                f"is for node {name}, which does not exist",
                f"if the node does not come back: kubectl delete resourceslice {item.metadata.name}",
            )


def long_waits(snapshot: Snapshot, now: datetime) -> Iterator[Finding]:
    """Yield Pods that have been pending for a while."""
    is_class_reported = snapshot.covers("DeviceClass", "ResourceClaim")
    for pod in snapshot.pods:
        created = pod.metadata.creation_timestamp
        if pod.spec.node_name or is_pod_done(pod) or created is None or now - created < STUCK_AFTER:
            continue
        if pod.spec.scheduling_gates or group_of(snapshot, pod) is not None:
            # A gate has its reason, and a group is reported as a whole.
            continue
        since = f"has been pending since {created:%Y-%m-%d %H:%M} UTC"
        obstacle = obstacle_before_scheduling(snapshot, pod, now)
        if obstacle is not None and is_class_reported and obstacle == class_obstacle(snapshot, pod, now):
            # The class is reported, with its Pods.
            continue
        if obstacle is not None and obstacle.action:
            severity = Severity.WARNING if obstacle.stage in _BROKEN else Severity.NOTE
            yield Finding(
                severity, "long-wait", _pod(pod), f"{since}: it {obstacle.text}", _action(snapshot, pod, obstacle)
            )
            continue
        # What preemption could not do is of no use here.
        why = without_preemption(scheduler_message(pod)) or "no scheduler has handled it"
        advice = f"dray explain pod {pod.metadata.name} -n {pod.metadata.namespace}"
        yield Finding(Severity.NOTE, "long-wait", _pod(pod), f"{since}: {why}", advice)


def _action(snapshot: Snapshot, pod: Pod, obstacle: Verdict) -> str:
    """Return what lets the Pod go on; if a quota refuses its claim, what lets all Pods in the namespace have theirs."""
    if obstacle.stage is not Stage.QUOTA:
        return obstacle.action
    waiting = [item for item in snapshot.pods if item.metadata.namespace == pod.metadata.namespace]
    refused = [item for item in waiting if not item.spec.node_name and refused_claim(snapshot, item) == obstacle]
    found = refused_claim(snapshot, pod, len(refused))
    return obstacle.action if found is None else found.action


def unreachable_services(snapshot: Snapshot, _now: datetime) -> Iterator[Finding]:
    """Yield nodes with Pod networks whose Pods do not reach Services."""
    for node in snapshot.nodes:
        for condition in node.status.conditions:
            if condition.type == SERVICE_NETWORK and condition.status == "False":
                yield Finding(
                    Severity.ERROR,
                    "unreachable-services",
                    f"node {node.metadata.name}",
                    f"Pods on the node do not reach Services by their cluster IPs: {condition.message}",
                    "see the log of the node agent, and docs/networking.md",
                )


def dead_nodes(snapshot: Snapshot, _now: datetime) -> Iterator[Finding]:
    """Yield nodes that are not ready while their Pods use devices."""
    held: dict[str, int] = {}
    for claim in snapshot.claims:
        for user in claim.status.reserved_for:
            pod = snapshot.pods_by_uid.get(user.uid)
            if pod is not None and pod.spec.node_name and claim.status.allocation is not None:
                held[pod.spec.node_name] = held.get(pod.spec.node_name, 0) + 1
    for node in snapshot.nodes:
        ready = next((item for item in node.status.conditions if item.type == "Ready"), None)
        name = node.metadata.name or ""
        if ready is not None and ready.status != "True" and name in held:
            yield Finding(
                Severity.WARNING,
                "dead-node",
                f"node {name}",
                f"is not ready ({ready.reason}), and {held[name]} claims are reserved for Pods on it",
                f"if it does not come back: kubectl taint node {name} node.kubernetes.io/out-of-service=gone:NoExecute",
            )


def pods_of_gone_nodes(snapshot: Snapshot, _now: datetime) -> Iterator[Finding]:
    """Yield nodes that do not exist, with the Pods that are bound to them, and what those keep."""
    if not snapshot.covers("Node", "Pod") or not snapshot.nodes:
        return
    nodes = {node.metadata.name for node in snapshot.nodes}
    stranded: dict[str, list[Pod]] = {}
    for pod in snapshot.pods:
        if pod.spec.node_name and pod.spec.node_name not in nodes and not is_pod_done(pod):
            stranded.setdefault(pod.spec.node_name, []).append(pod)
    users = {user.uid for claim in snapshot.claims for user in claim.status.reserved_for}
    for name, pods in sorted(stranded.items()):
        holding = sum(pod.metadata.uid in users for pod in pods)
        kept = f"; {holding} of them {'keeps' if holding == 1 else 'keep'} devices" if holding else ""
        bound = "is bound to it" if len(pods) == 1 else "are bound to it"
        yield Finding(
            Severity.WARNING,
            "gone-node",
            f"node {name}",
            f"does not exist, and {listed([_pod(pod) for pod in pods])} {bound}{kept}",
            "the Pod garbage collector deletes such Pods: check that the controller manager is running; or delete them "
            "with kubectl delete pod --force if the machine is gone",
        )


def undecodable_objects(snapshot: Snapshot, _now: datetime) -> Iterator[Finding]:
    """Yield objects that do not decode, and that components ignore therefore."""
    for item in snapshot.undecodable:
        resource = f"{item.kind.lower()}.{item.group}" if item.group else item.kind.lower()
        place = f"{resource} {item.name}{f' -n {item.namespace}' if item.namespace else ''}"
        yield Finding(
            Severity.ERROR,
            "undecodable-object",
            item.title,
            f"cannot be decoded, and is ignored by controllers, scheduler and node agents: {item.problem}",
            f"write it again, which drops null: kubectl get {place} -o json | kubectl replace -f -; if that is "
            f"refused, correct the field with kubectl edit {place}, or delete the object",
        )


RULES: Final[tuple[Rule, ...]] = (
    undecodable_objects,
    double_allocations,
    *DEVICE_RULES,
    dead_reservations,
    unserved_pods,
    stuck_deletions,
    missing_classes,
    broken_pools,
    lost_devices,
    former_nodes,
    orphaned_slices,
    dead_nodes,
    pods_of_gone_nodes,
    unreachable_services,
    unused_allocations,
    *PATH_RULES,
    *GROUP_RULES,
    *CLASSIC_RULES,
    *VERSION_RULES,
    long_waits,
)
_ORDER: Final = {severity: place for place, severity in enumerate(Severity)}


def examine(snapshot: Snapshot, now: datetime) -> list[Finding]:
    """Return the findings of all rules, the most severe first."""
    found = [finding for rule in RULES for finding in rule(snapshot, now)]
    return sorted(found, key=lambda finding: _ORDER[finding.severity])


def _claim(claim: ResourceClaim) -> str:
    return f"resourceclaim {claim.metadata.namespace}/{claim.metadata.name}"


def _pod(pod: Pod) -> str:
    return f"pod {pod.metadata.namespace}/{pod.metadata.name}"
