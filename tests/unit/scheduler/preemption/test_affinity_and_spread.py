"""Dry runs of preemption with inter-pod affinity and spread constraints, and nominated Pods that count for them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from dray.framework.node_info import NodeInfo
from dray.framework.pod_info import PodInfo
from dray.framework.status import Status
from dray.scheduler.cycle import run_pre_filter
from dray.scheduler.filter_runner import runner_of
from dray.scheduler.nominations import Nominations
from dray.scheduler.plugins.inter_pod_affinity.plugin import InterPodAffinity
from dray.scheduler.plugins.pod_topology_spread.plugin import PodTopologySpread
from dray.scheduler.preemption.dry_run import Candidate, DryRun
from tests.unit.scheduler.builders import handle, node_info, pod_info, state
from tests.unit.scheduler.test_cycle import profile

NOW = datetime(2026, 1, 1, tzinfo=UTC)
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
WEB, DB = {"app": "web"}, {"app": "db"}
TERM = {"topologyKey": "zone", "labelSelector": {"matchLabels": WEB}}
AWAY = {"podAntiAffinity": {REQUIRED: [TERM]}}
NEAR = {"podAffinity": {REQUIRED: [TERM]}}
SPREAD = {
    "maxSkew": 1,
    "topologyKey": "zone",
    "whenUnsatisfiable": "DoNotSchedule",
    "labelSelector": {"matchLabels": WEB},
}


def zone(name: str, *pods: PodInfo) -> NodeInfo:
    return node_info(name, labels={"zone": name}, pods=pods)


def outcome(preemptor: PodInfo, nodes: Sequence[NodeInfo], nominated: PodInfo | None = None) -> list[str] | str:
    """The victims on the first node, or why there are none."""
    framework = handle(*nodes)
    used = profile(PodTopologySpread({}, framework), InterPodAffinity({}, framework))
    nominations = Nominations()
    if nominated is not None:
        nominations.set(nominated, nodes[0].name)
    attempt = state(preemptor)
    run_pre_filter(used, attempt, len(nodes))
    found: Candidate | Status = DryRun(runner_of(used, attempt, nominations), attempt, ()).on(nodes[0])
    return [item.key.name for item in found.victims] if isinstance(found, Candidate) else found.message


def high(**words: Any) -> PodInfo:
    return pod_info("high", priority=10, **words)


@pytest.mark.behaviour("IA-15", "PE-26", "TS-14")
@pytest.mark.parametrize(
    ("preemptor", "nodes", "expected"),
    [
        pytest.param(
            high(affinity=AWAY),
            [zone("a", pod_info("web", labels=WEB), pod_info("db", labels=DB))],
            ["web"],
            id="a Pod that the preemptor avoids goes, others are reprieved",
        ),
        pytest.param(
            high(labels=WEB),
            [zone("a", pod_info("lonely", affinity=AWAY), pod_info("db", labels=DB))],
            ["lonely"],
            id="a Pod that avoids the preemptor goes",
        ),
        pytest.param(
            high(affinity=AWAY),
            [zone("a", pod_info("web", labels=WEB, priority=10), pod_info("db", labels=DB))],
            "node(s) didn't match pod anti-affinity rules",
            id="a Pod of the same priority stays, and with it the rejection",
        ),
        pytest.param(
            high(affinity=AWAY),
            [
                node_info("a", labels={"zone": "x"}, pods=[pod_info("web", labels=WEB)]),
                node_info("b", labels={"zone": "x"}, pods=[pod_info("web2", labels=WEB)]),
            ],
            "node(s) didn't match pod anti-affinity rules",
            id="room is not made on other nodes of the zone",
        ),
        pytest.param(
            high(
                labels=DB,
                affinity=NEAR | {"podAntiAffinity": {REQUIRED: [TERM | {"labelSelector": {"matchLabels": DB}}]}},
            ),
            [zone("a", pod_info("web", labels=WEB), pod_info("db", labels=DB))],
            "node(s) didn't match pod affinity rules",
            id="where the company of a possible victim is needed, nobody goes",
        ),
        pytest.param(
            high(labels=WEB, topologySpreadConstraints=[SPREAD]),
            [
                zone("a", *(pod_info(f"w{number}", labels=WEB) for number in range(3)), pod_info("db", labels=DB)),
                zone("b", pod_info("v", labels=WEB)),
            ],
            ["w1", "w2"],
            id="so many Pods go that the skew fits",
        ),
        pytest.param(
            high(labels=WEB, topologySpreadConstraints=[SPREAD]),
            [zone("a", pod_info("gone", labels=WEB, deleted=True), pod_info("w", labels=WEB)), zone("b")],
            ["w"],
            id="a Pod that is being deleted did not count",
        ),
    ],
)
def test_victims(preemptor: PodInfo, nodes: list[NodeInfo], expected: list[str] | str) -> None:
    assert outcome(preemptor, nodes) == expected


@pytest.mark.behaviour("IA-14", "TS-15")
def test_nominated_pods_count() -> None:
    nominated = pod_info("nominated", labels=WEB, priority=20)
    nodes = [zone("a", pod_info("low")), zone("b")]
    assert outcome(high(affinity=AWAY), nodes, nominated) == "node(s) didn't match pod anti-affinity rules"
    spread = high(labels=WEB, topologySpreadConstraints=[SPREAD])
    assert outcome(spread, nodes, nominated) == "node(s) didn't match pod topology spread constraints"
