"""The fields of a Pod that not every container runtime honours. Pure.

A runtime lists those that it supports; the agent names the others in an event, so that nothing is ignored silently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

from dray.api.types.core_v1 import Container, HTTPGetAction, Pod, PodSecurityContext, Probe, SecurityContext

T = TypeVar("T")
# The reason of events about what a Pod asks for and its runtime does not do.
RUNTIME_LIMITATION: Final = "RuntimeLimitation"
_HUGE_PAGES: Final = "hugepages-"


def _probes(container: Container) -> list[Probe]:
    probes = (container.liveness_probe, container.readiness_probe, container.startup_probe)
    return [probe for probe in probes if probe is not None]


def _http_actions(container: Container) -> Iterable[HTTPGetAction]:
    lifecycle = container.lifecycle
    hooks = () if lifecycle is None else (lifecycle.post_start, lifecycle.pre_stop)
    found = [probe.http_get for probe in _probes(container)]
    found += [hook.http_get for hook in hooks if hook is not None]
    return (action for action in found if action is not None)


# By path below the Pod's spec.
POD_FIELDS: Final[Mapping[str, Callable[[Pod], object]]] = {
    "shareProcessNamespace": lambda pod: pod.spec.share_process_namespace,
    "hostUsers": lambda pod: pod.spec.host_users is False,
    "hostAliases": lambda pod: pod.spec.host_aliases,
    "dnsConfig": lambda pod: pod.spec.dns_config,
    # `ClusterFirst` is the default, and the node's resolv.conf stands in for a cluster without DNS.
    "dnsPolicy": lambda pod: pod.spec.dns_policy in ("None", "ClusterFirstWithHostNet"),
    "hostPID": lambda pod: pod.spec.host_pid,
    "hostIPC": lambda pod: pod.spec.host_ipc,
    "runtimeClassName": lambda pod: pod.spec.runtime_class_name,
    "resources": lambda pod: pod.spec.resources and pod.spec.resources.limits,
    "overhead": lambda pod: pod.spec.overhead,
}
# Those of the Pod's securityContext.
POD_SECURITY_FIELDS: Final[Mapping[str, Callable[[PodSecurityContext], object]]] = {
    "sysctls": lambda context: context.sysctls,
    "seLinuxChangePolicy": lambda context: context.se_linux_change_policy,
    "supplementalGroupsPolicy": lambda context: context.supplemental_groups_policy == "Strict",
    "windowsOptions": lambda context: context.windows_options,
}
# Those of a container.
CONTAINER_FIELDS: Final[Mapping[str, Callable[[Container], object]]] = {
    "tty": lambda container: container.tty,
    "stdin": lambda container: container.stdin,
    "volumeDevices": lambda container: container.volume_devices,
    "env.valueFrom.fileKeyRef": lambda container: any(
        item.value_from is not None and item.value_from.file_key_ref is not None for item in container.env
    ),
    # While Pods share the node's network, a port of the node is the container's own.
    "ports.hostPort": lambda container: any(
        port.host_port not in (None, port.container_port) for port in container.ports
    ),
    "grpc.mode": lambda container: any(probe.grpc is not None and probe.grpc.mode for probe in _probes(container)),
    "httpGet.protocol": lambda container: any(action.protocol for action in _http_actions(container)),
    "volumeMounts.bindMountOptions": lambda container: any(
        mount.bind_mount_options for mount in container.volume_mounts
    ),
    "volumeMounts.recursiveReadOnly": lambda container: any(
        mount.recursive_read_only in ("Enabled", "IfPossible") for mount in container.volume_mounts
    ),
    "resources.limits.hugepages": lambda container: any(
        name.startswith(_HUGE_PAGES) for name in container.resources.limits
    ),
    "resources.limits.ephemeral-storage": lambda container: "ephemeral-storage" in container.resources.limits,
}
# Those of a container's securityContext.
SECURITY_FIELDS: Final[Mapping[str, Callable[[SecurityContext], object]]] = {
    "privileged": lambda context: context.privileged,
    "capabilities": lambda context: context.capabilities,
    "readOnlyRootFilesystem": lambda context: context.read_only_root_filesystem,
    "allowPrivilegeEscalation": lambda context: context.allow_privilege_escalation is False,
    "procMount": lambda context: context.proc_mount == "Unmasked",
    "windowsOptions": lambda context: context.windows_options,
}
_SECURITY_PATH: Final = "securityContext."


def optional_fields(pod: Pod, container: Container) -> tuple[str, ...]:
    """Return the paths of the fields that the Pod and the container use, sorted."""
    found = set(_in_use(POD_FIELDS, pod))
    found.update(_in_use(CONTAINER_FIELDS, container))
    shared, own = pod.spec.security_context, container.security_context
    if shared is not None:
        found.update(_SECURITY_PATH + name for name in _in_use(POD_SECURITY_FIELDS, shared))
    if own is not None:
        found.update(_SECURITY_PATH + name for name in _in_use(SECURITY_FIELDS, own))
    found.update(_SECURITY_PATH + name for name in _profiles(shared, own))
    return tuple(sorted(found))


def _in_use(fields: Mapping[str, Callable[[T], object]], subject: T) -> Iterable[str]:
    return (name for name, is_used in fields.items() if is_used(subject))


def _profiles(shared: PodSecurityContext | None, own: SecurityContext | None) -> Iterable[str]:
    """Yield the kinds of profiles that apply to the container, its own before the Pod's."""
    privileged = own is not None and own.privileged
    for field, name in (("seccomp_profile", "seccompProfile"), ("app_armor_profile", "appArmorProfile")):
        profile = getattr(own, field, None) or getattr(shared, field, None)
        if profile is not None and profile.type != "Unconfined" and not privileged:
            yield name
    if getattr(own, "se_linux_options", None) or getattr(shared, "se_linux_options", None):
        yield "seLinuxOptions"
