"""Replays a recording: the scheduler and the claim controller run again, on the recorded input, in virtual time.

The input is what users, workload controllers, drivers and nodes did: Pods that were created, ended or deleted, Nodes,
ResourceSlices, classes and claims. What the recorded scheduler and claim controller wrote is not part of it: nodes of
Pods, allocations, reservations, and claims made from templates. The same recording and options give the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from dray.api.document import Document, GroupVersion, NamespacedName
from dray.api.errors import APIError, NotFoundError
from dray.api.features import FeatureGates
from dray.api.pod_claims import TERMINAL_PHASES
from dray.api.timestamps import parse_time
from dray.api.types.core_v1 import Pod
from dray.client.interface import Client, DeleteOptions, Patch, PatchType, Resource, WriteOptions
from dray.client.objects import key_of
from dray.client.resources import PODS, SERVICE_ACCOUNTS
from dray.scheduler.config import SchedulerConfig
from dray.sim.recording import ADDED, DELETED, Change, Recording
from dray.sim.replica.cluster import Options, Replica, pass_time, running
from dray.sim.replica.virtual_time import run_virtually
from dray.sim.snapshot import Snapshot

# Virtual seconds after the last change in which Pods that still wait may be placed: longer than the longest backoff.
TAIL_SECONDS: Final = 30.0
_STATUS: Final = WriteOptions(subresource="status")
# Kinds whose controllers do not run in a replay: their Pods are part of the recording.
_WITHOUT_CONTROLLERS: Final = frozenset({"Deployment", "DaemonSet", "Job", "Event"})
# Their controllers do not run either, but the scheduler spreads Pods by their selectors.
_SPREAD_OWNERS: Final = frozenset({"ReplicaSet", "StatefulSet"})

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class PodTimes:
    """When a Pod was created and placed, and where; None or empty if it was not."""

    node: str = ""
    wait_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class ReplayedPod:
    """A Pod of the recording, as it was and as it was replayed."""

    namespace: str
    name: str
    created: float
    recorded: PodTimes
    replayed: PodTimes

    @property
    def is_same(self) -> bool:
        """Whether it has the same node."""
        return self.recorded.node == self.replayed.node


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """All Pods that were created while the recording ran, and inputs that the replica refused."""

    pods: tuple[ReplayedPod, ...]
    refused: tuple[str, ...] = ()


def inputs(recording: Recording) -> list[Change]:
    """Return the changes that are input, each reduced to what its author wrote."""
    found = []
    known = {item["metadata"].get("uid") for item in recording.initial}
    for change in recording.changes:
        kind = change.object["kind"]
        if kind in _WITHOUT_CONTROLLERS or (kind == "ResourceClaim" and _is_generated(change.object)):
            continue
        if kind == "Pod":
            reduced = _pod_input(change, known)
        elif kind == "ResourceClaim" or kind in _SPREAD_OWNERS:
            reduced = _created_only(change, known)
        else:
            reduced = change
        if reduced is not None:
            found.append(reduced)
    return found


def _is_generated(claim: Document) -> bool:
    """Return whether the claim controller or the scheduler created the claim for a Pod."""
    return any(owner["kind"] == "Pod" for owner in claim["metadata"].get("ownerReferences") or ())


def _pod_input(change: Change, known: set[str | None]) -> Change | None:
    """Return the creation, the end or the deletion of a Pod; None for other changes."""
    pod, uid = change.object, change.object["metadata"].get("uid")
    status = pod.get("status") or {}
    if change.type == DELETED:
        return change
    if uid not in known:
        known.add(uid)
        kept = ("nodeName",) if _is_static(pod) else ()
        spec = {key: value for key, value in pod["spec"].items() if key != "nodeName" or key in kept}
        owners = [item for item in pod["metadata"].get("ownerReferences") or () if item["kind"] in _SPREAD_OWNERS]
        metadata = {**_new(pod), "ownerReferences": owners}
        return Change(change.seconds, ADDED, {**pod, "metadata": metadata, "spec": spec, "status": {}})
    is_going = bool(pod["metadata"].get("deletionTimestamp"))
    # A Pod on a node has its devices until it is gone.
    if status.get("phase") in TERMINAL_PHASES or (is_going and not pod["spec"].get("nodeName")):
        return change
    return None


def _is_static(pod: Document) -> bool:
    """Return whether the Pod was created with its node: DaemonSets have an affinity instead, and are scheduled."""
    return any(owner["kind"] == "Node" for owner in pod["metadata"].get("ownerReferences") or ())


def _created_only(change: Change, known: set[str | None]) -> Change | None:
    """Return the creation or deletion of a claim of a user or of a workload, without its status."""
    uid = change.object["metadata"].get("uid")
    if change.type == DELETED:
        return change
    if uid in known:
        return None
    known.add(uid)
    return Change(change.seconds, ADDED, {**change.object, "metadata": _new(change.object), "status": {}})


def _new(document: Document) -> Document:
    """Return the metadata to create an object with.

    Owners have other uids in a replica, so the garbage collector would consider them deleted; that objects
    were deleted with their owners is in the recording.
    """
    dropped = ("resourceVersion", "finalizers", "managedFields", "generation", "deletionTimestamp", "ownerReferences")
    return {key: value for key, value in document["metadata"].items() if key not in dropped}


def recorded_pods(recording: Recording) -> dict[str, ReplayedPod]:
    """Return the Pods that were created while the recording ran, by uid."""
    known = {item["metadata"].get("uid") for item in recording.initial}
    found: dict[str, ReplayedPod] = {}
    for change in recording.changes:
        pod = change.object
        uid = pod["metadata"].get("uid") or ""
        if pod["kind"] != "Pod" or uid in known or change.type == DELETED:
            continue
        node = pod["spec"].get("nodeName") or ""
        if uid not in found:
            metadata = pod["metadata"]
            empty = PodTimes()
            found[uid] = ReplayedPod(metadata.get("namespace") or "", metadata["name"], change.seconds, empty, empty)
        if node and not found[uid].recorded.node:
            item = found[uid]
            times = PodTimes(node, _wait(recording, pod, change.seconds - item.created))
            found[uid] = ReplayedPod(item.namespace, item.name, item.created, times, item.replayed)
    return found


def _wait(recording: Recording, pod: Document, observed: float) -> float:
    """Return how long a Pod waited: by its condition if that is precise enough, else by what was observed."""
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "True":
            created = pod["metadata"].get("creationTimestamp")
            if created and condition.get("lastTransitionTime"):
                exact = parse_time(condition["lastTransitionTime"]) - parse_time(created)
                # Timestamps have whole seconds.
                return max(observed, 0.0) if exact < timedelta(seconds=2) else exact.total_seconds()
    return max(observed, 0.0)


def replay(recording: Recording, config: SchedulerConfig, gates: FeatureGates, progress: Progress) -> ReplayResult:
    """Run the recording again; return what became of its Pods."""
    return run_virtually(_replay(recording, config, gates, progress))


async def _replay(
    recording: Recording, config: SchedulerConfig, gates: FeatureGates, progress: Progress
) -> ReplayResult:
    changes = inputs(recording)
    options = Options(
        gates, config, workloads=False, waits_for_claim=_waits_for_claim if _has_volume_claims(recording) else None
    )
    async with running(_start(recording), recording.start, options) as replica:
        player = _Player(replica)
        await player.start()
        for number, change in enumerate(changes):
            await player.advance(change.seconds)
            await player.apply(change)
            progress(number + 1, len(changes), "changes replayed")
        await player.advance(recording.seconds + TAIL_SECONDS)
        replayed = player.placed
    pods = [
        ReplayedPod(item.namespace, item.name, item.created, item.recorded, replayed.get(uid, PodTimes()))
        for uid, item in recorded_pods(recording).items()
    ]
    return ReplayResult(tuple(pods), tuple(player.refused))


def _has_volume_claims(recording: Recording) -> bool:
    """Return whether the claims were recorded; those who may not list them record Pods that got nodes without them."""
    documents = [*recording.initial, *(change.object for change in recording.changes)]
    claims = {key_of(item) for item in documents if item["kind"] == "PersistentVolumeClaim"}
    return all(
        NamespacedName(item["metadata"].get("namespace") or "", claim["claimName"]) in claims
        for item in documents
        if item["kind"] == "Pod" and item["spec"].get("nodeName")
        for volume in item["spec"].get("volumes") or ()
        if (claim := volume.get("persistentVolumeClaim"))
    )


def _waits_for_claim(_pod: Pod, _name: str, claim: Document | None) -> bool:
    """Return whether a Pod waits for a claim: a recording has them all, and when each got its volume."""
    return claim is None or not claim["spec"].get("volumeName")


def _start(recording: Recording) -> Snapshot:
    """Return the objects at the start, without workloads that the scheduler does not look at."""
    return Snapshot.of(item for item in recording.initial if item["kind"] not in _WITHOUT_CONTROLLERS)


class _Player:
    """Applies changes to a replica at their time, and notes when its Pods get nodes."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._client: Client = replica.client
        self._resources: dict[tuple[str, str], Resource[Document]] = {}
        # By the uid in the recording; the replica has uids of its own.
        self.placed: dict[str, PodTimes] = {}
        self.refused: list[str] = []
        self._uids: dict[str, tuple[str, float]] = {}

    async def start(self) -> None:
        """Find the resources, and watch Pods."""
        self._resources = {
            (GroupVersion(item.group, item.version).api_version, item.kind): item.resource()
            for item in await self._client.resources()
        }
        self._replica.informers.informer(PODS.unstructured).add_handler(self._pod_changed)

    def _pod_changed(self, _old: Document | None, new: Document | None) -> None:
        if new is None or not new["spec"].get("nodeName"):
            return
        known = self._uids.get(new["metadata"]["uid"])
        if known is not None and known[0] not in self.placed:
            waited = self._replica.clock.monotonic() - known[1]
            self.placed[known[0]] = PodTimes(new["spec"]["nodeName"], round(waited, 3))

    async def advance(self, seconds: float) -> None:
        """Let virtual time pass until then."""
        wait = seconds - self._replica.clock.monotonic()
        if wait > 0:
            await pass_time(wait)

    async def apply(self, change: Change) -> None:
        """Make one change; one that the replica refuses is noted."""
        document = change.object
        resource = self._resources.get((document["apiVersion"], document["kind"]))
        if resource is None:
            return
        try:
            await self._apply(resource, change)
        except NotFoundError:
            # It is gone already, for example with its owner.
            return
        except APIError as error:
            name = f"{document['kind']} {document['metadata'].get('namespace', '')}/{document['metadata']['name']}"
            self.refused.append(f"{change.seconds:.1f}s: {name}: {error}")

    async def _apply(self, resource: Resource[Document], change: Change) -> None:
        document = change.object
        metadata = document["metadata"]
        name, namespace = metadata["name"], metadata.get("namespace") or ""
        if change.type == DELETED or metadata.get("deletionTimestamp"):
            grace = 0 if document["kind"] == "Pod" else None
            await self._client.delete(resource, name, namespace, DeleteOptions(grace_period_seconds=grace))
        elif document["kind"] == "Pod" and change.type != ADDED:
            phase = {"status": {"phase": document["status"]["phase"]}}
            await self._client.patch(resource, name, namespace, Patch(PatchType.STRATEGIC, phase), _STATUS)
        elif document["kind"] == "Pod":
            made = await self._client.create(resource, await self._with_owners(document), namespace)
            self._uids[made["metadata"]["uid"]] = (metadata.get("uid") or "", self._replica.clock.monotonic())
        else:
            await self._write(resource, document, namespace)

    async def _with_owners(self, pod: Document) -> Document:
        """Return a Pod with the uids that its owners have in the replica; those that are not there are left out."""
        owners = []
        for owner in pod["metadata"].get("ownerReferences") or ():
            try:
                found = await self._client.get(
                    self._resources[owner["apiVersion"], owner["kind"]], owner["name"], pod["metadata"]["namespace"]
                )
            except (KeyError, NotFoundError):
                continue
            owners.append({**owner, "uid": found["metadata"]["uid"]})
        return {**pod, "metadata": {**pod["metadata"], "ownerReferences": owners}}

    async def _write(self, resource: Resource[Document], document: Document, namespace: str) -> None:
        """Create or replace an object with its status."""
        metadata = _new(document)
        try:
            existing = await self._client.get(resource, metadata["name"], namespace)
        except NotFoundError:
            existing = await self._client.create(resource, {**document, "metadata": metadata}, namespace)
            await self._add_account(document)
        version = existing["metadata"]["resourceVersion"]
        body = {**document, "metadata": {**metadata, "resourceVersion": version, "uid": existing["metadata"]["uid"]}}
        updated = await self._client.update(resource, body)
        if "status" in document and document["kind"] == "Node":
            version = updated["metadata"]["resourceVersion"]
            current = {**body, "metadata": {**body["metadata"], "resourceVersion": version}}
            await self._client.update_status(resource, current)

    async def _add_account(self, document: Document) -> None:
        """Create what Pods in a new namespace need; its controller does not run here."""
        if document["kind"] == "Namespace":
            account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
            await self._client.create(SERVICE_ACCOUNTS, account, document["metadata"]["name"])


def differing(pods: Iterable[ReplayedPod]) -> list[ReplayedPod]:
    """Return the Pods that have another node than recorded."""
    return [pod for pod in pods if not pod.is_same]


def mean_wait(times: Sequence[PodTimes]) -> float | None:
    """Return the mean time until Pods were placed; None if none was."""
    waits = [item.wait_seconds for item in times if item.wait_seconds is not None]
    return sum(waits) / len(waits) if waits else None
