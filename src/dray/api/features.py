"""Feature gates with the names and defaults of Kubernetes 1.36, and the parser of `--feature-gates`."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final


class Stage(enum.StrEnum):
    """Maturity of a feature."""

    ALPHA = "ALPHA"
    BETA = "BETA"
    GA = ""


@dataclass(frozen=True, slots=True)
class Gate:
    """A feature gate; a locked one cannot be set."""

    default: bool
    stage: Stage
    # One sentence of docs/reference/feature-gates.md.
    description: str
    locked: bool = False


GATES: Final[Mapping[str, Gate]] = {
    # Of KEP-3573. Kubernetes has removed the gate and always enables the feature.
    "DevicePlugins": Gate(
        default=True, stage=Stage.GA, description="Device plugins on nodes; without it there is no `kubelet.sock`."
    ),
    "DynamicResourceAllocation": Gate(
        default=True,
        stage=Stage.GA,
        description="Claims, classes and slices of `resource.k8s.io`, controller and scheduling.",
    ),
    # Claims of cdi.k8s.io, allocated by their drivers. Kubernetes removed the gate in 1.32.
    "DRAControlPlaneController": Gate(
        default=True, stage=Stage.BETA, description="Classic claims of `cdi.k8s.io`, which their drivers allocate."
    ),
    "DRAAdminAccess": Gate(
        default=True,
        stage=Stage.GA,
        description="`adminAccess` requests: devices for monitoring and repair, whoever else uses them.",
    ),
    "DRAPrioritizedList": Gate(
        default=True, stage=Stage.GA, description="`firstAvailable`: a list of alternatives in a request."
    ),
    "DRAExtendedResource": Gate(
        default=True,
        stage=Stage.BETA,
        description="`extendedResourceName` of a class: Pods ask for its devices as for an extended resource.",
    ),
    "DRADeviceTaints": Gate(
        default=True, stage=Stage.BETA, description="Taints of devices in slices, and tolerations in requests."
    ),
    "DRADeviceTaintRules": Gate(
        default=True,
        stage=Stage.BETA,
        description="DeviceTaintRules: taints by an administrator; needs `DRADeviceTaints`.",
    ),
    "DRAPartitionableDevices": Gate(
        default=True, stage=Stage.BETA, description="Shared counters, and slices whose devices name their own nodes."
    ),
    "DRAConsumableCapacity": Gate(
        default=True,
        stage=Stage.BETA,
        description="Devices that several claims share by capacity, and `distinctAttribute`.",
    ),
    "DRADeviceBindingConditions": Gate(
        default=True, stage=Stage.BETA, description="Devices that must be made ready before a Pod may be bound."
    ),
    "DRAResourceClaimDeviceStatus": Gate(
        default=True, stage=Stage.BETA, description="`status.devices` of a claim, written by drivers."
    ),
    "DRAResourceClaimGranularStatusAuthorization": Gate(
        default=False, stage=Stage.ALPHA, description="Rights for single parts of a claim's status, by driver."
    ),
    "DRASchedulerFilterTimeout": Gate(
        default=True,
        stage=Stage.BETA,
        description="A limit for the time that the search for devices takes on one node.",
    ),
    "DRAListTypeAttributes": Gate(
        default=False, stage=Stage.ALPHA, description="Attributes of devices with lists of values."
    ),
    "DRANodeAllocatableResources": Gate(
        default=False,
        stage=Stage.ALPHA,
        description="Keeps `nodeAllocatableResourceMappings` of devices; nothing here counts with them.",
    ),
    "DRAResourcePoolStatus": Gate(default=False, stage=Stage.ALPHA, description="Known by name, without effect."),
    "DRAWorkloadResourceClaims": Gate(default=False, stage=Stage.ALPHA, description="Known by name, without effect."),
    "ResourceHealthStatus": Gate(
        default=True,
        stage=Stage.BETA,
        description="The health of devices in `allocatedResourcesStatus` of a Pod's containers.",
    ),
    "KubeletPodResourcesDynamicResources": Gate(
        default=True, stage=Stage.GA, description="Claims in the PodResources API."
    ),
    "KubeletPodResourcesGet": Gate(default=True, stage=Stage.GA, description="`Get` of the PodResources API."),
    "KubeletPodResourcesListUseActivePods": Gate(
        default=True, stage=Stage.BETA, description="`List` of the PodResources API leaves out Pods that have ended."
    ),
}

# The names of KEP-3695, accepted as aliases of the current ones.
ALIASES: Final[Mapping[str, str]] = {
    "PodResourcesDynamicResources": "KubeletPodResourcesDynamicResources",
    "PodResourcesGet": "KubeletPodResourcesGet",
}


class FeatureGateError(ValueError):
    """Invalid value of `--feature-gates`."""


@dataclass(frozen=True, slots=True)
class FeatureGates:
    """The enabled gates; immutable."""

    overrides: Mapping[str, bool] = field(default_factory=dict)

    def enabled(self, name: str) -> bool:
        """Report whether the gate is enabled; the gate must exist."""
        gate = GATES[name]
        return self.overrides.get(name, gate.default)

    @classmethod
    def parse(cls, text: str) -> FeatureGates:
        """Parse `A=true,B=false`; `AllAlpha` and `AllBeta` set whole stages, and named gates override them."""
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
# The values that Go's strconv.ParseBool accepts.
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
