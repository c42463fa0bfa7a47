"""The environment of a container, and the downward API. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from dray.api.quantity import Quantity
from dray.api.types.core_v1 import ConfigMap, Container, EnvFromSource, EnvVarSource, Pod, ResourceFieldSelector, Secret

CONFIG_MAP: Final = "configmap"
SECRET: Final = "secret"  # noqa: S105 - a kind
# What Linux passes to a program at most, with the usual stack of 8 MiB.
EXPANDED_BYTES_MAX: Final = 2 * 1024 * 1024
_TOO_LONG: Final = f"the expanded $(VAR) references exceed {EXPANDED_BYTES_MAX} bytes"
_REFERENCE: Final = re.compile(r"\$(\$|\(([^()]*)\))")
_KEYED: Final = re.compile(r"metadata\.(labels|annotations)\['(.*)'\]")
_VARIABLE: Final = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")


class ConfigError(Exception):
    """The Pod refers to a missing object or key; reported as CreateContainerConfigError."""


@dataclass(frozen=True, slots=True)
class Sources:
    """The ConfigMaps and Secrets of a Pod, by name; missing ones are left out."""

    config_maps: Mapping[str, ConfigMap] = field(default_factory=dict)
    secrets: Mapping[str, Secret] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DownwardContext:
    """What the downward API exposes about the node."""

    node_name: str
    host_addresses: tuple[str, ...] = ()
    pod_addresses: tuple[str, ...] = ()
    # The default of a limit that is not set.
    allocatable: Mapping[str, str] = field(default_factory=dict)
    # The variables of the Services that the Pod may use.
    services: Mapping[str, str] = field(default_factory=dict)
    # Of the machine; 0 if it is not known.
    memory_bytes: int = 0


def referenced(container: Container) -> Iterator[tuple[str, str]]:
    """Yield the ConfigMaps and Secrets that the environment refers to, as (kind, name)."""
    for source in container.env_from:
        if source.config_map_ref is not None:
            yield CONFIG_MAP, source.config_map_ref.name or ""
        if source.secret_ref is not None:
            yield SECRET, source.secret_ref.name or ""
    for variable in container.env:
        origin = variable.value_from
        if origin is not None and origin.config_map_key_ref is not None:
            yield CONFIG_MAP, origin.config_map_key_ref.name or ""
        if origin is not None and origin.secret_key_ref is not None:
            yield SECRET, origin.secret_key_ref.name or ""


def environment(pod: Pod, container: Container, sources: Sources, around: DownwardContext) -> dict[str, str]:
    """Return the variables in order; raises `ConfigError`."""
    result = dict(around.services)
    for source in container.env_from:
        result.update(_from_whole(source, sources))
    expanded = 0
    for variable in container.env:
        if variable.value_from is None:
            value = expand(variable.value or "", result, limit=EXPANDED_BYTES_MAX - expanded)
            expanded += len(value)
            result[variable.name] = value
            continue
        found = _from_source(pod, container, variable.value_from, sources, around)
        if found is not None:
            result[variable.name] = found
    return result


def _from_whole(source: EnvFromSource, sources: Sources) -> dict[str, str]:
    prefix = source.prefix or ""
    found: dict[str, str] = {}
    if source.config_map_ref is not None:
        reference = source.config_map_ref
        config_map = sources.config_maps.get(reference.name or "")
        if config_map is None and not reference.optional:
            raise ConfigError(f'configmap "{reference.name}" not found')
        found = dict(config_map.data) if config_map is not None else {}
    elif source.secret_ref is not None:
        reference_secret = source.secret_ref
        secret = sources.secrets.get(reference_secret.name or "")
        if secret is None and not reference_secret.optional:
            raise ConfigError(f'secret "{reference_secret.name}" not found')
        found = (
            {key: value.decode(errors="replace") for key, value in secret.data.items()} if secret is not None else {}
        )
    return {prefix + key: value for key, value in found.items() if _VARIABLE.fullmatch(prefix + key)}


def _from_source(
    pod: Pod, container: Container, origin: EnvVarSource, sources: Sources, around: DownwardContext
) -> str | None:
    if origin.field_ref is not None:
        return field_value(pod, origin.field_ref.field_path, around)
    if origin.resource_field_ref is not None:
        return resource_value(pod, origin.resource_field_ref, around, default=container)
    if origin.config_map_key_ref is not None:
        plain = origin.config_map_key_ref
        config_map = sources.config_maps.get(plain.name or "")
        data = {key: value.encode() for key, value in config_map.data.items()} if config_map is not None else None
        return _keyed("ConfigMap", pod, (plain.name or "", plain.key), data, optional=plain.optional)
    if origin.secret_key_ref is not None:
        reference = origin.secret_key_ref
        secret = sources.secrets.get(reference.name or "")
        data = dict(secret.data) if secret is not None else None
        return _keyed("Secret", pod, (reference.name or "", reference.key), data, optional=reference.optional)
    return None


def _keyed(
    kind: str, pod: Pod, wanted: tuple[str, str], data: Mapping[str, bytes] | None, *, optional: bool | None
) -> str | None:
    name, key = wanted
    if data is not None and key in data:
        return data[key].decode(errors="replace")
    if optional:
        return None
    if data is None:
        raise ConfigError(f'{kind.lower()} "{name}" not found')
    raise ConfigError(f"couldn't find key {key} in {kind} {pod.metadata.namespace}/{name}")


def expand(text: str, variables: Mapping[str, str], *, limit: int = EXPANDED_BYTES_MAX) -> str:
    """Replace $(NAME) by its value; unknown names are left, $$ is a dollar sign.

    Raises `ConfigError` as soon as the result exceeds the limit: variables that refer to each other grow exponentially.
    """
    size = len(text)

    def value(match: re.Match[str]) -> str:
        nonlocal size
        if match[1] == "$":
            return "$"
        found = variables.get(match[2], match[0])
        size += len(found)
        if size > limit:
            raise ConfigError(_TOO_LONG)
        return found

    if size > limit:
        raise ConfigError(_TOO_LONG)
    return _REFERENCE.sub(value, text)


def expand_sub_path(text: str, variables: Mapping[str, str]) -> str:
    """Expand a subPathExpr; raises `ConfigError` if a variable in it is unknown or empty."""
    names = (match[2] for match in _REFERENCE.finditer(text) if match[1] != "$")
    if missing := sorted({name for name in names if not variables.get(name)}):
        raise ConfigError(f"missing value for {', '.join(missing)}")
    return expand(text, variables)


def expand_all(texts: Iterable[str], variables: Mapping[str, str]) -> tuple[str, ...]:
    """Expand the words of a command, together within the same limit."""
    words: list[str] = []
    size = 0
    for text in texts:
        words.append(expand(text, variables, limit=EXPANDED_BYTES_MAX - size))
        size += len(words[-1])
    return tuple(words)


def field_value(pod: Pod, path: str, around: DownwardContext) -> str:
    """Return a field of the Pod as text; all labels or annotations are one per line."""
    keyed = _KEYED.fullmatch(path)
    if keyed is not None:
        holder = pod.metadata.labels if keyed[1] == "labels" else pod.metadata.annotations
        return (holder or {}).get(keyed[2], "")
    if path in ("metadata.labels", "metadata.annotations"):
        holder = pod.metadata.labels if path.endswith("labels") else pod.metadata.annotations
        return "\n".join(f"{key}={_quoted(value)}" for key, value in sorted((holder or {}).items()))
    pod_addresses = around.pod_addresses or around.host_addresses
    plain = {
        "metadata.name": pod.metadata.name or "",
        "metadata.namespace": pod.metadata.namespace or "",
        "metadata.uid": pod.metadata.uid or "",
        "spec.nodeName": around.node_name,
        "spec.serviceAccountName": pod.spec.service_account_name or "",
        "status.hostIP": around.host_addresses[0] if around.host_addresses else "",
        "status.hostIPs": ",".join(around.host_addresses),
        "status.podIP": pod_addresses[0] if pod_addresses else "",
        "status.podIPs": ",".join(pod_addresses),
    }
    if path not in plain:
        raise ConfigError(f"unsupported fieldPath: {path}")
    return plain[path]


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def resource_value(
    pod: Pod, selector: ResourceFieldSelector, around: DownwardContext, default: Container | None = None
) -> str:
    """Return a request or limit in units of the divisor, rounded up; a missing limit is the node's allocatable."""
    containers = {item.name: item for item in (*pod.spec.containers, *pod.spec.init_containers)}
    container = containers.get(selector.container_name or "", default)
    if container is None:
        raise ConfigError(f"container {selector.container_name} not found")
    side, _, name = selector.resource.partition(".")
    holder = container.resources.limits if side == "limits" else container.resources.requests
    text = holder.get(name)
    if text is None and side == "limits":
        text = around.allocatable.get(name)
    amount = Quantity.parse(text or "0")
    divisor = Quantity.parse(selector.divisor or "1")
    if divisor.nanos == 0:
        divisor = Quantity.parse("1")
    return str(-(-amount.nanos // divisor.nanos))
