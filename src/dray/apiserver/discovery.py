"""Discovery documents: groups, versions and resources, unaggregated and aggregated. Pure."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from typing import Final

from dray.api.document import Document, GroupVersion, GroupVersionKind
from dray.apiserver.endpoint import Endpoint
from dray.apiserver.registry.strategy import Subresource

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


def _subresources(endpoint: Endpoint) -> list[Subresource]:
    """Return the endpoint's subresources in alphabetical order."""
    # Custom resources have their status first.
    return sorted(endpoint.subresources.values(), key=lambda row: row.name, reverse=endpoint.custom)


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
    return [main, *(_api_subresource(endpoint, row) for row in _subresources(endpoint))]


def _api_subresource(endpoint: Endpoint, row: Subresource) -> Document:
    document: Document = {
        "name": f"{endpoint.definition.resource}/{row.name}",
        "singularName": "",
        "namespaced": endpoint.definition.namespaced,
    }
    kind = row.kind or endpoint.gvk
    if kind.group_version != endpoint.group_version:
        document |= {"group": kind.group, "version": kind.version}
    return document | {"kind": kind.kind, "verbs": list(row.verbs)}


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
        "responseKind": _response_kind(endpoint.gvk),
        "scope": "Namespaced" if definition.namespaced else "Cluster",
        "singularResource": definition.singular,
        "verbs": list(definition.verbs),
    }
    if definition.short_names:
        document["shortNames"] = list(definition.short_names)
    if definition.categories:
        document["categories"] = list(definition.categories)
    subresources = [
        {"subresource": row.name, "responseKind": _response_kind(row.kind or endpoint.gvk), "verbs": list(row.verbs)}
        for row in _subresources(endpoint)
    ]
    if subresources:
        document["subresources"] = subresources
    return document


def _response_kind(kind: GroupVersionKind) -> Document:
    return {"group": kind.group, "version": kind.version, "kind": kind.kind}
