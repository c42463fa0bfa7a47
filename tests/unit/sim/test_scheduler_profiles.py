"""The configuration of a cluster's scheduler in a snapshot: what is built counts, the rest is a note."""

from __future__ import annotations

from typing import Any

import pytest

from dray.scheduler.config import PluginSet
from dray.sim.notes import notes_on
from dray.sim.scheduler_profiles import configuration_notes, evaluated_profiles, profiles_of
from dray.sim.snapshot import Snapshot, SnapshotError
from dray.sim.whatif.preemption import Preemption, with_preemption
from tests.unit.sim.cluster import pod

HEAD = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}


def snapshot(*documents: Any, **config: Any) -> Snapshot:
    return Snapshot.of([*documents, {**HEAD, **config}])


def named(scheduler: str) -> Any:
    document = pod("p")
    return document | {"spec": {**document["spec"], "schedulerName": scheduler}}


def test_without_a_configuration_every_scheduler_has_the_default_profile() -> None:
    found = Snapshot.of([named("volcano")])
    assert [(item.scheduler_name, item.multi_point) for item in profiles_of(found)] == [
        ("default-scheduler", PluginSet()),
        ("volcano", PluginSet()),
    ]
    assert notes_on(found, found.pods, evaluated_profiles(found)) == (
        "Pods of the scheduler volcano are evaluated with the default profile",
    )


@pytest.mark.behaviour("SC-03", "SC-16")
def test_what_is_not_built_is_left_out_with_a_note() -> None:
    found = snapshot(
        named("volcano"),
        extenders=[{"urlPrefix": "https://x"}],
        delayCacheUntilActive=True,
        profiles=[
            {
                "schedulerName": "volcano",
                "plugins": {
                    "multiPoint": {"enabled": [{"name": "Coscheduling"}, {"name": "NodeName"}]},
                    "filter": {"enabled": [{"name": "Coscheduling"}], "disabled": [{"name": "NodePorts"}]},
                    "placementGenerate": {"enabled": [{"name": "Topology"}]},
                },
                "pluginConfig": [
                    {"name": "Coscheduling", "args": {"permitWaitingTimeSeconds": 10}},
                    {"name": "InterPodAffinity", "args": {"hardPodAffinityWeight": 5}},
                ],
            }
        ],
    )
    default, volcano = profiles_of(found)
    assert default.args == {}
    assert volcano.multi_point == PluginSet(enabled=(("NodeName", 0),))
    assert volcano.points == {"filter": PluginSet(disabled=frozenset({"NodePorts"}))}
    assert volcano.args == {"InterPodAffinity": {"hardPodAffinityWeight": 5}}
    notes = (
        "KubeSchedulerConfiguration: the extender https://x is not asked",
        "KubeSchedulerConfiguration: the plugin Coscheduling is not evaluated",
        "KubeSchedulerConfiguration: the extension point placementGenerate is not evaluated",
        "KubeSchedulerConfiguration: the plugin Topology is not evaluated",
    )
    assert configuration_notes(found) == notes
    assert notes_on(found, found.pods, evaluated_profiles(found)) == notes


def test_schedulers_that_are_not_configured_are_like_the_default_one() -> None:
    found = snapshot(named("other"), profiles=[{"percentageOfNodesToScore": 70}])
    assert [item.percentage_of_nodes_to_score for item in profiles_of(found)] == [70, 70]


def test_without_preemption() -> None:
    plugins = {"postFilter": {"enabled": [{"name": "DefaultPreemption"}]}}
    (profile,) = profiles_of(snapshot(profiles=[{"plugins": plugins}]))
    assert with_preemption(profile, Preemption.BY_PRIORITY) is profile
    changed = with_preemption(profile, Preemption.NEVER)
    assert changed.multi_point.disables("DefaultPreemption")
    assert changed.points["postFilter"].enabled == ()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"profiles": [5]}, "KubeSchedulerConfiguration: profiles: must be a list of maps"),
        ({"nonsense": 1}, "KubeSchedulerConfiguration: nonsense: not supported"),
        ({"profiles": [{"plugins": 5}]}, r"KubeSchedulerConfiguration: profiles\[0\].plugins: must be a map"),
    ],
)
def test_what_is_no_configuration_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(SnapshotError, match=message):
        profiles_of(snapshot(**config))
