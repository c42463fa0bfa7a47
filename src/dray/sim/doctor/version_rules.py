"""Who still writes versions of the API that the next release of Kubernetes does not serve. Pure.

Managed fields tell which client has written an object in which version; the last-applied configuration, in which
version a manifest is. A Helm release is named by the annotation that Helm sets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Final

from dray.api.conversion.resource import GROUP, deprecated_versions, hub_version
from dray.api.document import Document
from dray.api.gate_table import CURRENT
from dray.sim.doctor.findings import Finding, Rule, Severity
from dray.sim.explain.similar_names import listed
from dray.sim.snapshot import Snapshot

_KINDS: Final = ("DeviceClass", "DeviceTaintRule", "ResourceClaim", "ResourceClaimTemplate", "ResourceSlice")
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_API_VERSION: Final = re.compile(r'\{\s*"apiVersion":\s*"([^"]*)"')
_RELEASE: Final = "meta.helm.sh/release-name"
_RELEASE_NAMESPACE: Final = "meta.helm.sh/release-namespace"


def removed_versions(snapshot: Snapshot, _now: datetime) -> Iterator[Finding]:
    """Yield the clients, manifests and Helm releases that use a version which the next release does not serve."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for kind in _KINDS:
        removed = {f"{GROUP}/{name}" for name, (_, until) in deprecated_versions(kind).items() if _is_next(until)}
        served = f"{GROUP}/{hub_version(kind)}"
        for document in snapshot.documents.get(kind, ()):
            for who, version in _uses(document):
                if version in removed:
                    found.setdefault((who, version, served), []).append(_name(kind, document))
    for (who, version, served), names in sorted(found.items()):
        yield Finding(
            Severity.WARNING,
            "removed-version",
            who,
            f"uses {version}, which Kubernetes {CURRENT.major}.{CURRENT.minor + 1} does not serve: {listed(names)}",
            f"change it to {served}, and apply it again",
        )


def _is_next(minor: int) -> bool:
    return minor <= CURRENT.minor + 1


def _uses(document: Document) -> Iterator[tuple[str, str]]:
    """Yield who uses which version of the API for the object, each once."""
    metadata = document["metadata"]
    annotations = metadata.get("annotations") or {}
    found: dict[tuple[str, str], None] = {}
    release = annotations.get(_RELEASE)
    for entry in metadata.get("managedFields") or ():
        manager = f"client {entry.get('manager') or 'unknown'}"
        if release and manager == "client helm":
            manager = f"release {annotations.get(_RELEASE_NAMESPACE) or ''}/{release} of Helm"
        found[manager, entry.get("apiVersion") or ""] = None
    applied = _API_VERSION.match(annotations.get(_LAST_APPLIED) or "")
    if applied:
        found["manifest of kubectl apply", applied[1]] = None
    yield from found


def _name(kind: str, document: Document) -> str:
    metadata = document["metadata"]
    place = f"{metadata['namespace']}/" if metadata.get("namespace") else ""
    return f"{kind.lower()} {place}{metadata['name']}"


VERSION_RULES: Final[tuple[Rule, ...]] = (removed_versions,)
