"""Converts between the agent's types and CRI messages. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Final

from dray.api.cdi import ContainerEdits
from dray.node.network.host_ports import HostPort
from dray.node.resource_manager import HostDevice
from dray.node.runtimes.runtime import (
    PERIOD_MICROSECONDS,
    START_ERROR,
    UNKNOWN_EXIT_CODE,
    BindMount,
    ContainerRecord,
    ContainerSpec,
    Dns,
    Exit,
    Limits,
    Propagation,
    RuntimeFailure,
    Sandbox,
    Security,
)
from dray.node.runtimes.usage import Usage
from dray.rpc.pb.cri.v1 import api_pb2 as pb

NODE_LABEL: Final = "dray.dev/node"
POD_NAME: Final = "io.kubernetes.pod.name"
POD_NAMESPACE: Final = "io.kubernetes.pod.namespace"
POD_UID: Final = "io.kubernetes.pod.uid"
CONTAINER_NAME: Final = "io.kubernetes.container.name"
IMAGE: Final = "dray.dev/image"
SUPPORTED_FIELDS: Final = frozenset(
    {
        "dnsConfig",
        "dnsPolicy",
        "hostAliases",
        "hostIPC",
        "hostPID",
        "securityContext.allowPrivilegeEscalation",
        "securityContext.appArmorProfile",
        "securityContext.capabilities",
        "securityContext.privileged",
        "securityContext.procMount",
        "securityContext.readOnlyRootFilesystem",
        "securityContext.seccompProfile",
        "securityContext.sysctls",
        "shareProcessNamespace",
        "stdin",
        "tty",
    }
)
# What containers see of /proc and /sys, as with kubelet.
MASKED: Final = (
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
)
READ_ONLY: Final = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
# CRI's reasons that carry no information.
_USUAL_REASONS: Final = ("Completed", "Error", "")
_PROPAGATION: Final = {
    Propagation.NONE: pb.PROPAGATION_PRIVATE,
    Propagation.HOST_TO_CONTAINER: pb.PROPAGATION_HOST_TO_CONTAINER,
    Propagation.BIDIRECTIONAL: pb.PROPAGATION_BIDIRECTIONAL,
}


def knows_cdi(runtime_name: str, info: Mapping[str, str]) -> bool:
    """Whether the runtime supports CDI; otherwise it silently ignores CDI devices."""
    if runtime_name == "cri-o":
        return True
    try:
        config = json.loads(info.get("config", "{}"))
    except ValueError:
        return False
    return bool(config.get("enableCDI"))


def has_systemd_cgroups(runtime_name: str, info: Mapping[str, str]) -> bool:
    """Whether the runtime leaves cgroups to systemd, as CRI-O does by default."""
    try:
        settings = json.loads(info.get("config", "{}"))["containerd"]
        options = settings["runtimes"][settings["defaultRuntimeName"]].get("options") or {}
    except (ValueError, KeyError, TypeError, AttributeError):
        return runtime_name == "cri-o"
    return bool(options.get("SystemdCgroup"))


def sandbox_config(sandbox: Sandbox, node_name: str, cgroup_parent: str = "") -> pb.PodSandboxConfig:
    """Return the config of a Pod's sandbox."""
    return pb.PodSandboxConfig(
        metadata=pb.PodSandboxMetadata(
            name=sandbox.name, uid=sandbox.uid, namespace=sandbox.namespace, attempt=sandbox.attempt
        ),
        hostname="" if sandbox.host_network else sandbox.hostname,
        log_directory=sandbox.log_directory,
        labels={**sandbox.labels, **_pod_labels(sandbox, node_name)},
        annotations=dict(sandbox.annotations),
        dns_config=_dns(sandbox.dns),
        port_mappings=() if sandbox.host_network else [_port(port) for port in sandbox.host_ports],
        linux=pb.LinuxPodSandboxConfig(
            cgroup_parent=cgroup_parent,
            sysctls=sandbox.sysctls,
            security_context=pb.LinuxSandboxSecurityContext(
                namespace_options=_namespaces(sandbox), privileged=sandbox.privileged
            ),
            resources=_resources(sandbox.limits),
        ),
    )


def _port(port: HostPort) -> pb.PortMapping:
    return pb.PortMapping(
        protocol=port.protocol,
        container_port=port.container_port,
        host_port=port.port,
        host_ip=port.host_ip,
    )


def _dns(dns: Dns | None) -> pb.DNSConfig | None:
    """Return the DNS settings; without any the runtime copies the node's file."""
    if dns is None:
        return None
    return pb.DNSConfig(servers=dns.servers, searches=dns.searches, options=dns.options)


def _pod_labels(sandbox: Sandbox, node_name: str) -> dict[str, str]:
    return {
        POD_NAME: sandbox.name,
        POD_NAMESPACE: sandbox.namespace,
        POD_UID: sandbox.uid,
        NODE_LABEL: node_name,
    }


def _namespaces(sandbox: Sandbox) -> pb.NamespaceOption:
    return pb.NamespaceOption(
        network=pb.NODE if sandbox.host_network else pb.POD,
        pid=pb.NODE if sandbox.host_pid else pb.POD if sandbox.share_process_namespace else pb.CONTAINER,
        ipc=pb.NODE if sandbox.host_ipc else pb.POD,
    )


def _container_namespaces(spec: ContainerSpec) -> pb.NamespaceOption:
    options = _namespaces(spec.sandbox)
    if spec.target_id and not spec.sandbox.host_pid:
        options.pid, options.target_id = pb.TARGET, spec.target_id
    return options


def container_config(
    spec: ContainerSpec, node_name: str, image_ref: str, edits: ContainerEdits | None
) -> pb.ContainerConfig:
    """Return the config of a container; CDI devices are applied as edits if given, otherwise passed by name."""
    config = pb.ContainerConfig(
        metadata=pb.ContainerMetadata(name=spec.name, attempt=spec.attempt),
        image=pb.ImageSpec(image=image_ref, user_specified_image=spec.image),
        command=spec.command,
        args=spec.args,
        working_dir=spec.working_dir,
        envs=[pb.KeyValue(key=key, value=value) for key, value in spec.env],
        mounts=[_mount(mount) for mount in spec.mounts],
        devices=[_device(device) for device in spec.devices],
        labels={**_pod_labels(spec.sandbox, node_name), CONTAINER_NAME: spec.name},
        annotations={**spec.annotations, IMAGE: spec.image},
        log_path=f"{spec.name}/{spec.attempt}.log",
        stdin=spec.stdin,
        stdin_once=spec.stdin_once,
        tty=spec.tty,
        linux=_linux(spec),
    )
    if edits is None:
        config.CDI_devices.extend(pb.CDIDevice(name=name) for name in spec.cdi_devices)
    else:
        translate_edits(config, edits)
    return config


def translate_edits(config: pb.ContainerConfig, edits: ContainerEdits) -> None:
    """Apply CDI edits as CRI devices, mounts and variables; raises `RuntimeFailure` for what CRI cannot express."""
    if edits.hooks:
        names = ", ".join(sorted({hook.hook_name for hook in edits.hooks}))
        raise RuntimeFailure(f"the container runtime does not know CDI, and a device's hooks ({names}) need it")
    if edits.intel_rdt is not None:
        raise RuntimeFailure("the container runtime does not know CDI, and a device's Intel RDT settings need it")
    for text in edits.env:
        key, _, value = text.partition("=")
        config.envs.append(pb.KeyValue(key=key, value=value))
    for node in edits.device_nodes:
        if node.type == "p":
            raise RuntimeFailure(f"the container runtime does not know CDI, and the pipe {node.path} needs it")
        config.devices.append(_device(HostDevice(node.path, node.host_path or node.path, node.permissions or "rwm")))
    for mount in edits.mounts:
        config.mounts.append(_mount(BindMount(mount.host_path, mount.container_path, "ro" in mount.options)))
    config.linux.security_context.supplemental_groups.extend(gid for gid in edits.additional_gids if gid)


def _mount(mount: BindMount) -> pb.Mount:
    return pb.Mount(
        container_path=mount.container_path,
        host_path=mount.host_path,
        readonly=mount.read_only,
        propagation=_PROPAGATION[mount.propagation],
    )


def _device(device: HostDevice) -> pb.Device:
    return pb.Device(container_path=device.container_path, host_path=device.host_path, permissions=device.permissions)


def _linux(spec: ContainerSpec) -> pb.LinuxContainerConfig:
    security, limits = spec.security, spec.limits
    context = pb.LinuxContainerSecurityContext(
        privileged=security.privileged,
        namespace_options=_container_namespaces(spec),
        readonly_rootfs=security.read_only_root,
        supplemental_groups=security.supplemental_groups,
        no_new_privs=security.no_new_privileges,
        capabilities=pb.Capability(
            add_capabilities=security.add_capabilities, drop_capabilities=security.drop_capabilities
        ),
    )
    context.seccomp.CopyFrom(_profile(security.seccomp, security.seccomp_localhost))
    if security.app_armor:
        context.apparmor.CopyFrom(_profile(security.app_armor, security.app_armor_localhost))
    if security.user is not None:
        context.run_as_user.value = security.user
    context.run_as_username = security.user_name
    if security.group is not None and (security.user is not None or security.user_name):
        context.run_as_group.value = security.group
    if not security.privileged and not security.unmasked_proc:
        context.masked_paths.extend(MASKED)
        context.readonly_paths.extend(READ_ONLY)
    return pb.LinuxContainerConfig(resources=_resources(limits), security_context=context)


def _profile(kind: str, localhost: str) -> pb.SecurityProfile:
    """Return a security profile; a container that asks for none is unconfined, as in kubelet."""
    return pb.SecurityProfile(profile_type=kind or "Unconfined", localhost_ref=localhost)


def _resources(limits: Limits) -> pb.LinuxContainerResources:
    resources = pb.LinuxContainerResources(
        cpu_shares=limits.cpu_shares,
        memory_limit_in_bytes=limits.memory_bytes,
        oom_score_adj=limits.oom_score_adj,
        cpuset_cpus=limits.cpus,
        cpuset_mems=limits.memory_nodes,
        hugepage_limits=[pb.HugepageLimit(page_size=size, limit=amount) for size, amount in limits.huge_pages],
    )
    if limits.cpu_quota_microseconds:
        resources.cpu_period, resources.cpu_quota = PERIOD_MICROSECONDS, limits.cpu_quota_microseconds
    return resources


def with_image_user(security: Security, image: pb.Image, seccomp_folder: PurePath) -> Security:
    """Return the settings with the image's user, and the full path of a seccomp profile; raises `RuntimeFailure`."""
    if security.seccomp_localhost:
        security = replace(security, seccomp_localhost=_below(seccomp_folder, security.seccomp_localhost))
    uid, name = security.user, ""
    if uid is None:
        name = "" if image.HasField("uid") else image.username
        # An image without a user has root.
        uid = None if name or not image.id else image.uid.value
        security = replace(security, user=uid, user_name=name)
    if security.must_not_be_root and name:
        text = f"container has runAsNonRoot and image has non-numeric user ({name}), cannot verify user is non-root"
        raise RuntimeFailure(text)
    if security.must_not_be_root and not uid:
        raise RuntimeFailure("container has runAsNonRoot and image will run as root")
    return security


def _below(folder: PurePath, name: str) -> str:
    if ".." in PurePath(name).parts or name.startswith("/"):
        raise RuntimeFailure(f'cannot load seccomp profile "{name}": it must be below {folder}')
    return str(folder / name)


def usage_of(stats: pb.ContainerStats) -> Usage:
    """Return what a container has used; runtimes that do not tell all memory tell the working set."""
    memory = stats.memory
    working_set = memory.working_set_bytes.value
    return Usage(
        cpu_nanoseconds=stats.cpu.usage_core_nano_seconds.value,
        memory_bytes=memory.usage_bytes.value or working_set,
        working_set_bytes=working_set,
        rss_bytes=memory.rss_bytes.value,
    )


def record_of(status: pb.ContainerStatus) -> ContainerRecord:
    """Return the record of a container."""
    labels = status.labels
    started = status.started_at or status.created_at
    return ContainerRecord(
        id=status.id,
        pod_uid=labels[POD_UID],
        pod_namespace=labels[POD_NAMESPACE],
        pod_name=labels[POD_NAME],
        name=labels[CONTAINER_NAME],
        attempt=status.metadata.attempt,
        image=status.annotations[IMAGE] or status.image.image,
        image_id=status.image_ref,
        started_at=_moment(started),
        exit=_exit(status),
        annotations=dict(status.annotations),
    )


def with_configuration(record: ContainerRecord, info: Mapping[str, str]) -> ContainerRecord:
    """Return the record with the environment and devices of a verbose status, as containerd and CRI-O write it."""
    try:
        found = json.loads(info.get("info", "{}"))
        config, spec = found.get("config") or {}, found.get("runtimeSpec") or {}
        own = [(str(item["key"]), str(item.get("value") or "")) for item in config.get("envs") or ()]
        process = [str(item).partition("=")[::2] for item in (spec.get("process") or {}).get("env") or ()]
        names = [item["name"] for item in config.get("CDI_devices") or ()]
        paths = [item["host_path"] for item in config.get("devices") or ()]
    except (AttributeError, KeyError, TypeError, ValueError):
        # Every runtime may write something else.
        return record
    return replace(record, environment=dict(own or process), device_names=tuple(map(str, (*names, *paths))))


def _exit(status: pb.ContainerStatus) -> Exit | None:
    if status.state == pb.CONTAINER_RUNNING:
        return None
    if status.state != pb.CONTAINER_EXITED:
        moment = _moment(status.finished_at or status.created_at)
        return Exit(UNKNOWN_EXIT_CODE, moment, reason=START_ERROR, message="the container never ran")
    reason = "" if status.reason in _USUAL_REASONS else status.reason
    return Exit(status.exit_code, _moment(status.finished_at), reason=reason, message=status.message)


def _moment(nanoseconds: int) -> datetime:
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC)
