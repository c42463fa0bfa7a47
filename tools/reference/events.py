"""The reference page of Events, from a table that tests compare with the reasons in the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tools.reference.markdown import page, table
from tools.reference.source import parse

INTRODUCTION = """Events as shown by `kubectl get events` and `kubectl describe`. Reasons are those of Kubernetes,
except for the ones marked with *. Repeated events increase a count; many similar ones are aggregated."""
SOURCE = Path(__file__).parents[2] / "src" / "dray"
# Calls and classes that take the reason of an Event as an argument.
RECORDERS = re.compile(
    r"_?(?:record|emit|tell)\w*|event|event_for|node_event|RecordEvent|EventRecord|JobEvent|EvictionReason"
    r"|Rejection|ResourceError|Verdict|StartFailed|ImageFailure"
)
# Packages with such calls.
PACKAGES = ("controllers", "scheduler", "node", "driver", "cmd")
_REASON = re.compile(r"(?:DNS|IP|CIDR)?[A-Z][a-z]+(?:[A-Z][A-Za-z]*)*$")


@dataclass(frozen=True, slots=True)
class Row:
    """One Event; `source` is the module or package that contains its reason."""

    reason: str
    type: str
    about: str
    source: str
    when: str
    is_extension: bool = False


N, W = "Normal", "Warning"
_POD_CONTROL = "controllers/pod_control"
_JOB = "controllers/job"
_AGENT = "node"
_CRON_JOB = "controllers/cron_job"
_ENDPOINTS = "controllers/service_endpoints"
_DISRUPTION, _BUDGET = "controllers/disruption", "PodDisruptionBudget"
_JOB_GROUPS = "controllers/job/job_groups"
_VOLUME_CLAIM = "PersistentVolumeClaim"
_VOLUMES = "controllers/persistent_volume"
_OWNERS = "ReplicaSet, DaemonSet, Job"

EVENTS: dict[str, Sequence[Row]] = {
    "The scheduler": (
        Row("Scheduled", N, "Pod", "scheduler", "the Pod was bound to a node"),
        Row("FailedScheduling", W, "Pod", "scheduler", "no node fits, or an error occurred"),
        Row(
            "WaitingForDriver",
            N,
            "Pod",
            "scheduler",
            "a node was selected, and a classic driver allocates the claim",
            is_extension=True,
        ),
        Row("Preempted", N, "Pod", "scheduler", "the Pod is evicted for a Pod of higher priority"),
        Row("NotReadyForScheduling", W, "Pod", "scheduler",
            "a claim of the Pod is missing, is being deleted, or is not its own"),
        Row("BindingConditionsPending", N, "Pod", "scheduler/plugins/dynamic_resources",
            "the devices are not ready yet; the Pod is bound afterwards"),
        Row("LowerChoiceAllocated", N, "Pod", "scheduler/plugins/dynamic_resources",
            "a claim of the Pod got an alternative of a prioritized list that is not the first one", is_extension=True),
        Row("ExtendedResourceOfferedTwice", W, "Node", "scheduler/plugins/dynamic_resources",
            "a device plugin and a driver provide the same resource on one node", is_extension=True),
        Row("DeviceAllocatedTwice", W, "ResourceClaim", "scheduler/plugins/dynamic_resources",
            "another claim has the same device: two schedulers allocate it on a kube-apiserver", is_extension=True),
        Row("ExtendedResourceClaimNotDeleted", W, "ResourceClaim", "scheduler/plugins/dynamic_resources",
            "the claim poses as that of a Pod's extended resources, and others use it", is_extension=True),
        Row("ResourceClaimNotAvailable", N, "Pod", "scheduler/plugins/classic_resources",
            "the Pod is bound without an optional classic claim", is_extension=True),
    ),
    "Claim controllers": (
        Row("FailedResourceClaimCreation", W, "Pod", "controllers",
            "a claim could not be created from the Pod's template"),
        Row("FailedResourceClaimCreation", W, "PodGroup", "controllers",
            "a claim could not be created from the group's template, or cannot belong to a group"),
        Row("FailedResourceClaimCreation", W, "Pod", "controllers",
            "a classic claim could not be created from the Pod's template"),
        Row("DeviceTaintManagerEviction", N, "Pod", "controllers/device_taint_eviction",
            "the Pod is or will be deleted because one of its devices is tainted, or the deletion was cancelled"),
    ),
    "Node controllers": (
        Row("RegisteredNode", N, "Node", "controllers/node_lifecycle", "a Node was added"),
        Row("RemovingNode", N, "Node", "controllers/node_lifecycle", "a Node was removed"),
        Row("NodeNotReady", N, "Node", "controllers/node_lifecycle", "the Node is no longer ready"),
        Row("NodeNotReady", W, "Pod", "controllers/node_lifecycle", "the Pod's Node is no longer ready"),
        Row("TaintManagerEviction", N, "Pod", "controllers/taint_eviction",
            "the Pod is or will be deleted because its Node is tainted, or the deletion was cancelled"),
    ),
    "The node IPAM controller": (
        Row("CIDRNotAvailable", N, "Node", "controllers/node_ipam", "no range of `--cluster-cidr` is free"),
    ),
    "Controllers, scheduler and node agents": (
        Row("Undecodable", W, "any", "client/skipped_objects",
            "the object cannot be decoded and is ignored until it can", is_extension=True),
    ),
    "The certificate controller": (
        Row("NodeExists", W, "CertificateSigningRequest", "controllers/certificates",
            "a bootstrap token asks for the identity of a node that exists: an operator decides", is_extension=True),
    ),
    "The CronJob controller": (
        Row("WorkloadCreated", N, "Job", _JOB_GROUPS, "the Workload of the Job was created"),
        Row("PodGroupCreated", N, "Job", _JOB_GROUPS, "the PodGroup of the Job's Pods was created"),
        Row("FailedWorkloadCreate", W, "Job", _JOB_GROUPS, "the Workload or the PodGroup could not be created"),
        Row("FailedWorkloadCompilation", W, "Job", _JOB_GROUPS, "the Workload or the PodGroup would be invalid"),
        Row("SuccessfulCreate", N, "CronJob", _CRON_JOB, "a Job was created"),
        Row("FailedCreate", W, "CronJob", _CRON_JOB, "a Job could not be created"),
        Row("SuccessfulDelete", N, "CronJob", _CRON_JOB, "a Job was deleted: beyond the history, or replaced"),
        Row("FailedDelete", W, "CronJob", _CRON_JOB, "a Job could not be deleted"),
        Row("SawCompletedJob", N, "CronJob", _CRON_JOB, "an active Job has ended"),
        Row("MissingJob", N, "CronJob", _CRON_JOB, "an active Job does not exist any more"),
        Row("UnexpectedJob", W, "CronJob", _CRON_JOB,
            "a Job of the CronJob is not in its list, or a Job of that name has another owner"),
        Row("JobAlreadyActive", N, "CronJob", _CRON_JOB, "a Job runs, and the concurrency policy is Forbid"),
        Row("MissSchedule", W, "CronJob", _CRON_JOB, "the starting deadline of a scheduled time has passed"),
        Row("TooManyMissedTimes", W, "CronJob", _CRON_JOB, "more than 100 scheduled times were missed"),
        Row("UnparseableSchedule", W, "CronJob", _CRON_JOB, "the schedule cannot be parsed"),
        Row("UnknownTimeZone", W, "CronJob", _CRON_JOB, "the time zone is not known to the controller"),
    ),
    "The API server": (
        Row("ClusterIPNotAllocated", W, "Service", "apiserver/ip_addresses",
            "the IPAddress of its address was missing, and is created"),
        Row("IPAddressNotAllocated", W, "IPAddress", "apiserver/ip_addresses", "no Service has it; it is removed"),
    ),
    "The endpoints controllers": (
        Row("FailedToUpdateEndpointSlices", W, "Service", _ENDPOINTS, "a write of an EndpointSlice failed"),
        Row("UnusableAddress", W, "Service", _ENDPOINTS,
            "a Pod has only addresses that endpoints cannot have, such as a loopback address", is_extension=True),
    ),
    "The persistent volume controller": (
        Row("WaitForFirstConsumer", N, _VOLUME_CLAIM, _VOLUMES, "the claim is bound when a Pod uses it"),
        Row("FailedBinding", N, _VOLUME_CLAIM, _VOLUMES, "no volume suits the claim"),
        Row("ProvisioningSucceeded", N, _VOLUME_CLAIM, _VOLUMES, "a local volume has been created for the claim"),
        Row("ProvisioningFailed", W, _VOLUME_CLAIM, _VOLUMES, "the selected node cannot have a volume for the claim"),
        Row("ExternalProvisioning", N, _VOLUME_CLAIM, _VOLUMES, "another provisioner has to create the volume"),
        Row("ClaimLost", W, _VOLUME_CLAIM, _VOLUMES, "the volume of a bound claim is gone"),
        Row("ClaimMisbound", W, _VOLUME_CLAIM, _VOLUMES, "the volume of a bound claim belongs to another one"),
    ),
    "The ephemeral volume controller": (
        Row("EphemeralVolumeError", W, "Pod", "controllers",
            "the claim of an ephemeral volume cannot be created, or belongs to somebody else"),
    ),
    "The disruption controller": (
        Row("NoPods", N, _BUDGET, _DISRUPTION, "the budget matches no Pod"),
        Row("NoPods", W, _BUDGET, _DISRUPTION, "the selector of the budget cannot be parsed"),
        Row("UnmanagedPods", W, _BUDGET, _DISRUPTION, "Pods of the budget have no controller and do not count"),
        Row("CalculateExpectedPodCountFailed", W, _BUDGET, _DISRUPTION, "the scale of a controller is unknown"),
        Row("MultiplePodDisruptionBudgets", W, "Pod", _DISRUPTION, "several budgets match the Pod"),
        Row("NotDeleted", W, "Pod", _DISRUPTION, "the Pod was evicted and is still there after 2 minutes"),
    ),
    "Workload controllers": (
        Row("SuccessfulCreate", N, _OWNERS, _POD_CONTROL, "a Pod was created"),
        Row("SuccessfulDelete", N, _OWNERS, _POD_CONTROL, "a Pod was deleted"),
        Row("FailedCreate", W, _OWNERS, _POD_CONTROL, "a Pod could not be created"),
        Row("FailedDelete", W, _OWNERS, _POD_CONTROL, "a Pod could not be deleted"),
        Row("ScalingReplicaSet", N, "Deployment", "controllers/deployment",
            "a ReplicaSet was scaled up or down"),
        Row("ReplicaSetCreateError", W, "Deployment", "controllers/deployment",
            "a new ReplicaSet could not be created"),
        Row("FailedDaemonPod", W, "DaemonSet", "controllers/daemon_set", "a daemon Pod failed and is replaced"),
        Row("SucceededDaemonPod", N, "DaemonSet", "controllers/daemon_set", "a daemon Pod succeeded and is replaced"),
        Row("Suspended", N, "Job", _JOB, "the Job was suspended"),
        Row("Resumed", N, "Job", _JOB, "the Job was resumed"),
        Row("Completed", N, "Job", _JOB, "the Job is complete"),
        Row("TooManySucceededPods", W, "Job", _JOB, "the Job is complete, and more Pods succeeded than requested"),
        Row("UnknownCompletionMode", W, "Job", "controllers/job",
            "the Job is ignored: its completion mode is unknown to this version"),
        Row("BackoffLimitExceeded", W, "Job", _JOB, "too many Pods failed"),
        Row("DeadlineExceeded", W, "Job", _JOB, "the Job took longer than `activeDeadlineSeconds`"),
        Row("PodFailurePolicy", W, "Job", _JOB, "a Pod failure matched a rule with the action FailJob"),
        Row("FailedIndexes", W, "Job", _JOB, "all indexes finished, and some failed"),
        Row("MaxFailedIndexesExceeded", W, "Job", _JOB, "more indexes failed than `maxFailedIndexes`"),
    ),
    "The node agent": (
        Row("Pulling", N, "Pod", _AGENT, "the image is being pulled"),
        Row("Pulled", N, "Pod", _AGENT, "the image is present"),
        Row("ErrImageNeverPull", W, "Pod", _AGENT, "the image is missing, and the pull policy is Never"),
        Row("InspectFailed", W, "Pod", _AGENT, "the name of the image cannot be parsed"),
        Row("FailedToRetrieveImagePullSecret", W, "Pod", _AGENT, "a Secret of imagePullSecrets cannot be read"),
        Row("FreeDiskSpaceFailed", W, "Node", _AGENT, "too few unused images could be removed"),
        Row("ImageGCFailed", W, "Node", _AGENT, "unused images could not be removed"),
        Row("Created", N, "Pod", _AGENT, "a container was created"),
        Row("Started", N, "Pod", _AGENT, "a container was started"),
        Row("Failed", W, "Pod", _AGENT, "a container could not be created or started, or its image not be pulled"),
        Row("BackOff", W, "Pod", _AGENT, "a container or an image pull (Normal) fails repeatedly and is delayed"),
        Row("Killing", N, "Pod", _AGENT, "a container is being stopped"),
        Row("FailedSync", W, "Pod", _AGENT, "an operation on the Pod failed unexpectedly and is repeated"),
        Row("FailedKillPod", W, "Pod", _AGENT, "a container could not be stopped"),
        Row("Unhealthy", W, "Pod", _AGENT, "a probe failed"),
        Row("FailedPostStartHook", W, "Pod", _AGENT, "the postStart hook failed"),
        Row("FailedPreStopHook", W, "Pod", _AGENT, "the preStop hook failed"),
        Row("FailedMount", W, "Pod", _AGENT, "a volume is not available"),
        Row("DeadlineExceeded", N, "Pod", _AGENT, "the Pod was active longer than `activeDeadlineSeconds`"),
        Row("DNSConfigForming", W, "Pod", _AGENT, "name servers or search domains of `dnsConfig` do not fit"),
        Row("MissingClusterDNS", W, "Pod", _AGENT, "the node knows no DNS server of the cluster"),
        Row("RuntimeLimitation", W, "Pod", _AGENT, "the runtime lacks a feature that the Pod uses", is_extension=True),
        Row("FailedPrepareDynamicResources", W, "Pod", _AGENT, "a driver could not prepare a claim"),
        Row("FailedUnprepareDynamicResources", W, "Pod", _AGENT, "a driver could not unprepare a claim"),
        Row("UnexpectedAdmissionError", W, "Pod", "node", "devices, CPUs or memory could not be allocated"),
        Row("TopologyAffinityError", W, "Pod", _AGENT, "the topology policy cannot be satisfied"),
        Row("NodeAffinity", W, "Pod", _AGENT, "the Pod's node affinity or selector does not match the node"),
        Row("OutOf", W, "Pod", _AGENT, "the node has insufficient resources, e.g. `OutOfcpu`"),
        Row("DeviceListedTwice", W, "Node", _AGENT, "two plugins list a device; the first keeps it", is_extension=True),
        Row(
            "DeviceCheckpointDamaged",
            W,
            "Node",
            _AGENT,
            "who has which devices was read from the containers that run",
            is_extension=True,
        ),
        Row(
            "ClaimCheckpointDamaged",
            W,
            "Node",
            _AGENT,
            "the claims in use were read from the containers that run",
            is_extension=True,
        ),
        Row(
            "DevicesNotAttributed",
            W,
            "Node",
            _AGENT,
            "a container has devices of which nothing tells which: no others of the resource are allocated",
            is_extension=True,
        ),
        Row("DevicePluginNotUsed", W, "Node", _AGENT, "a plugin has registered and does not listen", is_extension=True),
        Row("WaitingForDevices", W, "Pod", _AGENT, "a plugin or driver does not answer for 5 s", is_extension=True),
        Row("UnhealthyDevice", W, "Pod", _AGENT, "a device of the Pod became unhealthy", is_extension=True),
    ),
    "Classic drivers": (
        Row("FailedAllocation", W, "ResourceClaim", "driver/classic", "allocation failed", is_extension=True),
        Row("FailedDeallocation", W, "ResourceClaim", "driver/classic", "deallocation failed", is_extension=True),
    ),
}  # fmt: skip
# Strings in such calls that are not reasons of Events.
NO_EVENTS = {
    "BindingFailed": "condition of a device",
    "DeletionByDeviceTaintManager": "condition of a Pod",
    "DeletionByPodGC": "condition of a Pod",
    "DeletionByTaintManager": "condition of a Pod",
    "CompletionsReached": "condition of a Job",
    "SuccessPolicy": "condition of a Job",
    "ErrImagePull": "reason of a waiting container; the Event is Failed",
    "CreateContainerConfigError": "reason of a waiting container; the Event is Failed",
    "PreemptionByScheduler": "condition of a Pod",
    "Preempting": "action of the Event Preempted",
    "ProgressDeadlineExceeded": "condition of a Deployment",
    "Ready": "type of a condition",
    "KubeSchedulerConfiguration": "kind",
    "Normal": "type of an Event",
    "Warning": "type of an Event",
    "CreateContainerError": "reason of a waiting container",
    "InvalidImageName": "reason of a waiting container; the Event is InspectFailed",
}


def events_page() -> str:
    """Return docs/reference/events.md."""
    parts: list[str] = []
    for component, rows in EVENTS.items():
        cells = [(f"`{row.reason}`{'*' if row.is_extension else ''}", row.type, row.about, row.when) for row in rows]
        parts += [f"## {component}", table(("reason", "type", "about", "when"), cells)]
    return page("Events", INTRODUCTION, *parts)


def recorded_reasons() -> set[str]:
    """Return every reason that is passed to a recorder, as a string or by a constant."""
    return {reason for package in PACKAGES for path in _modules(package) for reason in _recorded_in(path)}


@cache
def reasons_in(source: str) -> frozenset[str]:
    """Return every string in a module or package that could be a reason."""
    nodes = (node for path in _modules(source) for node in ast.walk(parse(path)) if isinstance(node, ast.Constant))
    return frozenset(node.value for node in nodes if isinstance(node.value, str) and _REASON.match(node.value))


def _modules(source: str) -> list[Path]:
    """Return the file of a module, or all files of a package."""
    module = SOURCE / f"{source}.py"
    return [module] if module.exists() else sorted((SOURCE / source).rglob("*.py"))


def _recorded_in(path: Path) -> Iterator[str]:
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Call) and RECORDERS.fullmatch(_name(node.func)):
            arguments = [*node.args, *(word.value for word in node.keywords)]
            yield from (text for argument in arguments for text in _texts(argument) if _REASON.match(text))


def _texts(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from _texts(node.body)
        yield from _texts(node.orelse)
    elif isinstance(node, ast.Name | ast.Attribute):
        yield from _constants().get(_name(node), ())


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


@cache
def _constants() -> dict[str, tuple[str, ...]]:
    """Return the strings of constants by name; several modules may define the same name."""
    found: dict[str, set[str]] = {}
    for package in PACKAGES:
        for path in _modules(package):
            for node in parse(path).body:
                if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Constant):
                    text = node.value.value
                    if isinstance(node.target, ast.Name) and isinstance(text, str):
                        found.setdefault(node.target.id, set()).add(text)
    return {name: tuple(sorted(texts)) for name, texts in found.items() if name.lstrip("_").isupper()}
