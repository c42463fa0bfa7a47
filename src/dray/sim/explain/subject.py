"""The Pod or claim to explain, and the snapshot before it was scheduled. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from dray.api import classic_claims as classic
from dray.api.document import Document, NamespacedName
from dray.api.pod_claims import extended_resource_claim_name, is_pod_done, pod_claims
from dray.api.types import cdi_v1alpha1
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import ResourceClaim
from dray.sim.classic_claims import claims_of, driver_of, summary
from dray.sim.explain.answers import ClassicAnswer, Given, NodeAnswer, Standing
from dray.sim.explain.refusals import not_found
from dray.sim.snapshot import PLACEMENT_KINDS, SCHEDULER_CONFIGURATION, Snapshot

# Pod for a claim that no Pod uses.
PROBE_NAME: Final = "explain-probe"


@dataclass(frozen=True, slots=True)
class Subject:
    """A Pod, or a claim with a Pod that uses it."""

    kind: str
    key: NamespacedName
    pod: NamespacedName
    standing: Standing
    node: str
    # The allocated claims.
    held: tuple[ResourceClaim, ...]
    classic: tuple[ClassicAnswer, ...] = ()


def pod_subject(snapshot: Snapshot, key: NamespacedName) -> Subject:
    """Find a Pod; raise `SnapshotError` if it does not exist."""
    pod = _pod(snapshot, key)
    if pod is None:
        raise not_found(snapshot, "Pod", key)
    node = pod.spec.node_name or ""
    return Subject(
        "pod", key, key, _standing(pod), node, _held(snapshot, pod), classic_answers(snapshot, claims_of(pod, snapshot))
    )


def claim_subject(snapshot: Snapshot, key: NamespacedName) -> Subject:
    """Find a claim and a Pod that uses it; raise `SnapshotError` if it does not exist."""
    claim = snapshot.claims_by_key.get(key)
    if claim is None and key in snapshot.classic_claims_by_key:
        return _classic_subject(snapshot, key)
    if claim is None:
        raise not_found(snapshot, "ResourceClaim", key)
    users = [pod for pod in snapshot.pods if key in set(claim_keys(pod)) and not is_pod_done(pod)]
    held = (claim,) if claim.status.allocation is not None else ()
    standing = Standing.PLACED if held else Standing.PENDING
    if not users:
        return Subject("claim", key, NamespacedName(key.namespace, PROBE_NAME), standing, "", held)
    # Pending Pods are more informative than running ones.
    users.sort(key=lambda pod: bool(pod.spec.node_name))
    pod = users[0] if not held else users[-1]
    return Subject("claim", key, _key(pod), standing, pod.spec.node_name or "" if held else "", held)


def _classic_subject(snapshot: Snapshot, key: NamespacedName) -> Subject:
    """Return a classic claim, which is explained without a Pod: no node is evaluated for it."""
    claim = snapshot.classic_claims_by_key[key]
    standing = Standing.PLACED if classic.is_allocated(claim) else Standing.PENDING
    return Subject("claim", key, key, standing, "", (), classic_answers(snapshot, [claim]))


def classic_answers(snapshot: Snapshot, claims: Iterable[cdi_v1alpha1.ResourceClaim]) -> tuple[ClassicAnswer, ...]:
    """Return what the classic claims wait for."""
    return tuple(
        ClassicAnswer(classic.label(claim), driver_of(claim, snapshot), summary(claim, snapshot)) for claim in claims
    )


def before(snapshot: Snapshot, subject: Subject) -> Snapshot:
    """Return the snapshot without the subject's allocation, with a Pod for a claim that has none."""
    freed = {_key(claim) for claim in subject.held}
    kept = (*PLACEMENT_KINDS, SCHEDULER_CONFIGURATION)
    documents = {kind: items for kind, items in snapshot.documents.items() if kind in kept}
    documents["ResourceClaim"] = [
        _unallocated(item) if document_key(item) in freed else item
        for item in map(_with_uid, documents.get("ResourceClaim", ()))
    ]
    documents["Pod"] = [
        _unplaced(item) if document_key(item) == subject.pod else item for item in documents.get("Pod", ())
    ]
    if subject.pod.name == PROBE_NAME:
        documents["Pod"] = [*documents["Pod"], _probe(subject.key)]
    return Snapshot(documents)


def given(subject: Subject, answers: Iterable[NodeAnswer]) -> tuple[Given, ...]:
    """Return the subject's devices, with why preferred alternatives were impossible on its node."""
    node = next((answer for answer in answers if answer.node == subject.node), None)
    found = []
    for claim in subject.held:
        assert claim.status.allocation is not None
        for result in claim.status.allocation.devices.results:
            device = f"{result.driver}/{result.pool}/{result.device}"
            passed = () if node is None else _passed_over(claim, result.request, node)
            found.append(Given(str(_key(claim)), result.request, device, passed))
    return tuple(found)


def _passed_over(claim: ResourceClaim, chosen: str, node: NodeAnswer) -> tuple[str, ...]:
    name, _, alternative = chosen.partition("/")
    if not alternative:
        return ()
    label = str(_key(claim))
    better = []
    for request in node.requests:
        if request.claim != label or request.request.partition("/")[0] != name:
            continue
        if request.request == chosen:
            break
        better.append(request.summary)
    return tuple(better)


def claim_keys(pod: Pod) -> Iterable[NamespacedName]:
    """Yield the claims that a Pod uses, as far as they are known."""
    namespace = pod.metadata.namespace or ""
    for entry in pod_claims(pod):
        if entry.claim_name:
            yield NamespacedName(namespace, entry.claim_name)
    if extended_claim := extended_resource_claim_name(pod):
        yield NamespacedName(namespace, extended_claim)


def _held(snapshot: Snapshot, pod: Pod) -> tuple[ResourceClaim, ...]:
    """Return the Pod's allocated claims that no other Pod uses."""
    found = []
    for key in claim_keys(pod):
        claim = snapshot.claims_by_key.get(key)
        if claim is None or claim.status.allocation is None:
            continue
        if all(user.uid == pod.metadata.uid for user in claim.status.reserved_for):
            found.append(claim)
    return tuple(found)


def _standing(pod: Pod) -> Standing:
    if is_pod_done(pod):
        return Standing.DONE
    return Standing.PLACED if pod.spec.node_name else Standing.PENDING


def _pod(snapshot: Snapshot, key: NamespacedName) -> Pod | None:
    return next((pod for pod in snapshot.pods if _key(pod) == key), None)


def _key(item: Pod | ResourceClaim) -> NamespacedName:
    return NamespacedName(item.metadata.namespace or "", item.metadata.name or "")


def document_key(document: Document) -> NamespacedName:
    """Return the key of an object."""
    metadata = document["metadata"]
    return NamespacedName(metadata.get("namespace") or "", metadata["name"])


def _with_uid(claim: Document) -> Document:
    """Return a claim that can be told from others: one in a file by hand has no uid."""
    if claim["metadata"].get("uid"):
        return claim
    return {**claim, "metadata": {**claim["metadata"], "uid": str(document_key(claim))}}


def _unallocated(claim: Document) -> Document:
    metadata = {name: value for name, value in claim["metadata"].items() if name != "deletionTimestamp"}
    return {**claim, "metadata": metadata, "status": {}}


def _unplaced(pod: Document) -> Document:
    spec = {name: value for name, value in pod["spec"].items() if name != "nodeName"}
    kept = ("resourceClaimStatuses",)
    status = {name: value for name, value in (pod.get("status") or {}).items() if name in kept}
    metadata = {name: value for name, value in pod["metadata"].items() if not name.startswith("deletion")}
    return {**pod, "metadata": metadata, "spec": spec, "status": {"phase": "Pending", **status}}


def _probe(claim: NamespacedName) -> Document:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": PROBE_NAME, "namespace": claim.namespace, "uid": PROBE_NAME},
        "spec": {
            "schedulerName": "default-scheduler",
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "probe", "image": "probe", "resources": {"claims": [{"name": "claim"}]}}],
            "resourceClaims": [{"name": "claim", "resourceClaimName": claim.name}],
        },
        "status": {"phase": "Pending"},
    }
