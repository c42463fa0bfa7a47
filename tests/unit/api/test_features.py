"""Feature gates: names, stages, defaults, locks and dependencies of Kubernetes 1.37, and parsing."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import dray
from dray.api.features import GATES, FeatureGateError, FeatureGates, Stage

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
    assert (GATES[name].stage, FeatureGates().enabled(name)) == (stage, default)
    assert GATES[name].locked is (name in LOCKED)


@pytest.mark.behaviour("SP-143")
@pytest.mark.parametrize("name", [name for name, gate in GATES.items() if not gate.locked])
def test_every_other_one_can_be_switched(name: str) -> None:
    value = not GATES[name].default
    # What it needs is switched on with it, and what needs it off.
    needed = [f"{other}=true" for other in GATES[name].requires if value and not GATES[other].locked]
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
    assert "DRANodeAllocatableResources" in names
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
