"""The files of volumes that are made from API objects. Pure; `volume_files` writes them."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dray.api.types.core_v1 import (
    DownwardAPIVolumeFile,
    KeyToPath,
    Pod,
    ServiceAccountTokenProjection,
    Volume,
    VolumeProjection,
)
from dray.node.agent.pod.environment import (
    CONFIG_MAP,
    SECRET,
    ConfigError,
    DownwardContext,
    Sources,
    field_value,
    resource_value,
)

DEFAULT_MODE: Final = 0o644
TOKEN_MODE: Final = 0o600


@dataclass(frozen=True, slots=True)
class File:
    """A file of a volume."""

    content: bytes
    mode: int


Files = dict[str, File]
# The token of each projection.
Tokens = Mapping[ServiceAccountTokenProjection, str]


def references(volume: Volume) -> Iterator[tuple[str, str]]:
    """Yield the ConfigMaps and Secrets of a volume, as (kind, name)."""
    if volume.config_map is not None:
        yield CONFIG_MAP, volume.config_map.name or ""
    if volume.secret is not None:
        yield SECRET, volume.secret.secret_name or ""
    for source in projections(volume):
        if source.config_map is not None:
            yield CONFIG_MAP, source.config_map.name or ""
        if source.secret is not None:
            yield SECRET, source.secret.name or ""


def projections(volume: Volume) -> Sequence[VolumeProjection]:
    """Return the sources of a projected volume."""
    return volume.projected.sources if volume.projected is not None else ()


def token_requests(volume: Volume) -> list[ServiceAccountTokenProjection]:
    """Return the token projections of a volume."""
    return [item.service_account_token for item in projections(volume) if item.service_account_token is not None]


def is_made_of_objects(volume: Volume) -> bool:
    """Whether `render_volume` supports the kind of volume."""
    return any(part is not None for part in (volume.config_map, volume.secret, volume.downward_api, volume.projected))


def nested_mount_points(pod: Pod, volume: str) -> tuple[str, ...]:
    """Return the paths inside a volume at which containers mount other volumes.

    Their folders must exist before the volume is mounted, because it is read-only. Mount points below another one are
    inside that other mount.
    """
    found: set[str] = set()
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        paths = sorted(posixpath.normpath(mount.mount_path) for mount in container.volume_mounts)
        for mount in container.volume_mounts:
            if mount.name == volume and not mount.sub_path and not mount.sub_path_expr:
                found.update(_first_level(posixpath.normpath(mount.mount_path), paths))
    return tuple(sorted(found))


def _first_level(root: str, sorted_paths: Sequence[str]) -> Iterator[str]:
    """Yield the paths below the root that are not below one another, relative to it."""
    prefix, last = f"{root.rstrip('/')}/", ""
    for path in sorted_paths:
        if path.startswith(prefix) and not (last and path.startswith(f"{last}/")):
            last = path
            yield path.removeprefix(prefix)


def render_volume(pod: Pod, volume: Volume, sources: Sources, tokens: Tokens, around: DownwardContext) -> Files:
    """Return all files of the volume by path; raises `ConfigError`."""
    if volume.config_map is not None:
        plain = volume.config_map
        return _config_map(plain.name or "", plain.items, sources, _mode(plain.default_mode), optional=plain.optional)
    if volume.secret is not None:
        secret = volume.secret
        return _secret(
            secret.secret_name or "", secret.items, sources, _mode(secret.default_mode), optional=secret.optional
        )
    if volume.downward_api is not None:
        return _downward(pod, volume.downward_api.items, around, _mode(volume.downward_api.default_mode))
    assert volume.projected is not None
    mode = _mode(volume.projected.default_mode)
    result: Files = {}
    for source in volume.projected.sources:
        result.update(_projection(pod, source, sources, tokens, around, mode))
    return result


def _projection(
    pod: Pod, source: VolumeProjection, sources: Sources, tokens: Tokens, around: DownwardContext, mode: int
) -> Files:
    if source.config_map is not None:
        plain = source.config_map
        return _config_map(plain.name or "", plain.items, sources, mode, optional=plain.optional)
    if source.secret is not None:
        secret = source.secret
        return _secret(secret.name or "", secret.items, sources, mode, optional=secret.optional)
    if source.downward_api is not None:
        return _downward(pod, source.downward_api.items, around, mode)
    if source.service_account_token is not None:
        token = source.service_account_token
        context = pod.spec.security_context
        # As kubelet: the group of the Pod's volumes reads it, or any user: an image can name one that the Pod does not.
        # Nobody else reaches the folders of Pods.
        has_group = context is not None and context.fs_group is not None
        return {token.path: File(tokens[token].encode(), TOKEN_MODE if has_group else mode)}
    raise ConfigError("this kind of projection is not offered by this node")


def _config_map(name: str, items: Sequence[KeyToPath], sources: Sources, mode: int, *, optional: bool | None) -> Files:
    config_map = sources.config_maps.get(name)
    if config_map is None:
        if optional:
            return {}
        raise ConfigError(f'configmap "{name}" not found')
    content = {key: value.encode() for key, value in config_map.data.items()} | dict(config_map.binary_data)
    return _pick(content, items, mode, optional=optional)


def _secret(name: str, items: Sequence[KeyToPath], sources: Sources, mode: int, *, optional: bool | None) -> Files:
    secret = sources.secrets.get(name)
    if secret is None:
        if optional:
            return {}
        raise ConfigError(f'secret "{name}" not found')
    return _pick(dict(secret.data), items, mode, optional=optional)


def _pick(content: Mapping[str, bytes], items: Sequence[KeyToPath], mode: int, *, optional: bool | None) -> Files:
    if not items:
        return {key: File(value, mode) for key, value in content.items()}
    result: Files = {}
    for item in items:
        if item.key not in content:
            if optional:
                continue
            raise ConfigError(f"references non-existent config key: {item.key}")
        result[item.path] = File(content[item.key], _mode(item.mode, mode))
    return result


def _downward(pod: Pod, items: Iterable[DownwardAPIVolumeFile], around: DownwardContext, mode: int) -> Files:
    result: Files = {}
    for item in items:
        if item.field_ref is not None:
            text = field_value(pod, item.field_ref.field_path, around)
        else:
            assert item.resource_field_ref is not None
            text = resource_value(pod, item.resource_field_ref, around)
        result[item.path] = File(text.encode(), _mode(item.mode, mode))
    return result


def _mode(given: int | None, default: int = DEFAULT_MODE) -> int:
    return default if given is None else given
