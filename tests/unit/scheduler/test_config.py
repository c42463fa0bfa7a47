"""Configurations: what they make of the profiles, and what is refused."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import yaml

from dray.framework.plugins import BIND, FILTER, PRE_FILTER, SCORE, Plugin
from dray.scheduler.config import ConfigError, LeaderElectionConfig, SchedulerConfig, parse_config
from dray.scheduler.config_loader import find_factories, read_config
from dray.scheduler.profile import Profile
from dray.scheduler.queue import Backoff
from dray.scheduler.registry import make_profiles
from tests.unit.scheduler.builders import PLAIN, handle

HEAD = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}


def parse(text: str) -> SchedulerConfig:
    return parse_config(HEAD | (yaml.safe_load(text) or {}))


def profiles(text: str) -> dict[str, Profile]:
    return make_profiles(parse(text).profiles, PLAIN, handle())


def names(plugins: Any) -> list[str]:
    return [item[0].name if isinstance(item, tuple) else item.name for item in plugins]


def test_defaults() -> None:
    profile = profiles("")["default-scheduler"]
    assert names(profile.at(FILTER)) == [
        "NodeUnschedulable",
        "NodeName",
        "TaintToleration",
        "NodeAffinity",
        "NodePorts",
        "NodeResourcesFit",
        "InterPodAffinity",
    ]
    assert {scorer.name: scorer.weight for scorer in profile.scorers} == {
        "TaintToleration": 3,
        "NodeAffinity": 2,
        "NodeResourcesFit": 1,
        "OptionalClaims": 20,
        "NodeResourcesBalancedAllocation": 1,
        "ImageLocality": 1,
    }
    assert names(profile.at(BIND)) == ["DefaultBinder"]


def test_leader_election_of_kube_scheduler_by_default() -> None:
    assert parse("").leader_election == LeaderElectionConfig(
        enabled=True,
        namespace="kube-system",
        name="kube-scheduler",
        lease_seconds=15,
        renew_deadline_seconds=10,
        retry_seconds=2,
    )


def test_leader_election_on_another_lease() -> None:
    found = parse(
        """
        leaderElection:
          leaderElect: true
          resourceLock: leases
          resourceName: packer
          resourceNamespace: team
          leaseDuration: 1m0s
          renewDeadline: 40s
          retryPeriod: 500ms
        """
    )
    assert found.leader_election == LeaderElectionConfig(
        enabled=True,
        namespace="team",
        name="packer",
        lease_seconds=60,
        renew_deadline_seconds=40,
        retry_seconds=0.5,
    )
    assert not parse("leaderElection: {leaderElect: false}").leader_election.enabled


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{resourceLock: endpoints}", 'leaderElection.resourceLock: must be "leases"'),
        ("{leaderElect: maybe}", "leaderElection.leaderElect: must be true or false"),
        ("{leaseDuration: 15}", "leaderElection.leaseDuration: must be a string"),
        ("{retryPeriod: soon}", 'leaderElection.retryPeriod: must be a duration such as "15s"'),
        ("{retryPeriod: -1s}", "leaderElection.retryPeriod: must not be negative"),
        ("{identity: me}", "leaderElection.identity: not supported"),
    ],
)
def test_a_leader_election_that_cannot_be_honoured_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(f"leaderElection: {text}")
    assert str(refused.value) == message


def test_profiles_by_name_with_weights_and_arguments() -> None:
    found = profiles(
        """
        percentageOfNodesToScore: 30
        profiles:
        - schedulerName: default-scheduler
        - schedulerName: packer
          percentageOfNodesToScore: 70
          plugins:
            score:
              disabled: [{name: "*"}]
              enabled: [{name: NodeResourcesFit, weight: 5}]
            filter:
              disabled: [{name: NodePorts}]
          pluginConfig:
          - name: NodeResourcesFit
            args:
              kind: NodeResourcesFitArgs
              scoringStrategy: {type: MostAllocated}
        """
    )
    packer = found["packer"]
    assert [(scorer.name, scorer.weight) for scorer in packer.scorers] == [("NodeResourcesFit", 5)]
    assert "NodePorts" not in names(packer.at(FILTER))
    assert "NodePorts" in names(packer.at(PRE_FILTER))
    assert (found["default-scheduler"].percentage_of_nodes_to_score, packer.percentage_of_nodes_to_score) == (30, 70)


def test_multi_point_changes_every_point() -> None:
    found = profiles(
        """
        profiles:
        - plugins:
            multiPoint:
              disabled: [{name: NodeAffinity}]
              enabled: [{name: TaintToleration, weight: 9}]
        """
    )["default-scheduler"]
    assert "NodeAffinity" not in [*names(found.at(FILTER)), *names(found.at(SCORE)), *names(found.at(PRE_FILTER))]
    assert {scorer.name: scorer.weight for scorer in found.scorers}["TaintToleration"] == 9


def test_backoff() -> None:
    assert parse("podInitialBackoffSeconds: 2\npodMaxBackoffSeconds: 20").backoff == Backoff(2.0, 20.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("extenders: []", "extenders: not supported"),
        ("profiles: [{plugins: {nonsense: {}}}]", "profiles[0].plugins.nonsense: not supported"),
        ("profiles: [{}, {}]", "profiles: every schedulerName may occur once"),
        ("percentageOfNodesToScore: 101", "percentageOfNodesToScore: must be a number from 0 to 100"),
        ("podInitialBackoffSeconds: 60", "podInitialBackoffSeconds: must be greater than 0"),
        ("profiles: [{plugins: {filter: {enabled: [{weight: 1}]}}}]", "every entry needs a name"),
        ("profiles: [{plugins: {filter: {enabled: [{name: Nobody}]}}}]", 'plugin "Nobody" is not known'),
        ("profiles: [{plugins: {filter: {enabled: [{name: PrioritySort}]}}}]", "does not extend filter plugin"),
        ("profiles: [{plugins: {queueSort: {disabled: [{name: '*'}]}}}]", "exactly one queueSort plugin is needed"),
        ("profiles: [{plugins: {bind: {disabled: [{name: '*'}]}}}]", "at least one bind plugin is needed"),
        ("profiles: [{pluginConfig: [{name: Nobody}]}]", 'pluginConfig for unknown plugin "Nobody"'),
        ("profiles: [{pluginConfig: [{name: A}, {name: A}]}]", 'repeated config for plugin "A"'),
        (
            "profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: {type: Odd}}}]}]",
            'initializing plugin "NodeResourcesFit": scoringStrategy.type "Odd" is not supported',
        ),
    ],
)
def test_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        profiles(text)
    assert message in str(refused.value)


@pytest.mark.parametrize("head", [{}, HEAD | {"kind": "Other"}, HEAD | {"apiVersion": "v1"}])
def test_other_documents_are_refused(head: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="must be KubeSchedulerConfiguration"):
        parse_config(head)


def test_reading_the_file(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(HEAD | {"profiles": [{"schedulerName": "mine"}]}))
    assert read_config(str(file)).profiles[0].scheduler_name == "mine"
    assert read_config("") == SchedulerConfig()
    with pytest.raises(ConfigError, match="cannot read"):
        read_config(str(tmp_path / "missing.yaml"))
    file.write_text("{")
    with pytest.raises(ConfigError, match="not valid YAML"):
        read_config(str(file))


def make_nothing(_args: Any, _handle: Any) -> Plugin:
    raise NotImplementedError


def test_an_entry_point_may_not_take_a_built_in_name() -> None:
    entry = EntryPoint("NodeName", f"{__name__}:make_nothing", "dray.scheduler.plugins")
    with pytest.raises(ConfigError, match="there is one of this name already"):
        find_factories([entry])
