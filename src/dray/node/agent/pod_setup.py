"""Sets up volumes, tokens and container specs of Pods on this host."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import posixpath
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from dray.api.document import Document
from dray.api.errors import APIError, NotFoundError
from dray.api.persistent_volumes import claim_name
from dray.api.timestamps import parse_time
from dray.api.types.core_v1 import ConfigMap, Container, Pod, Secret, ServiceAccountTokenProjection, Volume
from dray.client.interface import Client, Resource
from dray.client.resources import CONFIG_MAPS, SECRETS, SERVICE_ACCOUNTS
from dray.lib.clock import Clock
from dray.node.agent import volume_files
from dray.node.agent.logs.reader import last_output
from dray.node.agent.persistent_volumes import PersistentFolder, find_folder, set_group
from dray.node.agent.pod.container_spec import ContainerInputs, VolumeFolder, container_spec, sandbox_of, volume_mounts
from dray.node.agent.pod.environment import (
    CONFIG_MAP,
    SECRET,
    ConfigError,
    DownwardContext,
    Sources,
    environment,
    referenced,
)
from dray.node.agent.pod.network_files import dns_of, hosts_file
from dray.node.agent.pod.optional_fields import RUNTIME_LIMITATION
from dray.node.agent.pod.resource_limits import pod_limits_of
from dray.node.agent.volume_content import (
    is_made_of_objects,
    nested_mount_points,
    references,
    render_volume,
    token_requests,
)
from dray.node.resource_manager import ResourceError, RunOptions
from dray.node.runtimes.runtime import BindMount, ContainerSpec, Dns, Sandbox

T = TypeVar("T")

FAILED_MOUNT: Final = "FailedMount"
DEFAULT_MESSAGE_PATH: Final = "/dev/termination-log"
HOSTS: Final = "/etc/hosts"
RESOLV_CONF: Final = "/etc/resolv.conf"
MESSAGE_BYTES_MAX: Final = 4096
# kubelet's limits of a termination message from the log.
FALLBACK_LINES: Final = 80
FALLBACK_BYTES: Final = 2048
# kubelet's: a token is renewed after this part of its lifetime.
TOKEN_RENEW_AT: Final = 0.8
# The period of updating volumes from API objects; kubelet's sync period.
REFRESH_SECONDS: Final = 60.0


# Docker configuration files, and the names of Secrets that have none.
ImageCredentials: TypeAlias = tuple[tuple[Mapping[str, Any], ...], tuple[str, ...]]


class PodSetup(Protocol):
    """Sets up what a Pod needs besides devices; simulated nodes have an implementation that does nothing."""

    def sandbox(self, pod: Pod) -> Sandbox:
        """Return the Pod's sandbox."""

    async def prepare(self, pod: Pod) -> None:
        """Set up the Pod's volumes; raises `ResourceError`."""

    async def container(
        self, pod: Pod, container: Container, attempt: int, options: RunOptions, addresses: tuple[str, ...]
    ) -> ContainerSpec:
        """Return the container's spec; raises `ConfigError`."""

    async def image_credentials(self, pod: Pod) -> ImageCredentials:
        """Return the content of the Pod's imagePullSecrets, and the names of those that cannot be read."""

    async def termination_message(self, pod: Pod, container: str, attempt: int, *, failed: bool) -> str:
        """Return the container's termination message."""

    async def remove_log(self, pod: Pod, container: str, attempt: int) -> None:
        """Remove the log of a run."""

    async def remove_pod(self, pod: Pod) -> None:
        """Remove the Pod's files."""


class ServiceSource(Protocol):
    """The Services in the environment of containers of this node."""

    @property
    def dns_servers(self) -> tuple[str, ...] | None:
        """The addresses of the cluster's DNS; None if the runtime does not write resolv.conf."""

    async def variables(self, pod: Pod) -> dict[str, str]:
        """Return the environment variables of Services; raises `ConfigError`."""


@dataclass(slots=True)
class _Token:
    value: str
    renew: datetime


@dataclass(slots=True)
class LocalPodSetup:
    """Implements `PodSetup` on this host."""

    client: Client
    clock: Clock
    root: Path
    # Called each time, since addresses and allocatable change.
    around: Callable[[], DownwardContext]
    services: ServiceSource
    _tokens: dict[tuple[str, ServiceAccountTokenProjection], _Token] = field(default_factory=dict)
    # By the Pod's uid and the name of the volume.
    _persistent: dict[tuple[str, str], PersistentFolder] = field(default_factory=dict)

    @property
    def log_root(self) -> Path:
        """The folder of all container logs."""
        return self.root / "logs" / "pods"

    def sandbox(self, pod: Pod) -> Sandbox:
        """Return the Pod's sandbox."""
        return replace(sandbox_of(pod, str(self.log_root), pod_limits_of(pod)), dns=self._dns(pod)[0])

    def _dns(self, pod: Pod) -> tuple[Dns | None, tuple[tuple[str, str], ...]]:
        return dns_of(pod, _read_text(RESOLV_CONF), self.services.dns_servers)

    async def prepare(self, pod: Pod) -> None:
        """Set up the Pod's volumes; raises `ResourceError`."""
        await asyncio.to_thread(volume_files.make_pod_folder, self.root, pod.metadata.uid or "")
        for volume in pod.spec.volumes:
            try:
                await self._make(pod, volume)
            except ConfigError as error:
                message = f'MountVolume.SetUp failed for volume "{volume.name}" : {error}'
                raise ResourceError(FAILED_MOUNT, message) from error

    async def _make(self, pod: Pod, volume: Volume) -> None:
        if claim_name(pod, volume):
            await self._make_persistent(pod, volume)
            return
        if volume.host_path is not None:
            await asyncio.to_thread(volume_files.check_host_path, volume.host_path)
            return
        folder = volume_files.volume_folder(self.root, pod.metadata.uid or "", volume)
        if volume.empty_dir is not None:
            await asyncio.to_thread(volume_files.make_empty, folder, volume.empty_dir, pod)
            return
        if not is_made_of_objects(volume):
            raise ConfigError("this kind of volume is not offered by this node")
        sources = await self._read(pod, references(volume))
        tokens = {item: await self._token(pod, item) for item in token_requests(volume)}
        content = render_volume(pod, volume, sources, tokens, self.around())
        nested = nested_mount_points(pod, volume.name)
        await asyncio.to_thread(volume_files.write_files, folder, content, pod, nested)

    async def _make_persistent(self, pod: Pod, volume: Volume) -> None:
        found = await self._persistent_folder(pod, volume)
        context = pod.spec.security_context
        if context is None or context.fs_group is None or not found.has_group or os.geteuid() != 0:
            return
        policy = context.fs_group_change_policy or ""
        try:
            await asyncio.to_thread(set_group, Path(found.path), context.fs_group, policy, read_only=found.read_only)
        except OSError as error:
            raise ConfigError(f"applyFSGroup failed for vol {found.volume}: {error}") from error

    async def _persistent_folder(self, pod: Pod, volume: Volume) -> PersistentFolder:
        """Return the folder of a claim; it is known as long as the Pod is there, since claims cannot be unbound."""
        key = (pod.metadata.uid or "", volume.name)
        if key not in self._persistent:
            self._persistent[key] = await find_folder(self.client, pod, volume)
        return self._persistent[key]

    def used_volumes(self) -> frozenset[str]:
        """Return the names of the persistent volumes of the Pods."""
        return frozenset(found.volume for found in self._persistent.values())

    async def container(
        self, pod: Pod, container: Container, attempt: int, options: RunOptions, addresses: tuple[str, ...]
    ) -> ContainerSpec:
        """Return the container's spec; raises `ConfigError`."""
        sources = await self._read(pod, referenced(container))
        variables_of_services = await self.services.variables(pod)
        around = replace(self.around(), pod_addresses=addresses, services=variables_of_services)
        variables = environment(pod, container, sources, around)
        uid = pod.metadata.uid or ""
        folders = {volume.name: await self._folder(pod, volume) for volume in pod.spec.volumes}
        wanted = {mount.name for mount in container.volume_mounts}
        for volume in pod.spec.volumes:
            if volume.name in wanted and volume.host_path is not None and not volume.host_path.type:
                await asyncio.to_thread(volume_files.make_host_path, volume.host_path.path)
        mounts = [
            await asyncio.to_thread(volume_files.prepare_subpath, mount, container.name) if mount.root else mount
            for mount in volume_mounts(container, folders, variables)
        ]
        message = await asyncio.to_thread(volume_files.make_message_file, self.root, uid, container.name, attempt)
        path = container.termination_message_path or DEFAULT_MESSAGE_PATH
        mounts.append(BindMount(str(message), path, volume="termination-log"))
        if all(posixpath.normpath(mount.container_path) != HOSTS for mount in mounts):
            content = hosts_file(pod, addresses or around.host_addresses, _read_text(HOSTS))
            hosts = await asyncio.to_thread(volume_files.write_hosts, self.root, uid, content)
            mounts.append(BindMount(str(hosts), HOSTS, volume="etc-hosts"))
        inputs = ContainerInputs(variables, mounts, options, self._notices(pod, wanted), around.memory_bytes)
        return container_spec(pod, container, attempt, self.sandbox(pod), inputs)

    def _notices(self, pod: Pod, volumes: Collection[str]) -> tuple[tuple[str, str], ...]:
        """Return the reasons and messages of events about what the Pod asks for and does not get."""
        limits = [volume_files.empty_dir_limitation(item) for item in pod.spec.volumes if item.name in volumes]
        persistent = (self._persistent.get((pod.metadata.uid or "", name)) for name in sorted(volumes))
        limits += [item.limitation for item in persistent if item is not None]
        return (*self._dns(pod)[1], *((RUNTIME_LIMITATION, text) for text in limits if text))

    async def _folder(self, pod: Pod, volume: Volume) -> VolumeFolder:
        if claim_name(pod, volume):
            found = await self._persistent_folder(pod, volume)
            return VolumeFolder(found.path, read_only=found.read_only)
        if volume.host_path is not None:
            return VolumeFolder(volume.host_path.path)
        path = str(volume_files.volume_folder(self.root, pod.metadata.uid or "", volume))
        # The agent alone writes them, as in kubelet.
        return VolumeFolder(path, read_only=is_made_of_objects(volume))

    async def termination_message(self, pod: Pod, container: str, attempt: int, *, failed: bool) -> str:
        """Return the message file or, after a failure and if the policy allows it, the end of the log."""
        uid = pod.metadata.uid or ""
        words = await asyncio.to_thread(
            volume_files.read_message, self.root, uid, container, attempt, MESSAGE_BYTES_MAX
        )
        if words or not failed or not _wants_log(pod, container):
            return words
        path = Path(f"{self.sandbox(pod).log_directory}/{container}/{attempt}.log")
        return await asyncio.to_thread(last_output, path, FALLBACK_LINES, FALLBACK_BYTES)

    async def remove_log(self, pod: Pod, container: str, attempt: int) -> None:
        """Remove the log of a run."""
        path = f"{self.sandbox(pod).log_directory}/{container}/{attempt}.log"
        await asyncio.to_thread(volume_files.remove_log, path)

    async def remove_pod(self, pod: Pod) -> None:
        """Remove the Pod's files."""
        uid = pod.metadata.uid or ""
        for key in [key for key in self._tokens if key[0] == uid]:
            del self._tokens[key]
        for place in [place for place in self._persistent if place[0] == uid]:
            del self._persistent[place]
        await asyncio.to_thread(volume_files.remove_pod, self.root, uid, Path(self.sandbox(pod).log_directory))

    # --- API objects. ---

    async def image_credentials(self, pod: Pod) -> ImageCredentials:
        """Return the content of the Pod's imagePullSecrets, and the names of those that cannot be read."""
        names = [reference.name for reference in pod.spec.image_pull_secrets if reference.name]
        if not names:
            return (), ()
        found: dict[str, Secret] = {}
        for name in dict.fromkeys(names):
            with contextlib.suppress(ConfigError):
                await self._get(SECRETS, name, pod.metadata.namespace or "", found)
        documents = {name: docker_config(secret) for name, secret in found.items()}
        missing = tuple(name for name in names if documents.get(name) is None)
        return tuple(document for document in documents.values() if document is not None), missing

    async def _read(self, pod: Pod, wanted: Iterable[tuple[str, str]]) -> Sources:
        namespace = pod.metadata.namespace or ""
        config_maps: dict[str, ConfigMap] = {}
        secrets: dict[str, Secret] = {}
        for kind, name in dict.fromkeys(wanted):
            if kind == CONFIG_MAP:
                await self._get(CONFIG_MAPS, name, namespace, config_maps)
            elif kind == SECRET:
                await self._get(SECRETS, name, namespace, secrets)
        return Sources(config_maps, secrets)

    async def _get(self, resource: Resource[T], name: str, namespace: str, into: dict[str, T]) -> None:
        try:
            into[name] = await self.client.get(resource, name, namespace)
        except NotFoundError:
            return
        except APIError as error:
            raise ConfigError(str(error)) from error

    async def _token(self, pod: Pod, wanted: ServiceAccountTokenProjection) -> str:
        metadata = pod.metadata
        key = (metadata.uid or "", wanted)
        known = self._tokens.get(key)
        now = self.clock.now()
        if known is not None and now < known.renew:
            return known.value
        spec: Document = {
            "audiences": [wanted.audience] if wanted.audience else None,
            "expirationSeconds": wanted.expiration_seconds or 3600,
            "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": metadata.name, "uid": metadata.uid},
        }
        body: dict[str, Any] = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {name: value for name, value in spec.items() if value is not None},
        }
        account = pod.spec.service_account_name or "default"
        try:
            answer = await self.client.create_subresource(
                SERVICE_ACCOUNTS, account, metadata.namespace or "", "token", body
            )
        except APIError as error:
            raise ConfigError(f"failed to fetch token: {error}") from error
        status = answer["status"]
        life = parse_time(status["expirationTimestamp"]) - now
        self._tokens[key] = _Token(status["token"], now + life * TOKEN_RENEW_AT)
        return str(status["token"])


def _read_text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _wants_log(pod: Pod, name: str) -> bool:
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    return any(item.name == name and item.termination_message_policy == "FallbackToLogsOnError" for item in containers)


# The keys of the two types of Secrets with credentials for registries.
_DOCKER_CONFIG_KEYS: Final = (".dockerconfigjson", ".dockercfg")


def docker_config(secret: Secret) -> Mapping[str, Any] | None:
    """Return the Docker configuration file in a Secret; None if there is none that can be read."""
    for key in _DOCKER_CONFIG_KEYS:
        if key in secret.data:
            try:
                found = json.loads(secret.data[key])
            except ValueError:
                return None
            return found if isinstance(found, dict) else None
    return None
