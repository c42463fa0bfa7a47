"""Rules about Pods and workloads that are stopped on their path, with the verdicts of `dray explain`. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from dray.api.document import NamespacedName
from dray.api.pod_claims import is_pod_done
from dray.api.types.core_v1 import Pod
from dray.sim.devices import DeviceState, device_rows, unhealthy_devices
from dray.sim.doctor.findings import STUCK_AFTER, Finding, Rule, Severity
from dray.sim.explain.answers import Fault, Stage, Verdict
from dray.sim.explain.on_node import placed_verdict
from dray.sim.explain.workload import KINDS, find_workload, is_ready, workload_verdict
from dray.sim.snapshot import Snapshot

# The stages at which a Pod is stopped, with the rule that reports it; a start is reported only if it is a fault.
_RULES: Final = {
    Stage.PREPARE: "failed-prepare",
    Stage.IMAGE: "missing-image",
    Stage.VOLUME: "missing-volume",
    Stage.PROBE: "failed-probe",
}
# Longer than large images need.
_START_MAX: Final = timedelta(minutes=30)
_FAULT_RULES: Final = {Fault.CRASH_LOOP: "crash-loop", Fault.FAILED_START: "failed-start"}


def stopped_pods(snapshot: Snapshot, now: datetime) -> Iterator[Finding]:
    """Yield Pods on nodes whose devices, image, volumes, containers or probes fail."""
    for pod in snapshot.pods:
        if not pod.spec.node_name or is_pod_done(pod) or pod.metadata.deletion_timestamp is not None or is_ready(pod):
            continue
        verdict = placed_verdict(snapshot, pod, now)
        rule = _FAULT_RULES[verdict.fault] if verdict.fault is not None else _RULES.get(verdict.stage, "")
        if rule:
            subject = f"pod {pod.metadata.namespace}/{pod.metadata.name}"
            yield _finding(Severity.ERROR, rule, subject, verdict)
        elif verdict.stage is Stage.START and _starts_slowly(pod, now):
            # Events of a refusal are gone after an hour; the Pod still waits.
            slow = replace(verdict, action=verdict.action or f"check the node agent and the drivers on {_node(pod)}")
            yield _finding(Severity.WARNING, "slow-start", f"pod {pod.metadata.namespace}/{pod.metadata.name}", slow)


def _node(pod: Pod) -> str:
    return pod.spec.node_name or ""


def _starts_slowly(pod: Pod, now: datetime) -> bool:
    """Return whether a Pod has had its node for long, and none of its containers has run."""
    statuses = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    since = pod.status.start_time or pod.metadata.creation_timestamp
    has_run = pod.status.phase == "Running" or any(item.state.running or item.state.terminated for item in statuses)
    return since is not None and not has_run and now - since > _START_MAX


def blocked_workloads(snapshot: Snapshot, _now: datetime) -> Iterator[Finding]:
    """Yield workloads whose Pods are refused: by a quota, or by admission."""
    for kind, api_kind in KINDS.items():
        for document in snapshot.documents.get(api_kind, ()):
            metadata = document["metadata"]
            if any(owner.get("controller") for owner in metadata.get("ownerReferences") or ()):
                # Its owner is reported.
                continue
            key = NamespacedName(metadata.get("namespace") or "", metadata["name"])
            verdict = workload_verdict(snapshot, find_workload(snapshot, kind, key))
            if verdict is not None and verdict.stage in (Stage.QUOTA, Stage.ADMISSION):
                rule = "quota" if verdict.stage is Stage.QUOTA else "refused-pods"
                yield _finding(Severity.WARNING, rule, f"{kind} {key}", verdict)


def _finding(severity: Severity, rule: str, subject: str, verdict: Verdict) -> Finding:
    return Finding(severity, rule, subject, verdict.text, verdict.action or f"dray explain {subject}")


def unselected_devices(snapshot: Snapshot, _now: datetime) -> Iterator[Finding]:
    """Yield pools of which no device is in any class: no claim can ask for them."""
    if not snapshot.classes:
        return
    pools: dict[str, list[bool]] = {}
    for row in device_rows(snapshot):
        if row.state is not DeviceState.UNUSABLE:
            pools.setdefault(f"{row.driver}/{row.pool}", []).append(bool(row.classes))
    for pool, matches in sorted(pools.items()):
        if not any(matches):
            driver = pool.partition("/")[0]
            advice = f'create a DeviceClass with the selector device.driver == "{driver}", or stop the driver'
            what = f"has {len(matches)} devices that match no DeviceClass: no claim can get them"
            yield Finding(Severity.WARNING, "unselected-devices", f"pool {pool}", what, advice)


def sick_devices(snapshot: Snapshot, _now: datetime) -> Iterator[Finding]:
    """Yield devices that are in use and reported as unhealthy."""
    for device, text in sorted(unhealthy_devices(snapshot).items()):
        advice = "taint the device so that it is not allocated again, and delete the Pod so that it gets another"
        yield Finding(Severity.WARNING, "unhealthy-device", f"device {device}", f"is {text}", advice)


def stuck_pods(snapshot: Snapshot, now: datetime) -> Iterator[Finding]:
    """Yield Pods that should have ended long ago."""
    for pod in snapshot.pods:
        ends = pod.metadata.deletion_timestamp
        if ends is None or now - ends < STUCK_AFTER or not pod.spec.node_name:
            continue
        verdict = placed_verdict(snapshot, pod, now)
        subject = f"pod {pod.metadata.namespace}/{pod.metadata.name}"
        if verdict.stage is Stage.DONE:
            yield _finding(Severity.WARNING, "stuck-pod", subject, verdict)


PATH_RULES: Final[tuple[Rule, ...]] = (stopped_pods, blocked_workloads, sick_devices, stuck_pods, unselected_devices)
