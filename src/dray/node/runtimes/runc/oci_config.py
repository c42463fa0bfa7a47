"""Builds the OCI runtime configuration of a container. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Final

from dray.api.document import Document
from dray.node.cdi.edits import merge_environment
from dray.node.runtimes.pod_cgroup import pod_group
from dray.node.runtimes.runtime import PERIOD_MICROSECONDS, BindMount, ContainerSpec, Propagation, Security

VERSION: Final = "1.0.2"
PATH: Final = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# The defaults of Docker, containerd and CRI-O.
CAPABILITIES: Final = (
    "CAP_AUDIT_WRITE",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_MKNOD",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_RAW",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
)
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
_PROPAGATION: Final = {
    Propagation.NONE: "rprivate",
    Propagation.HOST_TO_CONTAINER: "rslave",
    Propagation.BIDIRECTIONAL: "rshared",
}
SUPPORTED_FIELDS: Final = frozenset(
    {
        "dnsConfig",
        "hostAliases",
        "hostIPC",
        "hostPID",
        "securityContext.allowPrivilegeEscalation",
        "securityContext.capabilities",
        "securityContext.privileged",
        "securityContext.procMount",
        "securityContext.readOnlyRootFilesystem",
        "securityContext.seccompProfile",
        "shareProcessNamespace",
        "stdin",
        "tty",
    }
)


def oci_config(  # noqa: PLR0913 - what the image, the node and the kernel say, by name
    spec: ContainerSpec,
    *,
    argv: Sequence[str],
    image_env: Sequence[str],
    working_dir: str,
    user: tuple[int, int],
    bounding: Sequence[str],
    oom_score_adj: int,
    etc: Sequence[BindMount] = (),
    process_namespace: str = "",
    seccomp: Document | None = None,
    network_namespace: str = "",
) -> Document:
    """Return the configuration.

    `bounding` is the agent's capability bounding set, `process_namespace` the path of one that exists already.
    `network_namespace` is the Pod's; empty means the node's.
    """
    own = [f"{name}={value}" for name, value in spec.env]
    base = [PATH, f"HOSTNAME={spec.sandbox.hostname}", *(("TERM=xterm",) if spec.tty else ())]
    env = merge_environment([*base, *image_env], own)
    return {
        "ociVersion": VERSION,
        "process": {
            "terminal": spec.tty,
            "user": _user(spec, user),
            "args": list(argv),
            "env": env,
            "cwd": spec.working_dir or working_dir or "/",
            "capabilities": _capabilities(spec.security, user[0], bounding),
            "noNewPrivileges": spec.security.no_new_privileges,
            "oomScoreAdj": oom_score_adj,
        },
        "root": {"path": "rootfs", "readonly": spec.security.read_only_root},
        "hostname": spec.sandbox.hostname,
        "mounts": _mounts(spec, etc),
        "annotations": dict(spec.annotations),
        "linux": _linux(spec, process_namespace, network_namespace)
        | ({"seccomp": seccomp} if seccomp is not None else {}),
    }


def cgroup_path(spec: ContainerSpec, container_id: str) -> str:
    """Return the path of the container's cgroup."""
    return f"/{pod_group(spec.sandbox.uid)}/{container_id}"


def _user(spec: ContainerSpec, user: tuple[int, int]) -> Document:
    result: Document = {"uid": user[0], "gid": user[1]}
    if spec.security.supplemental_groups:
        result["additionalGids"] = list(dict.fromkeys(spec.security.supplemental_groups))
    return result


def capability_set(security: Security, bounding: Sequence[str]) -> list[str]:
    """Return the default capabilities with additions and without drops, limited to the bounding set."""
    if security.privileged:
        return sorted(bounding)
    drop = {_full(name) for name in security.drop_capabilities}
    add = {_full(name) for name in security.add_capabilities}
    base = set() if "CAP_ALL" in drop else set(CAPABILITIES) - drop
    base |= set(bounding) if "CAP_ALL" in add else add
    return sorted(base & set(bounding))


def _full(name: str) -> str:
    upper = name.upper()
    return upper if upper.startswith("CAP_") else f"CAP_{upper}"


def _capabilities(security: Security, uid: int, bounding: Sequence[str]) -> Document:
    names = capability_set(security, bounding)
    # Other users than root start without capabilities, and may gain those of the bounding set.
    held = names if uid == 0 else []
    return {"bounding": names, "effective": held, "permitted": held}


def _mounts(spec: ContainerSpec, etc: Sequence[BindMount]) -> list[Document]:
    system = "rw" if spec.security.privileged else "ro"
    mounts: list[Document] = [
        _mount("/proc", "proc", "proc"),
        _mount("/dev", "tmpfs", "tmpfs", "nosuid", "strictatime", "mode=755", "size=65536k"),
        _mount(
            "/dev/pts", "devpts", "devpts", "nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"
        ),
        _mount("/dev/shm", "tmpfs", "shm", "nosuid", "noexec", "nodev", "mode=1777", "size=65536k"),  # noqa: S108
        _mount("/dev/mqueue", "mqueue", "mqueue", "nosuid", "noexec", "nodev"),
        _mount("/sys", "sysfs", "sysfs", "nosuid", "noexec", "nodev", system),
        _mount("/sys/fs/cgroup", "cgroup", "cgroup", "nosuid", "noexec", "nodev", "relatime", system),
    ]
    taken = {mount.container_path for mount in spec.mounts}
    mounts += [bind_mount(item) for item in etc if item.container_path not in taken]
    mounts = [item for item in mounts if not _is_on_host(item["destination"], spec.mounts)]
    mounts += [bind_mount(item) for item in spec.mounts]
    mounts.sort(key=lambda item: item["destination"].rstrip("/").count("/"))
    return mounts


def _is_on_host(path: str, mounts: Sequence[BindMount]) -> bool:
    """Whether a mount at the path would appear on the host: it is inside one that propagates in both directions."""
    return any(
        mount.propagation is Propagation.BIDIRECTIONAL and PurePosixPath(path).is_relative_to(mount.container_path)
        for mount in mounts
    )


def bind_mount(mount: BindMount) -> Document:
    """Return a bind mount."""
    options = ["rbind", _PROPAGATION[mount.propagation], "ro" if mount.read_only else "rw"]
    return _mount(mount.container_path, "bind", mount.host_path, *options)


def _mount(destination: str, kind: str, source: str, *options: str) -> Document:
    mount: Document = {"destination": destination, "type": kind, "source": source}
    if options:
        mount["options"] = list(options)
    return mount


def _linux(spec: ContainerSpec, process_namespace: str, network_namespace: str) -> Document:
    kinds = ["mount", "uts", *([] if spec.sandbox.host_ipc else ["ipc"])]
    namespaces = [{"type": kind} for kind in kinds]
    if not spec.sandbox.host_pid:
        namespaces.append({"type": "pid", **({"path": process_namespace} if process_namespace else {})})
    if network_namespace:
        namespaces.append({"type": "network", "path": network_namespace})
    linux: Document = {"namespaces": namespaces, "resources": _resources(spec)}
    if any(mount.propagation is Propagation.BIDIRECTIONAL for mount in spec.mounts):
        # Otherwise runc makes every mount a slave, from which nothing propagates.
        linux["rootfsPropagation"] = "rshared"
    if not spec.security.privileged and not spec.security.unmasked_proc:
        linux |= {"maskedPaths": list(MASKED), "readonlyPaths": list(READ_ONLY)}
    return linux


def _resources(spec: ContainerSpec) -> Document:
    limits = spec.limits
    resources: Document = {"devices": [{"allow": spec.security.privileged, "access": "rwm"}]}
    cpu: Document = {}
    if limits.cpu_shares:
        cpu["shares"] = limits.cpu_shares
    if limits.cpu_quota_microseconds:
        cpu |= {"quota": limits.cpu_quota_microseconds, "period": PERIOD_MICROSECONDS}
    if limits.cpus:
        cpu["cpus"] = limits.cpus
    if limits.memory_nodes:
        cpu["mems"] = limits.memory_nodes
    if cpu:
        resources["cpu"] = cpu
    if limits.memory_bytes:
        resources["memory"] = {"limit": limits.memory_bytes}
    if limits.huge_pages:
        resources["hugepageLimits"] = [{"pageSize": size, "limit": amount} for size, amount in limits.huge_pages]
    return resources


def default_bind_types(config: Document) -> Document:
    """Set the type of CDI mounts without one to bind, which runc requires."""
    for mount in config.get("mounts") or ():
        if not mount.get("type"):
            mount["type"] = "bind"
            options = mount.setdefault("options", [])
            if not {"bind", "rbind"} & set(options):
                options.insert(0, "rbind")
    return config
