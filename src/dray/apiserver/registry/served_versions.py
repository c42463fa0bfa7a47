"""Which of the built-in API versions are served: by gates, by the emulated release, and by `--runtime-config`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from dray.api.document import GroupResource, GroupVersion
from dray.api.features import FeatureGates, parse_bool
from dray.api.gate_table import Release
from dray.apiserver.endpoint import Endpoint

# Group versions, and resources, that are served only while their feature gate is on.
_GATES: Final[Mapping[GroupVersion | GroupResource, str]] = {
    GroupVersion("cdi.k8s.io", "v1alpha1"): "DRAControlPlaneController",
    GroupVersion("scheduling.k8s.io", "v1beta1"): "GenericWorkload",
    GroupResource("resource.k8s.io", "resourcepoolstatusrequests"): "DRAResourcePoolStatus",
}
# The minor releases that first served a group version, and resources that joined it later. The rest is older than any
# release that can be emulated.
_SINCE: Final[Mapping[GroupVersion, int]] = {
    GroupVersion("resource.k8s.io", "v1"): 34,
    GroupVersion("scheduling.k8s.io", "v1beta1"): 37,
    GroupVersion("storagemigration.k8s.io", "v1"): 37,
}
_RESOURCES_SINCE: Final[Mapping[tuple[GroupVersion, str], int]] = {
    (GroupVersion("resource.k8s.io", "v1"), "devicetaintrules"): 37,
    (GroupVersion("resource.k8s.io", "v1beta2"), "devicetaintrules"): 36,
    (GroupVersion("resource.k8s.io", "v1alpha3"), "resourcepoolstatusrequests"): 36,
    (GroupVersion("certificates.k8s.io", "v1"), "podcertificaterequests"): 37,
    (GroupVersion("storage.k8s.io", "v1"), "volumeattributesclasses"): 34,
}
# Groups without which the server itself, or every component, cannot work: they cannot be switched off.
_NEEDED: Final = frozenset(
    {
        "",
        "admissionregistration.k8s.io",
        "apiextensions.k8s.io",
        "apiregistration.k8s.io",
        "authentication.k8s.io",
        "authorization.k8s.io",
        "coordination.k8s.io",
        "networking.k8s.io",
        "rbac.authorization.k8s.io",
    }
)

_PATTERNS: Final[Mapping[str, re.Pattern[str]]] = {
    "api/all": re.compile(r".*"),
    "api/ga": re.compile(r"v\d+"),
    "api/beta": re.compile(r"v\d+beta\d+"),
    "api/alpha": re.compile(r"v\d+alpha\d+"),
}
_RESOURCE_PARTS: Final = 3


class RuntimeConfigError(ValueError):
    """Invalid value of `--runtime-config`."""


@dataclass(frozen=True, slots=True)
class RuntimeConfig:
    """What `--runtime-config` switches on and off; everything is on that it does not name."""

    # By `api/all` and the like, in the order in which they apply.
    patterns: Mapping[str, bool] = field(default_factory=dict)
    versions: Mapping[GroupVersion, bool] = field(default_factory=dict)
    resources: Mapping[tuple[GroupVersion, str], bool] = field(default_factory=dict)

    def allows(self, group_version: GroupVersion, resource: str) -> bool:
        """Return whether a resource at a version is switched on: what names it more exactly wins."""
        by_name = self.resources.get((group_version, resource), self.versions.get(group_version))
        if by_name is not None or group_version.group in _NEEDED:
            return by_name is not False
        matching = [on for name, on in self.patterns.items() if _PATTERNS[name].fullmatch(group_version.version)]
        return matching[-1] if matching else True


def parse_runtime_config(items: Iterable[str], known: Iterable[Endpoint], release: Release) -> RuntimeConfig:
    """Return what the items of the flag switch; `known` is every built-in endpoint. Raise `RuntimeConfigError`."""
    switches = dict(_parse_item(item) for item in items)
    if switches == {"api/all": False}:
        raise RuntimeConfigError("invalid runtime-config with only api/all=false")
    served: dict[GroupVersion, dict[str, int]] = {}
    for endpoint in known:
        group_version = endpoint.group_version
        served.setdefault(group_version, {})[endpoint.definition.resource] = _since(endpoint)
    patterns = {name: switches[name] for name in _PATTERNS if name in switches}
    versions: dict[GroupVersion, bool] = {}
    resources: dict[tuple[GroupVersion, str], bool] = {}
    for key, on in switches.items():
        if key in patterns:
            continue
        group_version, resource = _place(key, served)
        _check(key, group_version, on=on)
        since = served[group_version]
        first = since.get(resource, 0) if resource else min(since.values())
        if on and first > release.minor:
            raise RuntimeConfigError(
                f"cannot enable {key} in runtime-config because it is introduced at {release.major}.{first} "
                f"after the current version {release}"
            )
        if resource:
            resources[group_version, resource] = on
        else:
            versions[group_version] = on
    return RuntimeConfig(patterns, versions, resources)


def _parse_item(item: str) -> tuple[str, bool]:
    key, separator, value = (part.strip() for part in item.partition("="))
    if not separator or not value:
        return key, True
    try:
        return key, parse_bool(value)
    except ValueError as error:
        raise RuntimeConfigError(f"invalid value of {key}: {value}, err: {error}") from error


def _place(key: str, served: Mapping[GroupVersion, Mapping[str, int]]) -> tuple[GroupVersion, str]:
    """Return the group version that a key names, and the resource; empty for all of them."""
    parts = key.split("/")
    if parts == ["v1"]:
        return GroupVersion("", "v1"), ""
    if not 1 < len(parts) <= _RESOURCE_PARTS or not all(parts):
        raise RuntimeConfigError(f"invalid key {key}: must be GROUP/VERSION, GROUP/VERSION/RESOURCE or api/all")
    group_version, resource = GroupVersion(parts[0], parts[1]), parts[2] if len(parts) == _RESOURCE_PARTS else ""
    if group_version.group not in {known.group for known in served}:
        raise RuntimeConfigError(f"unknown api groups {group_version.api_version}")
    if group_version not in served:
        raise RuntimeConfigError(f"group version {group_version.api_version} that has not been registered")
    if resource and resource not in served[group_version]:
        raise RuntimeConfigError(f"invalid key {key}: {group_version.api_version} has no resource {resource}")
    return group_version, resource


def _check(key: str, group_version: GroupVersion, *, on: bool) -> None:
    if not on and group_version.group in _NEEDED:
        raise RuntimeConfigError(f"{key} cannot be switched off: the API server itself needs it")


def is_served(endpoint: Endpoint, gates: FeatureGates, config: RuntimeConfig) -> bool:
    """Return whether a built-in endpoint is served."""
    places = (endpoint.group_version, endpoint.resource)
    return (
        _since(endpoint) <= gates.release.minor
        and all(gates.enabled(_GATES[place]) for place in places if place in _GATES)
        and config.allows(endpoint.group_version, endpoint.definition.resource)
    )


def _since(endpoint: Endpoint) -> int:
    place = endpoint.group_version
    return _RESOURCES_SINCE.get((place, endpoint.definition.resource), _SINCE.get(place, 0))
