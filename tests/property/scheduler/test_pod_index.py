"""Counts that follow the snapshot change by change equal those that are computed from all Pods."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from dray.framework.node_info import NodeInfo
from dray.framework.pod_info import PodInfo
from dray.framework.snapshot import Snapshot
from dray.framework.status import Code
from dray.scheduler.cache import Cache
from dray.scheduler.plugins import pod_index
from dray.scheduler.plugins.inter_pod_affinity.plugin import InterPodAffinity
from dray.scheduler.plugins.pod_index import NodeChange, PodIndex
from dray.scheduler.plugins.pod_topology_spread.plugin import PodTopologySpread
from tests.unit.scheduler.builders import handle, namespace, node, pod, state

STEPS = 120
NAMES = [f"n{number}" for number in range(6)]
NAMESPACES = [namespace("default", team="x"), namespace("other", team="y")]
KEYS = ("zone", "rack", "missing")


class Steps:
    """Random changes of a cluster: nodes come, go and get other labels and taints, Pods come, change and go."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.cache = Cache()
        self.snapshot = Snapshot()
        self._pods: dict[str, str] = {}
        self._number = 0
        for name in NAMES[:4]:
            self._set_node(name)

    def take(self) -> None:
        """Change something, and perhaps update the snapshot."""
        rng = self._rng
        for _ in range(rng.randrange(4)):
            change = rng.choice((self._add_pod, self._add_pod, self._add_pod, self._change_pod, self._remove_pod))
            change()
        if rng.random() < 0.2:
            self._set_node(rng.choice(NAMES))
        if rng.random() < 0.05:
            self.cache.remove_node(rng.choice(NAMES))
        self.cache.update_snapshot(self.snapshot)

    def _set_node(self, name: str) -> None:
        rng = self._rng
        labels = {key: rng.choice("ab") for key in ("zone", "rack") if rng.random() < 0.9}
        labels["kubernetes.io/hostname"] = name
        taints = [{"key": "k", "effect": "NoSchedule"}] if rng.random() < 0.2 else []
        self.cache.set_node(node(name, labels=labels, taints=taints))

    def _add_pod(self) -> None:
        self._number += 1
        uid = f"p{self._number}"
        self._pods[uid] = self._rng.choice(NAMES)
        self.cache.set_pod(random_pod(self._rng, uid, nodeName=self._pods[uid]))

    def _change_pod(self) -> None:
        if self._pods:
            uid = self._rng.choice(sorted(self._pods))
            self.cache.set_pod(random_pod(self._rng, uid, nodeName=self._pods[uid]))

    def _remove_pod(self) -> None:
        if self._pods:
            uid = self._rng.choice(sorted(self._pods))
            del self._pods[uid]
            self.cache.remove_pod(uid)


def random_term(rng: random.Random) -> dict[str, Any]:
    found: dict[str, Any] = {
        "topologyKey": rng.choice(KEYS),
        "labelSelector": {"matchLabels": {"app": rng.choice("xy")}},
    }
    if rng.random() < 0.3:
        found["namespaceSelector"] = {"matchLabels": {"team": rng.choice("xy")}}
    if rng.random() < 0.2:
        found["namespaces"] = ["other"]
    return found


def random_pod(rng: random.Random, uid: str, **spec: Any) -> Any:
    affinity: dict[str, Any] = {}
    for kind in ("podAffinity", "podAntiAffinity"):
        if rng.random() < 0.25:
            affinity[kind] = {"requiredDuringSchedulingIgnoredDuringExecution": [random_term(rng)]}
        if rng.random() < 0.25:
            preferred = [{"weight": rng.randrange(1, 101), "podAffinityTerm": random_term(rng)}]
            affinity.setdefault(kind, {})["preferredDuringSchedulingIgnoredDuringExecution"] = preferred
    labels = {"app": rng.choice("xyz")}
    place = rng.choice(("default", "other"))
    return pod(
        uid, uid=uid, labels=labels, namespace=place, affinity=affinity or None, deleted=rng.random() < 0.1, **spec
    )


def answers(plugin: Any, info: PodInfo, nodes: Sequence[NodeInfo]) -> tuple[Any, ...]:
    """Everything that the plugin says about the Pod on these nodes."""
    attempt = state(info)
    _, status = plugin.pre_filter(attempt, info.pod)
    statuses = [] if status.code is Code.SKIP else [plugin.filter(attempt, info.pod, item) for item in nodes]
    if status.is_success:
        assert list(plugin.filter_all(attempt, info.pod, nodes)) == statuses
    scores = None
    if nodes and plugin.pre_score(attempt, info.pod, nodes).is_success:
        scores = plugin.score_all(attempt, info.pod, nodes)
        plugin.normalize_scores(attempt, info.pod, scores)
    return status.code, statuses, scores


def random_constraints(rng: random.Random) -> list[dict[str, Any]]:
    keys = rng.sample(("zone", "rack", "kubernetes.io/hostname"), rng.randrange(1, 3))
    return [
        {
            "topologyKey": key,
            "maxSkew": rng.randrange(1, 4),
            "whenUnsatisfiable": rng.choice(("DoNotSchedule", "ScheduleAnyway")),
            "labelSelector": rng.choice(({"matchLabels": {"app": rng.choice("xy")}}, {})),
            "nodeTaintsPolicy": rng.choice(("Honor", "Ignore")),
            "nodeAffinityPolicy": rng.choice(("Honor", "Ignore")),
        }
        for key in keys
    ]


@pytest.mark.behaviour("TS-07", "TS-14", "TS-23")
@pytest.mark.parametrize("seed", range(6))
def test_spread_equals_a_recount(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_index, "LOG_MAX", 7)
    monkeypatch.setattr(pod_index, "VIEWS_MAX", 12)
    rng = random.Random(seed)
    steps = Steps(rng)
    framework_handle = handle()
    object.__setattr__(framework_handle, "snapshot", steps.snapshot)
    plugin = PodTopologySpread({}, framework_handle)
    for number in range(STEPS):
        steps.take()
        selector = {"rack": rng.choice("ab")} if rng.random() < 0.3 else {}
        spread = random_constraints(rng)
        info = PodInfo(random_pod(rng, f"new-{number}", topologySpreadConstraints=spread, nodeSelector=selector))
        nodes = list(steps.snapshot.nodes)
        fresh = PodTopologySpread({}, handle(*nodes))
        assert answers(plugin, info, nodes) == answers(fresh, info, nodes)


@pytest.mark.behaviour("IA-08", "IA-21")
@pytest.mark.parametrize("seed", range(6))
def test_affinity_equals_a_recount(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_index, "LOG_MAX", 7)
    monkeypatch.setattr(pod_index, "VIEWS_MAX", 12)
    rng = random.Random(seed)
    steps = Steps(rng)
    framework_handle = handle(namespaces=NAMESPACES)
    object.__setattr__(framework_handle, "snapshot", steps.snapshot)
    plugin = InterPodAffinity({}, framework_handle)
    for number in range(STEPS):
        steps.take()
        info = PodInfo(random_pod(rng, f"new-{number}"))
        nodes = list(steps.snapshot.nodes)
        fresh = InterPodAffinity({}, handle(*nodes, namespaces=NAMESPACES))
        assert answers(plugin, info, nodes) == answers(fresh, info, nodes)


class CountedPods:
    """A view that counts the Pods in the changes that it received."""

    def __init__(self) -> None:
        self.received = 0
        self.pods: dict[str, PodInfo] = {}

    def apply(self, change: NodeChange) -> None:
        for info in change.removed:
            del self.pods[info.uid]
        self.pods |= {info.uid: info for info in change.added}
        self.received += len(change.removed) + len(change.added)


def test_a_change_costs_what_changed() -> None:
    cache, snapshot = Cache(), Snapshot()
    for name in NAMES:
        cache.set_node(node(name))
        for number in range(20):
            cache.set_pod(pod(f"{name}-{number}", nodeName=name))
    cache.update_snapshot(snapshot)
    index = PodIndex(snapshot)
    view = index.view("pods", CountedPods)
    assert view.received == len(view.pods) == 120
    # A Pod, a heartbeat and a new node concern nobody else.
    cache.set_pod(pod("new", nodeName="n1"))
    cache.set_node(node("n2", allocatable={"cpu": "8", "pods": "10"}))
    cache.set_node(node("n9"))
    cache.update_snapshot(snapshot)
    assert index.view("pods", CountedPods) is view
    assert view.received == len(view.pods) == 121
    # Other labels count as another node.
    cache.set_node(node("n2", labels={"zone": "a"}))
    cache.update_snapshot(snapshot)
    assert len(index.view("pods", CountedPods).pods) == 121
    assert view.received == 161


def test_unused_views_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_index, "LOG_MAX", 2)
    monkeypatch.setattr(pod_index, "UNUSED_LOGS_MAX", 1)
    cache, snapshot = Cache(), Snapshot()
    cache.set_node(node("n"))
    index = PodIndex(snapshot)
    unused = index.view("unused", CountedPods)
    for number in range(10):
        cache.set_pod(pod(f"p{number}", nodeName="n"))
        cache.update_snapshot(snapshot)
        assert len(index.view("used", CountedPods).pods) == number + 1
    assert index.view("unused", CountedPods) is not unused
