"""Feature gates: their names and defaults as in Kubernetes 1.36, and `--feature-gates` parsing."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final


class Stage(enum.StrEnum):
    """How mature a gate's feature is."""

    ALPHA = "ALPHA"
    BETA = "BETA"
    GA = ""


@dataclass(frozen=True, slots=True)
class Gate:
    """A gate's default and stage; a locked gate cannot be switched."""

    default: bool
    stage: Stage
    locked: bool = False


GATES: Final[Mapping[str, Gate]] = {
    # KEP-3573's; Kubernetes has it on for good by now.
    "DevicePlugins": Gate(default=True, stage=Stage.GA),
    "DynamicResourceAllocation": Gate(default=True, stage=Stage.GA),
    # Claims of cdi.k8s.io, allocated by their drivers; Kubernetes gave the gate up with 1.32.
    "DRAControlPlaneController": Gate(default=True, stage=Stage.BETA),
    "DRAAdminAccess": Gate(default=True, stage=Stage.GA),
    "DRAPrioritizedList": Gate(default=True, stage=Stage.GA),
    "DRAExtendedResource": Gate(default=True, stage=Stage.BETA),
    "DRADeviceTaints": Gate(default=True, stage=Stage.BETA),
    "DRADeviceTaintRules": Gate(default=True, stage=Stage.BETA),
    "DRAPartitionableDevices": Gate(default=True, stage=Stage.BETA),
    "DRAConsumableCapacity": Gate(default=True, stage=Stage.BETA),
    "DRADeviceBindingConditions": Gate(default=True, stage=Stage.BETA),
    "DRAResourceClaimDeviceStatus": Gate(default=True, stage=Stage.BETA),
    "DRAResourceClaimGranularStatusAuthorization": Gate(default=False, stage=Stage.ALPHA),
    "DRASchedulerFilterTimeout": Gate(default=True, stage=Stage.BETA),
    "DRAListTypeAttributes": Gate(default=False, stage=Stage.ALPHA),
    "DRANodeAllocatableResources": Gate(default=False, stage=Stage.ALPHA),
    "DRAResourcePoolStatus": Gate(default=False, stage=Stage.ALPHA),
    "DRAWorkloadResourceClaims": Gate(default=False, stage=Stage.ALPHA),
    "ResourceHealthStatus": Gate(default=True, stage=Stage.BETA),
    "KubeletPodResourcesDynamicResources": Gate(default=True, stage=Stage.GA),
    "KubeletPodResourcesGet": Gate(default=True, stage=Stage.GA),
    "KubeletPodResourcesListUseActivePods": Gate(default=True, stage=Stage.BETA),
}

# The names KEP-3695 gave its gates; accepted for the ones Kubernetes has now.
ALIASES: Final[Mapping[str, str]] = {
    "PodResourcesDynamicResources": "KubeletPodResourcesDynamicResources",
    "PodResourcesGet": "KubeletPodResourcesGet",
}


class FeatureGateError(ValueError):
    """A `--feature-gates` value that cannot be used."""


@dataclass(frozen=True, slots=True)
class FeatureGates:
    """Which gates are on; immutable."""

    overrides: Mapping[str, bool] = field(default_factory=dict)

    def enabled(self, name: str) -> bool:
        """Whether the gate is on; an unknown gate is a bug."""
        gate = GATES[name]
        return self.overrides.get(name, gate.default)

    @classmethod
    def parse(cls, text: str) -> FeatureGates:
        """Read `A=true,B=false`; `AllAlpha` and `AllBeta` switch whole stages, named gates win over them."""
        named: dict[str, bool] = {}
        stages: dict[Stage, bool] = {}
        for item in filter(None, (part.strip() for part in text.split(","))):
            name, value = _parse_item(item)
            if name in _STAGES:
                stages[_STAGES[name]] = value
                continue
            name = ALIASES.get(name, name)
            if name not in GATES:
                raise FeatureGateError(f"unrecognized feature gate: {name}")
            if GATES[name].locked and value != GATES[name].default:
                raise FeatureGateError(
                    f"cannot set feature gate {name} to {str(value).lower()}, "
                    f"feature is locked to {str(GATES[name].default).lower()}"
                )
            named[name] = value
        by_stage = {name: stages[gate.stage] for name, gate in GATES.items() if gate.stage in stages}
        return cls(by_stage | named)


_STAGES: Final = {"AllAlpha": Stage.ALPHA, "AllBeta": Stage.BETA}
# What Go's strconv.ParseBool takes.
_TRUE: Final = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "false", "FALSE", "False"})


def _parse_item(item: str) -> tuple[str, bool]:
    name, separator, value = item.partition("=")
    if not separator:
        raise FeatureGateError(f"missing bool value for {name}")
    value = value.strip()
    if value not in _TRUE | _FALSE:
        raise FeatureGateError(
            f'invalid value of {name}={value}, err: strconv.ParseBool: parsing "{value}": invalid syntax'
        )
    return name.strip(), value in _TRUE
