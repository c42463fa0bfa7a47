"""What a snapshot holds of its cluster: which kinds were read, which are missing, and how to read them. Pure.

A kind without objects in a file is not known to have none in the cluster, unless the file says so: `dray snapshot`
writes what it has listed, and an empty `NodeList` of an API server says it too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from dray.api.document import Document, GroupVersion
from dray.sim.snapshot import CLASSIC_CLAIM, CLUSTER_SCOPED, KINDS, PATH_KINDS, Snapshot, kind_key

# In the metadata of a list: by kind, the only namespace that was read, empty for all, or null for nothing.
HEADER: Final = "tools.dray.dev/kinds"
# Kinds that not every cluster serves: kubectl fails on a line that names one of them.
_NOT_EVERYWHERE: Final = frozenset({"DeviceTaintRule", "PodGroup", "Workload", "ResourceClass", CLASSIC_CLAIM})
# Kinds without which answers about devices and Pods are wrong; Nodes and Pods are in every cluster.
_ALWAYS: Final = ("Node", "Pod")


def declared_kinds(documents: Iterable[Document]) -> dict[str, str | None]:
    """Return the kinds that the lists declare to hold, as in `HEADER`."""
    found: dict[str, str | None] = {}
    for document in documents:
        kind = document["kind"]
        metadata = document.get("metadata")
        declared = metadata.get(HEADER) if isinstance(metadata, dict) else None
        if isinstance(declared, dict):
            found |= {name: scope for name, scope in declared.items() if scope is None or isinstance(scope, str)}
        elif kind.endswith("List") and kind != "List" and isinstance(document.get("items", ""), list | None):
            group = GroupVersion.parse(document["apiVersion"]).group
            found[kind_key(kind.removesuffix("List"), group)] = ""
    return found


def header_of(snapshot: Snapshot) -> dict[str, str | None]:
    """Return what a snapshot holds, for the list that it is written to."""
    kinds = (kind for kind in KINDS if kind in snapshot.listed or snapshot.documents.get(kind))
    known: dict[str, str | None] = dict.fromkeys(kinds, "")
    return known | {kind: scope for kind, scope in snapshot.partial.items() if kind not in snapshot.absent}


def of_files(documents: Mapping[str, Sequence[Document]], declared: Mapping[str, str | None]) -> dict[str, Any]:
    """Return the fields of a snapshot of files that say what it holds."""
    present = {kind for kind, items in documents.items() if items}
    absent = frozenset(KINDS) - present - declared.keys()
    partial = {kind: scope for kind, scope in declared.items() if scope != ""} | dict.fromkeys(sorted(absent))
    return {"listed": frozenset(declared), "partial": partial, "absent": absent}


def plural(kind: str) -> str:
    """Return the name of a kind in commands of kubectl."""
    group, name = KINDS[kind]
    return f"{name}.{group}" if "." in group else name


def kubectl_line(kinds: Iterable[str] = PATH_KINDS) -> str:
    """Return the command that dumps the kinds, as far as every cluster has them."""
    names = ",".join(plural(kind) for kind in KINDS if kind in set(kinds) and kind not in _NOT_EVERYWHERE)
    scope = "" if CLUSTER_SCOPED.issuperset(kinds) else " -A"
    return f"kubectl get {names}{scope} -o json > cluster.json"


def missing_kinds(snapshot: Snapshot, kinds: Iterable[str]) -> list[str]:
    """Return those of the kinds that a dump lacks and its objects refer to; Nodes and Pods are always missed."""
    lacking = [kind for kind in kinds if kind in snapshot.absent]
    return [kind for kind in lacking if kind in _ALWAYS or kind in set(_referred(snapshot))]


def missing_notes(snapshot: Snapshot, kinds: Sequence[str]) -> tuple[str, ...]:
    """Return what a dump lacks of what is needed, with the command that dumps all of it; empty if nothing."""
    missing = missing_kinds(snapshot, kinds)
    if not missing:
        return ()
    names = ", ".join(plural(kind) for kind in missing)
    return (f"not in the dump: {names}; what depends on them is not evaluated. All of it: {kubectl_line(kinds)}",)


def _referred(snapshot: Snapshot) -> Iterator[str]:
    """Yield the kinds that objects of the snapshot refer to."""
    documents = snapshot.documents
    entries = [
        entry for pod in documents.get("Pod", ()) for entry in (pod.get("spec") or {}).get("resourceClaims") or ()
    ]
    claims = documents.get("ResourceClaim", ())
    if entries:
        yield "ResourceClaim"
    if any(entry.get("resourceClaimTemplateName") for entry in entries) and not claims:
        yield "ResourceClaimTemplate"
    if entries or claims or documents.get("DeviceClass"):
        yield "ResourceSlice"
    if entries or claims or documents.get("ResourceSlice") or documents.get("ResourceClaimTemplate"):
        yield "DeviceClass"
