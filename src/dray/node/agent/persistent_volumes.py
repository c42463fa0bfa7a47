"""Volumes of Pods that are claims: finds the persistent volume of a claim, and sets its folder up.

The folders themselves belong to the creator of the volume; the agent checks them and changes their group. Those of
volumes that were provisioned on the node are created when they are first mounted.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from dray.api.document import Document
from dray.api.errors import APIError
from dray.api.node_selection import matching_term
from dray.api.persistent_volumes import claim_name, is_provisioned_locally
from dray.api.types.core_v1 import HostPathVolumeSource, NodeSelector, Pod, Volume
from dray.client.interface import Client
from dray.client.resources import NODES, PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES
from dray.node.agent.local_volumes import make_folder
from dray.node.agent.pod.environment import ConfigError
from dray.node.agent.volume_files import check_host_path

# kubelet's: what the group may do with files, and with folders in addition.
_GROUP_WRITE: Final = 0o660
_GROUP_READ: Final = 0o440
_GROUP_SEARCH: Final = 0o110
ON_ROOT_MISMATCH: Final = "OnRootMismatch"


@dataclass(frozen=True, slots=True)
class PersistentFolder:
    """The folder of a bound claim."""

    # The name of the persistent volume.
    volume: str
    path: str
    read_only: bool
    # Whether the Pod's fsGroup applies: not to a path of the host, which others use.
    has_group: bool = False
    # What is not honoured of the volume; empty if nothing is ignored.
    limitation: str = ""


async def find_folder(client: Client, pod: Pod, volume: Volume) -> PersistentFolder:
    """Return the folder of a volume that is a claim; raises `ConfigError` with kubelet's reasons."""
    namespace, name = pod.metadata.namespace or "", claim_name(pod, volume)
    claim = await _read_claim(client, namespace, name)
    problem = claim_problem(pod, volume, claim)
    if problem:
        raise ConfigError(f"error processing PVC {namespace}/{name}: {problem}")
    persistent = await _read_volume(client, claim["spec"]["volumeName"])
    if ((persistent["spec"].get("claimRef") or {}).get("uid") or "") != claim["metadata"]["uid"]:
        raise ConfigError(f"error processing PVC {namespace}/{name}: PVC is not bound")
    affinity = (persistent["spec"].get("nodeAffinity") or {}).get("required")
    if affinity is not None:
        node = await client.get(NODES, pod.spec.node_name or "", "")
        selector = msgspec.convert(affinity, NodeSelector)
        if matching_term(selector, node.metadata.name or "", node.metadata.labels or {}) is None:
            place = persistent["metadata"]["name"]
            raise ConfigError(f'NodeAffinity check failed for volume "{place}" : no matching NodeSelectorTerms')
    source = volume.persistent_volume_claim
    return folder_of(persistent, read_only=source is not None and bool(source.read_only))


async def _read_claim(client: Client, namespace: str, name: str) -> Document:
    try:
        return await client.get(PERSISTENT_VOLUME_CLAIMS, name, namespace)
    except APIError as error:
        text = f"failed to fetch PVC from API server: {error}"
        raise ConfigError(f"error processing PVC {namespace}/{name}: {text}") from error


async def _read_volume(client: Client, name: str) -> Document:
    try:
        return await client.get(PERSISTENT_VOLUMES, name)
    except APIError as error:
        raise ConfigError(f"failed to fetch PV {name} from API server: {error}") from error


def claim_problem(pod: Pod, volume: Volume, claim: Document) -> str:
    """Return why a claim cannot be mounted; empty if it can."""
    metadata = claim["metadata"]
    if volume.ephemeral is not None:
        owners = [item for item in metadata.get("ownerReferences") or () if item.get("controller")]
        if not any(item.get("uid") == pod.metadata.uid for item in owners):
            key = f"{metadata.get('namespace')}/{metadata['name']}"
            return f"PVC {key} was not created for pod {pod.metadata.namespace}/{pod.metadata.name} (pod is not owner)"
    if metadata.get("deletionTimestamp"):
        return "PVC is being deleted"
    if (claim.get("status") or {}).get("phase") != "Bound" or not claim["spec"].get("volumeName"):
        return "PVC is not bound"
    return ""


def folder_of(persistent: Document, *, read_only: bool) -> PersistentFolder:
    """Check the folder of a persistent volume; raises `ConfigError` for kinds that a node does not have itself."""
    spec, name = persistent["spec"], persistent["metadata"]["name"]
    if spec.get("volumeMode") == "Block":
        raise ConfigError(f'volume "{name}" has volumeMode Block, which is not offered by this node')
    limitation = f'volume "{name}": mountOptions are not applied' if spec.get("mountOptions") else ""
    if spec.get("hostPath") is not None:
        source = msgspec.convert(spec["hostPath"], HostPathVolumeSource)
        check_host_path(source)
        return PersistentFolder(name, source.path, read_only, limitation=limitation)
    if spec.get("local") is None:
        raise ConfigError(f'volume "{name}": this kind of volume is not offered by this node')
    path = Path(spec["local"]["path"])
    if is_provisioned_locally(persistent):
        make_folder(path)
    if not path.exists():
        raise ConfigError(f'path "{path}" does not exist')
    if not path.is_dir():
        raise ConfigError(f'path "{path}" is not a directory, and other file systems are not offered by this node')
    return PersistentFolder(name, str(path), read_only, has_group=True, limitation=limitation)


def set_group(path: Path, group: int, policy: str, *, read_only: bool) -> None:
    """Let a group own a volume with all its files, as kubelet does.

    Files are changed by descriptors: a container that uses the volume could otherwise exchange them for links.
    """
    mask = _GROUP_READ if read_only else _GROUP_WRITE
    if policy == ON_ROOT_MISMATCH and _fits(path.stat(), group, mask):
        return
    # From below: the group of the top tells that everything below is done.
    for _, folders, names, folder in os.fwalk(path, topdown=False, follow_symlinks=False):
        for name in (*names, *folders):
            info = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISREG(info.st_mode):
                _set_file(name, folder, group, mask)
            elif not stat.S_ISDIR(info.st_mode):
                os.chown(name, -1, group, dir_fd=folder, follow_symlinks=False)
        os.fchown(folder, -1, group)
        os.fchmod(folder, stat.S_IMODE(os.fstat(folder).st_mode) | mask | _GROUP_SEARCH | stat.S_ISGID)


def _set_file(name: str, folder: int, group: int, mask: int) -> None:
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.fchown(file, -1, group)
        os.fchmod(file, stat.S_IMODE(os.fstat(file).st_mode) | mask)
    finally:
        os.close(file)


def _fits(info: os.stat_result, group: int, mask: int) -> bool:
    wanted = mask | _GROUP_SEARCH | stat.S_ISGID
    return info.st_gid == group and info.st_mode & wanted == wanted
