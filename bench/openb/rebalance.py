"""What moves of Pods gain on the trace: allocation after 1, 5 and 10 % of the Pods were moved, and a bound.

The Pods of a list arrive until they request all GPUs. Then `dray rebalance`'s search makes room for those that were
passed over, the ones with most GPUs first and those that need few moves before the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from bench.openb import objects
from bench.openb.bound import bound
from bench.openb.trace import TraceNode, TracePod, arrivals, arrived, milli_gpus
from dray.api.codec import from_document
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import ResourceClaim
from dray.scheduler.config import ProfileConfig
from dray.sim.free_resources import FreeResources
from dray.sim.placer import PlacedPod
from dray.sim.rebalance.relocations import RelocationFinder, carry_out
from dray.sim.snapshot import Snapshot
from dray.sim.trial_cluster import TrialCluster, TrialPod, Unplaced

# Moves as a share of the Pods on nodes.
PERCENTAGES: Final = (1, 5, 10)
# One Pod may cost this many moves, in each round; and so many nodes are tried for it.
ROUNDS: Final = (1, 2, 4)
CANDIDATES: Final = 8
_ALL: Final = 100

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Rebalanced:
    """One run: percent of all GPUs allocated, before and after so many moves, and at most."""

    seed: int
    pods: int
    before: float
    # Share of Pods moved, in percent -> (moves made, allocation).
    after: dict[int, tuple[int, float]]
    bound: float


def rebalance(
    nodes: Sequence[TraceNode], pods: Sequence[TracePod], seed: int, profile: ProfileConfig, progress: Progress
) -> Rebalanced:
    """Schedule the arrivals up to 100 %, and move Pods to make space for those that did not fit."""
    run = _Run(nodes, profile, progress)
    total = milli_gpus(nodes)
    for number, pod in enumerate(arrived(arrivals(pods, total, seed), total)):
        run.place(number, pod)
    before = _ALL * run.allocated / total
    count = len(run.placed)
    limits = {percent: max(count * percent // _ALL, 1) for percent in PERCENTAGES}
    points = run.move(max(limits.values()))
    after = {}
    for percent, limit in limits.items():
        moves, allocated = max((point for point in points if point[0] <= limit), default=(0, run.first_allocated))
        after[percent] = moves, _ALL * allocated / total
    return Rebalanced(seed, count, before, after, _ALL * run.bound() / total)


class _Run:
    """The cluster of one seed."""

    def __init__(self, nodes: Sequence[TraceNode], profile: ProfileConfig, progress: Progress) -> None:
        self._nodes = nodes
        documents = [_with("v1", "Node", objects.node(item)) for item in nodes]
        documents += [
            _with("resource.k8s.io/v1", "ResourceSlice", document)
            for item in nodes
            for document in objects.slices(item)
        ]
        documents.append(_with("resource.k8s.io/v1", "DeviceClass", objects.device_class()))
        self._cluster = TrialCluster(Snapshot.of(documents), profile)
        self._progress = progress
        self._moved: set[str] = set()
        self.placed: dict[str, TracePod] = {}
        self._passed_over: list[tuple[TrialPod, TracePod]] = []
        self.allocated = self.first_allocated = 0

    def place(self, number: int, pod: TracePod) -> None:
        """Schedule a Pod; skip it if it does not fit."""
        if not number % 500:
            self._progress(f"{number} Pods arrived")
        trial = _trial_pod(number, pod)
        if isinstance(self._cluster.place(trial), Unplaced):
            self._passed_over.append((trial, pod))
            return
        self.placed[trial.uid] = pod
        self.allocated += pod.total_milli_gpu
        self.first_allocated = self.allocated

    def move(self, moves_max: int) -> list[tuple[int, int]]:
        """Move Pods until the limit is reached; return (moves, allocated) after each Pod that was placed."""
        finder = RelocationFinder(self._cluster, self._is_movable, FreeResources(self._cluster), CANDIDATES)
        waiting = sorted(self._passed_over, key=lambda item: -item[1].total_milli_gpu)
        points: list[tuple[int, int]] = []
        moves = 0
        for victims_max in ROUNDS:
            left: list[tuple[TrialPod, TracePod]] = []
            failed: set[TracePod] = set()
            for number, (trial, pod) in enumerate(waiting):
                self._progress(f"at most {victims_max} moves: {number} of {len(waiting)}, {moves} of {moves_max} moves")
                limit = min(victims_max, moves_max - moves)
                relocation = finder.find(trial, limit) if limit and pod not in failed else None
                if relocation is None:
                    failed.add(pod)
                    left.append((trial, pod))
                    continue
                carry_out(self._cluster, relocation)
                assert isinstance(self._cluster.place(trial, on=relocation.node), PlacedPod), "there is room now"
                done = relocation.all_relocations
                self._moved |= {item.before.pod.metadata.uid or "" for item in done}
                moves += len(done)
                self.placed[trial.uid] = pod
                self.allocated += pod.total_milli_gpu
                points.append((moves, self.allocated))
            waiting = left
        self._passed_over = waiting
        return points

    def _is_movable(self, placed: PlacedPod) -> bool:
        return placed.pod.metadata.uid not in self._moved

    def bound(self) -> float:
        """Return the most GPUs that any packing of all arrived Pods allocates."""
        return bound(self._nodes, (*self.placed.values(), *(pod for _, pod in self._passed_over)))


def _with(api_version: str, kind: str, document: dict[str, object]) -> dict[str, object]:
    return {"apiVersion": api_version, "kind": kind, **document}


def _trial_pod(number: int, pod: TracePod) -> TrialPod:
    name = f"pod-{number}"
    claim = {"resourceClaimName": f"claim-{number}"} if pod.gpus else None
    document = objects.pod(number, pod, claim)
    document["metadata"] |= {"name": name, "uid": name}
    claims: tuple[ResourceClaim, ...] = ()
    if pod.gpus:
        metadata = {"namespace": objects.NAMESPACE, "name": f"claim-{number}", "uid": f"claim-{number}"}
        claims = (from_document(ResourceClaim, {"metadata": metadata, "spec": objects.claim_spec(pod)}),)
    return TrialPod(from_document(Pod, document), claims)
