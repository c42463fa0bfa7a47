"""Configurations: what they make of the profiles, and what is refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import yaml

from dray.framework.plugins import BIND, FILTER, PRE_FILTER, SCORE, Plugin
from dray.scheduler.config import ConfigError, LeaderElectionConfig, PluginSet, SchedulerConfig, parse_config
from dray.scheduler.config_loader import find_factories, read_config
from dray.scheduler.cycle import Cycle, Placement
from dray.scheduler.handle import Handle
from dray.scheduler.nominations import Nominations
from dray.scheduler.plugins.default_preemption import read_arguments
from dray.scheduler.profile import Profile
from dray.scheduler.queue import Backoff
from dray.scheduler.registry import BUILT_IN, make_profile, make_profiles
from tests.unit.scheduler.builders import PLAIN, handle, node_info, pod_info, state

HEAD = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}


def parse(text: str) -> SchedulerConfig:
    return parse_config(HEAD | (yaml.safe_load(text) or {}))


def profiles(text: str, without: Collection[str] = ()) -> dict[str, Profile]:
    """The profiles of a configuration; arguments of some plugins that are not constructed are left out."""
    configs = [
        replace(config, args={name: args for name, args in config.args.items() if name not in without})
        for config in parse(text).profiles
    ]
    return make_profiles(configs, PLAIN, handle())


def names(plugins: Any) -> list[str]:
    return [item[0].name if isinstance(item, tuple) else item.name for item in plugins]


def test_defaults() -> None:
    profile = profiles("")["default-scheduler"]
    assert names(profile.at(FILTER)) == [
        "NodeName",
        "NodeUnschedulable",
        "TaintToleration",
        "NodeAffinity",
        "NodePorts",
        "NodeResourcesFit",
        "VolumeRestrictions",
        "VolumeBinding",
        "PodTopologySpread",
        "InterPodAffinity",
        "NodeDeclaredFeatures",
    ]
    assert {scorer.name: scorer.weight for scorer in profile.scorers} == {
        "TaintToleration": 3,
        "NodeAffinity": 2,
        "NodeResourcesFit": 1,
        "PodTopologySpread": 2,
        "InterPodAffinity": 2,
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
        (
            "{resourceLock: endpoints}",
            'leaderElection.resourceLock: Invalid value: "endpoints": resourceLock value must be "leases"',
        ),
        ("{leaderElect: maybe}", "leaderElection.leaderElect: must be true or false"),
        ("{leaseDuration: 15}", "leaderElection.leaseDuration: must be a string"),
        ("{retryPeriod: soon}", 'leaderElection.retryPeriod: must be a duration such as "15s"'),
        ("{retryPeriod: -1s}", 'leaderElection.retryPeriod: Invalid value: "-1s": must be greater than zero'),
        ("{identity: me}", "leaderElection.identity: not supported"),
        (
            "{leaseDuration: 5s}",
            'leaderElection.leaseDuration: Invalid value: "10s": LeaseDuration must be greater than RenewDeadline',
        ),
        (
            "{retryPeriod: 9s}",
            "leaderElection.renewDeadline: renewDeadline must be greater than retryPeriod*JitterFactor (1.2)",
        ),
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


@pytest.mark.behaviour("PE-28", "SC-03", "SC-16")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("extenders: [{urlPrefix: 'http://x'}]", "extenders: not supported"),
        ("delayCacheUntilActive: true", "delayCacheUntilActive: not supported"),
        ("nonsense: 1", "nonsense: not supported"),
        (
            "profiles: [{plugins: {placementGenerate: {enabled: [{name: A}]}}}]",
            "profiles[0].plugins.placementGenerate: not supported",
        ),
        (
            "profiles: [{pluginConfig: [{name: NodeName, args: {a: 1}}]}]",
            "profiles[0].pluginConfig[0].args.a: not supported",
        ),
        (
            "profiles: [{pluginConfig: [{name: NodeAffinity, args: {a: 1}}]}]",
            "profiles[0].pluginConfig[0].args.a: not supported",
        ),
        (
            "profiles: [{pluginConfig: [{name: InterPodAffinity, args: {hardPodAffinityWeight: 101}}]}]",
            "profiles[0].pluginConfig[0].args.hardPodAffinityWeight: Invalid value: 101: not in valid range [0, 100]",
        ),
        (
            "profiles: [{pluginConfig: [{name: PodTopologySpread, args: {defaultingType: Odd}}]}]",
            'profiles[0].pluginConfig[0].args.defaultingType: Unsupported value: "Odd"',
        ),
        ("profiles: [{plugins: {nonsense: {}}}]", "profiles[0].plugins.nonsense: not supported"),
        ("profiles: [{}, {}]", 'profiles[1].schedulerName: Duplicate value: "default-scheduler"'),
        ("percentageOfNodesToScore: 101", "percentageOfNodesToScore: Invalid value: 101: not in valid range [0-100]"),
        ("podInitialBackoffSeconds: 0", "podInitialBackoffSeconds: Invalid value: 0: must be greater than 0"),
        (
            "podInitialBackoffSeconds: 60",
            "podMaxBackoffSeconds: Invalid value: 10: must be greater than or equal to PodInitialBackoffSeconds",
        ),
        ("podInitialBackoffSeconds: x", "podInitialBackoffSeconds: must be an integer"),
        ("podMaxBackoffSeconds: [1]", "podMaxBackoffSeconds: must be an integer"),
        ("percentageOfNodesToScore: true", "percentageOfNodesToScore: must be an integer"),
        ("parallelism: 0", "parallelism: Invalid value: 0: should be an integer value greater than zero"),
        ("clientConnection: 5", "clientConnection: must be a map"),
        ("clientConnection: {other: 1}", "clientConnection.other: not supported"),
        ("clientConnection: {qps: x}", "clientConnection.qps: must be a number"),
        ("enableProfiling: 3", "enableProfiling: must be true or false"),
        ("extenders: {a: b}", "extenders: must be a list of maps"),
        ("profiles: {a: b}", "profiles: must be a list of maps"),
        ("profiles: [5]", "profiles: must be a list of maps"),
        ("profiles: [{schedulerName: 5}]", "profiles[0].schedulerName: must be a string"),
        ("profiles: [{plugins: 5}]", "profiles[0].plugins: must be a map"),
        ("profiles: [{plugins: {filter: 5}}]", "profiles[0].plugins.filter: must be a map"),
        ("profiles: [{plugins: {filter: {enabled: 5}}}]", "plugins.filter.enabled: must be a list of maps"),
        ("profiles: [{plugins: {filter: {other: 5}}}]", "profiles[0].plugins.filter.other: not supported"),
        (
            "profiles: [{plugins: {score: {enabled: [{name: NodeResourcesFit, weight: x}]}}}]",
            "profiles[0].plugins.score.enabled[0].weight: must be an integer",
        ),
        (
            "profiles: [{plugins: {score: {enabled: [{name: NodeResourcesFit, weight: -1}]}}}]",
            "profiles[0].plugins.score.enabled[0].weight: Invalid value: -1: not in valid range [0, 2147483647]",
        ),
        (
            "profiles: [{plugins: {score: {enabled: [{name: NodeResourcesFit, weight: 2147483648}]}}}]",
            "weight: Invalid value: 2147483648: not in valid range [0, 2147483647]",
        ),
        (
            "profiles: [{plugins: {score: {enabled: [{name: NodeName}, {name: NodeName}]}}}]",
            'profiles[0].plugins.score.enabled[1]: plugin "NodeName" already registered',
        ),
        ("profiles: [{pluginConfig: 5}]", "profiles[0].pluginConfig: must be a list of maps"),
        ("profiles: [{pluginConfig: [{name: NodeName, args: 5}]}]", "profiles[0].pluginConfig[0].args: must be a map"),
        ("profiles: [{pluginConfig: [{name: NodeName, more: 5}]}]", "profiles[0].pluginConfig[0].more: not supported"),
        (
            "profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {kind: NodeAffinityArgs}}]}]",
            'args.kind: Unsupported value: "NodeAffinityArgs": must be "NodeResourcesFitArgs"',
        ),
        (
            "profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: 5}}]}]",
            "profiles[0].pluginConfig[0].args.scoringStrategy: must be a map",
        ),
        (
            "profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {ignoredResources: x}}]}]",
            "profiles[0].pluginConfig[0].args.ignoredResources: must be a list of strings",
        ),
        (
            "profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {ignoredResourceGroups: [a/b]}}]}]",
            "ignoredResourceGroups[0]: Invalid value: \"a/b\": resource group name can't contain '/'",
        ),
        (
            "profiles: [{pluginConfig: [{name: NodeResourcesBalancedAllocation, args: {resources: "
            "[{name: cpu, weight: 5}]}}]}]",
            "resources[0].weight: Invalid value: 5: must be 1",
        ),
        (
            "profiles: [{pluginConfig: [{name: NodeAffinity, args: {addedAffinity: {other: 1}}}]}]",
            'profiles[0].pluginConfig[0].args.addedAffinity: unknown field "other"',
        ),
        (
            "profiles: [{pluginConfig: [{name: NodeAffinity, args: {addedAffinity: "
            "{requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: "
            "[{matchExpressions: [{key: a, operator: Odd}]}]}}}}]}]",
            "nodeSelectorTerms[0].matchExpressions[0].operator: Invalid value",
        ),
        ("profiles: [{pluginConfig: [{name: VolumeBinding, args: {shape: []}}]}]", "shape: not supported"),
        (
            "profiles: [{pluginConfig: [{name: VolumeBinding, args: {bindTimeoutSeconds: -1}}]}]",
            "bindTimeoutSeconds: Invalid value: -1: invalid BindTimeoutSeconds, should not be a negative value",
        ),
        (
            "profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {ignoredResources: [a, -b]}}]}]",
            'ignoredResources[1]: Invalid value: "-b": name part must consist of alphanumeric characters',
        ),
        (
            "profiles: [{pluginConfig: [{name: PodTopologySpread, args: {defaultingType: List, defaultConstraints: "
            "[{maxSkew: 1, topologyKey: -b, whenUnsatisfiable: ScheduleAnyway}]}}]}]",
            'defaultConstraints[0].topologyKey: Invalid value: "-b": name part must consist of alphanumeric characters',
        ),
        ("clientConnection: {burst: -1}", "clientConnection.burst: Invalid value: -1: must be non-negative"),
        ("profiles: [{plugins: {filter: {enabled: [{weight: 1}]}}}]", "filter.enabled[0].name: Required value"),
        (
            "profiles: [{plugins: {filter: {enabled: [{name: Nobody}]}}}]",
            'creating profile for scheduler name default-scheduler: plugin "Nobody" does not exist',
        ),
        ("profiles: [{plugins: {filter: {enabled: [{name: PrioritySort}]}}}]", "does not extend filter plugin"),
        (
            "profiles: [{plugins: {queueSort: {disabled: [{name: '*'}]}}}]",
            'only one queue sort plugin required for profile with scheduler name "default-scheduler", but got 0',
        ),
        (
            "profiles: [{plugins: {bind: {disabled: [{name: '*'}]}}}]",
            'at least one bind plugin is needed for profile with scheduler name "default-scheduler"',
        ),
        (
            "profiles: [{pluginConfig: [{name: Nobody}]}]",
            'profiles[0].pluginConfig[0].name: Invalid value: "Nobody": no such plugin',
        ),
        ("profiles: [{pluginConfig: [{name: A}, {name: A}]}]", 'profiles[0].pluginConfig[1]: Duplicate value: "A"'),
        (
            "profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: {type: Odd}}}]}]",
            'profiles[0].pluginConfig[0].args.scoringStrategy.type: Unsupported value: "Odd"',
        ),
    ],
)
def test_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        profiles(text)
    assert message in str(refused.value)


@pytest.mark.behaviour("SC-03", "SC-16")
def test_what_kube_scheduler_writes_by_default_is_accepted() -> None:
    found = profiles(
        """
        parallelism: 16
        enableProfiling: true
        enableContentionProfiling: true
        delayCacheUntilActive: false
        extenders: []
        clientConnection: {kubeconfig: x}
        profiles:
        - pluginConfig:
          - name: DefaultPreemption
            args: {kind: DefaultPreemptionArgs, minCandidateNodesPercentage: 10, minCandidateNodesAbsolute: 100}
          - name: DynamicResources
            args: {filterTimeout: 10s}
          - name: InterPodAffinity
            args: {kind: InterPodAffinityArgs, hardPodAffinityWeight: 1, ignorePreferredTermsOfExistingPods: false}
          - name: NodeAffinity
            args: {kind: NodeAffinityArgs}
          - name: NodeResourcesBalancedAllocation
            args: {resources: [{name: cpu, weight: 1}, {name: memory, weight: 1}]}
          - name: NodeResourcesFit
            args:
              scoringStrategy: {type: LeastAllocated, resources: [{name: cpu, weight: 1}, {name: memory, weight: 1}]}
          - name: PodTopologySpread
            args: {kind: PodTopologySpreadArgs, defaultingType: System}
          - name: VolumeBinding
            args: {kind: VolumeBindingArgs, bindTimeoutSeconds: 600}
        """,
        BUILT_IN.keys() - PLAIN.keys(),
    )
    assert set(found) == {"default-scheduler"}


def test_named_profiles() -> None:
    assert read_config("", "spread") == SchedulerConfig()
    empty, busy = node_info("empty"), node_info("busy", pods=[pod_info("old", requests={"cpu": "2", "memory": "4Gi"})])
    for name, best in (("spread", "empty"), ("pack", "busy")):
        framework_handle = handle(empty, busy)
        # The plugins for devices are not among the plain ones.
        config = read_config("", name).profiles[0]
        arguments = {plugin: given for plugin, given in config.args.items() if plugin in PLAIN}
        config = replace(config, multi_point=PluginSet(), args=arguments)
        profile = make_profile(config, PLAIN, framework_handle)
        info = pod_info(requests={"cpu": "1", "memory": "2Gi"})
        found = Cycle(framework_handle.snapshot, Nominations()).place(profile, state(info))
        assert isinstance(found, Placement)
        assert found.node_name == best
    with pytest.raises(ConfigError, match="the profile pack cannot be combined with a configuration file"):
        read_config("some.yaml", "pack")


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


@pytest.mark.behaviour("SC-16")
def test_points_of_groups_are_accepted_where_nothing_is_configured() -> None:
    assert profiles("profiles: [{plugins: {placementGenerate: {}, placementScore: {}, podGroupPostFilter: {}}}]")


def test_a_lock_matters_only_with_leader_election() -> None:
    assert not parse("leaderElection: {leaderElect: false, resourceLock: endpoints}").leader_election.enabled


@pytest.mark.behaviour("PE-16")
def test_all_errors_of_one_plugin_are_reported_with_their_paths() -> None:
    text = "profiles: [{}, {schedulerName: b, pluginConfig: [{name: A}, {name: DefaultPreemption, args: "
    config = parse(f"{text}{{minCandidateNodesAbsolute: 0, minCandidateNodesPercentage: 0}}}}]}}]").profiles[1]

    def factory(args: Mapping[str, Any], _handle: Handle) -> Plugin:
        read_arguments(args)
        raise AssertionError("the arguments are wrong")

    with pytest.raises(ConfigError) as refused:
        make_profile(config, {**PLAIN, "DefaultPreemption": factory}, handle())
    path = "profiles[1].pluginConfig[1].args."
    assert str(refused.value) == (
        f"[{path}minCandidateNodesPercentage: Invalid value: 0: cannot be zero at the same time as "
        f"minCandidateNodesAbsolute, {path}minCandidateNodesAbsolute: Invalid value: 0: cannot be zero at the same "
        "time as minCandidateNodesPercentage]"
    )
