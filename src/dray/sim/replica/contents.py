"""The objects that a replica of a snapshot starts with. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dray.api.document import Document
from dray.sim.snapshot import SCHEDULER_CONFIGURATION, Snapshot


def contents(snapshot: Snapshot) -> Iterator[Document]:
    """Yield the initial objects: the snapshot, and the defaults of every namespace."""
    documents = [
        item for kind, items in snapshot.documents.items() if kind != SCHEDULER_CONFIGURATION for item in items
    ]
    present = {item["metadata"]["name"] for item in snapshot.documents.get("Namespace", ())}
    for name in sorted(_namespaces(documents)):
        if name not in present:
            yield namespace_document(name)
        yield {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": name}}
    uids = {item["metadata"].get("uid") for item in documents}
    for item in documents:
        if item["kind"] not in ("ServiceAccount", "Event"):
            yield _with_known_owners(item, uids)


def _with_known_owners(document: Document, uids: set[str | None]) -> Document:
    """Remove owners that the snapshot does not contain: the garbage collector would consider them deleted.

    A snapshot contains all Pods, so dependents of missing Pods may be deleted.
    """
    owners = document["metadata"].get("ownerReferences")
    if not owners:
        return document
    known = [owner for owner in owners if owner.get("uid") in uids or owner.get("kind") == "Pod"]
    return {**document, "metadata": {**document["metadata"], "ownerReferences": known}}


def _namespaces(documents: Iterable[Document]) -> set[str]:
    found = {item["metadata"].get("namespace") or "" for item in documents}
    found |= {item["metadata"]["name"] for item in documents if item["kind"] == "Namespace"}
    return (found | {"default"}) - {""}


def namespace_document(name: str) -> Document:
    """Return an active namespace."""
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}},
        "spec": {"finalizers": ["kubernetes"]},
        "status": {"phase": "Active"},
    }
