"""Builds the specs of sandboxes and containers for the runtime. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dray.api.types.core_v1 import Container, Pod, PodSecurityContext, SecurityContext
from dray.node.agent.pod.environment import ConfigError, expand_all, expand_sub_path
from dray.node.agent.pod.network_files import hostname_of
from dray.node.agent.pod.optional_fields import optional_fields
from dray.node.agent.pod.resource_limits import limits_of
from dray.node.network.host_ports import HostPort
from dray.node.resource_manager import RunOptions
from dray.node.runtimes.runtime import BindMount, ContainerSpec, Limits, Propagation, Sandbox, Security


@dataclass(frozen=True, slots=True)
class ContainerInputs:
    """The environment, mounts and run options of a container."""

    environment: Mapping[str, str]
    mounts: Sequence[BindMount]
    options: RunOptions
    notices: tuple[tuple[str, str], ...] = ()
    # Of the node; 0 if it is not known.
    memory_capacity: int = 0


@dataclass(frozen=True, slots=True)
class VolumeFolder:
    """The host path of a volume, and whether containers may only read it."""

    path: str
    read_only: bool = False


def sandbox_of(pod: Pod, log_root: str, limits: Limits | None = None) -> Sandbox:
    """Return the Pod's sandbox, with the limits of the Pod as a whole."""
    metadata, spec, security = pod.metadata, pod.spec, pod.spec.security_context
    name, namespace, uid = metadata.name or "", metadata.namespace or "", metadata.uid or ""
    return Sandbox(
        uid=uid,
        namespace=namespace,
        name=name,
        hostname=hostname_of(pod),
        log_directory=f"{log_root}/{namespace}_{name}_{uid}",
        labels=dict(metadata.labels or {}),
        annotations=dict(metadata.annotations or {}),
        host_network=bool(spec.host_network),
        host_pid=bool(spec.host_pid),
        host_ipc=bool(spec.host_ipc),
        share_process_namespace=bool(spec.share_process_namespace),
        privileged=any(
            item.security_context is not None and item.security_context.privileged
            for item in (*spec.init_containers, *spec.containers)
        ),
        sysctls={item.name: item.value for item in security.sysctls} if security is not None else {},
        limits=limits or Limits(),
        host_ports=tuple(_host_ports(pod)),
    )


def _host_ports(pod: Pod) -> Iterator[HostPort]:
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        for port in container.ports:
            if port.host_port and not pod.spec.host_network:
                yield HostPort(port.host_port, port.container_port, port.protocol or "TCP", port.host_ip or "")


def container_spec(
    pod: Pod, container: Container, attempt: int, sandbox: Sandbox, wiring: ContainerInputs
) -> ContainerSpec:
    """Return the spec of one run of a container; raises `ConfigError`."""
    # The Pod's variables override those of its devices.
    variables = {**wiring.options.envs, **wiring.environment}
    mounts = [BindMount(item.host_path, item.container_path, item.read_only) for item in wiring.options.mounts]
    lifecycle = container.lifecycle
    return ContainerSpec(
        sandbox=sandbox,
        name=container.name,
        attempt=attempt,
        image=container.image or "",
        command=expand_all(container.command, variables),
        args=expand_all(container.args, variables),
        env=tuple(variables.items()),
        working_dir=container.working_dir or "",
        mounts=(*wiring.mounts, *mounts),
        devices=wiring.options.devices,
        cdi_devices=wiring.options.cdi_devices,
        annotations=dict(wiring.options.annotations),
        limits=limits_of(pod, container, wiring.memory_capacity),
        security=security_of(pod, container),
        stop_signal=(lifecycle.stop_signal or "") if lifecycle is not None else "",
        tty=bool(container.tty),
        stdin=bool(container.stdin),
        stdin_once=bool(container.stdin_once),
        optional_fields=optional_fields(pod, container),
        notices=wiring.notices,
    )


def volume_mounts(
    container: Container, volumes: Mapping[str, VolumeFolder], variables: Mapping[str, str]
) -> list[BindMount]:
    """Return the mounts of the volumes; those of a subPath have a root, below which the path must be prepared."""
    found = []
    for mount in container.volume_mounts:
        if mount.name not in volumes:
            raise ConfigError(f'volume "{mount.name}" is not mounted')
        volume = volumes[mount.name]
        part = expand_sub_path(mount.sub_path_expr, variables) if mount.sub_path_expr else mount.sub_path or ""
        if part.startswith("/"):
            raise ConfigError(f"error SubPath `{part}` must not be an absolute path")
        if ".." in part.split("/"):
            raise ConfigError(f"unable to provision SubPath `{part}`: must not contain '..'")
        found.append(
            BindMount(
                f"{volume.path}/{part}" if part else volume.path,
                mount.mount_path if mount.mount_path.startswith("/") else f"/{mount.mount_path}",
                bool(mount.read_only) or volume.read_only,
                Propagation(mount.mount_propagation or Propagation.NONE),
                mount.name,
                root=volume.path if part else "",
            )
        )
    return found


def security_of(pod: Pod, container: Container) -> Security:
    """Return the security settings, the container's before the Pod's; raises `ConfigError`."""
    own, shared = container.security_context, pod.spec.security_context
    user = own.run_as_user if own is not None and own.run_as_user is not None else None
    group = own.run_as_group if own is not None and own.run_as_group is not None else None
    non_root = own.run_as_non_root if own is not None and own.run_as_non_root is not None else None
    groups: tuple[int, ...] = ()
    if shared is not None:
        user = shared.run_as_user if user is None else user
        group = shared.run_as_group if group is None else group
        non_root = shared.run_as_non_root if non_root is None else non_root
        groups = (*shared.supplemental_groups, *((shared.fs_group,) if shared.fs_group is not None else ()))
    if non_root and user == 0:
        raise ConfigError("container's runAsUser breaks non-root policy")
    capabilities = own.capabilities if own is not None else None
    seccomp, app_armor = _profile(own, shared, "seccomp_profile"), _profile(own, shared, "app_armor_profile")
    return Security(
        user=user,
        group=group,
        supplemental_groups=groups,
        privileged=bool(own is not None and own.privileged),
        read_only_root=bool(own is not None and own.read_only_root_filesystem),
        no_new_privileges=own is not None and own.allow_privilege_escalation is False,
        must_not_be_root=bool(non_root),
        add_capabilities=capabilities.add if capabilities is not None else (),
        drop_capabilities=capabilities.drop if capabilities is not None else (),
        unmasked_proc=own is not None and own.proc_mount == "Unmasked",
        seccomp=seccomp[0],
        seccomp_localhost=seccomp[1],
        app_armor=app_armor[0],
        app_armor_localhost=app_armor[1],
    )


def _profile(own: SecurityContext | None, shared: PodSecurityContext | None, field: str) -> tuple[str, str]:
    """Return the type and the local name of a profile, the container's before the Pod's."""
    profile = getattr(own, field, None) or getattr(shared, field, None)
    return (profile.type, profile.localhost_profile or "") if profile is not None else ("", "")
