"""Feature gates: names, defaults and parsing."""

from __future__ import annotations

import pytest

from dray.api.features import GATES, FeatureGateError, FeatureGates, Stage

GA = ("DynamicResourceAllocation", "DRAAdminAccess", "DRAPrioritizedList")
GA_OF_THE_NODE = ("KubeletPodResourcesDynamicResources", "KubeletPodResourcesGet")
BETA = (
    "DRAExtendedResource",
    "DRADeviceTaints",
    "DRAPartitionableDevices",
    "DRAConsumableCapacity",
    "DRADeviceBindingConditions",
    "DRAResourceClaimDeviceStatus",
    "DRAResourceClaimGranularStatusAuthorization",
    "DRASchedulerFilterTimeout",
    "ResourceHealthStatus",
)
ALPHA = ("DRAListTypeAttributes", "DRANodeAllocatableResources", "DRAResourcePoolStatus", "DRAWorkloadResourceClaims")


@pytest.mark.behaviour("SP-143")
@pytest.mark.parametrize(
    ("name", "stage", "default"),
    [
        *((name, Stage.GA, True) for name in (*GA, *GA_OF_THE_NODE)),
        *((name, Stage.BETA, True) for name in BETA),
        ("DRADeviceTaintRules", Stage.BETA, False),
        *((name, Stage.ALPHA, False) for name in ALPHA),
        ("KubeletPodResourcesListUseActivePods", Stage.DEPRECATED, True),
    ],
)
def test_stages_and_defaults(name: str, stage: Stage, default: bool) -> None:
    assert (GATES[name].stage, FeatureGates().enabled(name)) == (stage, default)


@pytest.mark.behaviour("SP-143")
@pytest.mark.parametrize("name", [*GA, *BETA, *ALPHA])
def test_every_one_can_be_switched(name: str) -> None:
    other = not GATES[name].default
    assert FeatureGates.parse(f"{name}={str(other).lower()}").enabled(name) is other


def test_stages_are_switched_whole_and_named_gates_win() -> None:
    gates = FeatureGates.parse("AllAlpha=true,AllBeta=false,DRADeviceTaints=true")
    assert all(gates.enabled(name) for name in ALPHA)
    assert [name for name in BETA if gates.enabled(name)] == ["DRADeviceTaints"]


def test_an_unknown_gate_is_rejected() -> None:
    with pytest.raises(FeatureGateError, match="unrecognized feature gate: Nope"):
        FeatureGates.parse("Nope=true")


def test_a_deprecated_gate_belongs_to_no_stage() -> None:
    assert FeatureGates.parse("AllBeta=false").enabled("KubeletPodResourcesListUseActivePods")
