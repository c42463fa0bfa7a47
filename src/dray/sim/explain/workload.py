"""A workload to explain: its Pods, and why it has fewer than it wants. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dray.api.codec import from_document
from dray.api.document import Document, NamespacedName
from dray.api.pod_claims import is_pod_done
from dray.api.types.core_v1 import Pod
from dray.sim.explain.answers import Stage, Verdict
from dray.sim.explain.claim_quota import ClaimQuotas
from dray.sim.explain.events import ObjectEvent, events_of, newest
from dray.sim.explain.refusals import not_found, refusal
from dray.sim.explain.subject import document_key
from dray.sim.snapshot import Snapshot

# Kind in the command line -> kind of the API.
KINDS: Final[Mapping[str, str]] = {
    "deployment": "Deployment",
    "replicaset": "ReplicaSet",
    "daemonset": "DaemonSet",
    "statefulset": "StatefulSet",
    "job": "Job",
}
_FAILED_CREATE: Final = "FailedCreate"


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload with its Pods."""

    kind: str
    key: NamespacedName
    document: Document
    # Those that have not finished.
    pods: tuple[Pod, ...]
    wanted: int
    # Why Pods could not be created; empty if they could.
    failure: str = ""

    @property
    def ready(self) -> int:
        """The number of Pods that are ready."""
        return sum(is_ready(pod) for pod in self.pods)


def find_workload(snapshot: Snapshot, kind: str, key: NamespacedName) -> Workload:
    """Find a workload; raise `SnapshotError` if it does not exist."""
    api_kind = KINDS[kind]
    found = next((item for item in snapshot.documents.get(api_kind, ()) if document_key(item) == key), None)
    if found is None:
        raise not_found(snapshot, api_kind, key)
    owners = [found, *_replica_sets(snapshot, found)]
    uids = {item["metadata"].get("uid") for item in owners}
    pods = [
        pod
        for pod in snapshot.pods
        if any(owner.controller and owner.uid in uids for owner in pod.metadata.owner_references)
    ]
    active = tuple(pod for pod in pods if not is_pod_done(pod))
    return Workload(kind, key, found, active, _WANTED[api_kind](found), _failure(snapshot, owners))


def _replica_sets(snapshot: Snapshot, deployment: Document) -> Iterator[Document]:
    uid = deployment["metadata"].get("uid")
    for item in snapshot.documents.get("ReplicaSet", ()):
        if any(owner.get("uid") == uid for owner in item["metadata"].get("ownerReferences") or ()):
            yield item


def _replicas(document: Document) -> int:
    replicas = (document.get("spec") or {}).get("replicas")
    return 1 if replicas is None else int(replicas)


def _daemons(document: Document) -> int:
    return int((document.get("status") or {}).get("desiredNumberScheduled") or 0)


def _parallel(document: Document) -> int:
    spec, status = document.get("spec") or {}, document.get("status") or {}
    completions = spec.get("completions")
    parallelism = 1 if spec.get("parallelism") is None else int(spec["parallelism"])
    if completions is None:
        return parallelism
    return max(min(parallelism, int(completions) - int(status.get("succeeded") or 0)), 0)


_WANTED: Final[Mapping[str, Callable[[Document], int]]] = {
    "Deployment": _replicas,
    "ReplicaSet": _replicas,
    "StatefulSet": _replicas,
    "DaemonSet": _daemons,
    "Job": _parallel,
}


def _failure(snapshot: Snapshot, owners: Sequence[Document]) -> str:
    """Return the newest reason why no Pod could be created."""
    conditions = [
        item.get("message") or ""
        for owner in owners
        for item in (owner.get("status") or {}).get("conditions") or ()
        if item.get("type") == "ReplicaFailure" and item.get("status") == "True"
    ]
    events: list[ObjectEvent] = []
    for owner in owners:
        key = document_key(owner)
        events += events_of(snapshot, owner["kind"], key.namespace, key.name, owner["metadata"].get("uid") or "")
    failed = newest(sorted(events, key=lambda event: event.last, reverse=True), _FAILED_CREATE, "ReplicaSetCreateError")
    return next(iter(conditions), "") or ("" if failed is None else failed.message)


def workload_verdict(snapshot: Snapshot, workload: Workload) -> Verdict | None:
    """Return why the workload has too few Pods, or that it is done; None if its Pods are what matters."""
    if (found := _state(workload.document)) is not None:
        return found
    if reason := snapshot.unread("Pod"):
        return Verdict(Stage.WORKLOAD, f"wants {workload.wanted} Pods, which are not evaluated: {reason}")
    return _shortage(snapshot, workload)


def _state(document: Document) -> Verdict | None:
    spec, status = document.get("spec") or {}, document.get("status") or {}
    conditions = {item.get("type"): item for item in status.get("conditions") or () if item.get("status") == "True"}
    if document["metadata"].get("deletionTimestamp"):
        return Verdict(Stage.DONE, "is being deleted")
    if document["kind"] == "Job":
        if "Complete" in conditions:
            return Verdict(Stage.DONE, f"is complete: {status.get('succeeded') or 0} Pods succeeded")
        if "Failed" in conditions:
            failed = conditions["Failed"]
            text = f"has failed: {failed.get('reason')}: {failed.get('message')}"
            return Verdict(Stage.DONE, text, "read the logs of its Pods")
        if spec.get("suspend"):
            return Verdict(Stage.WORKLOAD, "is suspended", "set spec.suspend to false")
    if document["kind"] == "Deployment" and spec.get("paused"):
        return Verdict(Stage.WORKLOAD, "is paused", f"kubectl rollout resume deployment/{document['metadata']['name']}")
    return None


def _shortage(snapshot: Snapshot, workload: Workload) -> Verdict | None:
    have, missing = len(workload.pods), workload.wanted - len(workload.pods)
    if missing > 0 and workload.failure:
        subjects = ClaimQuotas(snapshot).with_pod(_new_pod(workload))
        found = refusal(snapshot, workload.key.namespace, workload.failure, missing, subjects)
        return Verdict(found.stage, f"has {have} of {workload.wanted} Pods: {found.text}", found.action)
    if missing > 0 and not have:
        text = f"has 0 of {workload.wanted} Pods, and no Event says why"
        return Verdict(Stage.WORKLOAD, text, "check that the controller manager is running")
    if not workload.wanted:
        if workload.kind == "daemonset":
            return Verdict(Stage.WORKLOAD, "wants no Pods: no node matches its node selector, affinity and tolerations")
        return Verdict(Stage.WORKLOAD, "wants no Pods", "set spec.replicas" if workload.kind != "job" else "")
    return None


def _new_pod(workload: Workload) -> Pod:
    """Return a Pod as the controller of the workload creates it."""
    template = (workload.document.get("spec") or {}).get("template") or {}
    metadata = {**(template.get("metadata") or {}), "namespace": workload.key.namespace}
    return from_document(Pod, {"metadata": metadata, "spec": template.get("spec") or {}})


def pod_to_explain(workload: Workload) -> Pod | None:
    """Return the Pod that tells most about the workload: one that waits, one that is not ready, or any."""
    ordered = sorted(workload.pods, key=lambda pod: (is_ready(pod), bool(pod.spec.node_name), pod.metadata.name or ""))
    return ordered[0] if ordered else None


def is_ready(pod: Pod) -> bool:
    """Return whether the Pod is ready."""
    return any(item.type == "Ready" and item.status == "True" for item in pod.status.conditions)
