"""Feature gates with the names and defaults of Kubernetes 1.37, and the parser of `--feature-gates`."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

# The release of Kubernetes whose API, defaults and messages these are.
KUBERNETES_RELEASE: Final = "v1.37.0"


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
    # The gates that must be on as well.
    requires: tuple[str, ...] = ()


_DRA: Final = ("DynamicResourceAllocation",)

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
        locked=True,
    ),
    # Claims of cdi.k8s.io, allocated by their drivers. Kubernetes removed the gate in 1.32.
    "DRAControlPlaneController": Gate(
        default=True, stage=Stage.BETA, description="Classic claims of `cdi.k8s.io`, which their drivers allocate."
    ),
    "DRAAdminAccess": Gate(
        default=True,
        stage=Stage.GA,
        description="`adminAccess` in requests: access to devices in use, for monitoring and repair.",
        locked=True,
        requires=_DRA,
    ),
    "DRAPrioritizedList": Gate(
        default=True,
        stage=Stage.GA,
        description="`firstAvailable`: a prioritized list of alternatives in a request.",
        locked=True,
        requires=_DRA,
    ),
    "DRAExtendedResource": Gate(
        default=True,
        stage=Stage.GA,
        description="`extendedResourceName` of a device class: Pods request its devices as an extended resource.",
        locked=True,
        requires=_DRA,
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
        default=True,
        stage=Stage.GA,
        description="Device taints in resource slices, and tolerations in requests.",
        requires=_DRA,
    ),
    "DRADeviceTaintRules": Gate(
        default=True,
        stage=Stage.GA,
        description="DeviceTaintRules: taints set by administrators.",
        requires=("DRADeviceTaints",),
    ),
    "DRAPartitionableDevices": Gate(
        default=True,
        stage=Stage.BETA,
        description="Shared counters, and node selection per device.",
        requires=_DRA,
    ),
    "DRAPartitionableDevicesType": Gate(
        default=False,
        stage=Stage.ALPHA,
        description="`partitionTypeAttribute` of slices: pool status by type of partition.",
        requires=("DRAPartitionableDevices", "DRAResourcePoolStatus"),
    ),
    "DRAConsumableCapacity": Gate(
        default=True,
        stage=Stage.BETA,
        description="Devices that several claims share by capacity, and the `distinctAttribute` constraint.",
        requires=_DRA,
    ),
    # Kubernetes 1.37 enables it when no older release is in the cluster any more.
    "DRAFractionalCapacityRange": Gate(
        default=False,
        stage=Stage.BETA,
        description="Ranges of capacity with fractions, such as a step of `100m`.",
        requires=("DRAConsumableCapacity",),
    ),
    "DRADeviceBindingConditions": Gate(
        default=True,
        stage=Stage.BETA,
        description="Conditions that devices must meet before a Pod is bound.",
        requires=("DynamicResourceAllocation", "DRAResourceClaimDeviceStatus"),
    ),
    "DRADeviceCompatibilityGroups": Gate(
        default=False,
        stage=Stage.ALPHA,
        description="`compatibilityGroups`: partitions of a device that cannot be in use together.",
        requires=("DRAPartitionableDevices",),
    ),
    "DRADerivedAttributes": Gate(
        default=False,
        stage=Stage.ALPHA,
        description="`derivedAttributes` of requests: CEL expressions whose values constraints compare.",
        requires=_DRA,
    ),
    "DRAResourceClaimDeviceStatus": Gate(
        default=True, stage=Stage.GA, description="`status.devices` of a claim, written by drivers.", locked=True
    ),
    "DRAResourceClaimGranularStatusAuthorization": Gate(
        default=True,
        stage=Stage.BETA,
        description="Separate permissions for binding and for each driver's device status in a claim.",
        requires=("DynamicResourceAllocation", "DRAResourceClaimDeviceStatus"),
    ),
    "DRASchedulerFilterTimeout": Gate(
        default=True,
        stage=Stage.BETA,
        description="A timeout for the device search on one node.",
        requires=_DRA,
    ),
    "DRAListTypeAttributes": Gate(
        default=False,
        stage=Stage.ALPHA,
        description="Device attributes with lists of values.",
        requires=_DRA,
    ),
    "DRANodeAllocatableResources": Gate(
        default=False,
        stage=Stage.ALPHA,
        description="`nodeAllocatableResources`: CPU, memory and huge pages that devices use on their node.",
        requires=_DRA,
    ),
    "DRAOptionalNodeOperations": Gate(
        default=False,
        stage=Stage.ALPHA,
        description="Nodes do not call drivers for devices that need no preparing (`skipNodeOperations`).",
        requires=("DynamicResourceAllocation", "NodeDeclaredFeatures"),
    ),
    "NodeDeclaredFeatures": Gate(
        default=True,
        stage=Stage.GA,
        description="Nodes list features that they support in `status.declaredFeatures`.",
        locked=True,
    ),
    "DRAResourcePoolStatus": Gate(
        default=False,
        stage=Stage.ALPHA,
        description="ResourcePoolStatusRequests: a controller counts the devices of pools.",
        requires=_DRA,
    ),
    "GenericWorkload": Gate(
        default=False,
        stage=Stage.BETA,
        description="Gangs: PodGroups and Workloads of `scheduling.k8s.io/v1beta1`, whose Pods are placed together.",
    ),
    "TopologyAwareWorkloadScheduling": Gate(
        default=False,
        stage=Stage.ALPHA,
        description="`schedulingConstraints` of PodGroups: all Pods of a group in one rack, zone or other domain.",
        requires=("GenericWorkload",),
    ),
    "WorkloadWithJob": Gate(
        default=False,
        stage=Stage.ALPHA,
        description="`spec.scheduling` of Jobs: the Job controller makes a Workload and a PodGroup for each Job.",
        requires=("GenericWorkload",),
    ),
    "DRAWorkloadResourceClaims": Gate(
        default=False,
        stage=Stage.BETA,
        description="Claims of PodGroups, which all Pods of the group share.",
        requires=("DynamicResourceAllocation", "GenericWorkload"),
    ),
    "ResourceHealthStatus": Gate(
        default=True,
        stage=Stage.BETA,
        description="Device health in `allocatedResourcesStatus` of container statuses.",
        requires=_DRA,
    ),
    "ResourceHealthStatusMessage": Gate(
        default=True,
        stage=Stage.BETA,
        description="The `message` of a device's health.",
        requires=("ResourceHealthStatus",),
    ),
    "KubeletPodResourcesDynamicResources": Gate(
        default=True, stage=Stage.GA, description="Claims in the PodResources API.", locked=True
    ),
    "PodLevelResourceManagers": Gate(
        default=False,
        stage=Stage.BETA,
        description="CPUs and memory of a Pod as a whole in the PodResources API.",
    ),
    "KubeletPodResourcesGet": Gate(
        default=True, stage=Stage.GA, description="`Get` of the PodResources API.", locked=True
    ),
    "PodsAPI": Gate(
        default=True, stage=Stage.BETA, description="The Pods API of the node, at `pods-api/pods-api.sock`."
    ),
    "KubeletPodResourcesListUseActivePods": Gate(
        default=True, stage=Stage.DEPRECATED, description="`List` of the PodResources API omits finished Pods."
    ),
}

# Gates of fields that releases before 1.37 do not know, and would drop from the objects they update.
GATES_OF_NEW_FIELDS: Final = (
    "DRADerivedAttributes",
    "DRADeviceCompatibilityGroups",
    "DRANodeAllocatableResources",
    "DRAOptionalNodeOperations",
    "DRAPartitionableDevicesType",
)

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
    # The names of all gates that are off.
    disabled: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        disabled = frozenset(name for name in GATES if not self.enabled(name))
        object.__setattr__(self, "disabled", disabled)

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
        gates = cls(by_stage | named)
        gates.check_dependencies()
        return gates

    def check_dependencies(self) -> None:
        """Raise an error if a gate is on while one that it requires is off."""
        for name, gate in GATES.items():
            missing = [other for other in gate.requires if not self.enabled(other)]
            if missing and self.enabled(name):
                raise FeatureGateError(
                    f"{name} is enabled, but depends on features that are disabled: [{' '.join(missing)}]"
                )


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
