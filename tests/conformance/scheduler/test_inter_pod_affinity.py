"""InterPodAffinity: which nodes pass, how they score, and which changes requeue a Pod (kube-scheduler 1.36)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from dray.api.types.core_v1 import Node, Pod
from dray.framework.cycle_state import CycleState
from dray.framework.events import ASSIGNED_POD, NAMESPACE, NODE, UNSCHEDULED_POD, Action, ClusterEvent, Hint
from dray.framework.node_info import NodeInfo
from dray.framework.pod_info import PodInfo
from dray.framework.status import SUCCESS, Code
from dray.scheduler.plugins.inter_pod_affinity.plugin import InterPodAffinity
from tests.unit.scheduler.builders import handle, namespace, node, node_info, pod, pod_info, state

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
AFFINITY = "node(s) didn't match pod affinity rules"
ANTI_AFFINITY = "node(s) didn't match pod anti-affinity rules"
EXISTING = "node(s) didn't satisfy existing pods anti-affinity rules"
WEB, DB = {"app": "web"}, {"app": "db"}
ANYTHING: dict[str, Any] = {}


def term(labels: dict[str, str] | None = WEB, key: str = "zone", **more: Any) -> dict[str, Any]:
    """A term; labels None means no selector."""
    selector = {} if labels is None else {"labelSelector": {"matchLabels": labels}}
    return {"topologyKey": key, **selector, **more}


def near(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"podAffinity": {REQUIRED: list(terms)}}


def away(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"podAntiAffinity": {REQUIRED: list(terms)}}


def prefers(weight: int, *terms: dict[str, Any], anti: bool = False) -> dict[str, Any]:
    weighted = [{"weight": weight, "podAffinityTerm": item} for item in terms]
    return {"podAntiAffinity" if anti else "podAffinity": {PREFERRED: weighted}}


def cluster(**zones: Sequence[PodInfo]) -> list[NodeInfo]:
    """One node of each zone, named after it."""
    return [
        node_info(name, labels={"zone": name, "kubernetes.io/hostname": name}, pods=list(pods))
        for name, pods in zones.items()
    ]


@dataclass(frozen=True)
class Case:
    """A Pod, nodes, and the reason of each node that is rejected."""

    pod: PodInfo
    nodes: Sequence[NodeInfo]
    rejected: Mapping[str, str] = field(default_factory=dict)
    namespaces: Sequence[Any] = ()


WEB_POD = pod_info("web", labels=WEB)
DB_POD = pod_info("db", labels=DB)
LONELY = pod_info("lonely", affinity=away(term()))

CASES = {
    "no terms anywhere": Case(pod_info(), cluster(a=[WEB_POD], b=[])),
    "affinity: in the zone of a matching Pod": Case(
        pod_info(affinity=near(term())), cluster(a=[WEB_POD], b=[DB_POD]), {"b": AFFINITY}
    ),
    "affinity: a node without the key": Case(
        pod_info(affinity=near(term())), [*cluster(a=[WEB_POD]), node_info("bare")], {"bare": AFFINITY}
    ),
    "affinity: matching Pods on nodes without the key do not count": Case(
        pod_info(affinity=near(term())),
        [*cluster(a=[]), node_info("bare", pods=[WEB_POD])],
        {"a": AFFINITY, "bare": AFFINITY},
    ),
    "affinity: other namespace": Case(
        pod_info(affinity=near(term())),
        cluster(a=[pod_info("web", labels=WEB, namespace="other")]),
        {"a": AFFINITY},
    ),
    "affinity: named namespace": Case(
        pod_info(affinity=near(term(namespaces=["other"]))),
        cluster(a=[pod_info("web", labels=WEB, namespace="other")], b=[WEB_POD]),
        {"b": AFFINITY},
    ),
    "affinity: selected namespaces": Case(
        pod_info(affinity=near(term(namespaceSelector={"matchLabels": {"team": "x"}}))),
        cluster(a=[pod_info("web", labels=WEB, namespace="other")], b=[WEB_POD]),
        {"b": AFFINITY},
        [namespace("other", team="x"), namespace("default")],
    ),
    "affinity: names joined with selected namespaces": Case(
        pod_info(affinity=near(term(namespaces=["default"], namespaceSelector={"matchLabels": {"team": "x"}}))),
        cluster(a=[pod_info("web", labels=WEB, namespace="other")], b=[WEB_POD], c=[]),
        {"c": AFFINITY},
        [namespace("other", team="x"), namespace("default")],
    ),
    "affinity: an empty selector of namespaces means all": Case(
        pod_info(affinity=near(term(namespaceSelector={}))),
        cluster(a=[pod_info("web", labels=WEB, namespace="other")], b=[]),
        {"b": AFFINITY},
        [namespace("other"), namespace("default")],
    ),
    "affinity: a selector that matches unlabelled namespaces matches them once": Case(
        pod_info(
            affinity=away(term(namespaceSelector={"matchExpressions": [{"key": "x", "operator": "DoesNotExist"}]}))
        ),
        cluster(a=[pod_info("web", labels=WEB, namespace="labelled")], b=[WEB_POD]),
        {"b": ANTI_AFFINITY},
        [namespace("labelled", x="1"), namespace("default")],
    ),
    "affinity: no label selector matches nothing": Case(
        pod_info(affinity=near(term(None))), cluster(a=[WEB_POD]), {"a": AFFINITY}
    ),
    "affinity: an empty label selector matches everything": Case(
        pod_info(affinity=near(term({}))), cluster(a=[WEB_POD], b=[]), {"b": AFFINITY}
    ),
    "affinity: the first Pod of a group": Case(
        pod_info(labels=WEB, affinity=near(term())),
        [*cluster(a=[], b=[DB_POD]), node_info("bare")],
        {"bare": AFFINITY},
    ),
    "affinity: not the first Pod of a group": Case(
        pod_info(labels=WEB, affinity=near(term())), cluster(a=[WEB_POD], b=[]), {"b": AFFINITY}
    ),
    "affinity: the first Pod must match all of its terms": Case(
        pod_info(labels=WEB, affinity=near(term(), term(DB))), cluster(a=[]), {"a": AFFINITY}
    ),
    "affinity: the first Pod must match in its own namespace": Case(
        pod_info(labels=WEB, affinity=near(term(namespaces=["other"]))), cluster(a=[]), {"a": AFFINITY}
    ),
    "affinity: one Pod must match all terms": Case(
        pod_info(affinity=near(term(), term(DB))), cluster(a=[WEB_POD, DB_POD]), {"a": AFFINITY}
    ),
    "affinity: one Pod matches all terms, of two keys": Case(
        pod_info(affinity=near(term(), term({"tier": "x"}, "kubernetes.io/hostname"))),
        [
            *cluster(a=[pod_info("both", labels=WEB | {"tier": "x"})], b=[WEB_POD]),
            node_info("a2", labels={"zone": "a", "kubernetes.io/hostname": "a2"}),
        ],
        {"b": AFFINITY, "a2": AFFINITY},
    ),
    "affinity: Pods match one term each, of two keys": Case(
        pod_info(affinity=near(term(), term(DB, "kubernetes.io/hostname"))),
        cluster(a=[WEB_POD], b=[DB_POD]),
        {"a": AFFINITY, "b": AFFINITY},
    ),
    "affinity: Pods on nodes that the Pod cannot use count": Case(
        pod_info(affinity=near(term()), nodeSelector={"disk": "ssd"}),
        [*cluster(a=[WEB_POD]), node_info("a2", labels={"zone": "a", "disk": "ssd"})],
    ),
    "anti-affinity by host name": Case(
        pod_info(affinity=away(term(key="kubernetes.io/hostname"))),
        [*cluster(a=[WEB_POD]), node_info("a2", labels={"zone": "a", "kubernetes.io/hostname": "a2"})],
        {"a": ANTI_AFFINITY},
    ),
    "anti-affinity": Case(pod_info(affinity=away(term())), cluster(a=[WEB_POD], b=[DB_POD]), {"a": ANTI_AFFINITY}),
    "anti-affinity: a node without the key passes": Case(
        pod_info(affinity=away(term())), [node_info("bare", pods=[WEB_POD])]
    ),
    "anti-affinity: each term counts by itself": Case(
        pod_info(affinity=away(term(), term(DB))),
        cluster(a=[WEB_POD], b=[DB_POD], c=[]),
        {"a": ANTI_AFFINITY, "b": ANTI_AFFINITY},
    ),
    "anti-affinity: the Pod itself does not count": Case(
        pod_info(labels=WEB, affinity=away(term())), cluster(a=[], b=[])
    ),
    "anti-affinity: terminating Pods count": Case(
        pod_info(affinity=away(term())),
        cluster(a=[pod_info("gone", labels=WEB, deleted=True)]),
        {"a": ANTI_AFFINITY},
    ),
    "affinity comes first": Case(
        pod_info(affinity=near(term(DB)) | away(term())), cluster(a=[WEB_POD]), {"a": AFFINITY}
    ),
    "own anti-affinity comes before that of others": Case(
        pod_info(labels=WEB, affinity=away(term(None), term({"app": "x"}))),
        cluster(a=[pod_info("x", labels={"app": "x"}, affinity=away(term()))]),
        {"a": ANTI_AFFINITY},
    ),
    "existing: anti-affinity of a Pod in the zone": Case(
        pod_info(labels=WEB), cluster(a=[LONELY], b=[]), {"a": EXISTING}
    ),
    "existing: other labels": Case(pod_info(labels=DB), cluster(a=[LONELY], b=[])),
    "existing: other namespace": Case(pod_info(labels=WEB, namespace="other"), cluster(a=[LONELY])),
    "existing: selected namespaces": Case(
        pod_info(labels=WEB, namespace="other"),
        cluster(
            a=[pod_info("x", affinity=away(term(namespaceSelector={"matchLabels": {"team": "x"}})))],
            b=[pod_info("y", affinity=away(term(namespaceSelector={"matchLabels": {"team": "y"}})))],
        ),
        {"a": EXISTING},
        [namespace("other", team="x")],
    ),
    "existing: the labels of an unknown namespace are empty": Case(
        pod_info(labels=WEB, namespace="unknown"),
        cluster(
            a=[pod_info("x", affinity=away(term(namespaceSelector={"matchLabels": {"team": "x"}})))],
            b=[
                pod_info(
                    "y",
                    affinity=away(
                        term(namespaceSelector={"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]})
                    ),
                )
            ],
        ),
        {"b": EXISTING},
    ),
    "existing: required affinity of others rejects nobody": Case(
        pod_info(labels=DB), cluster(a=[pod_info("x", affinity=near(term()))])
    ),
}


def plugin_of(nodes: Sequence[NodeInfo], namespaces: Sequence[Any] = (), **args: Any) -> InterPodAffinity:
    return InterPodAffinity(args, handle(*nodes, namespaces=namespaces))


def rejections(plugin: InterPodAffinity, attempt: CycleState, nodes: Sequence[NodeInfo]) -> dict[str, Any]:
    statuses = {item.name: plugin.filter(attempt, attempt.pod_info.pod, item) for item in nodes}
    return {name: status for name, status in statuses.items() if status is not SUCCESS}


@pytest.mark.behaviour(
    "IA-02", "IA-03", "IA-04", "IA-08", "IA-09", "IA-10", "IA-11", "IA-12", "IA-13", "IA-14", "IA-16", "IA-17"
)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_filter(case: Case) -> None:
    plugin = plugin_of(case.nodes, case.namespaces)
    attempt = state(case.pod)
    _, status = plugin.pre_filter(attempt, case.pod.pod)
    if status.code is Code.SKIP:
        assert not case.rejected
        return
    found = rejections(plugin, attempt, case.nodes)
    assert {name: answer.message for name, answer in found.items()} == case.rejected
    for answer in found.values():
        unresolvable = answer.message == AFFINITY
        assert answer.code is (Code.UNSCHEDULABLE_AND_UNRESOLVABLE if unresolvable else Code.UNSCHEDULABLE)


@pytest.mark.behaviour("IA-08")
def test_skips_pods_without_anything_to_check() -> None:
    for nodes in (cluster(a=[WEB_POD]), cluster(a=[LONELY]), cluster(a=[pod_info("x", affinity=near(term({})))])):
        assert plugin_of(nodes).pre_filter(state(DB_POD), DB_POD.pod)[1].code is Code.SKIP


@pytest.mark.behaviour("IA-07")
def test_a_selector_that_cannot_be_parsed() -> None:
    expression = {"key": "a", "operator": "Like", "values": ["b"]}
    info = pod_info(affinity=near({"topologyKey": "zone", "labelSelector": {"matchExpressions": [expression]}}))
    _, status = plugin_of(cluster(a=[])).pre_filter(state(info), info.pod)
    assert status.code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE
    assert status.message == 'parsing pod: "Like" is not a valid label selector operator'


@pytest.mark.behaviour("IA-15")
@pytest.mark.parametrize(
    "spec", [near(term()), away(term()), away(term(DB)), near(term(), term(WEB, "kubernetes.io/hostname"))]
)
def test_added_and_removed_pods_count_in_a_copy_only(spec: dict[str, Any]) -> None:
    nodes = cluster(a=[WEB_POD], b=[], c=[pod_info("x", labels=DB, affinity=away(term()))])
    info = pod_info("new", labels=WEB, affinity=spec)
    plugin = plugin_of(nodes)
    attempt = state(info)
    plugin.pre_filter(attempt, info.pod)
    before = rejections(plugin, attempt, nodes)
    copy = state(info)
    copy.update({key: value.clone() for key, value in attempt.items()})
    changed = [nodes[0].without_pod("uid-web"), nodes[1].with_pod(WEB_POD), nodes[2].without_pod("uid-x")]
    plugin.remove_pod(copy, info.pod, WEB_POD, changed[0])
    plugin.add_pod(copy, info.pod, WEB_POD, changed[1])
    plugin.remove_pod(copy, info.pod, nodes[2].pods["uid-x"], changed[2])
    expected_plugin, expected = plugin_of(changed), state(info)
    expected_plugin.pre_filter(expected, info.pod)
    assert rejections(plugin, copy, changed) == rejections(expected_plugin, expected, changed)
    assert rejections(plugin, attempt, nodes) == before


@pytest.mark.behaviour("IA-10", "IA-15")
def test_removing_the_last_matching_pod_makes_the_group_empty() -> None:
    nodes = cluster(a=[WEB_POD], b=[])
    info = pod_info("new", labels=WEB, affinity=near(term()))
    plugin, attempt = plugin_of(nodes), state(info)
    plugin.pre_filter(attempt, info.pod)
    assert set(rejections(plugin, attempt, nodes)) == {"b"}
    plugin.remove_pod(attempt, info.pod, WEB_POD, nodes[0].without_pod("uid-web"))
    assert not rejections(plugin, attempt, nodes)


# --- Scores. ---


def scores(info: PodInfo, nodes: Sequence[NodeInfo], **args: Any) -> list[int] | None:
    plugin = InterPodAffinity(args, handle(*nodes, namespaces=[namespace("default")]))
    attempt = state(info)
    if plugin.pre_score(attempt, info.pod, nodes).code is Code.SKIP:
        return None
    found = plugin.score_all(attempt, info.pod, nodes)
    assert found == [plugin.score(attempt, info.pod, item) for item in nodes]
    plugin.normalize_scores(attempt, info.pod, found)
    return found


SCORES: dict[str, tuple[PodInfo, list[NodeInfo], dict[str, Any], list[int] | None]] = {
    "nothing to count": (pod_info(affinity=prefers(5, term())), cluster(a=[DB_POD], b=[]), {}, None),
    "no terms": (pod_info(), cluster(a=[WEB_POD]), {}, None),
    "near": (pod_info(affinity=prefers(5, term())), cluster(a=[WEB_POD], b=[], c=[]), {}, [100, 0, 0]),
    "away": (pod_info(affinity=prefers(5, term(), anti=True)), cluster(a=[WEB_POD], b=[]), {}, [0, 100]),
    "by number": (
        pod_info(affinity=prefers(5, term())),
        cluster(a=[WEB_POD, pod_info("w2", labels=WEB), pod_info("w3", labels=WEB)], b=[WEB_POD], c=[]),
        {},
        [100, 33, 0],
    ),
    "terms one by one": (
        pod_info(affinity=prefers(2, term(), term(DB))),
        cluster(a=[WEB_POD, DB_POD], b=[WEB_POD], c=[]),
        {},
        [100, 50, 0],
    ),
    "all equal": (pod_info(affinity=prefers(2, term())), cluster(a=[WEB_POD], b=[WEB_POD]), {}, [0, 0]),
    "a node without labels": (
        pod_info(affinity=prefers(2, term())),
        [*cluster(a=[WEB_POD]), node_info("bare", pods=[WEB_POD])],
        {},
        [100, 0],
    ),
    "existing Pods prefer": (
        pod_info(labels=WEB),
        cluster(a=[pod_info("x", affinity=prefers(3, term()))], b=[], c=[]),
        {},
        [100, 0, 0],
    ),
    "existing Pods prefer distance": (
        pod_info(labels=WEB),
        cluster(a=[pod_info("x", affinity=prefers(3, term(), anti=True))], b=[]),
        {},
        [0, 100],
    ),
    "existing Pods require, with the default weight": (
        pod_info(labels=WEB),
        cluster(a=[pod_info("x", affinity=near(term()))], b=[pod_info("y", affinity=prefers(4, term()))], c=[]),
        {},
        [25, 100, 0],
    ),
    "existing Pods require, with a weight": (
        pod_info(labels=WEB),
        cluster(a=[pod_info("x", affinity=near(term()))], b=[pod_info("y", affinity=prefers(50, term()))], c=[]),
        {"hardPodAffinityWeight": 100},
        [100, 50, 0],
    ),
    "existing Pods require one of several terms": (
        pod_info(labels=WEB),
        cluster(a=[pod_info("x", affinity=near(term(), term(DB)))], b=[]),
        {},
        [100, 0],
    ),
    "existing Pods require, without weight": (
        pod_info(labels=WEB),
        cluster(a=[pod_info("x", affinity=near(term()))], b=[]),
        {"hardPodAffinityWeight": 0},
        None,
    ),
    "existing Pods' preferences ignored": (
        pod_info(labels=WEB),
        cluster(a=[pod_info("x", affinity=prefers(3, term()))], b=[]),
        {"ignorePreferredTermsOfExistingPods": True},
        None,
    ),
    "existing Pods' preferences are not ignored for Pods with own ones": (
        pod_info(labels=WEB, affinity=prefers(1, term(DB))),
        cluster(a=[pod_info("x", affinity=prefers(3, term()))], b=[DB_POD], c=[]),
        {"ignorePreferredTermsOfExistingPods": True},
        [100, 33, 0],
    ),
    "fractions are cut off": (
        pod_info(affinity=prefers(1, term())),
        cluster(
            a=[pod_info(f"w{number}", labels=WEB) for number in range(7)],
            b=[pod_info(f"v{number}", labels=WEB) for number in range(2)],
            c=[],
        ),
        {},
        [100, 28, 0],
    ),
}


@pytest.mark.behaviour("IA-18", "IA-19", "IA-20", "IA-21", "IA-22")
@pytest.mark.parametrize(("info", "nodes", "args", "expected"), SCORES.values(), ids=SCORES)
def test_score(info: PodInfo, nodes: list[NodeInfo], args: dict[str, Any], expected: list[int] | None) -> None:
    assert scores(info, nodes, **args) == expected


@pytest.mark.behaviour("IA-18")
@pytest.mark.parametrize(
    ("args", "text"),
    [
        ({"hardPodAffinityWeight": -1}, "hardPodAffinityWeight: Invalid value: -1: not in valid range [0, 100]"),
        ({"hardPodAffinityWeight": 101}, "hardPodAffinityWeight: Invalid value: 101: not in valid range [0, 100]"),
        ({"hardPodAffinityWeight": "1"}, "hardPodAffinityWeight: must be an integer"),
        ({"ignorePreferredTermsOfExistingPods": 1}, "ignorePreferredTermsOfExistingPods: must be true or false"),
        ({"other": 1}, "other: not supported"),
    ],
)
def test_bad_arguments(args: dict[str, Any], text: str) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        plugin_of([], **args)
    assert str(caught.value) == text


# --- Queueing hints. ---

NEAR, AWAY = pod(affinity=near(term())), pod(affinity=away(term()))
TWO = pod(affinity=near(term(), term({"tier": "x"})))
BOTH_LABELS = {"app": "web", "tier": "x"}
ON = {"node": "n"}
ZONE = {"zone": "a"}
SELECTING = pod(affinity=near(term(namespaceSelector={"matchLabels": {"team": "x"}})))


@pytest.mark.behaviour("IA-23", "IA-24", "IA-25", "IA-26", "IA-27")
@pytest.mark.parametrize(
    ("waiting", "resource", "action", "old", "new", "wakes"),
    [
        # IA-24
        (NEAR, ASSIGNED_POD, Action.ADD, None, pod("o", labels=WEB, **ON), True),
        (NEAR, ASSIGNED_POD, Action.ADD, None, pod("o", labels=DB, **ON), False),
        (TWO, ASSIGNED_POD, Action.ADD, None, pod("o", labels=WEB, **ON), False),
        (TWO, ASSIGNED_POD, Action.ADD, None, pod("o", labels=BOTH_LABELS, **ON), True),
        (AWAY, ASSIGNED_POD, Action.ADD, None, pod("o", labels=WEB, **ON), False),
        (NEAR, ASSIGNED_POD, Action.UPDATE_POD_LABEL, pod("o", **ON), pod("o", labels=WEB, **ON), True),
        (NEAR, ASSIGNED_POD, Action.UPDATE_POD_LABEL, pod("o", labels=WEB, **ON), pod("o", **ON), False),
        (NEAR, ASSIGNED_POD, Action.UPDATE_POD_LABEL, pod("o", labels=WEB, **ON), pod("o", labels=WEB, **ON), False),
        (AWAY, ASSIGNED_POD, Action.UPDATE_POD_LABEL, pod("o", labels=WEB, **ON), pod("o", **ON), True),
        (AWAY, ASSIGNED_POD, Action.UPDATE_POD_LABEL, pod("o", **ON), pod("o", labels=WEB, **ON), False),
        (AWAY, ASSIGNED_POD, Action.DELETE, pod("o", labels=WEB, **ON), None, True),
        (AWAY, ASSIGNED_POD, Action.DELETE, pod("o", labels=DB, **ON), None, False),
        (NEAR, ASSIGNED_POD, Action.DELETE, pod("o", labels=WEB, **ON), None, False),
        (pod(labels=WEB), ASSIGNED_POD, Action.DELETE, pod("o", affinity=away(term()), **ON), None, True),
        (pod(labels=DB), ASSIGNED_POD, Action.DELETE, pod("o", affinity=away(term()), **ON), None, False),
        (NEAR, UNSCHEDULED_POD, Action.UPDATE_POD_LABEL, pod(), pod(labels=WEB), True),
        # IA-25
        (NEAR, NODE, Action.ADD, None, node(labels=ZONE), True),
        (NEAR, NODE, Action.ADD, None, node(), False),
        (NEAR, NODE, Action.UPDATE_NODE_LABEL, node(), node(labels=ZONE), True),
        (NEAR, NODE, Action.UPDATE_NODE_LABEL, node(labels=ZONE), node(labels={"zone": "b"}), True),
        (NEAR, NODE, Action.UPDATE_NODE_LABEL, node(labels=ZONE), node(labels=ZONE | {"x": "y"}), False),
        (NEAR, NODE, Action.UPDATE_NODE_LABEL, node(labels=ZONE), node(), False),
        # IA-26
        (AWAY, NODE, Action.ADD, None, node(), True),
        (AWAY, NODE, Action.UPDATE_NODE_LABEL, node(labels=ZONE), node(), True),
        (AWAY, NODE, Action.UPDATE_NODE_LABEL, node(labels=ZONE), node(labels={"zone": "b"}), True),
        (AWAY, NODE, Action.UPDATE_NODE_LABEL, node(), node(labels=ZONE), False),
        (AWAY, NODE, Action.UPDATE_NODE_LABEL, node(labels=ZONE), node(labels=ZONE | {"x": "y"}), False),
        (pod(), NODE, Action.ADD, None, node(), True),
        (pod(), NODE, Action.UPDATE_NODE_LABEL, node(labels=ZONE), node(), True),
        # IA-27
        (SELECTING, NAMESPACE, Action.UPDATE, namespace("o"), namespace("o", team="x"), True),
        (SELECTING, NAMESPACE, Action.UPDATE, namespace("o"), namespace("o", team="y"), False),
        (SELECTING, NAMESPACE, Action.ADD, None, namespace("o", team="x"), True),
        (NEAR, NAMESPACE, Action.UPDATE, namespace("o"), namespace("o", team="x"), False),
        (pod(), NAMESPACE, Action.UPDATE, namespace("default"), namespace("default", team="x"), True),
        (pod(), NAMESPACE, Action.UPDATE, namespace("default"), namespace("default"), False),
    ],
)
def test_hint(
    *, waiting: Pod, resource: str, action: Action, old: Pod | Node | None, new: Pod | Node | None, wakes: bool
) -> None:
    registered = [
        item for item in plugin_of([]).events_to_register() if item.event.covers(ClusterEvent(resource, action))
    ]
    assert registered
    found = [item.hint is None or item.hint(waiting, old, new) is Hint.QUEUE for item in registered]
    assert any(found) is wakes
