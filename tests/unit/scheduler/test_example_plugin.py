"""The example in examples/scheduler-plugin: found by its entry point, switched on by its configuration, at work."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from dray.scheduler.config_loader import ENTRY_POINT_GROUP, find_factories, read_config
from dray.scheduler.cycle import Cycle, Placement
from dray.scheduler.diagnosis import Diagnosis
from dray.scheduler.handle import PluginFactory
from dray.scheduler.nominations import Nominations
from dray.scheduler.profile import Profile
from dray.scheduler.registry import make_profiles
from tests.unit.scheduler.builders import PLAIN, handle, node_info, pod_info, state

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "scheduler-plugin"
NODES = (node_info("red", labels={"example.com/team": "red"}), node_info("blue", labels={"example.com/team": "blue"}))


@pytest.fixture
def factories(monkeypatch: pytest.MonkeyPatch) -> Mapping[str, PluginFactory]:
    """As if the example were installed: its own metadata, read from its project file."""
    monkeypatch.syspath_prepend(EXAMPLE)
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    entries = project["entry-points"][ENTRY_POINT_GROUP]
    found = find_factories([EntryPoint(name, value, ENTRY_POINT_GROUP) for name, value in entries.items()])
    return {name: factory for name, factory in found.items() if name in PLAIN or name in entries}


def place(profile: Profile, team: str) -> Placement | Diagnosis:
    framework_handle = handle(*NODES)
    return Cycle(framework_handle.snapshot, Nominations()).place(
        profile, state(pod_info(labels={"example.com/team": team}))
    )


def test_example(factories: Mapping[str, PluginFactory]) -> None:
    profiles = make_profiles(read_config(str(EXAMPLE / "scheduler.yaml")).profiles, factories, handle(*NODES))
    team = profiles["team-scheduler"]
    assert {scorer.name: scorer.weight for scorer in team.scorers}["TeamNodes"] == 2
    for colour in ("red", "blue"):
        found = place(team, colour)
        assert isinstance(found, Placement)
        assert found.node_name == colour
    rejected = place(team, "green")
    assert isinstance(rejected, Diagnosis)
    assert rejected.message() == "0/2 nodes are available: 2 node(s) belonged to another team."
    assert isinstance(place(profiles["default-scheduler"], "green"), Placement)


def test_example_is_short() -> None:
    assert len((EXAMPLE / "team_nodes.py").read_text().splitlines()) < 50
