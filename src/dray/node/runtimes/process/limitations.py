"""The limitations of the process runtime, as warnings. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Final

from dray.api.cdi import ContainerEdits, Mount
from dray.api.device_metadata import CONTAINER_FOLDER
from dray.node.runtimes.runtime import BindMount, ContainerSpec, ignored_fields

# Containers are processes of the node, and see everything that it has.
SUPPORTED_FIELDS: Final = frozenset({"hostPID", "hostIPC", "shareProcessNamespace", "stdin", "tty"})
# Mounts that every Pod has cause no warning.
_USUAL = ("kube-api-access-", "termination-log", "etc-hosts")


def mount_variables(mounts: Sequence[BindMount]) -> dict[str, str]:
    """Return variables with the host paths of volumes, which cannot be mounted: DRAY_MOUNT_<VOLUME>."""
    return {
        "DRAY_MOUNT_" + re.sub(r"[^A-Za-z0-9]", "_", mount.volume).upper(): mount.host_path
        for mount in reversed(mounts)
        if mount.volume
    }


def warnings_for(spec: ContainerSpec, edits: ContainerEdits) -> tuple[str, ...]:
    """Return a warning for each unsupported setting."""
    found = [*ignored_fields(spec, "process", SUPPORTED_FIELDS)]
    found += [
        f'volume "{mount.volume}" is not mounted at {mount.container_path}: the process runtime has no mounts; '
        f"the files are in the folder that the DRAY_MOUNT_ variable of the volume names"
        for mount in spec.mounts
        if mount.host_path != mount.container_path and not mount.volume.startswith(_USUAL)
    ]
    found += [
        _device(node.host_path or node.path, node.path)
        for node in edits.device_nodes
        if _moved(node.host_path, node.path)
    ]
    found += [
        _device(item.host_path, item.container_path)
        for item in spec.devices
        if _moved(item.host_path, item.container_path)
    ]
    found += [
        f"{mount.host_path} of a CDI device is not mounted at {mount.container_path}: the process runtime has no mounts"
        for mount in edits.mounts
        if mount.host_path != mount.container_path and metadata_path(mount) is None
    ]
    found += [
        f"hook {hook.hook_name} {hook.path} of a CDI device is not run by the process runtime" for hook in edits.hooks
    ]
    if spec.limits.memory_bytes or spec.limits.cpu_quota_microseconds:
        found.append("limits are not enforced by the process runtime")
    return tuple(found)


def metadata_path(mount: Mount) -> PurePosixPath | None:
    """Return the path of device metadata below its folder; None for any other mount."""
    path = PurePosixPath(mount.container_path)
    if ".." in path.parts or not path.is_relative_to(CONTAINER_FOLDER):
        return None
    return path.relative_to(CONTAINER_FOLDER)


def _moved(host_path: str, path: str) -> bool:
    return bool(host_path) and host_path != path


def _device(host_path: str, path: str) -> str:
    return f"device {host_path} is not shown as {path}: the process runtime has no devices of its own"
