"""API servers that crash with their store: clients move over, and nothing acknowledged is lost.

The last tests break a server on purpose: the simulation must notice.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from dray.apiserver.handlers import watch as watch_module
from dray.apiserver.handlers.watch_fanout import FieldWatch
from dray.store.interface import Event
from tests.simulation.runs import faults_of, missing_faults, run, seeds

# Seeds that once failed stay in the list.
SEEDS = seeds((1, 2, 3, 32, 37, 40005))
VARIANTS = ["sqlite_server", "etcd_servers"]
SEEDS_UNTIL_FOUND = range(1, 13)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("seed", SEEDS)
def test_clients_move_from_server_to_server(variant: str, seed: int) -> None:
    faults_of(variant, seed)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_fault_happens(variant: str) -> None:
    assert not missing_faults(variant, SEEDS)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_seed_replays_exactly(variant: str) -> None:
    assert run(variant, 2) == run(variant, 2)


# --- broken servers are found ---


def found(variant: str) -> str:
    return next((outcome.violation for seed in SEEDS_UNTIL_FOUND if (outcome := run(variant, seed)).violation), "")


def test_a_bookmark_ahead_of_its_events_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = watch_module.bookmark

    def ahead(endpoint: Any, revision: int, **options: Any) -> Any:
        return original(endpoint, revision + 3, **options)

    monkeypatch.setattr(watch_module, "bookmark", ahead)
    assert "a watch is not" in found("sqlite_server")


def test_a_fan_out_that_loses_an_event_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not read what came before it was there."""
    monkeypatch.setattr(FieldWatch, "prepend", lambda _self, _missed: None)
    assert "a watch is not" in found("sqlite_server")


def test_a_fan_out_that_repeats_events_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    prepend = FieldWatch.prepend

    def twice(self: FieldWatch, missed: Iterable[Event]) -> None:
        missed = list(missed)
        prepend(self, missed)
        prepend(self, missed)

    monkeypatch.setattr(FieldWatch, "prepend", twice)
    assert "a watch is not" in found("sqlite_server")
