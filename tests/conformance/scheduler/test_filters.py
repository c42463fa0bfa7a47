"""Every filter's answers, with the words that users of Kubernetes know (kube-scheduler 1.36)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from dray.framework.node_info import NodeInfo
from dray.framework.status import Code
from dray.scheduler.config import ProfileConfig
from dray.scheduler.cycle import Cycle, Placement
from dray.scheduler.diagnosis import Diagnosis
from dray.scheduler.nominations import Nominations
from dray.scheduler.registry import make_profile
from tests.unit.scheduler.builders import PLAIN, DeviceServedResource, container, handle, node_info, pod_info, state

NO = Code.UNSCHEDULABLE
NEVER = Code.UNSCHEDULABLE_AND_UNRESOLVABLE
AFFINITY_REASON = "node(s) didn't match Pod's node affinity/selector"
PORTS_REASON = "node(s) didn't have free ports for the requested pod ports"


@dataclass(frozen=True)
class Case:
    """A Pod, a node, and the first no; an empty plugin means that the node fits."""

    pod: dict[str, Any] = field(default_factory=dict)
    node: NodeInfo = field(default_factory=node_info)
    plugin: str = ""
    code: Code = NO
    reasons: Sequence[str] = ()
    args: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def taint(effect: str, key: str = "key", value: str = "value") -> dict[str, str]:
    return {"key": key, "value": value, "effect": effect}


def required(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}


def port(number: int, **more: Any) -> dict[str, Any]:
    return container(ports=[{"containerPort": 1, "hostPort": number, **more}])


FULL = node_info(pods=[pod_info("old", requests={"cpu": "4", "memory": "8Gi"})])
TAINTED = node_info(taints=[taint("NoSchedule")])
GPUS = node_info(allocatable={"cpu": "4", "memory": "8Gi", "pods": "10", "example.com/gpu": "2"})
PORT_TAKEN = node_info(pods=[pod_info("old", containers=[port(80)])])

CASES = {
    "an empty pod fits": Case(),
    # NodeUnschedulable
    "cordoned": Case({}, node_info(unschedulable=True), "NodeUnschedulable", NEVER, ["node(s) were unschedulable"]),
    "cordoned, tolerated": Case(
        {"tolerations": [{"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}]},
        node_info(unschedulable=True),
    ),
    # TaintToleration
    "tainted": Case({}, TAINTED, "TaintToleration", NEVER, ["node(s) had untolerated taint(s)"]),
    "tainted to evict": Case(
        {}, node_info(taints=[taint("NoExecute")]), "TaintToleration", NEVER, ["node(s) had untolerated taint(s)"]
    ),
    "softly tainted": Case({}, node_info(taints=[taint("PreferNoSchedule")])),
    "tolerated by value": Case({"tolerations": [{"key": "key", "value": "value", "effect": "NoSchedule"}]}, TAINTED),
    "tolerated with another value": Case(
        {"tolerations": [{"key": "key", "value": "other", "effect": "NoSchedule"}]},
        TAINTED,
        "TaintToleration",
        NEVER,
        ["node(s) had untolerated taint(s)"],
    ),
    "tolerated by key": Case({"tolerations": [{"key": "key", "operator": "Exists"}]}, TAINTED),
    "tolerated with another effect": Case(
        {"tolerations": [{"key": "key", "operator": "Exists", "effect": "NoExecute"}]},
        TAINTED,
        "TaintToleration",
        NEVER,
        ["node(s) had untolerated taint(s)"],
    ),
    "everything tolerated": Case({"tolerations": [{"operator": "Exists"}]}, TAINTED),
    # NodeAffinity
    "selector": Case({"nodeSelector": {"a": "b"}}, node_info(), "NodeAffinity", NEVER, [AFFINITY_REASON]),
    "selector met": Case({"nodeSelector": {"a": "b"}}, node_info(labels={"a": "b"})),
    "affinity": Case(
        {"affinity": required({"matchExpressions": [{"key": "a", "operator": "Exists"}]})},
        node_info(),
        "NodeAffinity",
        NEVER,
        [AFFINITY_REASON],
    ),
    "the profile's affinity": Case(
        {},
        node_info(),
        "NodeAffinity",
        NEVER,
        ["node(s) didn't match scheduler-enforced node affinity"],
        {
            "NodeAffinity": {
                "addedAffinity": required({"matchExpressions": [{"key": "a", "operator": "Exists"}]})["nodeAffinity"]
            }
        },
    ),
    # NodePorts
    "port taken": Case({"containers": [port(80)]}, PORT_TAKEN, "NodePorts", NO, [PORTS_REASON]),
    "port of another protocol": Case({"containers": [port(80, protocol="UDP")]}, PORT_TAKEN),
    "port of one address": Case(
        {"containers": [port(80, hostIP="1.2.3.4")]}, PORT_TAKEN, "NodePorts", NO, [PORTS_REASON]
    ),
    # NodeResourcesFit
    "full": Case({"requests": {"cpu": "1"}}, FULL, "NodeResourcesFit", NO, ["Insufficient cpu"]),
    "full in two ways": Case(
        {"requests": {"cpu": "1", "memory": "1Gi"}},
        FULL,
        "NodeResourcesFit",
        NO,
        ["Insufficient cpu", "Insufficient memory"],
    ),
    "a full node takes what asks for nothing": Case({}, FULL),
    "larger than the node": Case(
        {"requests": {"cpu": "5"}}, node_info(), "NodeResourcesFit", NEVER, ["Insufficient cpu"]
    ),
    "ephemeral storage": Case(
        {"requests": {"ephemeral-storage": "1Gi"}},
        node_info(),
        "NodeResourcesFit",
        NEVER,
        ["Insufficient ephemeral-storage"],
    ),
    "exactly fits": Case({"requests": {"cpu": "4", "memory": "8Gi"}}),
    "too many pods": Case(
        {},
        node_info(allocatable={"cpu": "4", "pods": "1"}, pods=[pod_info("old")]),
        "NodeResourcesFit",
        NO,
        ["Too many pods"],
    ),
    "extended resource": Case({"requests": {"example.com/gpu": "2"}}, GPUS),
    "extended resource taken": Case(
        {"requests": {"example.com/gpu": "1"}},
        GPUS.with_pod(pod_info("old", requests={"example.com/gpu": "2"})),
        "NodeResourcesFit",
        NO,
        ["Insufficient example.com/gpu"],
    ),
    "extended resource missing": Case(
        {"requests": {"example.com/gpu": "1"}},
        node_info(),
        "NodeResourcesFit",
        NEVER,
        ["Insufficient example.com/gpu"],
    ),
    "extended resource ignored": Case(
        {"requests": {"example.com/gpu": "1"}},
        args={"NodeResourcesFit": {"ignoredResources": ["example.com/gpu"]}},
    ),
    "extended resources of a group ignored": Case(
        {"requests": {"example.com/gpu": "1"}}, args={"NodeResourcesFit": {"ignoredResourceGroups": ["example.com"]}}
    ),
}


def place(case: Case) -> Placement | Diagnosis:
    framework_handle = handle(case.node)
    profile = make_profile(ProfileConfig(args=case.args), PLAIN, framework_handle)
    return Cycle(framework_handle.snapshot, Nominations()).place(profile, state(pod_info(**case.pod)))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_filter(case: Case) -> None:
    found = place(case)
    if not case.plugin:
        assert isinstance(found, Placement)
        return
    assert isinstance(found, Diagnosis)
    status = found.statuses[case.node.name]
    assert (status.plugin, status.code, status.reasons) == (case.plugin, case.code, tuple(case.reasons))
    assert found.plugins == {case.plugin}


PRE_FILTER_CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "names that contradict": (
        {
            "affinity": required(
                {
                    "matchFields": [
                        {"key": "metadata.name", "operator": "In", "values": ["n"]},
                        {"key": "metadata.name", "operator": "In", "values": ["m"]},
                    ]
                }
            )
        },
        "NodeAffinity",
        "pod affinity terms conflict",
    ),
    "a volume claim": (
        {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]},
        "VolumeBinding",
        'persistentvolumeclaim "c" not found',
    ),
}


@pytest.mark.parametrize(("spec", "plugin", "reason"), PRE_FILTER_CASES.values(), ids=PRE_FILTER_CASES)
def test_rejected_before_any_node(spec: dict[str, Any], plugin: str, reason: str) -> None:
    found = place(Case(spec))
    assert isinstance(found, Diagnosis)
    assert found.plugins == {plugin}
    assert found.message() == f"0/1 nodes are available: {reason}."


@pytest.mark.parametrize(
    "spec",
    [
        {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "ScheduleAnyway"}]},
        {"volumes": [{"name": "v", "emptyDir": {}}]},
        {
            "affinity": {
                "podAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [
                        {"weight": 1, "podAffinityTerm": {"topologyKey": "z"}}
                    ]
                }
            }
        },
    ],
)
def test_preferences_keep_no_pod_pending(spec: dict[str, Any]) -> None:
    assert isinstance(place(Case(spec)), Placement)


def lonely(**words: Any) -> Any:
    """A Pod that wants no Pod with label app=web in its zone."""
    term = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "web"}}}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    return pod_info("lonely", affinity=affinity, **words)


@pytest.mark.parametrize(
    ("labels", "namespace", "zone", "fits"),
    [
        ({"app": "web"}, "default", "a", False),
        ({"app": "web"}, "default", "b", True),
        ({"app": "db"}, "default", "a", True),
        ({"app": "web"}, "other", "a", True),
    ],
)
def test_existing_pods_keep_others_away(labels: Any, namespace: str, zone: str, fits: bool) -> None:
    taken = node_info("taken", labels={"zone": "a"}, pods=[lonely()], unschedulable=True)
    framework_handle = handle(taken, node_info("free", labels={"zone": zone}))
    profile = make_profile(ProfileConfig(), PLAIN, framework_handle)
    found = Cycle(framework_handle.snapshot, Nominations()).place(
        profile, state(pod_info(labels=labels, namespace=namespace))
    )
    if fits:
        assert isinstance(found, Placement)
    else:
        assert isinstance(found, Diagnosis)
        assert found.statuses["free"].reasons == ("node(s) didn't satisfy existing pods anti-affinity rules",)


def test_devices_may_serve_an_extended_resource() -> None:
    framework_handle = handle(node_info())
    profile = make_profile(ProfileConfig(), PLAIN, framework_handle)
    framework_handle.extended_resources.register(DeviceServedResource("example.com/gpu"))
    pod = pod_info(requests={"example.com/gpu": "1"})
    assert isinstance(Cycle(framework_handle.snapshot, Nominations()).place(profile, state(pod)), Placement)
