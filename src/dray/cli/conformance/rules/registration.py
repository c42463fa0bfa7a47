"""Rules for the registration of drivers and device plugins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from dray.api.extended_resources import is_extended_resource_name
from dray.api.names import dns1123_subdomain
from dray.rpc.dra_services import DRA_PLUGIN, DRA_SERVICES, HEALTH_SERVICES

NAME_LENGTH_MAX: Final = 63
PATH_LENGTH_MAX: Final = 107
DEVICE_PLUGIN_VERSION: Final = "v1beta1"


@dataclass(frozen=True, slots=True)
class Info:
    """A response of GetInfo."""

    type: str
    name: str
    endpoint: str
    versions: tuple[str, ...]

    @property
    def dra_versions(self) -> tuple[str, ...]:
        """Return the services that prepare claims."""
        return tuple(version for version in dict.fromkeys(self.versions) if version in DRA_SERVICES)

    @property
    def health_versions(self) -> tuple[str, ...]:
        """The versions of the health service that the plugin lists, newest first."""
        return tuple(version for version in HEALTH_SERVICES if version in self.versions)


def type_problems(info: Info, seconds: float, seconds_max: float) -> Iterator[str]:
    """Kubelet selects the handler by the type, and waits for one second."""
    if info.type != DRA_PLUGIN:
        yield f'type is "{info.type}"'
    if seconds > seconds_max:
        yield f"it took {seconds:.1f} s"


def name_problems(info: Info) -> Iterator[str]:
    """The name is used in slices, classes and paths."""
    if not info.name:
        yield "name is empty"
        return
    if len(info.name) > NAME_LENGTH_MAX:
        yield f'name "{info.name}" has {len(info.name)} characters'
    yield from (f'name "{info.name}": {text}' for text in dns1123_subdomain(info.name))


def version_problems(info: Info) -> Iterator[str]:
    """Kubelet uses the first service that it supports."""
    if not info.dra_versions:
        yield f"supported_versions is [{', '.join(info.versions)}]"
    for version in dict.fromkeys(info.versions):
        if info.versions.count(version) > 1:
            yield f"supported_versions has {version} {info.versions.count(version)} times"


def endpoint_problems(info: Info, *, is_socket: bool) -> Iterator[str]:
    """The service is called at this path."""
    if not info.endpoint:
        return
    if not info.endpoint.startswith("/"):
        yield f'endpoint "{info.endpoint}" is not an absolute path'
    elif len(info.endpoint.encode()) > PATH_LENGTH_MAX:
        yield f'endpoint "{info.endpoint}" is longer than {PATH_LENGTH_MAX} bytes'
    elif not is_socket:
        yield f'endpoint "{info.endpoint}" is not a socket'


def changed_problems(before: Info, after: Info) -> Iterator[str]:
    """GetInfo must return the same each time."""
    for field in ("type", "name", "endpoint", "versions"):
        first, second = getattr(before, field), getattr(after, field)
        if first != second:
            yield f"{field} was {first!r} and is {second!r}"


@dataclass(frozen=True, slots=True)
class PluginRequest:
    """A device plugin's Register request."""

    version: str
    endpoint: str
    resource: str
    # pre_start_required and get_preferred_allocation_available; None when the request had no options.
    options: tuple[bool, bool] | None = None


def register_problems(request: PluginRequest) -> Iterator[str]:
    """Kubelet supports one version."""
    if request.version != DEVICE_PLUGIN_VERSION:
        yield f'version is "{request.version}"'


def resource_problems(request: PluginRequest) -> Iterator[str]:
    """Pods request the resource by its name."""
    if not is_extended_resource_name(request.resource):
        yield f'resource_name is "{request.resource}"'


def plugin_endpoint_problems(request: PluginRequest, failure: str) -> Iterator[str]:
    """Kubelet connects to the socket before it responds; `failure` is the error of that connection."""
    if not request.endpoint or "/" in request.endpoint:
        yield f'endpoint is "{request.endpoint}", not a file name'
    elif failure:
        yield f"calling the plugin at {request.endpoint} while it registers: {failure}"


def option_problems(request: PluginRequest, options: tuple[bool, bool]) -> Iterator[str]:
    """Register and GetDevicePluginOptions must agree."""
    names = ("pre_start_required", "get_preferred_allocation_available")
    for name, registered, returned in zip(names, request.options or options, options, strict=True):
        if registered != returned:
            yield f"{name} is {registered} in Register and {returned} in GetDevicePluginOptions"
