"""The built-in resources, gathered from their modules and made into endpoints."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Final

from dray.api.conversion import events as events_conversion
from dray.api.conversion import resource as resource_conversion
from dray.api.defaults import Defaulters, core_v1, other_groups, resource, workloads
from dray.api.document import GroupVersion, GroupVersionKind
from dray.api.schema.load import kind_type
from dray.api.schema.model import StructType
from dray.apiserver.endpoint import Converter, Endpoint
from dray.apiserver.registry.strategy import ResourceDefinition

# Every module here exports `DEFINITIONS`.
_MODULES: Final = (
    "namespaces",
    "nodes",
    "pods",
    "events",
    "config_maps",
    "secrets",
    "service_accounts",
    "resource_quotas",
    "deployments",
    "replica_sets",
    "daemon_sets",
    "controller_revisions",
    "jobs",
    "leases",
    "rbac",
    "priority_classes",
    "resource",
    "cdi",
    "custom_resource_definitions",
    "reviews",
)
_DEFAULTERS: Final[Defaulters] = {
    gvk: default
    for module in (core_v1, workloads, resource, other_groups)
    for gvk, default in module.DEFAULTERS.items()
}
_CONVERTERS: Final[Mapping[str, Converter]] = {
    "resource.k8s.io": resource_conversion,
    "events.k8s.io": events_conversion,
}
# Groups whose objects are kept by another one.
_HOMES: Final = {"events.k8s.io": GroupVersion("", "v1")}
# When each beta version of resource.k8s.io was deprecated, and when it goes; rules for taints are newer.
_DEPRECATED: Final = {"v1beta1": ("v1.35", "v1.38"), "v1beta2": ("v1.36", "v1.39")}
_NOT_DEPRECATED: Final = frozenset({"DeviceTaintRule"})


def definitions() -> Iterator[ResourceDefinition]:
    """Every built-in resource."""
    for name in _MODULES:
        module = importlib.import_module(f"dray.apiserver.registry.{name}")
        yield from module.DEFINITIONS


def endpoints() -> Iterator[Endpoint]:
    """Every built-in resource at every version it is served in."""
    for definition in definitions():
        for version in definition.versions:
            yield endpoint(definition, version)


def endpoint(definition: ResourceDefinition, version: str) -> Endpoint:
    """One built-in resource at one version."""
    structs = {item: _struct(definition, item) for item in definition.versions}
    gvk = GroupVersionKind(definition.group, version, definition.kind)
    return Endpoint(
        definition,
        version,
        structs[version],
        default=_DEFAULTERS.get(gvk),
        converter=_CONVERTERS.get(definition.group),
        deprecation=_deprecation(definition, version),
        structs=structs,
        home=_HOMES.get(definition.group),
    )


def _struct(definition: ResourceDefinition, version: str) -> StructType:
    gvk = GroupVersionKind(definition.group, version, definition.kind)
    struct = kind_type(gvk)
    assert struct is not None, f"no schema for {gvk}"
    return struct


def _deprecation(definition: ResourceDefinition, version: str) -> str:
    if definition.group != "resource.k8s.io" or version not in _DEPRECATED or definition.kind in _NOT_DEPRECATED:
        return ""
    since, until = _DEPRECATED[version]
    return f"{definition.group}/{version} {definition.kind} is deprecated in {since}+, unavailable in {until}+"
