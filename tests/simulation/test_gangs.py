"""Gangs with every fault: no device twice, no gang half placed, and none that waits for free devices."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from dray.api.document import NamespacedName
from dray.api.pod_groups import group_key_of
from dray.api.types.core_v1 import Pod
from dray.api.types.scheduling_v1beta1 import PodGroup
from dray.scheduler.pod_groups import PodGroups
from tests.simulation.gang_preemption_simulation import GangPreemptionSimulation
from tests.simulation.gang_simulation import GangLosses
from tests.simulation.network import FaultRates
from tests.simulation.runs import declared_faults, outcome_of, run, run_simulation, seeds

VARIANTS = {
    "gangs": seeds((1, 2, 13, 32, 103, 6010)),
    "gang_losses": seeds((2, 3, 4, 13, 172)),
    "gang_losses_stale_caches": seeds((2, 10, 12)),
    "gang_changes": seeds((1, 2, 3)),
    "gang_changes_stale_caches": seeds((1, 2, 3)),
    "gangs_two_schedulers": seeds((2, 3, 6)),
    "gangs_stale_caches": seeds((1, 2, 3)),
}
GANGS_MIN = 2
BINDINGS_MIN = 10


@pytest.mark.behaviour("GW-58", "GW-29", "GW-30", "GW-36")
@pytest.mark.parametrize(("variant", "seed"), [(name, seed) for name, listed in VARIANTS.items() for seed in listed])
def test_gangs_are_placed_whole_or_not_at_all(variant: str, seed: int) -> None:
    outcome = outcome_of(variant, seed)
    assert not outcome.violation, f"{outcome.violation}\n{outcome.replay}"


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_fault_happens_and_gangs_run(variant: str) -> None:
    outcomes = [outcome_of(variant, seed) for seed in VARIANTS[variant]]
    assert declared_faults(variant) <= {name for outcome in outcomes for name in outcome.faults}
    paths = sum((outcome.paths for outcome in outcomes), Counter())
    assert paths["gang"] >= GANGS_MIN
    assert paths["binding"] >= BINDINGS_MIN


PREEMPTION_VARIANTS = {
    "gang_preemption": seeds((1, 2, 3, 313, 826311790)),
    "gang_preemption_stale_caches": seeds((1, 2, 3, 7, 88004, 7171014)),
}
PREEMPTED_MIN = 3


@pytest.mark.behaviour("GW-50", "GW-56", "GW-57", "GW-58")
@pytest.mark.parametrize(
    ("variant", "seed"), [(name, seed) for name, listed in PREEMPTION_VARIANTS.items() for seed in listed]
)
def test_gangs_preempt_for_a_whole_placement_only(variant: str, seed: int) -> None:
    outcome = outcome_of(variant, seed)
    assert not outcome.violation, f"{outcome.violation}\n{outcome.replay}"


@pytest.mark.parametrize("variant", PREEMPTION_VARIANTS)
def test_every_fault_happens_and_gangs_preempt(variant: str) -> None:
    outcomes = [outcome_of(variant, seed) for seed in PREEMPTION_VARIANTS[variant]]
    assert declared_faults(variant) <= {name for outcome in outcomes for name in outcome.faults}
    paths = sum((outcome.paths for outcome in outcomes), Counter())
    assert paths["gang preempts"] >= PREEMPTED_MIN
    assert paths["group member preempted"] >= PREEMPTED_MIN
    assert paths["gang"] >= GANGS_MIN


@pytest.mark.behaviour("GW-52")
@pytest.mark.parametrize("seed", seeds((100, 101)))
def test_without_faults_a_group_or_a_pod_waits_for_each_victim(seed: int) -> None:
    simulation = GangPreemptionSimulation(seed, rates=FaultRates.none(None))
    outcome = run_simulation("gang_preemption", seed, simulation)
    assert not outcome.violation, outcome.violation
    assert not simulation.in_vain
    assert simulation.preempted


# --- The check of half-placed gangs. ---

# Steps in the life of a gang that needs three Pods, each with the Pods that have a node or devices and those that are
# not lost; and those that may have a node in the end.
HISTORIES = {
    "no loss": ([("", "abc"), ("abc", "abc")], ""),
    "lost after all were bound": ([("", "abc"), ("abc", "abc"), ("abc", "bc"), ("bc", "bc")], "bc"),
    "lost while all were being bound": ([("", "abc"), ("abc", "abc"), ("abc", "ab"), ("ab", "ab")], "ab"),
    "lost with two others": ([("abc", "abc"), ("abc", "bc"), ("bc", "c"), ("c", "c")], "c"),
    "lost before enough had devices": ([("", "abc"), ("ab", "abc"), ("ab", "ab"), ("ab", "ab")], ""),
    "lost before any had devices": ([("", "abc"), ("", "ab"), ("ab", "ab")], ""),
    "lost after they had given up their devices": ([("abc", "abc"), ("", "abc"), ("", "ab"), ("ab", "ab")], ""),
    "devices given up after the loss": ([("abc", "abc"), ("abc", "ab"), ("", "ab"), ("ab", "ab")], ""),
    "one has given up its devices after the loss": ([("abc", "abc"), ("abc", "ab"), ("a", "ab"), ("ab", "ab")], "a"),
    "lost while one had to start again": ([("abc", "abc"), ("ab", "abc"), ("ab", "bc"), ("bc", "bc")], "b"),
}


@pytest.mark.parametrize(("steps", "excused"), HISTORIES.values(), ids=HISTORIES.keys())
def test_pods_are_excused_that_were_bound_or_being_bound_when_another_was_lost(
    steps: list[tuple[str, str]], excused: str
) -> None:
    losses = GangLosses()
    for held, left in steps:
        losses.observe(3, set(held), set(left))
    assert losses.excused == set(excused)


@pytest.mark.parametrize(("held", "excused"), [("ab", "ab"), ("a", "")])
def test_pods_are_excused_that_were_bound_or_being_bound_when_more_were_needed(held: str, excused: str) -> None:
    losses = GangLosses()
    losses.observe(2, set(held), set("ab"))
    losses.observe(3, set(held), set("ab"))
    losses.observe(3, set("ab"), set("ab"))
    assert losses.excused == set(excused)


@pytest.mark.parametrize(("known", "excused"), [("abc", "ab"), ("ab", "")])
def test_pods_are_excused_that_are_bound_while_the_scheduler_does_not_know_of_the_loss(
    known: str, excused: str
) -> None:
    losses = GangLosses()
    losses.observe(3, set("ac"), set("abc"), "abc")
    losses.observe(3, set("a"), set("ab"), known)
    losses.observe(3, set("ab"), set("ab"), known)
    assert losses.excused == set(excused)


@pytest.mark.parametrize("variant", ["gang_losses", "gang_losses_stale_caches"])
def test_a_gang_that_is_placed_without_the_pods_it_has_lost_is_found(
    variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler that needs one Pod less of a gang for each that was deleted."""
    lost: Counter[str] = Counter()
    known, remove = PodGroups.get, PodGroups.remove_pod

    def remove_pod(self: PodGroups, pod: Pod) -> None:
        key, group = group_key_of(pod), self.group_of(pod)
        before = 0 if key is None else self.known_count(key)
        remove(self, pod)
        if key is not None and group is not None:
            lost[group.metadata.uid or ""] += before - self.known_count(key)

    def get(self: PodGroups, key: NamespacedName) -> PodGroup | None:
        group = known(self, key)
        gang = None if group is None else group.spec.scheduling_policy.gang
        if group is None or gang is None:
            return group
        fewer = msgspec.structs.replace(gang, min_count=max(1, gang.min_count - lost[group.metadata.uid or ""]))
        policy = msgspec.structs.replace(group.spec.scheduling_policy, gang=fewer)
        return msgspec.structs.replace(group, spec=msgspec.structs.replace(group.spec, scheduling_policy=policy))

    monkeypatch.setattr(PodGroups, "remove_pod", remove_pod)
    monkeypatch.setattr(PodGroups, "get", get)
    violations = [run(variant, seed).violation for seed in range(1, 5)]
    assert any("is half placed" in violation for violation in violations)
