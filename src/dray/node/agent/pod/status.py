"""Builds the status of a Pod from its `PodMachine`. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from dray.api.codec import to_document
from dray.api.document import Document
from dray.api.pod_claims import TERMINAL_PHASES
from dray.api.timestamps import format_time
from dray.node.agent.pod.conditions import ConditionInputs, conditions
from dray.node.agent.pod.containers import ContainerKind, ContainerState, Operation
from dray.node.agent.pod.machine import PodMachine, Stage
from dray.node.runtimes.runtime import ContainerRecord, Exit

# The fields of a volume mount's status, by whether it is read-only.
_READ_ONLY: Final[Mapping[bool, Document]] = {True: {"readOnly": True, "recursiveReadOnly": "Disabled"}, False: {}}
STATUS_UNKNOWN: Final = "ContainerStatusUnknown"
_LOST: Final = {
    "terminated": {
        "exitCode": 137,
        "reason": STATUS_UNKNOWN,
        "message": "The container could not be located when the pod was terminated",
        "startedAt": None,
        "finishedAt": None,
    }
}


@dataclass(frozen=True, slots=True)
class HostInfo:
    """The runtime and the addresses of the node, for the Pod's status."""

    runtime: str
    addresses: tuple[str, ...] = ()


# A container's `allocatedResourcesStatus`, by its name.
Allocated = Callable[[str], Sequence[Document]]


def pod_status(
    machine: PodMachine,
    host: HostInfo,
    now: datetime,
    *,
    reported: Document | None = None,
    allocated: Allocated = lambda _name: (),
) -> Document:
    """Return the status to report; fields to remove are None. `reported` is the last reported status."""
    pod = machine.pod
    phase = pod_phase(machine)
    sandbox = machine.prepared and machine.stage < Stage.RELEASING
    facts = ConditionInputs(
        phase,
        sandbox,
        incomplete=[state.name for state in machine.containers.initial if not _initialized(machine, state)],
        unready=[
            state.name for state in (*machine.containers.sidecars, *machine.containers.regular) if not _is_ready(state)
        ],
    )
    verdict = machine.failure
    status: Document = {
        "observedGeneration": pod.metadata.generation,
        "phase": phase,
        "conditions": conditions(pod, facts, _reported_conditions(machine, reported), format_time(now)),
        "startTime": format_time(machine.start_time),
        **_addresses(machine, host),
    }
    # A rejection is reported with the phase Failed, not while earlier resources are being released.
    if verdict is not None and (machine.stage >= Stage.TERMINATED or not machine.rejected):
        status |= {"reason": verdict.reason, "message": _verdict_message(machine)}
    if machine.rejected and not any(state.current for state in machine.containers.all):
        # A rejected Pod has no container statuses: kubectl would show their reason instead of the Pod's.
        return {**status, "containerStatuses": None, "initContainerStatuses": None}
    build = _Builder(machine, host, allocated)
    if machine.containers.initial:
        status["initContainerStatuses"] = [build.status(state) for state in machine.containers.initial]
    status["containerStatuses"] = [build.status(state) for state in machine.containers.regular]
    if machine.containers.ephemeral:
        status["ephemeralContainerStatuses"] = [build.status(state) for state in machine.containers.ephemeral]
    return status


def _reported_conditions(machine: PodMachine, reported: Document | None) -> dict[str, Document]:
    known = (
        reported["conditions"]
        if reported is not None
        else [to_document(item) for item in machine.pod.status.conditions]
    )
    return {condition["type"]: condition for condition in known}


def _verdict_message(machine: PodMachine) -> str:
    assert machine.failure is not None
    return f"Pod was rejected: {machine.failure.message}" if machine.rejected else machine.failure.message


def _addresses(machine: PodMachine, host: HostInfo) -> Document:
    found: Document = {}
    if host.addresses:
        found["hostIP"] = host.addresses[0]
        found["hostIPs"] = [{"ip": address} for address in host.addresses]
    pod_addresses = machine.addresses or (host.addresses if machine.prepared else ())
    if machine.prepared and pod_addresses:
        found["podIP"] = pod_addresses[0]
        found["podIPs"] = [{"ip": address} for address in pod_addresses]
    return found


def pod_phase(machine: PodMachine) -> str:
    """Return the phase; Succeeded and Failed only once everything has ended."""
    if machine.was_terminal:
        return machine.pod.status.phase or "Failed"
    if machine.stage >= Stage.TERMINATED:
        return _final_phase(machine)
    if not machine.initialized:
        return "Pending"
    containers = machine.containers.regular
    if any(state.current is not None or state.running for state in containers) and all(
        _has_run(state) for state in containers
    ):
        return "Running"
    # A container that has never run keeps the Pod Pending, unless it was Running before.
    return "Running" if machine.pod.status.phase == "Running" else "Pending"


def _has_run(state: ContainerState) -> bool:
    return state.running or (state.current is not None and state.operation is not Operation.POST_START)


def _final_phase(machine: PodMachine) -> str:
    if machine.failure is not None:
        return "Failed"
    for state in machine.containers.all:
        # The node stops sidecars: their exit code does not matter.
        if state.kind is ContainerKind.EPHEMERAL or (state.kind is ContainerKind.SIDECAR and state.current is not None):
            continue
        if state.current is None or state.current.exit is None or state.current.exit.code != 0:
            return "Failed"
    return "Succeeded"


def _initialized(machine: PodMachine, state: ContainerState) -> bool:
    if state.kind is ContainerKind.SIDECAR:
        return machine.initialized or (state.running and state.started)
    return state.exit_code == 0 or machine.initialized


def _is_ready(state: ContainerState) -> bool:
    return state.running and state.started and state.ready


class _Builder:
    """Builds the container statuses of one Pod."""

    def __init__(self, machine: PodMachine, host: HostInfo, allocated: Allocated) -> None:
        self._machine = machine
        self._runtime = host.runtime
        self._allocated = allocated

    def status(self, state: ContainerState) -> Document:
        """Return the status of one container."""
        shown = self._shown(state)
        status: Document = {
            "name": state.name,
            "state": self._state(state, shown),
            "lastState": self._last_state(state, shown),
            "ready": self._ready(state),
            "restartCount": state.current.attempt if state.current is not None else 0,
            "image": (state.current.image if state.current is not None else "") or state.spec.image or "",
            "imageID": state.current.image_id if state.current is not None else "",
            "started": state.running and state.started,
        }
        if state.current is not None:
            status["containerID"] = f"{self._runtime}://{state.current.id}"
        if state.spec.resources.requests or state.spec.resources.limits:
            status["resources"] = to_document(state.spec.resources)
            status["resources"].pop("claims", None)
            if state.spec.resources.requests:
                status["allocatedResources"] = dict(state.spec.resources.requests)
        allocated = list(self._allocated(state.name)) if state.kind is not ContainerKind.EPHEMERAL else []
        if allocated:
            status["allocatedResourcesStatus"] = allocated
        if state.spec.volume_mounts:
            status["volumeMounts"] = [
                {"name": mount.name, "mountPath": mount.mount_path, **_READ_ONLY[bool(mount.read_only)]}
                for mount in state.spec.volume_mounts
            ]
        return status

    def _shown(self, state: ContainerState) -> ContainerRecord | None:
        """Return the run that `state` describes; None while the container is waiting."""
        if state.current is None or state.operation in (Operation.STARTING, Operation.POST_START):
            return None
        if state.current.exit is not None and state.waiting is not None and self._machine.stage <= Stage.RUNNING:
            return None
        return state.current

    def _ready(self, state: ContainerState) -> bool:
        if state.kind is ContainerKind.INIT:
            return state.exit_code == 0
        if state.kind is ContainerKind.EPHEMERAL:
            return False
        return _is_ready(state)

    def _state(self, state: ContainerState, shown: ContainerRecord | None) -> Document:
        if shown is not None:
            return self._run_state(shown)
        if self._machine.stage >= Stage.TERMINATED and self._machine.initialized and not self._machine.was_terminal:
            return dict(_LOST)
        if state.waiting is not None:
            waiting: Document = {"reason": state.waiting.reason}
            if state.waiting.message:
                waiting["message"] = state.waiting.message
            return {"waiting": waiting}
        initializing = bool(self._machine.containers.initial) and not self._machine.initialized
        return {"waiting": {"reason": "PodInitializing" if initializing else "ContainerCreating"}}

    def _last_state(self, state: ContainerState, shown: ContainerRecord | None) -> Document:
        last = state.previous if shown is not None else state.current
        if state.operation is Operation.POST_START:
            last = state.previous
        return self._run_state(last) if last is not None and last.exit is not None else {}

    def _run_state(self, record: ContainerRecord) -> Document:
        if record.exit is None:
            return {"running": {"startedAt": format_time(record.started_at)}}
        return {"terminated": self._terminated(record, record.exit)}

    def _terminated(self, record: ContainerRecord, ended: Exit) -> Document:
        terminated: Document = {
            "exitCode": ended.code,
            "reason": ended.reason or ("Completed" if ended.code == 0 else "Error"),
            "startedAt": format_time(record.started_at),
            "finishedAt": format_time(ended.finished_at),
            "containerID": f"{self._runtime}://{record.id}",
        }
        if ended.signal:
            terminated["signal"] = ended.signal
        if ended.message:
            terminated["message"] = ended.message
        return terminated


def is_final(status: Document) -> bool:
    """Whether the status has a terminal phase."""
    return status.get("phase") in TERMINAL_PHASES
