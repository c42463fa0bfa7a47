"""The scheduling cycle with small plugins: order of calls, Skip, node subsets, errors, rotation, nominations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import pytest

from dray.api.types.core_v1 import Pod
from dray.framework.cycle_state import CycleState
from dray.framework.node_info import NodeInfo
from dray.framework.plugins import EXTENSION_POINTS, Plugin, PreFilterResult
from dray.framework.snapshot import Snapshot
from dray.framework.status import SKIP, SUCCESS, Code, Status, error, unschedulable
from dray.scheduler.cycle import Cycle, Placement, feasible_nodes_wanted
from dray.scheduler.diagnosis import Diagnosis
from dray.scheduler.filter_runner import AttemptError
from dray.scheduler.nominations import Nominations
from dray.scheduler.plugins.queueing import PrioritySort
from dray.scheduler.profile import Profile
from tests.unit.scheduler.builders import node_info, pod_info, state


class Recorder:
    """A plugin at every point of the scheduling cycle, with answers that a test may set."""

    def __init__(self, name: str, calls: list[str], **answers: Any) -> None:
        self.name = name
        self._calls = calls
        self._answers = answers

    def _said(self, point: str, default: Any = SUCCESS) -> Any:
        self._calls.append(f"{self.name}.{point}")
        return self._answers.get(point, default)

    def pre_filter(self, _state: CycleState, _pod: Pod) -> tuple[PreFilterResult | None, Status]:
        names = self._answers.get("names")
        return PreFilterResult(frozenset(names)) if names is not None else None, self._said("pre_filter")

    def filter(self, _state: CycleState, _pod: Pod, node: NodeInfo) -> Status:
        answer = self._said(f"filter {node.name}", None)
        return cast(Status, answer or self._answers.get("filter", SUCCESS))

    def pre_score(self, _state: CycleState, _pod: Pod, _nodes: Sequence[NodeInfo]) -> Status:
        return cast(Status, self._said("pre_score"))

    def score(self, _state: CycleState, _pod: Pod, node: NodeInfo) -> int:
        return cast(int, self._said(f"score {node.name}", 0))

    def normalize_scores(self, _state: CycleState, _pod: Pod, _scores: list[int]) -> None:
        self._said("normalize")


def profile(*plugins: Plugin, weights: dict[str, int] | None = None, percentage: int = 0) -> Profile:
    every = (PrioritySort(), *plugins)
    points = {name: [item for item in every if point.has(item)] for name, point in EXTENSION_POINTS.items()}
    return Profile("default-scheduler", points, weights or {}, percentage)


def cycle(*names: str, nominations: Nominations | None = None) -> Cycle:
    return Cycle(Snapshot([node_info(name) for name in names]), nominations or Nominations())


def rejection(found: Placement | Diagnosis) -> Diagnosis:
    assert isinstance(found, Diagnosis)
    return found


def node_of(found: Placement | Diagnosis) -> str:
    assert isinstance(found, Placement)
    return found.node_name


def test_order_of_the_extension_points() -> None:
    calls: list[str] = []
    found = cycle("x", "y").place(profile(Recorder("A", calls), Recorder("B", calls)), state(pod_info()))
    assert node_of(found) == "x"
    assert calls == [
        *("A.pre_filter", "B.pre_filter"),
        *("A.filter x", "A.filter y", "B.filter x", "B.filter y"),
        *("A.pre_score", "B.pre_score"),
        *("A.score x", "A.score y", "A.normalize", "B.score x", "B.score y", "B.normalize"),
    ]


def test_the_first_no_of_a_node_counts() -> None:
    calls: list[str] = []
    answers = {"filter x": unschedulable("full")}
    found = cycle("x", "y").place(profile(Recorder("A", calls, **answers), Recorder("B", calls)), state(pod_info()))
    assert node_of(found) == "y"
    assert "B.filter x" not in calls
    # A single feasible node needs no scores.
    assert not [call for call in calls if "score" in call]


@pytest.mark.parametrize(
    ("answers", "unwanted"),
    [({"pre_filter": SKIP}, "A.filter"), ({"pre_score": SKIP}, "A.score")],
)
def test_skip_leaves_the_plugin_out(answers: dict[str, Any], unwanted: str) -> None:
    calls: list[str] = []
    cycle("x", "y").place(profile(Recorder("A", calls, **answers), Recorder("B", calls)), state(pod_info()))
    assert not [call for call in calls if call.startswith(unwanted)]
    assert [call for call in calls if call.startswith(unwanted.replace("A", "B"))]


def test_node_subsets_are_intersected() -> None:
    calls: list[str] = []
    plugins = Recorder("A", calls, names=["x", "y"]), Recorder("B", calls, names=["y", "gone"])
    assert node_of(cycle("x", "y", "z").place(profile(*plugins), state(pod_info()))) == "y"
    assert "A.filter x" not in calls


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (["x"], ["y"], "0/2 nodes are available: node(s) didn't satisfy plugin(s) [A B] simultaneously."),
        ([], None, "0/2 nodes are available: node(s) didn't satisfy plugin A."),
    ],
)
def test_empty_node_subsets(first: Any, second: Any, message: str) -> None:
    plugins = Recorder("A", [], names=first), Recorder("B", [], names=second)
    assert rejection(cycle("x", "y").place(profile(*plugins), state(pod_info()))).message() == message


def test_nodes_outside_of_the_subset_are_in_the_message() -> None:
    plugins = Recorder("A", [], names=["x"]), Recorder("B", [], filter=unschedulable("full"))
    found = rejection(cycle("x", "y", "z").place(profile(*plugins), state(pod_info())))
    assert found.message() == "0/3 nodes are available: 1 full, 2 node(s) didn't satisfy plugin(s) [A]."
    assert found.plugins == {"A", "B"}


def test_a_pre_filter_no_is_for_all_nodes() -> None:
    plugins = Recorder("A", [], pre_filter=unschedulable("no")), Recorder("B", [])
    found = rejection(cycle("x").place(profile(*plugins), state(pod_info())))
    assert (found.message(), found.plugins) == ("0/1 nodes are available: no.", {"A"})


@pytest.mark.behaviour("PE-49")
def test_the_other_plugins_run_after_an_unschedulable_pre_filter() -> None:
    calls: list[str] = []
    plugins = Recorder("A", calls, pre_filter=unschedulable("no")), Recorder("B", calls)
    found = rejection(cycle("x").place(profile(*plugins), state(pod_info())))
    assert calls == ["A.pre_filter", "B.pre_filter"]
    assert found.absent == unschedulable("no").with_plugin("A")


@pytest.mark.behaviour("PE-49")
@pytest.mark.parametrize("code", [Code.UNSCHEDULABLE_AND_UNRESOLVABLE, Code.PENDING])
def test_an_unresolvable_pre_filter_ends_the_phase(code: Code) -> None:
    calls: list[str] = []
    plugins = Recorder("A", calls, pre_filter=Status(code, ("no",))), Recorder("B", calls)
    found = rejection(cycle("x").place(profile(*plugins), state(pod_info())))
    assert calls == ["A.pre_filter"]
    assert found.absent == Status(code, ("no",), "A")


@pytest.mark.behaviour("PE-49")
def test_an_empty_node_subset_is_unresolvable() -> None:
    plugins = Recorder("A", [], pre_filter=unschedulable("no")), Recorder("B", [], names=[])
    found = rejection(cycle("x").place(profile(*plugins), state(pod_info())))
    assert found.absent is not None
    assert found.absent.code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE


@pytest.mark.behaviour("SC-08")
def test_every_node_is_asked_before_preemption() -> None:
    plugin = Recorder("A", [], filter=unschedulable("full"))
    running = cycle("x", "y", "z")
    for _ in range(2):
        found = rejection(running.place(profile(plugin), state(pod_info())))
        assert found.statuses.keys() == {"x", "y", "z"}


@pytest.mark.behaviour("SC-10")
def test_a_node_with_nominated_pods_is_filtered_by_itself() -> None:
    together: list[list[str]] = []

    class Bulk(Recorder):
        def filter_all(self, _state: CycleState, _pod: Pod, nodes: Sequence[NodeInfo]) -> list[Status]:
            together.append([node.name for node in nodes])
            return [SUCCESS] * len(nodes)

    names = [f"n{number}" for number in range(20)]
    nominations = Nominations()
    nominations.set(pod_info("expected"), "n3")
    calls: list[str] = []
    cycle(*names, nominations=nominations).place(profile(Bulk("A", calls)), state(pod_info()))
    assert together == [[name for name in names if name != "n3"]]
    # With the nominated Pod, and without it.
    assert set(calls) >= {"A.filter n3"}
    assert not {call for call in calls if call.startswith("A.filter")} - {"A.filter n3"}


def test_who_rejected_and_who_is_pending() -> None:
    pending = Status(Code.PENDING, ("soon",))
    plugins = Recorder("A", [], **{"filter x": unschedulable("full"), "filter y": pending})
    found = rejection(cycle("x", "y").place(profile(plugins), state(pod_info())))
    assert (found.plugins, found.pending_plugins) == (frozenset(), {"A"})


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({"pre_filter": error("broke")}, 'running PreFilter plugin "A": broke'),
        ({"filter y": error("broke")}, 'running "A" filter plugin: broke'),
        ({"pre_score": error("broke")}, 'running PreScore plugin "A": broke'),
        ({"score x": 101}, 'plugin "A" gives a score outside of 0 to 100'),
    ],
)
def test_an_error_on_any_node_breaks_the_attempt(answers: dict[str, Any], message: str) -> None:
    with pytest.raises(AttemptError) as broke:
        cycle("x", "y").place(profile(Recorder("A", [], **answers)), state(pod_info()))
    assert str(broke.value) == message


def test_no_nodes_wait_for_any_filter_to_hear_of_one() -> None:
    found = rejection(cycle().place(profile(Recorder("A", [])), state(pod_info())))
    assert (found.message(), found.plugins) == ("no nodes available to schedule pods", {"A"})


def test_weights() -> None:
    first = Recorder("A", [], **{"score x": 100, "score y": 0})
    second = Recorder("B", [], **{"score x": 0, "score y": 60})
    assert node_of(cycle("x", "y").place(profile(first, second), state(pod_info()))) == "x"
    weighted = profile(first, second, weights={"B": 2})
    assert node_of(cycle("x", "y").place(weighted, state(pod_info()))) == "y"


@pytest.mark.parametrize(
    ("nodes", "percentage", "wanted"),
    [
        (10, 0, 10),
        (99, 50, 99),
        (100, 0, 100),
        (1000, 0, 420),
        (5000, 0, 500),
        (6000, 0, 300),
        (20000, 0, 1000),
        (1000, 40, 400),
        (1000, 5, 100),
        (1000, 100, 1000),
    ],
)
def test_how_many_feasible_nodes_are_enough(nodes: int, percentage: int, wanted: int) -> None:
    assert feasible_nodes_wanted(nodes, percentage) == wanted


def test_the_next_search_starts_where_the_last_one_ended() -> None:
    names = [f"n{number}" for number in range(250)]
    running = cycle(*names)
    tried: list[str] = []
    plugin = Recorder("A", tried)
    for _ in range(3):
        running.place(profile(plugin, percentage=40), state(pod_info()))
    filtered = [call.removeprefix("A.filter ") for call in tried if "filter n" in call]
    assert filtered == [*names, *names[:50]]


def test_without_scores_one_node_is_enough() -> None:
    class OnlyFilter:
        name = "OnlyFilter"

        def filter(self, _state: CycleState, _pod: Pod, _node: NodeInfo) -> Status:
            return SUCCESS

    found = cycle("x", "y").place(profile(OnlyFilter()), state(pod_info()))
    assert found == Placement("x", 1, 1)


@pytest.mark.behaviour("PE-39")
def test_the_nominated_node_is_tried_first() -> None:
    calls: list[str] = []
    nominations = Nominations()
    nominations.set(pod_info(), "y")
    running = cycle("x", "y", nominations=nominations)
    assert node_of(running.place(profile(Recorder("A", calls)), state(pod_info()))) == "y"
    assert "A.filter x" not in calls


def test_room_is_left_for_nominated_pods_that_matter_as_much() -> None:
    class Room:
        name = "Room"

        def filter(self, state: CycleState, _pod: Pod, node: NodeInfo) -> Status:
            fits = state.pod_info.requests.milli_cpu <= node.free_milli_cpu
            return SUCCESS if fits else unschedulable("Insufficient cpu")

    def place(priority: int) -> Placement | Diagnosis:
        nominations = Nominations()
        nominations.set(pod_info("expected", requests={"cpu": "3"}, priority=5), "x")
        running = cycle("x", nominations=nominations)
        return running.place(profile(Room()), state(pod_info(requests={"cpu": "2"}, priority=priority)))

    assert isinstance(place(5), Diagnosis)
    assert isinstance(place(6), Placement)


def test_the_same_every_time() -> None:
    def run() -> list[str]:
        running = cycle(*(f"n{number}" for number in range(120)))
        plugin = Recorder("A", [], **{f"score n{number}": number % 7 for number in range(120)})
        return [node_of(running.place(profile(plugin), state(pod_info(f"p{number}")))) for number in range(5)]

    assert run() == run()


def test_an_exception_of_a_plugin_is_not_swallowed_here() -> None:
    class Broken:
        name = "Broken"

        def filter(self, _state: CycleState, _pod: Pod, _node: NodeInfo) -> Status:
            raise ValueError("bug")

    with pytest.raises(ValueError, match="bug"):
        cycle("x").place(profile(Broken()), state(pod_info()))


class Full:
    """A plugin that takes few nodes."""

    name = "Full"

    def __init__(self, free: set[str], looked_at: list[str]) -> None:
        self.free = free
        self._looked_at = looked_at

    def filter(self, _state: CycleState, _pod: Pod, node: NodeInfo) -> Status:
        self._looked_at.append(node.name)
        return SUCCESS if node.name in self.free else unschedulable("full")


def test_without_a_feasible_node_filter_runs_on_every_node() -> None:
    names = [f"node-{number}" for number in range(300)]
    plugin = Full({names[7]}, [])
    cluster, chosen = cycle(*names), profile(plugin, Recorder("Scorer", []))
    assert node_of(cluster.place(chosen, state(pod_info()))) == names[7]
    plugin.free = set()
    assert len(rejection(cluster.place(chosen, state(pod_info()))).statuses) == len(names)


class Numbered:
    """A filter that accepts nodes by their number."""

    name = "Numbered"

    def __init__(self, accepted: Iterable[int]) -> None:
        self._accepted = frozenset(accepted)

    def filter(self, _state: CycleState, _pod: Pod, node: NodeInfo) -> Status:
        return SUCCESS if int(node.name) in self._accepted else unschedulable("not this one")

    def score(self, _state: CycleState, _pod: Pod, _node: NodeInfo) -> int:
        return 0


def test_nodes_after_the_last_one_that_is_wanted_do_not_count() -> None:
    names = [f"{number:03}" for number in range(200)]
    cluster = cycle(*names)
    # The last part of the search has more feasible nodes than are still wanted.
    accepted = [*range(99), *range(120, 200)]
    found = cluster.place(profile(Numbered(accepted)), state(pod_info()))
    assert isinstance(found, Placement)
    assert (found.feasible, found.evaluated) == (100, 121)


class Steady:
    """Scores by the node's number, and says whether that is all there is to it."""

    name = "Steady"

    def __init__(self, *, steady: bool = True) -> None:
        self._steady = steady
        self.scored: list[str] = []

    def score(self, _state: CycleState, _pod: Pod, node: NodeInfo) -> int:
        self.scored.append(node.name)
        return int(node.name)

    def score_cache_key(self, _state: CycleState) -> str | None:
        return "the same for all" if self._steady else None


@pytest.mark.parametrize("steady", [True, False])
def test_scores_that_follow_from_node_and_needs_are_kept_until_the_node_changes(steady: bool) -> None:
    plugin, snapshot = Steady(steady=steady), Snapshot([node_info(name) for name in ("1", "9", "3")])
    others = Recorder("Others", [], **{"score 3": 50})
    running, chosen = Cycle(snapshot, Nominations()), profile(plugin, others, weights={"Steady": 2})
    for changed in ((), ("9",), ("1", "3")):
        for name in changed:
            snapshot.replace(node_info(name))
        plugin.scored.clear()
        assert node_of(running.place(chosen, state(pod_info()))) == "3"
        assert set(plugin.scored) == (set(changed or ("1", "9", "3")) if steady else {"1", "9", "3"})


@pytest.mark.parametrize("accepted", [range(300), range(0, 300, 3)], ids=["all feasible", "some feasible"])
def test_a_timed_attempt_finds_the_same_and_times_the_filters_of_every_tenth_node(accepted: Sequence[int]) -> None:
    names = [f"{number:03}" for number in range(300)]
    observed: list[str] = []
    plugin = Numbered(accepted)
    usual, timed = cycle(*names), cycle(*names)
    twin = profile(plugin).timed(lambda: 0.0, lambda _plugin, point, _status, _seconds: observed.append(point))
    for _ in range(3):
        found = timed.place(twin, state(pod_info()))
        assert found == usual.place(profile(plugin), state(pod_info()))
        assert isinstance(found, Placement)
        assert found.evaluated // 10 <= observed.count("Filter") <= found.evaluated // 10 + 4
        observed.clear()
