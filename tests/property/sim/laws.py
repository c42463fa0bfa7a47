"""What must hold between the tools, for any cluster: each law yields how it is broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from dray.api.document import Document, NamespacedName
from dray.api.features import FeatureGates
from dray.api.pod_claims import is_pod_done, pod_claims
from dray.api.types.core_v1 import Pod
from dray.scheduler.named_profiles import NAMED_PROFILES, SPREAD
from dray.sim import usage
from dray.sim.capacity.addition import AdditionPlanner, PlanOptions
from dray.sim.capacity.shapes import existing_shapes
from dray.sim.devices import device_rows
from dray.sim.doctor.findings import Finding
from dray.sim.doctor.rules import examine
from dray.sim.explain.answers import Answer, Stage
from dray.sim.explain.explainer import explain
from dray.sim.explain.subject import claim_subject, pod_subject
from dray.sim.manifest_pods import manifest_pods
from dray.sim.physical_devices import physical_devices
from dray.sim.rebalance.planner import RebalanceOptions, RebalancePlanner, pending_targets
from dray.sim.snapshot import Snapshot
from dray.sim.trial_cluster import TrialCluster, Unplaced
from dray.sim.whatif.changes import Changed, copies
from dray.sim.whatif.outcome import Outcome
from dray.sim.whatif.preemption import Preemption
from dray.sim.whatif.simulation import Run, simulate
from tests.property.sim.messy_clusters import MessyCluster

NOW: Final = datetime(2026, 1, 1, 2, tzinfo=UTC)
GATES: Final = FeatureGates()
PROBES_MAX: Final = 200

Law = Callable[[Snapshot], Iterator[str]]


def silent(*_: object) -> None:
    return


def waiting(snapshot: Snapshot) -> list[Pod]:
    """Return the Pods that have no node, and could get one."""
    found = [pod for pod in snapshot.pods if not pod.spec.node_name and not is_pod_done(pod)]
    return [pod for pod in found if pod.metadata.deletion_timestamp is None]


def explained(snapshot: Snapshot, pod: Pod) -> Answer:
    key = NamespacedName(pod.metadata.namespace or "", pod.metadata.name or "")
    return explain(snapshot, pod_subject(snapshot, key), NOW, gates=GATES)


def simulated(snapshot: Snapshot, manifests: Sequence[Document] = ()) -> Outcome:
    return simulate(Run(snapshot, Changed(snapshot), NOW, GATES, silent, Preemption.NEVER), manifests)


def alone(snapshot: Snapshot, pod: Pod) -> Snapshot:
    """The cluster with this Pod as the only one that waits."""
    others = {item.metadata.uid for item in waiting(snapshot)} - {pod.metadata.uid}
    pods = [item for item in snapshot.documents["Pod"] if item["metadata"]["uid"] not in others]
    return replace(snapshot, documents={**snapshot.documents, "Pod": pods})


def what_explain_says_is_what_simulate_does(snapshot: Snapshot) -> Iterator[str]:
    for pod in waiting(snapshot)[:2]:
        single = alone(snapshot, pod)
        verdict = explained(single, pod).verdict
        assert verdict is not None
        outcome = simulated(single)
        placed = any(item.name == pod.metadata.name for item in outcome.placed)
        fits = verdict.text.startswith("fits")
        if fits and not placed:
            why = [item.why for item in outcome.pending if item.name == pod.metadata.name]
            yield f"{pod.metadata.name}: explain: {verdict.sentence!r}; simulate: {why}"
        going = any(item.metadata.deletion_timestamp for item in single.pods if item.spec.node_name)
        if not fits and placed and not going and verdict.stage is not Stage.PREEMPTION:
            yield f"{pod.metadata.name}: explain: {verdict.sentence!r}; simulate places it"
        if not fits and not placed and not going:
            (reason,) = [item.why for item in outcome.pending if item.name == pod.metadata.name]
            if reason != (verdict.why or verdict.text):
                yield f"{pod.metadata.name}: explain: {verdict.text!r}; simulate: {reason!r}"


def what_plan_adds_is_enough(snapshot: Snapshot) -> Iterator[str]:
    cluster = TrialCluster(snapshot)
    if any(entry.claim_name is None for item in cluster.pending for entry in pod_claims(_of(snapshot, item.key))):
        # Until its claims are created, a Pod is behind others, whatever its priority is.
        return
    shapes = existing_shapes(snapshot)
    plan = AdditionPlanner(cluster, shapes, PlanOptions(uses_solver=False), silent).plan(cluster.pending)
    by_name = {shape.name: shape for shape in shapes}
    added: list[Document] = []
    for node in plan.added:
        shape = by_name[node.shape]
        added += copies(shape.documents, shape.stem, node.name)
    after = simulated(snapshot, added)
    claimed = {item.pod for item in plan.placements}
    missing = {f"{item.namespace}/{item.name}": item.why for item in after.pending}
    for name in sorted(claimed & missing.keys()):
        yield f"plan places {name} with {[node.name for node in plan.added]}; simulate: {missing[name]}"


def _of(snapshot: Snapshot, key: NamespacedName) -> Pod:
    return next(pod for pod in snapshot.pods if (pod.metadata.namespace, pod.metadata.name) == key)


def what_is_free_can_be_taken(snapshot: Snapshot) -> Iterator[str]:
    rows = {row.name: row for row in usage.by_class(physical_devices(snapshot))}
    roomy = _with_room(snapshot)
    for name in ("gpu",):
        if name not in rows or name not in {item.metadata.name for item in snapshot.classes}:
            continue
        # The scheduler does not see that a Pod has a device by a device plugin.
        kept = sum(count for why, count in rows[name].reasons.items() if why.startswith(("kept", "in use as")))
        taken = _taken_by_probes(roomy, name)
        if taken != rows[name].free + kept:
            yield f"class {name}: {rows[name].free} free and {kept} kept, {taken} probes fit ({rows[name].reasons})"


def _with_room(snapshot: Snapshot) -> Snapshot:
    """Let nodes that take a Pod take many: what counts here is devices."""

    def roomy(node: Document) -> Document:
        allocatable = node["status"]["allocatable"]
        more = "110" if allocatable["pods"] == "0" else "1000"
        pods = allocatable["pods"] if more == "110" else more
        return {**node, "status": {**node["status"], "allocatable": {**allocatable, "pods": pods}}}

    nodes = [roomy(node) for node in snapshot.documents.get("Node", ())]
    quotas: list[Document] = []
    return replace(snapshot, documents={**snapshot.documents, "Node": nodes, "ResourceQuota": quotas})


def _taken_by_probes(snapshot: Snapshot, class_name: str) -> int:
    cluster = TrialCluster(snapshot)
    request = {"name": "r", "exactly": {"deviceClassName": class_name}}
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "probe", "namespace": "probes"},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }
    spec = {
        "containers": [{"name": "c", "image": "i"}],
        "resourceClaims": [{"name": "d", "resourceClaimTemplateName": "probe"}],
    }
    metadata = {"name": "probe", "namespace": "probes"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    made = manifest_pods([template, pod], snapshot, times=PROBES_MAX, namespace="probes")
    for item in made.templates:
        cluster.add_template(item)
    count = 0
    for probe in made.pods:
        if isinstance(cluster.place(cluster.prepare(probe)), Unplaced):
            break
        count += 1
    return count


def a_fix_removes_its_finding(snapshot: Snapshot) -> Iterator[str]:
    before = examine(snapshot, NOW)
    names = {(finding.rule, finding.subject) for finding in before}
    for finding in before:
        if finding.fix is None:
            continue
        found = examine(_patched(snapshot, finding), NOW)
        if finding.what in {item.what for item in found if item.subject == finding.subject}:
            yield f"{finding} is there after its fix"
        if new := {(item.rule, item.subject) for item in found} - names:
            yield f"the fix of {finding} adds {sorted(new)}"


def _patched(snapshot: Snapshot, finding: Finding) -> Snapshot:
    fix = finding.fix
    assert fix is not None
    items = []
    for item in snapshot.documents[fix.kind]:
        metadata = item["metadata"]
        is_it = (metadata.get("namespace") or "", metadata["name"]) == (fix.namespace, fix.name)
        items.append(_with_operations(item, fix.operations) if is_it else item)
    return replace(snapshot, documents={**snapshot.documents, fix.kind: items})


def _with_operations(document: Document, operations: tuple[dict[str, Any], ...]) -> Document:
    import copy

    made = copy.deepcopy(document)
    for operation in operations:
        *path, last = operation["path"].strip("/").split("/")
        target: Any = made
        for part in path:
            target = target[int(part)] if isinstance(target, list) else target[part]
        key: Any = int(last) if isinstance(target, list) else last
        if operation["op"] == "test":
            assert target[key] == operation["value"]
        else:
            del target[key]
    return made


def what_was_not_read_is_not_judged(snapshot: Snapshot) -> Iterator[str]:
    """No tool fails on a dump without kinds, and none says that an object of such a kind does not exist."""
    unread = {kind for kind in snapshot.partial if snapshot.unread(kind)}
    texts = [explained(snapshot, pod).sentence for pod in snapshot.pods[:4]]
    for claim in snapshot.claims[:3]:
        key = NamespacedName(claim.metadata.namespace or "", claim.metadata.name or "")
        texts.append(explain(snapshot, claim_subject(snapshot, key), NOW, gates=GATES).sentence)
    texts += [f"{finding.subject} {finding.what} {finding.advice}" for finding in examine(snapshot, NOW)]
    device_rows(snapshot)
    usage.by_class(physical_devices(snapshot))
    usage.by_pool(snapshot)
    if "Node" not in unread:
        cluster = TrialCluster(snapshot)
        texts += [why for _, why in cluster.blocked]
        planner = RebalancePlanner(snapshot, RebalanceOptions(NAMED_PROFILES[SPREAD], GATES))
        texts += [item.why for item in planner.plan_for(pending_targets(planner.cluster)).not_helped]
    words = {"Node": "node", "DeviceClass": "DeviceClass", "ResourceClaimTemplate": "ResourceClaimTemplate"}
    words |= {"ResourceClaim": "claim", "Pod": "Pod"}
    for text in texts:
        for kind, word in words.items():
            if kind in unread and "does not exist" in text and f"{word} " in text.partition("does not exist")[0]:
                yield f"without {sorted(unread & words.keys())}: {text}"


LAWS: Final[tuple[Law, ...]] = (
    what_explain_says_is_what_simulate_does,
    what_plan_adds_is_enough,
    what_is_free_can_be_taken,
    a_fix_removes_its_finding,
)
ALL_LAWS: Final[tuple[Law, ...]] = (*LAWS, what_was_not_read_is_not_judged)


def breaches(law: Law, seed: int) -> list[str]:
    """Return how the cluster of a seed breaks a law."""
    cluster = MessyCluster(seed)
    return list(law(cluster.dump() if law is what_was_not_read_is_not_judged else cluster.snapshot()))
