"""Compares the checkpoints of a node with the API. Pure."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator
from typing import Final

from dray.node.devices.checkpoint import Checkpoint
from dray.node.dra.claims import ClaimInfo
from dray.sim.doctor.findings import Finding, Severity
from dray.sim.snapshot import Snapshot

_UID: Final = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")


def check_claims(node: str, checkpoint: Iterable[ClaimInfo], snapshot: Snapshot) -> Iterator[Finding]:
    """Yield claims that the node has prepared and that the API does not have, or not for that Pod."""
    for info in checkpoint:
        claim = snapshot.claims_by_key.get(info.key)
        subject = f"node {node}"
        if claim is None or claim.metadata.uid != info.uid:
            state = "does not exist" if claim is None else "was deleted and created again"
            advice = f"the node unprepares it through its drivers: check that {', '.join(info.drivers)} is running"
            what = f"has prepared claim {info.key} (uid {info.uid}), which {state}"
            yield Finding(Severity.WARNING, "checkpoint-claim", subject, what, advice)
            continue
        reserved = {user.uid for user in claim.status.reserved_for}
        for uid in sorted(info.pod_uids - reserved):
            what = f"has prepared claim {info.key} for a Pod (uid {uid}) that it is not reserved for"
            advice = "the Pod may still be running: check with `dray node resources` on the node"
            yield Finding(Severity.ERROR, "checkpoint-pod", subject, what, advice)


def check_cdi_files(node: str, names: Iterable[str], prepared: Container[str], snapshot: Snapshot) -> Iterator[Finding]:
    """Yield CDI files of claims that neither the cluster nor the node's checkpoint has; `prepared` are its UIDs.

    Drivers name such files after the claim's UID. After a lost checkpoint, nothing else tells of a claim whose Pod and
    containers are gone, too.
    """
    if "ResourceClaim" in snapshot.partial:
        return
    known = {claim.metadata.uid for claim in snapshot.claims} | {item.metadata.uid for item in snapshot.classic_claims}
    for name in sorted(names):
        uid = _UID.search(name)
        if uid is not None and uid[0] not in known and uid[0] not in prepared:
            what = f"has CDI file {name} of a claim (uid {uid[0]}) that does not exist and is not prepared"
            advice = "its driver may still hold the devices: restart it; if the file stays, see its documentation"
            yield Finding(Severity.WARNING, "leftover-cdi-file", f"node {node}", what, advice)


def check_devices(node: str, checkpoint: Checkpoint, snapshot: Snapshot) -> Iterator[Finding]:
    """Yield device plugin devices that are assigned to Pods that do not exist, and those of which nobody knows."""
    gone: dict[str, set[str]] = {}
    for slot, assignment in checkpoint.assigned:
        pod = snapshot.pods_by_uid.get(slot.pod_uid)
        if pod is None:
            gone.setdefault(slot.pod_uid, set()).add(slot.resource)
        elif not assignment.devices:
            who = f"container {slot.container} of Pod {pod.metadata.namespace}/{pod.metadata.name}"
            what = f"allocates no more {slot.resource}: a checkpoint was lost, and it is not known which {who} has"
            advice = f"restart the container or delete the Pod: kubectl delete pod -n {pod.metadata.namespace} "
            yield Finding(
                Severity.WARNING, "unattributed-devices", f"node {node}", what, f"{advice}{pod.metadata.name}"
            )
    for uid, resources in sorted(gone.items()):
        what = f"has allocated {', '.join(sorted(resources))} to a Pod (uid {uid}) that does not exist"
        advice = "the node releases them when the Pod's containers have terminated: check the node agent"
        yield Finding(Severity.WARNING, "checkpoint-devices", f"node {node}", what, advice)
