"""The fields that a snapshot and a recording keep of each kind: those that a tool reads. Pure.

Everything else stays in the cluster: commands, probes, hooks, most annotations, data of volumes. A tool that reads
another field needs it here; the tools' unit tests run on reduced objects and fail without it.

Some fields cannot be left out, because a replica validates the objects that it creates. They have a fixed value
instead. Templates that differ only in what is not kept have different digests, so that a replica does not take the
ReplicaSet of one revision for that of another. The digests are keyed: nothing can be guessed from them.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from dray.api.document import Document, GroupVersion
from dray.api.persistent_volumes import (
    BIND_COMPLETED,
    BOUND_BY_CONTROLLER,
    CLASS_ANNOTATION,
    DEFAULT_CLASS_ANNOTATIONS,
    PROVISIONED_BY,
    SELECTED_NODE,
    VOLUMES_FOLDER,
)
from dray.api.pod_claims import EXTENDED_RESOURCE_ANNOTATION, POD_CLAIM_NAME_ANNOTATION
from dray.sim.snapshot import CLASSIC_CLAIM, SCHEDULER_CONFIGURATION, kind_key

# Keeps a value: whole (None), some of its fields or those of its items, or what a function makes of it.
Rule: TypeAlias = "Mapping[str, Rule] | Callable[[Any], Any] | None"

# Marks the Pods of a node's own files.
MIRROR_ANNOTATION: Final = "kubernetes.io/config.mirror"
# "false" keeps the Pod where it is, as in the cluster autoscaler.
SAFE_TO_EVICT_ANNOTATION: Final = "cluster-autoscaler.kubernetes.io/safe-to-evict"
ANNOTATIONS: Final = frozenset(
    {
        *(BIND_COMPLETED, BOUND_BY_CONTROLLER, CLASS_ANNOTATION, PROVISIONED_BY, SELECTED_NODE, VOLUMES_FOLDER),
        *DEFAULT_CLASS_ANNOTATIONS,
        *(EXTENDED_RESOURCE_ANNOTATION, POD_CLAIM_NAME_ANNOTATION),
        # By which the controller of a Deployment orders and scales ReplicaSets.
        *(f"deployment.kubernetes.io/{name}" for name in ("desired-replicas", "max-replicas", "revision")),
        *(MIRROR_ANNOTATION, SAFE_TO_EVICT_ANNOTATION),
        # A DaemonSet is valid only with it.
        "deprecated.daemonset.template.generation",
    }
)
# The label that the controller of a Deployment adds to its template.
_HASH_LABEL: Final = "pod-template-hash"
# The annotation of a template with its digest.
TEMPLATE_DIGEST: Final = "dray.dev/template-digest"
# Reasons of a container that ended without having run; `dray explain` quotes the runtime's message, not that of the
# container.
NEVER_STARTED: Final = ("StartError", "ContainerCannotRun")
# Reasons of Events that quote hooks, probes and their output, and what is kept of their messages.
_QUOTING_REASONS: Final = ("Unhealthy", "ProbeWarning", "FailedPostStartHook", "FailedPreStopHook")
_QUOTING: Final = re.compile(
    r"(Liveness|Readiness|Startup) probe (failed|errored|warning)(: HTTP probe failed with statuscode: \d{3}$)?"
    r"|(PostStart|PreStop)Hook failed"
)
# Reasons of waiting containers that quote a hook.
_HOOK_FAILURES: Final = ("PostStartHookError", "PreCreateHookError")


@dataclass(frozen=True, slots=True)
class Options:
    """What is kept because the user asks for it."""

    # Of the digests of templates; random and used for one snapshot or recording.
    digest_key: bytes
    # The environment variables of containers.
    environment: bool = False
    # The parameters of drivers in classes and claims.
    parameters: bool = False


class FieldFilter:
    """Reduces objects to the fields that are kept."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._rules = self._kinds()

    def reduced(self, document: Document) -> Document:
        """Return an object with the fields that are kept; of a kind that no tool reads, its name."""
        kind = kind_key(document["kind"], GroupVersion.parse(document["apiVersion"]).group)
        found: Document = _kept(
            document, {**_fields("apiVersion kind"), "metadata": _METADATA, **self._rules.get(kind, {})}
        )
        return _without_output(found) if kind == "Event" else found

    def _kinds(self) -> Mapping[str, Mapping[str, Rule]]:
        template = {"template": self._template}
        claim_spec = _fields("devices", devices=self._devices())
        volume_claim_spec = _VOLUME_CLAIM["spec"]
        return {
            **_PLAIN_KINDS,
            "Pod": {"spec": self._pod_spec(readiness=True), "status": _POD_STATUS},
            "DeviceClass": {"spec": _fields("selectors extendedResourceName", config=self._configuration())},
            "ResourceClaim": {
                "spec": claim_spec,
                "status": _fields(
                    "reservedFor",
                    allocation=_fields(
                        "nodeSelector allocationTimestamp", devices=_fields("results", config=self._configuration())
                    ),
                    devices=_fields("driver pool device shareID conditions"),
                ),
            },
            "ResourceClaimTemplate": {"spec": {"metadata": _TEMPLATE_METADATA, "spec": claim_spec}},
            CLASSIC_CLAIM: {
                "spec": self._classic_claim_spec(),
                "status": _fields("phase driverName scheduling userLimit reservedFor conditions"),
            },
            "ResourceClass": {"driverName": None, "suitableNodes": None, "parameters": self._parameters},
            "Deployment": {
                "spec": _fields(_DEPLOYMENT_SPEC, **template),
                "status": _fields(_WORKLOAD_STATUS),
            },
            "ReplicaSet": {
                "spec": _fields("replicas selector minReadySeconds", **template),
                "status": _fields(_WORKLOAD_STATUS),
            },
            "DaemonSet": {
                "spec": _fields("selector updateStrategy minReadySeconds revisionHistoryLimit", **template),
                "status": _fields(_WORKLOAD_STATUS),
            },
            "StatefulSet": {
                "spec": _fields(
                    _STATEFUL_SET_SPEC,
                    volumeClaimTemplates={"metadata": _TEMPLATE_METADATA, "spec": volume_claim_spec},
                    **template,
                ),
                "status": _fields(_WORKLOAD_STATUS),
            },
            "Job": {"spec": _fields(_JOB_SPEC, **template), "status": _fields(_JOB_STATUS)},
        }

    def _template(self, template: Any) -> Any:
        found = _kept(template, {"metadata": _TEMPLATE_METADATA, "spec": self._pod_spec(readiness=False)})
        metadata = found.get("metadata") or {}
        annotations = {**(metadata.get("annotations") or {}), TEMPLATE_DIGEST: self._digest(template)}
        return {**found, "metadata": {**metadata, "annotations": annotations}}

    def _digest(self, template: Any) -> str:
        # Only the label that its controller adds distinguishes the template of a ReplicaSet from its Deployment's.
        metadata = template.get("metadata") or {}
        labels = {key: value for key, value in (metadata.get("labels") or {}).items() if key != _HASH_LABEL}
        content = json.dumps({**template, "metadata": {**metadata, "labels": labels}}, sort_keys=True)
        return hmac.new(self._options.digest_key, content.encode(), hashlib.sha256).hexdigest()[:16]

    def _pod_spec(self, *, readiness: bool) -> Rule:
        """Return the rule for the spec of a Pod; a probe without a handler would make a template invalid."""
        container: Mapping[str, Rule] = {
            **_fields("name image resources resizePolicy restartPolicy restartPolicyRules ports"),
            "volumeMounts": _mounts_with_options,
            "securityContext": _CONTAINER_SECURITY,
            **({"readinessProbe": _presence} if readiness else {}),
            **(_fields("env envFrom") if self._options.environment else {}),
        }
        return _fields(
            _POD_SPEC,
            containers=container,
            initContainers=container,
            ephemeralContainers=container,
            volumes=_volumes,
            securityContext=_POD_SECURITY,
            resourceClaims=_fields(
                "name resourceClaimName resourceClaimTemplateName optional",
                template={"metadata": _TEMPLATE_METADATA, "spec": self._classic_claim_spec()},
            ),
        )

    def _classic_claim_spec(self) -> Rule:
        return _fields("resourceClassName allocationMode", parameters=self._parameters)

    def _devices(self) -> Rule:
        return _fields("requests constraints", config=self._configuration())

    def _configuration(self) -> Rule:
        return _fields("requests source", opaque=_fields("driver", parameters=self._parameters))

    def _parameters(self, parameters: Any) -> Any:
        # They are required where they are allowed.
        return parameters if self._options.parameters else {}


def _kept(value: Any, rule: Rule) -> Any:
    """Return what the rule keeps; what is no object where fields are kept is not kept at all."""
    if rule is None:
        return value
    if callable(rule):
        return rule(value)
    if isinstance(value, list):
        return [_kept(item, rule) for item in value]
    if isinstance(value, dict):
        return {name: _kept(item, rule[name]) for name, item in value.items() if name in rule}
    return {}


def _fields(names: str, **nested: Rule) -> Mapping[str, Rule]:
    """Return the rule that keeps some fields whole, and what the nested rules keep of others."""
    return {**dict.fromkeys(names.split()), **nested}


def _annotations(annotations: Any) -> Any:
    return {name: value for name, value in (annotations or {}).items() if name in ANNOTATIONS}


def _without_output(event: Document) -> Document:
    """Return an Event whose message quotes neither what a container wrote nor a hook or probe that users wrote."""
    if event.get("reason") not in _QUOTING_REASONS:
        return event
    found = _QUOTING.match(str(event.get("message") or ""))
    return {**event, "message": found[0] if found else ""}


def _waiting(waiting: Any) -> Any:
    found = _kept(waiting, _fields("reason message"))
    if found.get("reason") in _HOOK_FAILURES:
        found.pop("message", None)
    return found


def _presence(_value: Any) -> Any:
    return {}


def _mounts_with_options(mounts: Any) -> Any:
    rule = _fields("name mountPath bindMountOptions")
    return [_kept(mount, rule) for mount in mounts or () if mount.get("bindMountOptions")]


def _volumes(volumes: Any) -> Any:
    """Return the volumes of a Pod; of one that is no claim, only what Pod Security thinks of its kind is kept."""
    return [_volume(volume) for volume in volumes or ()]


def _volume(volume: Any) -> Any:
    claim = _fields("name", persistentVolumeClaim=_fields("claimName readOnly"), ephemeral=_EPHEMERAL)
    found = _kept(volume, claim)
    if len(found) > 1:
        return found
    if "hostPath" in volume:
        return {**found, "hostPath": {"path": "/"}}
    if volume.keys() - {"name"} - _UNRESTRICTED_VOLUMES:
        return {**found, "nfs": {"server": "-", "path": "/"}}
    return {**found, "emptyDir": {}}


def _profile(profile: Any) -> Any:
    """Return the type of a seccomp or AppArmor profile; a profile of the node needs a name."""
    kind = profile.get("type")
    return {"type": kind, "localhostProfile": "-"} if kind == "Localhost" else {"type": kind}


def _sysctls(sysctls: Any) -> Any:
    return [{"name": item.get("name"), "value": "0"} for item in sysctls or ()]


def _ended(ended: Any) -> Any:
    found = _kept(ended, _fields("exitCode signal reason startedAt finishedAt message"))
    if found.get("reason") not in NEVER_STARTED:
        # The end of its log.
        found.pop("message", None)
    return found


_METADATA: Final = _fields(
    "name generateName namespace uid resourceVersion generation creationTimestamp deletionTimestamp "
    "deletionGracePeriodSeconds finalizers labels ownerReferences",
    annotations=_annotations,
)
_TEMPLATE_METADATA: Final = _fields("name generateName labels finalizers", annotations=_annotations)
_VOLUME_CLAIM: Final[Mapping[str, Rule]] = {
    "spec": _fields("accessModes volumeName storageClassName volumeMode resources selector volumeAttributesClassName"),
    "status": _fields("phase accessModes capacity"),
}
_EPHEMERAL: Final = _fields("", volumeClaimTemplate={"metadata": _TEMPLATE_METADATA, "spec": _VOLUME_CLAIM["spec"]})
# What Pod Security evaluates when a replica creates Pods.
_POD_SECURITY: Final = _fields(
    "runAsNonRoot runAsUser",
    seccompProfile=_profile,
    appArmorProfile=_profile,
    seLinuxOptions=_fields("type user role"),
    windowsOptions=_fields("hostProcess"),
    sysctls=_sysctls,
)
_CONTAINER_SECURITY: Final = {
    **_POD_SECURITY,
    **_fields("allowPrivilegeEscalation privileged procMount", capabilities=_fields("add drop")),
}
_UNRESTRICTED_VOLUMES: Final = frozenset({"configMap", "csi", "downwardAPI", "emptyDir", "projected", "secret"})
_POD_SPEC: Final = (
    "activeDeadlineSeconds affinity hostIPC hostNetwork hostPID hostUsers nodeName nodeSelector os overhead "
    "preemptionPolicy priority priorityClassName resources restartPolicy runtimeClassName schedulerName "
    "schedulingGates schedulingGroup terminationGracePeriodSeconds tolerations topologySpreadConstraints"
)
_CONTAINER_STATE: Final = _fields("running", waiting=_waiting, terminated=_ended)
_CONTAINER_STATUS: Final = _fields(
    "name image ready started restartCount resources allocatedResources allocatedResourcesStatus",
    state=_CONTAINER_STATE,
    lastState=_CONTAINER_STATE,
)
_POD_STATUS: Final = _fields(
    "phase reason message conditions nominatedNodeName startTime qosClass observedGeneration resize resources "
    "allocatedResources resourceClaimStatuses extendedResourceClaimStatus nodeAllocatableResourceClaimStatuses",
    containerStatuses=_CONTAINER_STATUS,
    initContainerStatuses=_CONTAINER_STATUS,
    ephemeralContainerStatuses=_CONTAINER_STATUS,
)
_DEPLOYMENT_SPEC: Final = (
    "replicas selector strategy minReadySeconds paused progressDeadlineSeconds revisionHistoryLimit"
)
_STATEFUL_SET_SPEC: Final = (
    "replicas selector serviceName podManagementPolicy updateStrategy minReadySeconds ordinals revisionHistoryLimit "
    "persistentVolumeClaimRetentionPolicy"
)
_JOB_SPEC: Final = (
    "parallelism completions completionMode suspend selector manualSelector backoffLimit backoffLimitPerIndex "
    "maxFailedIndexes activeDeadlineSeconds ttlSecondsAfterFinished podFailurePolicy podReplacementPolicy "
    "successPolicy managedBy scheduling"
)
_WORKLOAD_STATUS: Final = (
    "replicas readyReplicas availableReplicas unavailableReplicas updatedReplicas fullyLabeledReplicas currentReplicas "
    "terminatingReplicas observedGeneration collisionCount currentRevision updateRevision conditions "
    "currentNumberScheduled desiredNumberScheduled numberAvailable numberMisscheduled numberReady numberUnavailable "
    "updatedNumberScheduled"
)
_JOB_STATUS: Final = (
    "active ready succeeded failed terminating completedIndexes failedIndexes uncountedTerminatedPods startTime "
    "completionTime conditions"
)
# The kinds for which no option matters.
_PLAIN_KINDS: Final[Mapping[str, Mapping[str, Rule]]] = {
    SCHEDULER_CONFIGURATION: _fields("profiles percentageOfNodesToScore parallelism", extenders=_fields("urlPrefix")),
    "Namespace": _fields("", spec=_fields("finalizers"), status=_fields("phase")),
    "Node": _fields(
        "",
        spec=_fields("unschedulable taints"),
        status=_fields(
            "capacity allocatable images declaredFeatures",
            conditions=_fields("type status reason message lastTransitionTime"),
        ),
    ),
    "Event": _fields(
        "reason message type count series firstTimestamp lastTimestamp eventTime",
        involvedObject=_fields("apiVersion kind namespace name uid"),
        related=_fields("apiVersion kind namespace name uid"),
    ),
    "ResourceQuota": _fields("spec status"),
    "Service": _fields("", spec=_fields("selector type clusterIP clusterIPs ports externalName ipFamilies")),
    "PersistentVolume": _fields(
        "",
        spec=_fields(
            "accessModes capacity claimRef nodeAffinity persistentVolumeReclaimPolicy storageClassName volumeMode "
            "volumeAttributesClassName local hostPath",
            csi=_fields("driver volumeHandle"),
            nfs=_fields("server path"),
        ),
        status=_fields("phase"),
    ),
    "PersistentVolumeClaim": _VOLUME_CLAIM,
    "ResourceSlice": _fields("spec"),
    "DeviceTaintRule": _fields("spec status"),
    "StorageClass": _fields("provisioner volumeBindingMode allowedTopologies reclaimPolicy allowVolumeExpansion"),
    "PriorityClass": _fields("value globalDefault preemptionPolicy"),
    "PodDisruptionBudget": _fields("spec status"),
    "PodGroup": _fields("spec status"),
    "Workload": _fields("spec status"),
}
