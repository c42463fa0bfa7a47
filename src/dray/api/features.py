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
    DEPRECATED = "DEPRECATED"


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
        default=True,
        stage=Stage.GA,
        description="Device plugins on nodes; when disabled, none registers and the Node reports their resources as 0.",
    ),
    "DynamicResourceAllocation": Gate(
        default=True,
        stage=Stage.GA,
        description="Claims, device classes and resource slices of `resource.k8s.io`, their controller and scheduling.",
    ),
    # Claims of cdi.k8s.io, allocated by their drivers. Kubernetes removed the gate in 1.32.
    "DRAControlPlaneController": Gate(
        default=True, stage=Stage.BETA, description="Classic claims of `cdi.k8s.io`, which their drivers allocate."
    ),
    "DRAAdminAccess": Gate(
        default=True,
        stage=Stage.GA,
        description="`adminAccess` in requests: access to devices in use, for monitoring and repair.",
    ),
    "DRAPrioritizedList": Gate(
        default=True, stage=Stage.GA, description="`firstAvailable`: a prioritized list of alternatives in a request."
    ),
    "DRAExtendedResource": Gate(
        default=True,
        stage=Stage.BETA,
        description="`extendedResourceName` of a device class: Pods request its devices as an extended resource.",
    ),
    # KEP-5690; disabled in Kubernetes, where a Pod never preempts for devices.
    "DRAPreemption": Gate(
        default=True,
        stage=Stage.ALPHA,
        description="Preemption with devices: a Pod can take the devices of Pods with a lower priority.",
    ),
    "NominatedNodeNameForExpectation": Gate(
        default=True,
        stage=Stage.BETA,
        description="`status.nominatedNodeName` of a Pod that waits at Permit, or in PreBind for devices or drivers.",
    ),
    "DRADeviceTaints": Gate(
        default=True, stage=Stage.BETA, description="Device taints in resource slices, and tolerations in requests."
    ),
    "DRADeviceTaintRules": Gate(
        default=False,
        stage=Stage.BETA,
        description="DeviceTaintRules: taints set by administrators; requires `DRADeviceTaints`.",
    ),
    "DRAPartitionableDevices": Gate(
        default=True, stage=Stage.BETA, description="Shared counters, and node selection per device."
    ),
    "DRAConsumableCapacity": Gate(
        default=True,
        stage=Stage.BETA,
        description="Devices that several claims share by capacity, and the `distinctAttribute` constraint.",
    ),
    "DRADeviceBindingConditions": Gate(
        default=True, stage=Stage.BETA, description="Conditions that devices must meet before a Pod is bound."
    ),
    "DRAResourceClaimDeviceStatus": Gate(
        default=True, stage=Stage.BETA, description="`status.devices` of a claim, written by drivers."
    ),
    "DRAResourceClaimGranularStatusAuthorization": Gate(
        default=True,
        stage=Stage.BETA,
        description="Separate permissions for binding and for each driver's device status in a claim.",
    ),
    "DRASchedulerFilterTimeout": Gate(
        default=True,
        stage=Stage.BETA,
        description="A timeout for the device search on one node.",
    ),
    "DRAListTypeAttributes": Gate(
        default=False, stage=Stage.ALPHA, description="Device attributes with lists of values."
    ),
    "DRANodeAllocatableResources": Gate(
        default=False,
        stage=Stage.ALPHA,
        description="Stores `nodeAllocatableResourceMappings` of devices; they are not evaluated.",
    ),
    "DRAOptionalNodeOperations": Gate(
        default=False,
        stage=Stage.ALPHA,
        description="Nodes do not call drivers for devices that need no preparing (`skipNodeOperations`).",
    ),
    "NodeDeclaredFeatures": Gate(
        default=True,
        stage=Stage.BETA,
        description="Nodes list features that they support in `status.declaredFeatures`.",
    ),
    "DRAResourcePoolStatus": Gate(default=False, stage=Stage.ALPHA, description="Accepted, without effect."),
    "DRAWorkloadResourceClaims": Gate(default=False, stage=Stage.ALPHA, description="Accepted, without effect."),
    "ResourceHealthStatus": Gate(
        default=True,
        stage=Stage.BETA,
        description="Device health in `allocatedResourcesStatus` of container statuses.",
    ),
    "KubeletPodResourcesDynamicResources": Gate(
        default=True, stage=Stage.GA, description="Claims in the PodResources API."
    ),
    "PodLevelResourceManagers": Gate(
        default=False,
        stage=Stage.ALPHA,
        description="CPUs and memory of a Pod as a whole in the PodResources API.",
    ),
    "KubeletPodResourcesGet": Gate(default=True, stage=Stage.GA, description="`Get` of the PodResources API."),
    "KubeletPodResourcesListUseActivePods": Gate(
        default=True, stage=Stage.DEPRECATED, description="`List` of the PodResources API omits finished Pods."
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
