"""The objects that a replica of a snapshot starts with. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from dray.api.defaults.workloads import DEFAULTERS as _WORKLOADS
from dray.api.document import Document, GroupVersion, GroupVersionKind, copy_document
from dray.api.pod_claims import is_pod_done
from dray.sim.snapshot import SCHEDULER_CONFIGURATION, Snapshot
from dray.sim.usable_nodes import with_condition_taints

_STAND_INS: Final = "tools.dray.dev"
# Stands in where a claim has no consumer at all.
_NOBODY: Final = "nobody"
# The defaults of workloads do not depend on the time.
_ANY_TIME: Final = datetime(2000, 1, 1, tzinfo=UTC)
_POD: Final = {"resource": "pods"}


def contents(snapshot: Snapshot, removed: Collection[str] = ()) -> Iterator[Document]:
    """Yield the initial objects: the snapshot, and the defaults of every namespace.

    `removed` has the uids of Pods that a change has just removed: the controllers act on their claims.
    """
    snapshot = with_condition_taints(snapshot)
    documents = [
        item for kind, items in snapshot.documents.items() if kind != SCHEDULER_CONFIGURATION for item in items
    ]
    present = {item["metadata"]["name"] for item in snapshot.documents.get("Namespace", ())}
    for name in sorted(_namespaces(documents)):
        if name not in present:
            yield namespace_document(name)
        yield {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": name}}
    uids = {item["metadata"].get("uid") for item in documents} | {*removed}
    users = {pod.metadata.uid for pod in snapshot.pods if not is_pod_done(pod)} | {*removed}
    for item in documents:
        if item["kind"] not in ("ServiceAccount", "Event"):
            yield _as_stored(_with_defaults(_with_known_owners(item, uids)), users)


def _with_defaults(document: Document) -> Document:
    """Return a workload with its defaults, which files of users may lack.

    Its controller compares templates: without defaults, no ReplicaSet would ever have the template of its Deployment.
    """
    defaulter = _WORKLOADS.get(_kind_of(document))
    if defaulter is None:
        return document
    copied = copy_document(document)
    defaulter(copied, _ANY_TIME)
    return copied


def _kind_of(document: Document) -> GroupVersionKind:
    place = GroupVersion.parse(document["apiVersion"])
    return GroupVersionKind(place.group, place.version, document["kind"])


def _with_known_owners(document: Document, uids: set[str | None]) -> Document:
    """Remove owners that the snapshot does not contain: the garbage collector would consider them deleted."""
    owners = document["metadata"].get("ownerReferences")
    if not owners:
        return document
    known = [owner for owner in owners if owner.get("uid") in uids]
    return {**document, "metadata": {**document["metadata"], "ownerReferences": known}}


def _as_stored(document: Document, pods: Collection[str | None]) -> Document:
    """Return a claim that keeps the devices which it has in the snapshot, whoever used them.

    Where a reservation outlives its Pod, or a claim without users is not deallocated, the claim controller of the
    cluster does not act. That of the replica would, and the answer would be that of another cluster.
    """
    status = document.get("status") or {}
    if document["kind"] != "ResourceClaim" or not status.get("allocation"):
        return document
    users = [_frozen(user, pods) for user in status.get("reservedFor") or ()]
    if not users and document["metadata"].get("deletionTimestamp"):
        users = [_stand_in(_NOBODY, document["metadata"].get("uid") or _NOBODY)]
    return {**document, "status": {**status, "reservedFor": users}}


def _frozen(user: Document, pods: Collection[str | None]) -> Document:
    is_stale = user.get("resource") == "pods" and not user.get("apiGroup") and user.get("uid") not in pods
    return _stand_in(user.get("name") or "", user.get("uid") or "") if is_stale else user


def _stand_in(name: str, uid: str) -> Document:
    """Return a consumer that is no Pod, which the claim controller leaves alone."""
    return {"apiGroup": _STAND_INS, "resource": "missingpods", "name": name, "uid": uid}


def as_before(snapshot: Snapshot) -> Snapshot:
    """Return a snapshot of a replica with the consumers of claims that the replica was started with."""
    claims = [_with_users(item) for item in snapshot.documents.get("ResourceClaim", ())]
    return replace(snapshot, documents={**snapshot.documents, "ResourceClaim": claims})


def _with_users(claim: Document) -> Document:
    status = claim.get("status") or {}
    users = status.get("reservedFor") or ()
    if all(user.get("apiGroup") != _STAND_INS for user in users):
        return claim
    kept = [
        user if user.get("apiGroup") != _STAND_INS else {**_POD, "name": user["name"], "uid": user["uid"]}
        for user in users
        if user.get("name") != _NOBODY
    ]
    return {**claim, "status": {**status, "reservedFor": kept}}


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
