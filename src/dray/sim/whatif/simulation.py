"""Runs a changed snapshot in a replica until it settles, and reads the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from dray.api.document import Document, GroupVersion, NamespacedName
from dray.api.errors import InvalidError, NotFoundError
from dray.api.features import FeatureGates
from dray.api.types.core_v1 import Pod
from dray.client.interface import Client, Patch, PatchType, Resource, WriteOptions
from dray.client.objects import key_of
from dray.client.resources import EVENTS, NAMESPACES
from dray.scheduler.config import SchedulerConfig
from dray.scheduler.plugins.dynamic_resources.device_state import device_state_of
from dray.sim.cluster_reader import read_cluster
from dray.sim.explain.filters import Filters
from dray.sim.explain.pending_pods import PendingPods
from dray.sim.notes import DEFAULT_SCHEDULER_NAME, notes_on
from dray.sim.replica.cluster import Options, Replica, pass_time, running
from dray.sim.replica.contents import as_before, namespace_document
from dray.sim.replica.group_gates import with_groups
from dray.sim.replica.virtual_time import run_virtually
from dray.sim.scheduler_messages import reports_volume_claims
from dray.sim.scheduler_profiles import evaluated_profiles, profiles_of
from dray.sim.snapshot import PLACEMENT_KINDS, Snapshot, SnapshotError
from dray.sim.volume_waits import VolumeWaits
from dray.sim.whatif.changes import Changed, copies, new_names, preemption_notes
from dray.sim.whatif.outcome import FIT_MAX, Fit, Growth, Outcome, compare, with_verdict
from dray.sim.whatif.preemption import Preemption, evictions, with_preemption, with_raised_priority

# Virtual seconds without a change after which the cluster has settled: longer than the longest backoff.
QUIET_SECONDS: Final = 15.0
STEP_SECONDS: Final = 1.0
SETTLE_SECONDS_MAX: Final = 3600.0
BATCH_MAX: Final = 64
NODES_MAX: Final = 1_000

# Called with (done, total, description).
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class Run:
    """A what-if run: the cluster, the changed cluster it starts from, and a progress callback."""

    before: Snapshot
    changed: Changed
    now: datetime
    gates: FeatureGates
    progress: Progress
    preemption: Preemption = Preemption.BY_PRIORITY

    def options(self, manifests: Sequence[Document]) -> Options:
        """Return the options of the replica."""
        profiles = tuple(with_preemption(profile, self.preemption) for profile in profiles_of(self.changed.snapshot))
        return Options(
            with_groups(self.gates, manifests),
            SchedulerConfig(profiles=profiles),
            volumes=any(item.get("kind") == "PersistentVolume" for item in manifests),
            waits_for_claim=VolumeWaits(self.before).waits,
            removed_pods=_uids(self.before) - _uids(self.changed.snapshot),
        )

    def start(self, manifests: Sequence[Document]) -> tuple[Snapshot, Sequence[Document]]:
        """Return the snapshot to start from, and the manifests to apply."""
        snapshot = _with_namespaces(self.changed.snapshot, manifests)
        if self.preemption is Preemption.ALWAYS:
            return with_raised_priority(snapshot, manifests)
        return snapshot, manifests

    async def outcome(self, replica: Replica) -> Outcome:
        """Return the state of the replica compared with the cluster."""
        after = as_before(await read_cluster(replica.client, PLACEMENT_KINDS))
        events = await replica.client.list(EVENTS)
        gone = evictions(self.before, events.items)
        found = compare(self.before, after, self.changed.lost, gone)
        # A Pod that waits for a volume claim has that as its reason, and needs no note on it.
        pending = (item for item in found.pending if not reports_volume_claims(item.why))
        changed = {(item.namespace, item.name) for item in (*found.placed, *found.moved, *pending)}
        pods = (pod for pod in after.pods if key_of(pod) in changed)
        notes = notes_on(after, pods, evaluated_profiles(self.before))
        budgets = preemption_notes(self.before, {(item.namespace, item.name) for item in gone})
        return replace(found, notes=(*self.changed.notes, *budgets, *notes))


async def _explained(replica: Replica, found: Outcome) -> Outcome:
    """Return the outcome with the verdicts on pending Pods instead of what the scheduler has written."""
    if not found.pending:
        return found
    snapshot = as_before(await read_cluster(replica.client, (*PLACEMENT_KINDS, "ResourceQuota", "Event")))
    pods, verdicts = {key_of(pod): pod for pod in snapshot.pods}, _pending_pods(replica, snapshot)
    pending = (
        with_verdict(item, verdicts.verdict(pods[NamespacedName(item.namespace, item.name)])) for item in found.pending
    )
    return replace(found, pending=tuple(pending))


def _pending_pods(replica: Replica, snapshot: Snapshot) -> PendingPods:
    """Return what tells why Pods of a replica are pending, in its present state."""
    scheduler = replica.scheduler
    nodes, allocator = scheduler.handle.snapshot, device_state_of(scheduler.handle).allocator
    scheduler.cache.update_snapshot(nodes)

    def filters(pod: Pod) -> Filters:
        profile = scheduler.profiles[pod.spec.scheduler_name or DEFAULT_SCHEDULER_NAME]
        return Filters(profile, nodes, allocator, pod, nominations=scheduler.handle.nominations)

    return PendingPods(snapshot, filters, replica.clock.now())


def simulate(run: Run, manifests: Sequence[Document]) -> Outcome:
    """Apply the change and the manifests; return the outcome."""
    return run_virtually(_simulate(run, manifests))


async def _simulate(run: Run, manifests: Sequence[Document]) -> Outcome:
    snapshot, manifests = run.start(manifests)
    async with running(snapshot, run.now, run.options(manifests)) as replica:
        await apply(replica.client, manifests)
        await settle(replica, run.progress)
        return await _explained(replica, await run.outcome(replica))


def count_fit(run: Run, manifests: Sequence[Document], most: int = FIT_MAX) -> Fit:
    """Return how many copies of the Pod in the manifests fit."""
    return run_virtually(_count_fit(run, manifests, most))


async def _count_fit(run: Run, manifests: Sequence[Document], most: int) -> Fit:
    pods = [item for item in manifests if item.get("kind") == "Pod"]
    if len(pods) != 1:
        raise SnapshotError(f"to count what fits, the file needs exactly one Pod; it has {len(pods)}")
    snapshot, manifests = run.start(manifests)
    pods = [item for item in manifests if item.get("kind") == "Pod"]
    async with running(snapshot, run.now, run.options(manifests)) as replica:
        await apply(replica.client, [item for item in manifests if item.get("kind") != "Pod"])
        await settle(replica, _silent)
        stem, made, batch = pods[0]["metadata"].get("name") or "pod", 0, 1
        while made < most:
            names = [f"{stem}-{number}" for number in range(made + 1, min(made + batch, most) + 1)]
            await apply(replica.client, [_named(pods[0], name) for name in names])
            made += len(names)
            await settle(replica, _silent)
            outcome = await run.outcome(replica)
            waiting = [item for item in outcome.pending if item.name in set(names)]
            run.progress(made - len(waiting), 0, "scheduled")
            if waiting:
                outcome = await _explained(replica, outcome)
                why = next(item.why for item in outcome.pending if item.name == waiting[0].name)
                return Fit(made - len(waiting), why, outcome)
            batch = min(batch * 2, BATCH_MAX)
        return Fit(made, f"stopped at {most}", outcome)


def count_nodes(run: Run, manifests: Sequence[Document], pattern: Sequence[Document]) -> Growth:
    """Return how many copies of the pattern's node are needed until no Pod is pending."""
    return run_virtually(_count_nodes(run, manifests, pattern))


async def _count_nodes(run: Run, manifests: Sequence[Document], pattern: Sequence[Document]) -> Growth:
    node = next((item for item in pattern if item.get("kind") == "Node"), None)
    if node is None:
        raise SnapshotError("a node template needs a Node, and the ResourceSlices that name it")
    stem = node["metadata"]["name"]
    taken = {item.metadata.name or "" for item in run.changed.snapshot.nodes}
    snapshot, manifests = run.start(manifests)
    async with running(snapshot, run.now, run.options(manifests)) as replica:
        await apply(replica.client, manifests)
        await settle(replica, _silent)
        outcome = await run.outcome(replica)
        added = 0
        for name in new_names(stem, NODES_MAX, taken):
            if not outcome.pending:
                break
            await apply(replica.client, copies(pattern, stem, name))
            await settle(replica, _silent)
            after = await run.outcome(replica)
            if len(after.pending) >= len(outcome.pending):
                # Another node did not help, and more of the same will not either.
                return Growth(added, enough=False, outcome=await _explained(replica, outcome))
            outcome, added = after, added + 1
            run.progress(added, 0, f"nodes added, {len(outcome.pending)} Pods wait")
        return Growth(added, enough=not outcome.pending, outcome=await _explained(replica, outcome))


def _uids(snapshot: Snapshot) -> frozenset[str]:
    return frozenset(pod.metadata.uid or "" for pod in snapshot.pods)


def _with_namespaces(snapshot: Snapshot, manifests: Sequence[Document]) -> Snapshot:
    """Add the namespaces of the manifests to a snapshot that contains none."""
    if snapshot.documents.get("Namespace"):
        return snapshot
    names = {item["metadata"].get("namespace") for item in manifests} - {None, ""}
    return Snapshot({**snapshot.documents, "Namespace": [namespace_document(name) for name in sorted(map(str, names))]})


async def settle(replica: Replica, progress: Progress) -> None:
    """Advance time until nothing changes any more."""
    quiet, last, passed = 0.0, "", 0.0
    while quiet < QUIET_SECONDS and passed < SETTLE_SECONDS_MAX:
        await pass_time(STEP_SECONDS)
        passed += STEP_SECONDS
        counts = replica.scheduler.queue.counts()
        progress(replica.scheduler.cache.pod_count(), 0, "Pods scheduled")
        version = await _version(replica.client)
        quiet = quiet + STEP_SECONDS if version == last and not counts.get("active") else 0.0
        last = version


async def _version(client: Client) -> str:
    """Return the resource version of the cluster."""
    return (await client.list(NAMESPACES)).resource_version


async def apply(client: Client, documents: Sequence[Document]) -> None:
    """Create the objects, or replace existing ones; fields that cannot be replaced keep what is not in the document."""
    served = {(item.group, item.version, item.kind): item for item in await client.resources()}
    for document in documents:
        group_version = GroupVersion.parse(document["apiVersion"])
        found = served.get((group_version.group, group_version.version, document["kind"]))
        if found is None:
            raise SnapshotError(f'no matches for kind "{document["kind"]}" in version "{document["apiVersion"]}"')
        namespaced = {**document["metadata"], "namespace": document["metadata"].get("namespace") or "default"}
        body = {**document, "metadata": namespaced} if found.namespaced else document
        await _create_or_replace(client, found.resource(), body)


async def _create_or_replace(client: Client, resource: Resource[Document], body: Document) -> None:
    metadata = body["metadata"]
    namespace = metadata.get("namespace", "") if resource.namespaced else ""
    existing = await _existing(client, resource, metadata.get("name", ""), namespace)
    if existing is not None:
        version = existing["metadata"]["resourceVersion"]
        try:
            await client.update(resource, {**body, "metadata": {**metadata, "resourceVersion": version}})
        except InvalidError:
            # A Pod, for example, has volumes that admission added, and that nobody may remove.
            patch = Patch(PatchType.APPLY, body)
            await client.patch(resource, metadata["name"], namespace, patch, WriteOptions("dray-simulate", force=True))
        return
    made = await client.create(resource, body, namespace)
    if body["kind"] == "Node":
        # The node lifecycle controller, which removes the taint of new nodes, does not run here.
        await client.update(resource, {**made, "spec": {**made.get("spec", {}), "taints": _taints(body)}})


async def _existing(client: Client, resource: Resource[Document], name: str, namespace: str) -> Document | None:
    if not name:
        return None
    try:
        return await client.get(resource, name, namespace)
    except NotFoundError:
        return None


def _taints(node: Document) -> list[Document]:
    return list((node.get("spec") or {}).get("taints") or ())


def _named(pod: Document, name: str) -> Document:
    metadata = {key: value for key, value in pod["metadata"].items() if key not in ("uid", "resourceVersion")}
    return {**pod, "metadata": {**metadata, "name": name}}


def _silent(_done: int, _of: int, _what: str) -> None:
    return
