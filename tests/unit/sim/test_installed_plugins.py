"""A scheduler plugin of an installed package counts in every tool that evaluates the scheduler."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import yaml

from dray.api.document import Document, NamespacedName
from dray.api.features import FeatureGates
from dray.cli import plan, rebalance
from dray.scheduler import config_loader
from dray.scheduler.config_loader import ENTRY_POINT_GROUP, installed_factories, profile_named, read_config
from dray.sim.explain.explainer import explain
from dray.sim.explain.subject import pod_subject
from dray.sim.placer import Placer
from dray.sim.recording import Recording
from dray.sim.replay import replay
from dray.sim.snapshot import Snapshot, SnapshotError
from dray.sim.whatif.changes import Changed
from dray.sim.whatif.simulation import Run, simulate
from tests.unit.sim.cluster import node, pod

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "scheduler-plugin"
CONFIG = EXAMPLE / "scheduler.yaml"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
GATES = FeatureGates()
ANOTHER_TEAM = "belonged to another team"


def silent(*_: object) -> None:
    return


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if the example were installed."""
    monkeypatch.syspath_prepend(EXAMPLE)
    given: dict[str, Any] = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]["entry-points"]
    found = [EntryPoint(name, value, ENTRY_POINT_GROUP) for name, value in given[ENTRY_POINT_GROUP].items()]
    monkeypatch.setattr(config_loader, "entry_points", lambda group: found)
    installed_factories.cache_clear()
    yield
    installed_factories.cache_clear()


def documents(colour: str) -> list[Document]:
    machine, user = node("red"), pod("p")
    machine["metadata"]["labels"]["example.com/team"] = "red"
    user["metadata"]["labels"] = {"example.com/team": colour}
    user["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    user["spec"]["schedulerName"] = "team-scheduler"
    user["status"] = {"phase": "Pending"}
    return [machine, user]


def snapshot(colour: str) -> Snapshot:
    return Snapshot.of([*documents(colour), {"metadata": {"name": "c"}, **yaml.safe_load(CONFIG.read_text())}])


@pytest.mark.behaviour("TT-06")
def test_explain() -> None:
    other = snapshot("green")
    answer = explain(other, pod_subject(other, NamespacedName("team", "p")), NOW, gates=GATES)
    assert ANOTHER_TEAM in answer.sentence
    assert answer.notes == ()


@pytest.mark.behaviour("TT-06")
@pytest.mark.parametrize(("colour", "fits"), [("red", True), ("green", False)])
def test_simulate(colour: str, *, fits: bool) -> None:
    given = snapshot(colour)
    outcome = simulate(Run(given, Changed(given), NOW, GATES, silent), [])
    assert ([item.name for item in outcome.placed], len(outcome.pending)) == (["p"] if fits else [], not fits)


@pytest.mark.behaviour("TT-11")
@pytest.mark.parametrize(("colour", "fits"), [("red", True), ("green", False)])
def test_plan(colour: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], *, fits: bool) -> None:
    """Each Pod is placed with the profile of its own scheduler."""
    file = tmp_path / "cluster.yaml"
    file.write_text("\n---\n".join(map(yaml.safe_dump, documents(colour))))
    assert plan.main(["-f", str(file), "--scheduler-config", str(CONFIG)]) == (0 if fits else 1)
    assert (ANOTHER_TEAM in capsys.readouterr().out) is not fits
    assert plan.main(["-f", str(file)]) == 0
    assert "Pods of the scheduler team-scheduler are evaluated with the default profile" in capsys.readouterr().err


@pytest.mark.behaviour("TT-11")
def test_rebalance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All Pods have the profile of the default scheduler: a plan is carried out without the file."""
    file, config = tmp_path / "cluster.yaml", tmp_path / "config.yaml"
    file.write_text("\n---\n".join(map(yaml.safe_dump, documents("green"))))
    swapped = CONFIG.read_text().replace("default-scheduler", "other").replace("team-scheduler", "default-scheduler")
    config.write_text(swapped)
    assert rebalance.main(["-f", str(file), "--scheduler-config", str(config)]) == 1
    assert ANOTHER_TEAM in capsys.readouterr().out


@pytest.mark.behaviour("TT-06")
def test_replay() -> None:
    recording = Recording(NOW, documents("red"), ())
    assert replay(recording, read_config(str(CONFIG)), GATES, silent).refused == ()


@pytest.mark.behaviour("TT-06")
def test_benchmarks_take_profiles_from_files() -> None:
    assert profile_named("pack").scheduler_name == "default-scheduler"
    config = read_config(str(CONFIG)).profiles
    assert profile_named(str(CONFIG)) == config[0]
    scorers = Placer(config[1], factories=installed_factories()).profile.scorers
    assert "TeamNodes" in {scorer.name for scorer in scorers}


@pytest.mark.behaviour("TT-06")
def test_a_package_that_cannot_be_loaded_is_an_error_of_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = [EntryPoint("Broken", "no_such_module:Plugin", ENTRY_POINT_GROUP)]
    monkeypatch.setattr(config_loader, "entry_points", lambda group: broken)
    installed_factories.cache_clear()
    given = snapshot("red")
    with pytest.raises(SnapshotError, match=r"cannot load the scheduler plugins.*no_such_module"):
        explain(given, pod_subject(given, NamespacedName("team", "p")), NOW, gates=GATES)
