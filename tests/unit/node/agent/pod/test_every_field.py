"""Every field of a Pod is honoured, is not for the node, or is named in an event when it is used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, get_args

import msgspec
import pytest

from dray.api.types.core_v1 import Container, PodSpec, Volume
from dray.node.agent.pod.environment import ConfigError
from dray.node.agent.pod.optional_fields import optional_fields
from dray.node.agent.volume_files import volume_folder
from tests.unit.node.agent.builders import container, pod

pytestmark = pytest.mark.behaviour("ST-76")

# Read by other components, or meaningful in the API alone; a trailing dot covers all fields below.
NOT_FOR_THE_NODE: Final = {
    *("affinity.", "nodeName", "nodeSelector.", "schedulerName", "schedulingGates.", "schedulingGroup."),
    *("tolerations.", "topologySpreadConstraints.", "preemptionPolicy", "evictionResponders.", "resourceClaims."),
    # Names that were resolved at admission, and settings of changes that the server rejects.
    *("priorityClassName", "serviceAccount", "os.", "containers.resizePolicy."),
}
# Honoured by the agent whatever the runtime; the tests of the agent show how.
HONOURED: Final = {
    *("activeDeadlineSeconds", "automountServiceAccountToken", "enableServiceLinks", "hostNetwork", "hostname"),
    *("hostnameOverride", "imagePullSecrets.", "priority", "readinessGates.", "restartPolicy", "serviceAccountName"),
    *("setHostnameAsFQDN", "subdomain", "terminationGracePeriodSeconds", "resources."),
    *("securityContext.fsGroup", "securityContext.fsGroupChangePolicy", "securityContext.supplementalGroups"),
    *("securityContext.runAsGroup", "securityContext.runAsNonRoot", "securityContext.runAsUser"),
    *("containers.name", "containers.args", "containers.command", "containers.image", "containers.imagePullPolicy"),
    *("containers.env.", "containers.envFrom.", "containers.lifecycle.", "containers.livenessProbe."),
    *("containers.readinessProbe.", "containers.startupProbe.", "containers.ports.", "containers.resources."),
    *("containers.restartPolicy", "containers.restartPolicyRules.", "containers.stdinOnce", "containers.workingDir"),
    *("containers.terminationMessagePath", "containers.terminationMessagePolicy", "containers.volumeMounts."),
    *("containers.securityContext.runAsGroup", "containers.securityContext.runAsNonRoot"),
    "containers.securityContext.runAsUser",
}
# Honoured by some runtimes: a Pod spec or a container that uses the field, and the name that its event has.
OPTIONAL: Final[Mapping[str, tuple[dict[str, Any], dict[str, Any], str]]] = {
    "dnsConfig.": ({"dnsConfig": {"searches": ["x"]}}, {}, "dnsConfig"),
    "dnsPolicy": ({"dnsPolicy": "None"}, {}, "dnsPolicy"),
    "hostAliases.": ({"hostAliases": [{"ip": "192.0.2.1"}]}, {}, "hostAliases"),
    "hostIPC": ({"hostIPC": True}, {}, "hostIPC"),
    "hostPID": ({"hostPID": True}, {}, "hostPID"),
    "hostUsers": ({"hostUsers": False}, {}, "hostUsers"),
    "overhead.": ({"overhead": {"cpu": "1"}}, {}, "overhead"),
    "runtimeClassName": ({"runtimeClassName": "x"}, {}, "runtimeClassName"),
    "shareProcessNamespace": ({"shareProcessNamespace": True}, {}, "shareProcessNamespace"),
    "securityContext.appArmorProfile.": (
        {"securityContext": {"appArmorProfile": {"type": "RuntimeDefault"}}},
        {},
        "securityContext.appArmorProfile",
    ),
    "securityContext.seccompProfile.": (
        {"securityContext": {"seccompProfile": {"type": "RuntimeDefault"}}},
        {},
        "securityContext.seccompProfile",
    ),
    "securityContext.seLinuxOptions.": (
        {"securityContext": {"seLinuxOptions": {"level": "x"}}},
        {},
        "securityContext.seLinuxOptions",
    ),
    "securityContext.seLinuxChangePolicy": (
        {"securityContext": {"seLinuxChangePolicy": "Recursive"}},
        {},
        "securityContext.seLinuxChangePolicy",
    ),
    "securityContext.supplementalGroupsPolicy": (
        {"securityContext": {"supplementalGroupsPolicy": "Strict"}},
        {},
        "securityContext.supplementalGroupsPolicy",
    ),
    "securityContext.sysctls.": (
        {"securityContext": {"sysctls": [{"name": "a", "value": "b"}]}},
        {},
        "securityContext.sysctls",
    ),
    "securityContext.windowsOptions.": (
        {"securityContext": {"windowsOptions": {"hostProcess": True}}},
        {},
        "securityContext.windowsOptions",
    ),
    "containers.stdin": ({}, {"stdin": True}, "stdin"),
    "containers.tty": ({}, {"tty": True}, "tty"),
    "containers.volumeDevices.": ({}, {"volumeDevices": [{"name": "v", "devicePath": "/d"}]}, "volumeDevices"),
    "containers.securityContext.allowPrivilegeEscalation": (
        {},
        {"securityContext": {"allowPrivilegeEscalation": False}},
        "securityContext.allowPrivilegeEscalation",
    ),
    "containers.securityContext.appArmorProfile.": (
        {},
        {"securityContext": {"appArmorProfile": {"type": "RuntimeDefault"}}},
        "securityContext.appArmorProfile",
    ),
    "containers.securityContext.capabilities.": (
        {},
        {"securityContext": {"capabilities": {"drop": ["ALL"]}}},
        "securityContext.capabilities",
    ),
    "containers.securityContext.privileged": (
        {},
        {"securityContext": {"privileged": True}},
        "securityContext.privileged",
    ),
    "containers.securityContext.procMount": (
        {},
        {"securityContext": {"procMount": "Unmasked"}},
        "securityContext.procMount",
    ),
    "containers.securityContext.readOnlyRootFilesystem": (
        {},
        {"securityContext": {"readOnlyRootFilesystem": True}},
        "securityContext.readOnlyRootFilesystem",
    ),
    "containers.securityContext.seLinuxOptions.": (
        {},
        {"securityContext": {"seLinuxOptions": {"level": "x"}}},
        "securityContext.seLinuxOptions",
    ),
    "containers.securityContext.seccompProfile.": (
        {},
        {"securityContext": {"seccompProfile": {"type": "RuntimeDefault"}}},
        "securityContext.seccompProfile",
    ),
    "containers.securityContext.windowsOptions.": (
        {},
        {"securityContext": {"windowsOptions": {"hostProcess": True}}},
        "securityContext.windowsOptions",
    ),
}
# Fields below honoured ones that not every runtime honours.
_MODE: Final = {"grpc": {"port": 1, "mode": "TLS"}}
_PROTOCOL: Final = {"httpGet": {"port": 1, "protocol": "HTTP2"}}
EXCEPTIONS: Final[Mapping[str, tuple[dict[str, Any], dict[str, Any], str]]] = {
    "containers.env.valueFrom.fileKeyRef.": (
        {},
        {"env": [{"name": "A", "valueFrom": {"fileKeyRef": {"key": "k", "path": "p", "volumeName": "v"}}}]},
        "env.valueFrom.fileKeyRef",
    ),
    "containers.ports.hostPort": ({}, {"ports": [{"containerPort": 1, "hostPort": 2}]}, "ports.hostPort"),
    "containers.volumeMounts.recursiveReadOnly": (
        {},
        {"volumeMounts": [{"name": "v", "mountPath": "/v", "recursiveReadOnly": "Enabled"}]},
        "volumeMounts.recursiveReadOnly",
    ),
    "containers.volumeMounts.bindMountOptions": (
        {},
        {"volumeMounts": [{"name": "v", "mountPath": "/v", "bindMountOptions": ["noexec"]}]},
        "volumeMounts.bindMountOptions",
    ),
    "resources.limits.": ({"resources": {"limits": {"cpu": "1"}}}, {}, "resources"),
    "containers.livenessProbe.grpc.mode": ({}, {"livenessProbe": _MODE}, "grpc.mode"),
    "containers.readinessProbe.grpc.mode": ({}, {"readinessProbe": _MODE}, "grpc.mode"),
    "containers.startupProbe.grpc.mode": ({}, {"startupProbe": _MODE}, "grpc.mode"),
    "containers.livenessProbe.httpGet.protocol": ({}, {"livenessProbe": _PROTOCOL}, "httpGet.protocol"),
    "containers.readinessProbe.httpGet.protocol": ({}, {"readinessProbe": _PROTOCOL}, "httpGet.protocol"),
    "containers.startupProbe.httpGet.protocol": ({}, {"startupProbe": _PROTOCOL}, "httpGet.protocol"),
    "containers.lifecycle.preStop.httpGet.protocol": ({}, {"lifecycle": {"preStop": _PROTOCOL}}, "httpGet.protocol"),
    "containers.lifecycle.postStart.httpGet.protocol": (
        {},
        {"lifecycle": {"postStart": _PROTOCOL}},
        "httpGet.protocol",
    ),
}
# Kinds of volumes that the agent mounts; Pods with others wait, with the event FailedMount.
MOUNTED: Final = {"configMap", "downwardAPI", "emptyDir", "projected", "secret"}
# Those whose folder is not below the Pod's.
ELSEWHERE: Final = {"ephemeral", "hostPath", "persistentVolumeClaim"}


def structs_in(kind: Any) -> Iterator[type[msgspec.Struct]]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
    for argument in get_args(kind):
        yield from structs_in(argument)


def paths(kind: type[msgspec.Struct], prefix: str = "") -> Iterator[str]:
    """The paths of all fields; those with fields of their own, maps and lists of objects end with a dot."""
    for field in msgspec.structs.fields(kind):
        path = prefix + field.encode_name
        inner = next(structs_in(field.type), None)
        # All kinds of containers have the same fields; volumes have a test of their own.
        if field.encode_name in ("initContainers", "ephemeralContainers", "volumes"):
            continue
        if inner is None:
            yield f"{path}." if "Mapping" in str(field.type) else path
        else:
            yield from paths(inner, f"{path}.")


def is_in(path: str, table: Mapping[str, Any] | set[str]) -> bool:
    return any(path == entry or (entry.endswith(".") and path.startswith(entry)) for entry in table)


def test_every_field_has_a_place() -> None:
    """A new field of Kubernetes fails here until the agent honours it, or names it in an event."""
    known = (NOT_FOR_THE_NODE, HONOURED, OPTIONAL)
    assert [path for path in paths(PodSpec) if not any(is_in(path, table) for table in known)] == []


@pytest.mark.parametrize("table", [NOT_FOR_THE_NODE, HONOURED, OPTIONAL, EXCEPTIONS])
def test_no_place_is_outdated(table: Mapping[str, Any] | set[str]) -> None:
    every = list(paths(PodSpec))
    assert [entry for entry in table if not any(is_in(path, {entry}) for path in every)] == []


@pytest.mark.parametrize("path", [*OPTIONAL, *EXCEPTIONS])
def test_a_field_in_use_is_named(path: str) -> None:
    spec, own, name = {**OPTIONAL, **EXCEPTIONS}[path]
    subject = pod(container(**own), **spec)
    assert optional_fields(subject, subject.spec.containers[0]) == (name,)


def test_every_kind_of_container_has_the_fields_of_containers() -> None:
    shared = {field.name for field in msgspec.structs.fields(Container)}
    lists = [item for item in msgspec.structs.fields(PodSpec) if item.name.endswith("containers")]
    assert len(lists) == 3
    for kind in (next(structs_in(item.type)) for item in lists):
        assert {field.name for field in msgspec.structs.fields(kind)} - shared <= {"target_container_name"}


@pytest.mark.behaviour("ST-47")
@pytest.mark.parametrize("field", [item for item in msgspec.structs.fields(Volume) if item.name != "name"])
def test_a_volume_that_is_not_mounted_is_an_error(field: msgspec.structs.FieldInfo) -> None:
    source = next(structs_in(field.type))()
    volume = msgspec.structs.replace(Volume(name="v"), **{field.name: source})
    if field.encode_name in MOUNTED:
        assert volume_folder(Path("/root"), "u", volume).name == "v"
    elif field.encode_name not in ELSEWHERE:
        with pytest.raises(ConfigError, match="is not offered by this node"):
            volume_folder(Path("/root"), "u", volume)
