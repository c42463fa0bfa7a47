"""What is left of a reduced cluster says the same, and none of it can be left out."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from dray.api.document import NamespacedName
from dray.api.features import FeatureGates
from dray.sim.explain.explainer import explain
from dray.sim.explain.subject import pod_subject
from dray.sim.reduction import fewest, reduced, shape_of
from dray.sim.snapshot import Snapshot, SnapshotError
from tests.property.sim.messy_clusters import MessyCluster

NOW = datetime(2026, 1, 1, 2, tzinfo=UTC)
POD = NamespacedName("team", "wait-0")


def verdict_of(snapshot: Snapshot) -> tuple[str, ...] | None:
    try:
        found = explain(snapshot, pod_subject(snapshot, POD), NOW, gates=FeatureGates()).verdict
    except SnapshotError:
        return None
    return None if found is None else shape_of(found)


@pytest.mark.parametrize("seed", range(12))
def test_what_is_left_says_the_same_and_is_needed(seed: int) -> None:
    snapshot = MessyCluster(seed).snapshot()
    wanted = verdict_of(snapshot)
    assert wanted is not None
    smallest = reduced(snapshot, lambda smaller: verdict_of(smaller) == wanted, lambda _: None)
    assert verdict_of(smallest) == wanted
    for kind, items in smallest.documents.items():
        for index in range(len(items)):
            less = {**smallest.documents, kind: [*items[:index], *items[index + 1 :]]}
            assert verdict_of(replace(smallest, documents=less)) != wanted


@pytest.mark.parametrize("seed", range(20))
def test_exactly_the_items_that_are_needed_are_left(seed: int) -> None:
    rng = random.Random(seed)
    items = list(range(rng.randint(1, 500)))
    needed = set(rng.sample(items, rng.randint(0, min(len(items), 6))))
    tried = 0

    def holds(chosen: object) -> bool:
        nonlocal tried
        tried += 1
        return needed <= set(chosen)  # type: ignore[call-overload,no-any-return]

    assert fewest(items, holds, lambda _: None) == sorted(needed)
    assert tried < 40 * (len(needed) + 1)
