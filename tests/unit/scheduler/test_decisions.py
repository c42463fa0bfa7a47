"""The record of decisions: what a placement keeps about the nodes, and which decisions are kept."""

from __future__ import annotations

from datetime import UTC, datetime

from dray.framework.evaluation import REJECTIONS_MAX, group_rejections
from dray.framework.node_statuses import count_statuses
from dray.framework.snapshot import Snapshot
from dray.framework.status import unschedulable
from dray.scheduler.cycle import Cycle, highest_positions
from dray.scheduler.decisions import DecisionLog
from dray.scheduler.diagnosis import REASON_UNSCHEDULABLE, Diagnosis, Failure
from dray.scheduler.nominations import Nominations
from dray.scheduler.queued_pod import QueuedPod
from tests.unit.scheduler.builders import node_info, pod_info, state
from tests.unit.scheduler.test_cycle import Recorder, Steady, profile

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def recording(*names: str) -> Cycle:
    return Cycle(Snapshot([node_info(name) for name in names]), Nominations(), records=True)


def test_a_placement_keeps_scores_by_plugin_and_runners_up() -> None:
    plugins = (
        Recorder("A", [], **{"score x": 10, "score y": 30, "score z": 20}),
        Recorder("B", [], **{"score x": 5, "score y": 1, "score z": 2}),
    )
    current = state(pod_info())
    recording("x", "y", "z").place(profile(*plugins, weights={"B": 3}), current)
    assert current.evaluation is not None
    assert [(item.node, item.total, item.by_plugin) for item in current.evaluation.scores] == [
        ("y", 33, {"A": 30, "B": 3}),
        ("z", 26, {"A": 20, "B": 6}),
        ("x", 25, {"A": 10, "B": 15}),
    ]
    assert (current.evaluation.feasible, current.evaluation.evaluated, current.evaluation.node_count) == (3, 3, 3)


def test_a_placement_keeps_cached_scores_by_plugin() -> None:
    cycle, plugins = recording("1", "9", "3"), (Steady(), Recorder("B", [], **{"score 3": 50}))
    for _ in range(2):
        current = state(pod_info())
        cycle.place(profile(*plugins, weights={"Steady": 2}), current)
        assert current.evaluation is not None
        assert [(item.node, item.total, item.by_plugin) for item in current.evaluation.scores] == [
            ("3", 56, {"B": 50, "Steady": 6}),
            ("9", 18, {"B": 0, "Steady": 18}),
            ("1", 2, {"B": 0, "Steady": 2}),
        ]


def test_a_placement_keeps_the_reasons_of_rejected_nodes() -> None:
    small = unschedulable("too small")
    current = state(pod_info())
    recording("x", "y", "z").place(profile(Recorder("A", [], **{"filter x": small, "filter z": small})), current)
    assert current.evaluation is not None
    assert current.evaluation.scores == ()
    (group,) = current.evaluation.rejections
    assert (group.count, group.plugin, group.reasons) == (2, "A", ("too small",))
    assert group.example in ("x", "z")


def test_nothing_is_kept_unless_decisions_are_recorded() -> None:
    current = state(pod_info())
    Cycle(Snapshot([node_info("x")]), Nominations()).place(profile(Recorder("A", [])), current)
    assert current.evaluation is None


def test_highest_positions_are_those_of_a_stable_sort() -> None:
    values = [3, 9, 1, 9, 3, 9, 3]
    assert highest_positions(values, 5) == [1, 3, 5, 0, 4]
    assert highest_positions([7], 4) == [0]


def test_groups_are_the_largest_first_and_bounded() -> None:
    statuses = {f"n{number}": unschedulable(f"reason {number}") for number in range(REJECTIONS_MAX + 3)}
    statuses |= {f"m{number}": unschedulable("same") for number in range(5)}
    groups, unlisted = group_rejections(count_statuses(statuses))
    assert (groups[0].count, groups[0].reasons) == (5, ("same",))
    assert len(groups) == REJECTIONS_MAX
    assert sum(group.count for group in groups) + unlisted == len(statuses)


def test_a_diagnosis_lists_the_nodes_that_were_not_filtered() -> None:
    absent = unschedulable("not in the list").with_plugin("NodeAffinity")
    found = Diagnosis(10, {"a": unschedulable("full").with_plugin("Fit")}, absent).evaluation()
    assert [(group.count, group.plugin) for group in found.rejections] == [(1, "Fit"), (9, "NodeAffinity")]


def rejected(log: DecisionLog, name: str, message: str = "no room") -> None:
    queued = QueuedPod(pod_info(name=name, uid=name), 0.0)
    log.rejected(queued, "default-scheduler", Failure(REASON_UNSCHEDULABLE, message), NOW, 0.0015)


def test_the_oldest_decision_is_dropped() -> None:
    log = DecisionLog(2)
    for name in "abc":
        rejected(log, name)
    assert [item["pod"] for item in log.documents()] == ["c", "b"]
    assert log.total == 3


def test_a_pod_that_is_tried_again_has_one_rejection_the_newest() -> None:
    log = DecisionLog(2)
    rejected(log, "a", "first")
    rejected(log, "b")
    rejected(log, "a", "second")
    (newest, other) = log.documents()
    assert (newest["pod"], newest["message"], other["pod"]) == ("a", "second", "b")
    assert (newest["time"], newest["milliseconds"]) == ("2026-01-02T03:04:05Z", 1.5)
