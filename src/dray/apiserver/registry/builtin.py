"""The built-in resources as endpoints, collected from the modules of this package.

Reviews and bindings have no module: they can be created, are answered at once, and are never stored.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Final

from dray.api.conversion import autoscaling as autoscaling_conversion
from dray.api.conversion import events as events_conversion
from dray.api.conversion import resource as resource_conversion
from dray.api.defaults import (
    Defaulters,
    autoscaling,
    core_v1,
    network,
    other_groups,
    policies,
    resource,
    storage,
    workloads,
)
from dray.api.document import GroupResource, GroupVersion, GroupVersionKind
from dray.api.gate_table import CURRENT, Release
from dray.apiserver.endpoint import Converter, Endpoint
from dray.apiserver.registry.actors import creation_warning
from dray.apiserver.registry.strategy import ResourceDefinition, Strategy

# Every module exports `DEFINITIONS`.
_MODULES: Final = (
    "namespaces",
    "nodes",
    "pods",
    "events",
    "configuration",
    "resource_quotas",
    "deployments",
    "replica_sets",
    "daemon_sets",
    "controller_revisions",
    "jobs",
    "leases",
    "rbac",
    "priority_classes",
    "pod_disruption_budgets",
    "pod_groups",
    "resource",
    "cdi",
    "pod_policies",
    "services",
    "stateful_sets",
    "cron_jobs",
    "storage",
    "certificates",
    "admission_configuration",
    "by_schema",
    "api_services",
    "resource_metrics",
    "custom_resource_definitions",
)
_DEFAULTERS: Final[Defaulters] = {
    gvk: default
    for module in (core_v1, workloads, autoscaling, resource, network, policies, storage, other_groups)
    for gvk, default in module.DEFAULTERS.items()
}
_CONVERTERS: Final[Mapping[str, Converter]] = {
    "autoscaling": autoscaling_conversion,
    "resource.k8s.io": resource_conversion,
    "events.k8s.io": events_conversion,
}
# Groups whose objects are stored by another one.
_HOMES: Final = {"events.k8s.io": GroupVersion("", "v1")}

_AUTHENTICATION: Final = "authentication.k8s.io"
_AUTHORIZATION: Final = "authorization.k8s.io"


def _create_only(group: str, kind: str, *, namespaced: bool = False) -> ResourceDefinition:
    return ResourceDefinition(
        group=group,
        resource=f"{kind.lower()}s",
        singular=kind.lower(),
        kind=kind,
        namespaced=namespaced,
        versions=("v1",),
        storage_version="v1",
        strategy=Strategy(),
        verbs=("create",),
    )


REVIEWS: Final = (
    _create_only(_AUTHENTICATION, "TokenReview"),
    _create_only(_AUTHENTICATION, "SelfSubjectReview"),
    _create_only(_AUTHORIZATION, "SubjectAccessReview"),
    _create_only(_AUTHORIZATION, "SelfSubjectAccessReview"),
    _create_only(_AUTHORIZATION, "SelfSubjectRulesReview"),
    _create_only(_AUTHORIZATION, "LocalSubjectAccessReview", namespaced=True),
)
BINDINGS: Final = _create_only("", "Binding", namespaced=True)


def definitions() -> Iterator[ResourceDefinition]:
    """Yield every built-in resource."""
    for name in _MODULES:
        module = importlib.import_module(f"dray.apiserver.registry.{name}")
        yield from module.DEFINITIONS
    yield from REVIEWS
    yield BINDINGS


def endpoints(release: Release = CURRENT) -> Iterator[Endpoint]:
    """Yield every built-in resource at every version, with what is deprecated in the release."""
    for definition in definitions():
        for version in definition.versions:
            yield endpoint(definition, version, release)


def endpoint(definition: ResourceDefinition, version: str, release: Release = CURRENT) -> Endpoint:
    """Return a built-in resource at one version."""
    gvk = GroupVersionKind(definition.group, version, definition.kind)
    return Endpoint(
        definition,
        version,
        default=_DEFAULTERS.get(gvk),
        converter=_CONVERTERS.get(definition.group),
        deprecation=_deprecation(definition, version, release),
        creation_warning=_creation_warning(definition, version),
        home=_HOMES.get(definition.group),
    )


def _creation_warning(definition: ResourceDefinition, version: str) -> str:
    if "get" not in definition.verbs:
        return ""
    resource = GroupResource(definition.group, definition.resource)
    return creation_warning(GroupVersion(definition.group, version).api_version, definition.kind, resource)


def _deprecation(definition: ResourceDefinition, version: str, release: Release) -> str:
    if definition.kind == "Endpoints":
        return "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"
    releases = resource_conversion.deprecated_versions(definition.kind)
    if definition.group != "resource.k8s.io" or version not in releases:
        return ""
    since, until = releases[version]
    if since > release.minor:
        return ""
    return f"{definition.group}/{version} {definition.kind} is deprecated in v1.{since}+, unavailable in v1.{until}+"
