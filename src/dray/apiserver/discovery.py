"""Discovery documents: groups, versions and resources, unaggregated and aggregated. Pure."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dray.api.document import Document, GroupVersion
from dray.apiserver.endpoint import Endpoint

STATUS_VERBS: Final = ("get", "patch", "update")


@dataclass(frozen=True, slots=True)
class Subresource:
    """A subresource in discovery: its kind and verbs."""

    kind: str
    verbs: tuple[str, ...]
    group: str = ""
    version: str = ""


PROXY_VERBS: Final = ("create", "delete", "get", "patch", "update")
# Subresources whose kind differs from their parent's, or whose verbs differ from those of status.
SUBRESOURCES: Final[Mapping[str, Subresource]] = {
    "attach": Subresource("PodAttachOptions", ("create", "get")),
    "binding": Subresource("Binding", ("create",)),
    "eviction": Subresource("Eviction", ("create",), "policy", "v1"),
    "exec": Subresource("PodExecOptions", ("create", "get")),
    "portforward": Subresource("PodPortForwardOptions", ("create", "get")),
    "ephemeralcontainers": Subresource("", STATUS_VERBS),
    "log": Subresource("Pod", ("get",)),
    "resize": Subresource("", STATUS_VERBS),
    "scale": Subresource("Scale", STATUS_VERBS, "autoscaling", "v1"),
    "token": Subresource("TokenRequest", ("create",), "authentication.k8s.io", "v1"),
    "finalize": Subresource("Namespace", ("update",)),
    "approval": Subresource("", STATUS_VERBS),
}

# Groups in the order kube-apiserver lists them; others follow alphabetically, custom ones last.
_GROUP_ORDER: Final = (
    "apps",
    "events.k8s.io",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "autoscaling",
    "batch",
    "certificates.k8s.io",
    "networking.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "storage.k8s.io",
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "scheduling.k8s.io",
    "coordination.k8s.io",
    "node.k8s.io",
    "discovery.k8s.io",
    "resource.k8s.io",
)


def subresources_of(endpoint: Endpoint) -> list[tuple[str, Subresource]]:
    """Return the endpoint's subresources and their names, in alphabetical order."""
    definition = endpoint.definition
    found = [(name, SUBRESOURCES[name]) for name in definition.subresources if name in SUBRESOURCES]
    if "proxy" in definition.subresources:
        found.append(("proxy", Subresource(f"{definition.kind}ProxyOptions", PROXY_VERBS)))
    if definition.status_strategy is not None:
        found.append(("status", Subresource("", STATUS_VERBS)))
    # Custom resources have their status first.
    return sorted(found, reverse=endpoint.custom)


def group_versions(endpoints: Iterable[Endpoint]) -> dict[str, list[str]]:
    """Return the versions of each group, preferred version first."""
    groups: dict[str, dict[str, None]] = {}
    for endpoint in endpoints:
        groups.setdefault(endpoint.definition.group, {})[endpoint.version] = None
    ordered = {group: sorted(versions, key=version_priority) for group, versions in groups.items()}
    return dict(sorted(ordered.items(), key=_group_priority))


def _group_priority(item: tuple[str, list[str]]) -> tuple[int, str]:
    group = item[0]
    return (_GROUP_ORDER.index(group) if group in _GROUP_ORDER else len(_GROUP_ORDER), group)


def version_priority(version: str) -> tuple[int, int, int, str]:
    """Return a sort key: GA before beta before alpha, newer first, other versions last in alphabetical order."""
    head, stage, minor = version, 0, 0
    for rank, name in ((1, "beta"), (2, "alpha")):
        head_part, found, tail = version.partition(name)
        if found and tail.isdigit():
            head, stage, minor = head_part, rank, int(tail)
    if not head.startswith("v") or not head[1:].isdigit():
        return (3, 0, 0, version)
    return (stage, -int(head[1:]), -minor, "")


def legacy_api(server_address: str) -> Document:
    """Return the document of `/api`."""
    return {
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": server_address}],
    }


def api_group(group: str, versions: Sequence[str], *, typed: bool = True) -> Document:
    """Return the document of `/apis/<group>`; an item of an APIGroupList has no kind and apiVersion (`typed=False`)."""
    entries = [{"groupVersion": GroupVersion(group, item).api_version, "version": item} for item in versions]
    head: Document = {"kind": "APIGroup", "apiVersion": "v1"} if typed else {}
    return head | {"name": group, "versions": entries, "preferredVersion": entries[0]}


def api_group_list(endpoints: Iterable[Endpoint]) -> Document:
    """Return the document of `/apis`."""
    groups = [api_group(group, versions, typed=False) for group, versions in group_versions(endpoints).items() if group]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def api_resource_list(group_version: GroupVersion, endpoints: Iterable[Endpoint]) -> Document:
    """Return the document of `/api/v1` or `/apis/<group>/<version>`."""
    resources: list[Document] = []
    for endpoint in sorted(endpoints, key=lambda item: item.definition.resource):
        if endpoint.group_version == group_version:
            resources.extend(_api_resources(endpoint))
    # The list of the core group has no apiVersion.
    head: Document = {"kind": "APIResourceList"}
    if group_version.group:
        head["apiVersion"] = "v1"
    return head | {"groupVersion": group_version.api_version, "resources": resources}


def _api_resources(endpoint: Endpoint) -> list[Document]:
    definition = endpoint.definition
    main: Document = {
        "name": definition.resource,
        "singularName": definition.singular,
        "namespaced": definition.namespaced,
        "kind": definition.kind,
        "verbs": list(definition.verbs),
    }
    if definition.short_names:
        main["shortNames"] = list(definition.short_names)
    if definition.categories:
        main["categories"] = list(definition.categories)
    if "get" in definition.verbs:
        main["storageVersionHash"] = storage_version_hash(endpoint)
    return [main, *(_api_subresource(endpoint, name, item) for name, item in subresources_of(endpoint))]


def _api_subresource(endpoint: Endpoint, name: str, item: Subresource) -> Document:
    document: Document = {
        "name": f"{endpoint.definition.resource}/{name}",
        "singularName": "",
        "namespaced": endpoint.definition.namespaced,
    }
    if item.version:
        document |= {"group": item.group, "version": item.version}
    return document | {"kind": item.kind or endpoint.definition.kind, "verbs": list(item.verbs)}


def storage_version_hash(endpoint: Endpoint) -> str:
    """Return the hash by which clients detect a change of the storage version."""
    definition = endpoint.definition
    text = f"{definition.group}/{endpoint.stored.version}/{definition.kind}"
    return base64.b64encode(hashlib.sha256(text.encode()).digest()[:8]).decode()


def aggregated(endpoints: Iterable[Endpoint], *, core: bool, version: str = "v2") -> Document:
    """Return the APIGroupDiscoveryList of `/api` (core) or `/apis`."""
    endpoints = list(endpoints)
    items: list[Document] = []
    for group, versions in group_versions(endpoints).items():
        if (group == "") is not core:
            continue
        metadata: Document = {"name": group} if group else {}
        items.append(
            {"metadata": metadata, "versions": [_aggregated_version(endpoints, group, item) for item in versions]}
        )
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": f"apidiscovery.k8s.io/{version}",
        "metadata": {},
        "items": items,
    }


def _aggregated_version(endpoints: Sequence[Endpoint], group: str, version: str) -> Document:
    here = GroupVersion(group, version)
    members = sorted(
        (item for item in endpoints if item.group_version == here), key=lambda item: item.definition.resource
    )
    return {
        "version": version,
        "resources": [_aggregated_resource(endpoint) for endpoint in members],
        "freshness": "Current",
    }


def _aggregated_resource(endpoint: Endpoint) -> Document:
    definition = endpoint.definition
    document: Document = {
        "resource": definition.resource,
        "responseKind": _response_kind(endpoint, Subresource("", ())),
        "scope": "Namespaced" if definition.namespaced else "Cluster",
        "singularResource": definition.singular,
        "verbs": list(definition.verbs),
    }
    if definition.short_names:
        document["shortNames"] = list(definition.short_names)
    if definition.categories:
        document["categories"] = list(definition.categories)
    subresources = [
        {"subresource": name, "responseKind": _response_kind(endpoint, item), "verbs": list(item.verbs)}
        for name, item in subresources_of(endpoint)
    ]
    if subresources:
        document["subresources"] = subresources
    return document


def _response_kind(endpoint: Endpoint, item: Subresource) -> Document:
    if item.version:
        return {"group": item.group, "version": item.version, "kind": item.kind}
    return {
        "group": endpoint.definition.group,
        "version": endpoint.version,
        "kind": item.kind or endpoint.definition.kind,
    }
