"""Feature gates: names, stages, defaults, locks and dependencies of Kubernetes 1.33 to 1.37, and parsing."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

import dray
from dray.api.features import EmulatedVersionError, FeatureGateError, FeatureGates, parse_emulated_version
from dray.api.gate_table import CURRENT, GATES, OLDEST, Release, Stage

LOCKED = (
    "DynamicResourceAllocation",
    "DRAAdminAccess",
    "DRAPrioritizedList",
    "DRAExtendedResource",
    "DRAResourceClaimDeviceStatus",
    "NodeDeclaredFeatures",
    "KubeletPodResourcesDynamicResources",
    "KubeletPodResourcesGet",
)
GA = ("DRADeviceTaints", "DRADeviceTaintRules")
BETA = (
    "DRAPartitionableDevices",
    "DRAConsumableCapacity",
    "DRADeviceBindingConditions",
    "DRAResourceClaimGranularStatusAuthorization",
    "DRASchedulerFilterTimeout",
    "ResourceHealthStatus",
    "ResourceHealthStatusMessage",
    "PodsAPI",
)
BETA_OFF = ("DRAFractionalCapacityRange", "DRAWorkloadResourceClaims", "GenericWorkload", "PodLevelResourceManagers")
ALPHA = (
    "DRAListTypeAttributes",
    "DRANodeAllocatableResources",
    "DRAResourcePoolStatus",
    "DRAPartitionableDevicesType",
    "DRADerivedAttributes",
    "DRADeviceCompatibilityGroups",
    "DRAOptionalNodeOperations",
    "WorkloadWithJob",
    "TopologyAwareWorkloadScheduling",
)
REQUIRED = {
    "DRAAdminAccess": ("DynamicResourceAllocation",),
    "DRADeviceTaintRules": ("DRADeviceTaints",),
    "DRAResourceClaimDeviceStatus": (),
    "DRAResourceClaimGranularStatusAuthorization": ("DynamicResourceAllocation", "DRAResourceClaimDeviceStatus"),
    "DRADeviceBindingConditions": ("DynamicResourceAllocation", "DRAResourceClaimDeviceStatus"),
    "DRAFractionalCapacityRange": ("DRAConsumableCapacity",),
    "DRAPartitionableDevicesType": ("DRAPartitionableDevices", "DRAResourcePoolStatus"),
    "DRADeviceCompatibilityGroups": ("DRAPartitionableDevices",),
    "DRAOptionalNodeOperations": ("DynamicResourceAllocation", "NodeDeclaredFeatures"),
    "DRAWorkloadResourceClaims": ("DynamicResourceAllocation", "GenericWorkload"),
    "WorkloadWithJob": ("GenericWorkload",),
    "TopologyAwareWorkloadScheduling": ("GenericWorkload",),
    "ResourceHealthStatusMessage": ("ResourceHealthStatus",),
}


@pytest.mark.behaviour("SP-143", "N-01")
@pytest.mark.parametrize(
    ("name", "stage", "default"),
    [
        *((name, Stage.GA, True) for name in (*LOCKED, *GA)),
        *((name, Stage.BETA, True) for name in BETA),
        *((name, Stage.BETA, False) for name in BETA_OFF),
        *((name, Stage.ALPHA, False) for name in ALPHA),
        ("KubeletPodResourcesListUseActivePods", Stage.DEPRECATED, True),
    ],
)
def test_stages_and_defaults(name: str, stage: Stage, default: bool) -> None:
    assert (GATES[name].newest.stage, FeatureGates().enabled(name)) == (stage, default)
    assert GATES[name].newest.locked is (name in LOCKED)


@pytest.mark.behaviour("SP-143")
@pytest.mark.parametrize("name", [name for name, gate in GATES.items() if not gate.newest.locked])
def test_every_other_one_can_be_switched(name: str) -> None:
    value = not GATES[name].newest.default
    # What it needs is switched on with it, and what needs it off.
    needed = [f"{other}=true" for other in GATES[name].requires if value and not GATES[other].newest.locked]
    needing = [f"{other}=false" for other, gate in GATES.items() if not value and name in gate.requires]
    text = ",".join([f"{name}={str(value).lower()}", *needed, *needing])
    assert FeatureGates.parse(text).enabled(name) is value


@pytest.mark.behaviour("N-01", "N-10", "CL-18", "PL-13", "XR-44")
@pytest.mark.parametrize("name", LOCKED)
def test_a_locked_gate_accepts_only_its_default(name: str) -> None:
    assert FeatureGates.parse(f"{name}=true").enabled(name)
    with pytest.raises(FeatureGateError) as refused:
        FeatureGates.parse(f"{name}=false")
    assert str(refused.value) == f"cannot set feature gate {name} to false, feature is locked to true"


@pytest.mark.behaviour("N-01")
def test_a_gate_needs_others() -> None:
    assert {name: GATES[name].requires for name in REQUIRED} == REQUIRED
    with pytest.raises(FeatureGateError) as refused:
        FeatureGates.parse("DRADeviceTaints=false")
    assert str(refused.value) == (
        "DRADeviceTaintRules is enabled, but depends on features that are disabled: [DRADeviceTaints]"
    )
    with pytest.raises(FeatureGateError, match=r"\[DRAPartitionableDevices DRAResourcePoolStatus\]"):
        FeatureGates.parse("DRAPartitionableDevicesType=true,DRAPartitionableDevices=false")
    assert not FeatureGates.parse("DRADeviceTaints=false,DRADeviceTaintRules=false").enabled("DRADeviceTaints")


def test_stages_are_switched_whole_and_named_gates_win() -> None:
    gates = FeatureGates.parse("AllAlpha=false,AllBeta=false,DRAConsumableCapacity=true")
    assert not any(gates.enabled(name) for name in ALPHA)
    assert [name for name in (*BETA, *BETA_OFF) if gates.enabled(name)] == ["DRAConsumableCapacity"]
    every = FeatureGates.parse("AllAlpha=true,AllBeta=true,DRAConsumableCapacity=true")
    assert all(every.enabled(name) for name in (*ALPHA, *BETA, *BETA_OFF))


def test_an_unknown_gate_is_rejected() -> None:
    with pytest.raises(FeatureGateError, match="unrecognized feature gate: Nope"):
        FeatureGates.parse("Nope=true")


def test_a_deprecated_gate_belongs_to_no_stage() -> None:
    assert FeatureGates.parse("AllBeta=false").enabled("KubeletPodResourcesListUseActivePods")


@pytest.mark.parametrize("text", ["", "AllAlpha=true,AllBeta=true", "DRADeviceTaintRules=false"])
def test_the_disabled_gates_are_those_that_are_not_enabled(text: str) -> None:
    gates = FeatureGates.parse(text)
    assert gates.disabled == {name for name in GATES if not gates.enabled(name)}
    assert gates == FeatureGates(dict(gates.overrides))


def test_only_gates_are_looked_for_among_the_disabled_ones() -> None:
    # Unlike `enabled`, the set does not refuse another name, which would count as an enabled gate.
    names = set[object]()
    for path in sorted(Path(dray.__file__).parent.rglob("*.py")):
        text = path.read_text()
        if "disabled" in text:
            names.update(_looked_for_among_disabled(ast.parse(text)))
    assert "DRAListTypeAttributes" in names
    assert names <= GATES.keys()


def _looked_for_among_disabled(module: ast.Module) -> list[object]:
    return [
        node.left.value
        for node in ast.walk(module)
        if isinstance(node, ast.Compare)
        and isinstance(node.left, ast.Constant)
        and isinstance(node.ops[0], ast.In | ast.NotIn)
        and ast.unparse(node.comparators[0]).endswith("disabled")
    ]


# --- Releases that can be emulated. ---

RELEASES = [Release(1, minor) for minor in range(OLDEST.minor, CURRENT.minor + 1)]
# Of the five proposals: on by default, and locked, from 1.33 to 1.37; a dot where the gate does not exist.
ON_AND_LOCKED = {
    "DynamicResourceAllocation": "-+LLL",
    "DRAPrioritizedList": "-+++L",
    "DRAExtendedResource": ".--+L",
    "KubeletPodResourcesDynamicResources": "-++LL",
    "KubeletPodResourcesGet": "-++LL",
    "DRAAdminAccess": "-++LL",
    "DRAResourceClaimDeviceStatus": "++++L",
    "DRADeviceTaints": "---++",
    "DRADeviceTaintRules": "..--+",
    "DRAConsumableCapacity": ".--++",
    "DRAPartitionableDevices": "---++",
    "DRADerivedAttributes": "....-",
    "KubeletPodResourcesListUseActivePods": "-++++",
    # Of no release of Kubernetes, or of all.
    "DevicePlugins": "+++++",
    "DRAControlPlaneController": "+++++",
    "DRAPreemption": "+++++",
}


@pytest.mark.behaviour("EV-01")
@pytest.mark.parametrize("name", ON_AND_LOCKED)
def test_each_release_has_its_defaults_and_locks(name: str) -> None:
    found = ""
    for release in RELEASES:
        state = GATES[name].at(release)
        found += "." if state is None else "L" if state.locked else "+" if state.default else "-"
        assert FeatureGates(release=release).enabled(name) is (state is not None and state.default)
    assert found == ON_AND_LOCKED[name]


@pytest.mark.behaviour("EV-01")
@pytest.mark.parametrize("release", RELEASES, ids=str)
def test_the_defaults_of_each_release_go_together(release: Release) -> None:
    FeatureGates(release=release).check_dependencies()
    every = FeatureGates.parse("AllAlpha=true,AllBeta=true,DynamicResourceAllocation=true", release)
    assert not [name for name, gate in GATES.items() if gate.at(release) is None and every.enabled(name)]


@pytest.mark.parametrize("gate", GATES.values(), ids=GATES)
def test_histories_are_in_order_and_a_lock_is_for_ever(gate: Any) -> None:
    since = [state.since for state in gate.history]
    assert since == sorted(set(since))
    locks = [state.locked for state in gate.history]
    assert locks == sorted(locks)


@pytest.mark.behaviour("EV-02")
def test_a_gate_can_be_set_where_the_release_lets_it_be_set() -> None:
    assert not FeatureGates.parse("DRAPrioritizedList=false", Release(1, 36)).enabled("DRAPrioritizedList")
    with pytest.raises(FeatureGateError, match="cannot set feature gate DRAAdminAccess to false, feature is locked"):
        FeatureGates.parse("DRAAdminAccess=false", Release(1, 36))
    with pytest.raises(FeatureGateError) as refused:
        FeatureGates.parse("DRADerivedAttributes=false", Release(1, 36))
    assert str(refused.value) == (
        "cannot set feature gate DRADerivedAttributes to false, feature is PreAlpha at emulated version 1.36, "
        "min compatibility version 1.35"
    )
    with pytest.raises(FeatureGateError, match=r"depends on features that are disabled: \[DynamicResourceAllocation\]"):
        FeatureGates.parse("DRAPrioritizedList=true", Release(1, 33))


@pytest.mark.behaviour("EV-03")
@pytest.mark.parametrize("text", ["1.35", "v1.35", "kube=1.35", "1.35.0", " kube = 1.35 "])
def test_forms_of_the_emulated_version(text: str) -> None:
    assert parse_emulated_version(text) == Release(1, 35)


@pytest.mark.behaviour("EV-03")
@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", 'could not parse "" as version'),
        ("1", 'could not parse "1" as version'),
        ("1.x", 'could not parse "1.x" as version'),
        ("1.35.2", "patch version not allowed, got: kube=1.35.2"),
        ("1.32", "emulation version 1.32 is not between [1.33, 1.37]"),
        ("1.38", "emulation version 1.38 is not between [1.33, 1.37]"),
        ("2.35", "emulation version 2.35 is not between [1.33, 1.37]"),
        ("wardle=1.2", "component not registered: wardle"),
        ("1.35,kube=1.36", "duplicate version flag, kube=1.36 and kube=1.35"),
    ],
)
def test_bad_emulated_versions(text: str, error: str) -> None:
    with pytest.raises(EmulatedVersionError) as refused:
        parse_emulated_version(text)
    assert str(refused.value) == error


@pytest.mark.behaviour("EV-02")
def test_gates_may_name_their_component() -> None:
    assert not FeatureGates.parse("kube:DRADeviceTaintRules=false").enabled("DRADeviceTaintRules")
    with pytest.raises(FeatureGateError, match="component not registered: wardle"):
        FeatureGates.parse("wardle:A=true")


def test_what_requires_a_gate_goes_with_it() -> None:
    gates = FeatureGates(release=Release(1, 36)).without(["DRAPartitionableDevices", "DynamicResourceAllocation"])
    gates.check_dependencies()
    assert gates.release == Release(1, 36)
    assert not gates.enabled("DRADeviceTaintRules")
    assert gates.enabled("DRAResourceClaimDeviceStatus")
