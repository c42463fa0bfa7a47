"""What a DeviceTaintRule says of its evictions; the words are Kubernetes'."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dray.controllers.device_taint_eviction import status
from dray.controllers.device_taint_eviction.status import Counts

NOW = datetime(2026, 1, 1, tzinfo=UTC)
STAMP = "2026-01-01T00:00:00Z"
TAIL = (
    " if the effect was NoExecute. This information will not be updated again. "
    "Recreate the DeviceTaintRule to trigger an update."
)


def rule(effect: str = "NoExecute", *conditions: dict[str, Any], generation: int = 1) -> dict[str, Any]:
    return {
        "metadata": {"name": "r", "uid": "u", "generation": generation},
        "spec": {"taint": {"key": "k", "effect": effect, "timeAdded": STAMP}},
        "status": {"conditions": list(conditions)},
    }


WORDS = {
    "one pod": ("NoExecute", Counts(1, 1), "True", "PodsPendingEviction", "1 pod needs to be evicted in 1 namespace."),
    "many": (
        "NoExecute",
        Counts(3, 2, evicted=1),
        "True",
        "PodsPendingEviction",
        "3 pods need to be evicted in 2 different namespaces. 1 pod evicted since starting the controller.",
    ),
    "nothing to do": ("NoExecute", Counts(), "False", "NotStarted", ""),
    "done": ("NoExecute", Counts(evicted=2), "False", "Completed", "2 pods evicted since starting the controller."),
    "scheduling only": (
        "NoSchedule",
        Counts(),
        "False",
        "OtherEffect",
        "Eviction only happens for the NoExecute effect.",
    ),
    "dry run": (
        "None",
        Counts(2, 1, published=1, allocated=2),
        "False",
        "NoEffect",
        "1 published device selected. 2 allocated devices selected. 2 pods would be evicted in 1 namespace" + TAIL,
    ),
    "dry run with nothing": (
        "None",
        Counts(),
        "False",
        "NoEffect",
        "0 published devices selected. 0 allocated devices selected. "
        "0 pods would be evicted in 0 different namespaces" + TAIL,
    ),
}


@pytest.mark.parametrize("row", WORDS.values(), ids=WORDS.keys())
@pytest.mark.behaviour("SP-145")
def test_words(row: tuple[str, Counts, str, str, str]) -> None:
    effect, counts, state, reason, message = row
    assert status.plan_condition(rule(effect), counts, NOW) == {
        "type": "EvictionInProgress",
        "status": state,
        "reason": reason,
        "message": message,
        "observedGeneration": 1,
        "lastTransitionTime": STAMP,
    }


def test_the_same_is_not_written_again() -> None:
    written = status.plan_condition(rule(), Counts(1, 1), NOW)
    assert written is not None
    assert status.plan_condition(rule("NoExecute", written), Counts(1, 1), NOW + timedelta(60)) is None
    assert status.plan_condition(rule("NoExecute", written), Counts(2, 1), NOW) is not None
    assert status.plan_condition(rule("NoExecute", written, generation=2), Counts(1, 1), NOW) is not None


def test_not_more_often_than_every_ten_seconds() -> None:
    written = status.plan_condition(rule(), Counts(), NOW)
    assert written is not None
    given = rule("NoExecute", written)
    assert status.wait_seconds(given, NOW + timedelta(seconds=4)) == 6.0
    assert status.wait_seconds(given, NOW + timedelta(seconds=10)) == 0.0
    assert status.wait_seconds(rule("NoExecute", written, generation=2), NOW) == 0.0
    assert status.wait_seconds(rule(), NOW) == 0.0


def test_reading_a_rule() -> None:
    read = status.read_rule(rule())
    assert (read.uid, read.time_added, read.selector.name) == ("u", NOW, "r")
    # Without a selector nothing is selected.
    assert not read.selector.selects("driver", "pool", "device")
