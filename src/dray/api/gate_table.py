"""The feature gates: their history in Kubernetes 1.33 to 1.37, and those of Dray's own."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, NamedTuple


class Release(NamedTuple):
    """A minor release of Kubernetes."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


# The release whose API, defaults and messages these are, and the oldest one that can be emulated.
CURRENT: Final = Release(1, 37)
OLDEST: Final = Release(1, 33)
# A gate's first minor release, if it does not follow Kubernetes.
ALWAYS: Final = 0


class Stage(enum.StrEnum):
    """Maturity of a feature."""

    ALPHA = "ALPHA"
    BETA = "BETA"
    GA = ""
    DEPRECATED = "DEPRECATED"


class GateState(NamedTuple):
    """What a gate is from a minor release on; a locked one cannot be set."""

    since: int
    stage: Stage
    default: bool
    locked: bool = False


class Gate:
    """A feature gate."""

    def __init__(self, description: str, *history: GateState, requires: tuple[str, ...] = ()) -> None:
        # One sentence of docs/reference/feature-gates.md.
        self.description: Final = description
        self.history: Final = history
        # The gates that must be on as well.
        self.requires: Final = requires

    def at(self, release: Release) -> GateState | None:
        """Return what the gate is in a release; None before its first one."""
        return next((state for state in reversed(self.history) if state.since <= release.minor), None)

    @property
    def newest(self) -> GateState:
        """What the gate is in the newest release."""
        return self.history[-1]


def _alpha(since: int, *, on: bool = False) -> GateState:
    return GateState(since, Stage.ALPHA, on)


def _beta(since: int, *, on: bool = True) -> GateState:
    return GateState(since, Stage.BETA, on)


def _stable(since: int, *, on: bool = True, locked: bool = False) -> GateState:
    return GateState(since, Stage.GA, on, locked)


def _deprecated(since: int, *, on: bool = True) -> GateState:
    return GateState(since, Stage.DEPRECATED, on)


_DRA: Final = ("DynamicResourceAllocation",)

GATES: Final[Mapping[str, Gate]] = {
    # Of KEP-3573. Kubernetes has removed the gate and always enables the feature.
    "DevicePlugins": Gate(
        "Device plugins on nodes; when disabled, none registers and the Node reports their resources as 0.",
        _stable(ALWAYS),
    ),
    "DynamicResourceAllocation": Gate(
        "Claims, device classes and resource slices of `resource.k8s.io`, their controller and scheduling.",
        _alpha(26),
        _beta(32, on=False),
        _stable(34),
        _stable(35, locked=True),
    ),
    # Claims of cdi.k8s.io, allocated by their drivers. Kubernetes removed the gate in 1.32.
    "DRAControlPlaneController": Gate(
        "Classic claims of `cdi.k8s.io`, which their drivers allocate.",
        _beta(ALWAYS),
    ),
    "DRAAdminAccess": Gate(
        "`adminAccess` in requests: access to devices in use, for monitoring and repair.",
        _alpha(32),
        _beta(34),
        _stable(36, locked=True),
        requires=_DRA,
    ),
    "DRAPrioritizedList": Gate(
        "`firstAvailable`: a prioritized list of alternatives in a request.",
        _alpha(33),
        _beta(34),
        _stable(36),
        _stable(37, locked=True),
        requires=_DRA,
    ),
    "DRAExtendedResource": Gate(
        "`extendedResourceName` of a device class: Pods request its devices as an extended resource.",
        _alpha(34),
        _beta(36),
        _stable(37, locked=True),
        requires=_DRA,
    ),
    # KEP-5690; disabled in Kubernetes, where a Pod never preempts for devices.
    "DRAPreemption": Gate(
        "Preemption with devices: a Pod can take the devices of Pods with a lower priority.",
        _alpha(ALWAYS, on=True),
    ),
    "NominatedNodeNameForExpectation": Gate(
        "`status.nominatedNodeName` of a Pod that waits at Permit, or in PreBind for devices or drivers.",
        _alpha(34),
        _beta(35),
    ),
    "DRADeviceTaints": Gate(
        "Device taints in resource slices, and tolerations in requests.",
        _alpha(33),
        _beta(36),
        _stable(37),
        requires=_DRA,
    ),
    "DRADeviceTaintRules": Gate(
        "DeviceTaintRules: taints set by administrators.",
        _alpha(35),
        _beta(36, on=False),
        _stable(37),
        requires=("DRADeviceTaints",),
    ),
    "DRAPartitionableDevices": Gate(
        "Shared counters, and node selection per device.",
        _alpha(33),
        _beta(36),
        requires=_DRA,
    ),
    "DRAPartitionableDevicesType": Gate(
        "`partitionTypeAttribute` of slices: pool status by type of partition.",
        _alpha(37),
        requires=("DRAPartitionableDevices", "DRAResourcePoolStatus"),
    ),
    "DRAConsumableCapacity": Gate(
        "Devices that several claims share by capacity, and the `distinctAttribute` constraint.",
        _alpha(34),
        _beta(36),
        requires=_DRA,
    ),
    # Kubernetes 1.37 enables it when no older release is in the cluster any more.
    "DRAFractionalCapacityRange": Gate(
        "Ranges of capacity with fractions, such as a step of `100m`.",
        _beta(37, on=False),
        requires=("DRAConsumableCapacity",),
    ),
    "DRADeviceBindingConditions": Gate(
        "Conditions that devices must meet before a Pod is bound.",
        _alpha(34),
        _beta(36),
        requires=("DynamicResourceAllocation", "DRAResourceClaimDeviceStatus"),
    ),
    "DRADeviceCompatibilityGroups": Gate(
        "`compatibilityGroups`: partitions of a device that cannot be in use together.",
        _alpha(37),
        requires=("DRAPartitionableDevices",),
    ),
    "DRADerivedAttributes": Gate(
        "`derivedAttributes` of requests: CEL expressions whose values constraints compare.",
        _alpha(37),
        requires=_DRA,
    ),
    "DRAResourceClaimDeviceStatus": Gate(
        "`status.devices` of a claim, written by drivers.",
        _alpha(32),
        _beta(33),
        _stable(37, locked=True),
    ),
    "DRAResourceClaimGranularStatusAuthorization": Gate(
        "Separate permissions for binding and for each driver's device status in a claim.",
        _beta(36),
        requires=("DynamicResourceAllocation", "DRAResourceClaimDeviceStatus"),
    ),
    "DRASchedulerFilterTimeout": Gate(
        "A timeout for the device search on one node.",
        _beta(34),
        requires=_DRA,
    ),
    "DRAListTypeAttributes": Gate(
        "Device attributes with lists of values.",
        _alpha(36),
        requires=_DRA,
    ),
    "DRANodeAllocatableResources": Gate(
        "`nodeAllocatableResources`: CPU, memory and huge pages that devices use on their node.",
        _alpha(36),
        requires=_DRA,
    ),
    "DRAOptionalNodeOperations": Gate(
        "Nodes do not call drivers for devices that need no preparing (`skipNodeOperations`).",
        _alpha(37),
        requires=("DynamicResourceAllocation", "NodeDeclaredFeatures"),
    ),
    "NodeDeclaredFeatures": Gate(
        "Nodes list features that they support in `status.declaredFeatures`.",
        _alpha(35),
        _beta(36),
        _stable(37, locked=True),
    ),
    "DRAResourcePoolStatus": Gate(
        "ResourcePoolStatusRequests: a controller counts the devices of pools.",
        _alpha(36),
        requires=_DRA,
    ),
    "GenericWorkload": Gate(
        "Gangs: PodGroups and Workloads of `scheduling.k8s.io/v1beta1`, whose Pods are placed together.",
        _alpha(35),
        _beta(37, on=False),
    ),
    "TopologyAwareWorkloadScheduling": Gate(
        "`schedulingConstraints` of PodGroups: all Pods of a group in one rack, zone or other domain.",
        _alpha(36),
        requires=("GenericWorkload",),
    ),
    "WorkloadWithJob": Gate(
        "`spec.scheduling` of Jobs: the Job controller makes a Workload and a PodGroup for each Job.",
        _alpha(36),
        requires=("GenericWorkload",),
    ),
    "DRAWorkloadResourceClaims": Gate(
        "Claims of PodGroups, which all Pods of the group share.",
        _alpha(36),
        _beta(37, on=False),
        requires=("DynamicResourceAllocation", "GenericWorkload"),
    ),
    "ResourceHealthStatus": Gate(
        "Device health in `allocatedResourcesStatus` of container statuses.",
        _alpha(31),
        _beta(36),
        requires=_DRA,
    ),
    "ResourceHealthStatusMessage": Gate(
        "The `message` of a device's health.",
        _beta(36),
        requires=("ResourceHealthStatus",),
    ),
    "KubeletPodResourcesDynamicResources": Gate(
        "Claims in the PodResources API.",
        _alpha(27),
        _beta(34),
        _stable(36, locked=True),
    ),
    "PodLevelResourceManagers": Gate(
        "CPUs and memory of a Pod as a whole in the PodResources API.",
        _alpha(36),
        _beta(37, on=False),
    ),
    "KubeletPodResourcesGet": Gate(
        "`Get` of the PodResources API.",
        _alpha(27),
        _beta(34),
        _stable(36, locked=True),
    ),
    "PodsAPI": Gate(
        "The Pods API of the node, at `pods-api/pods-api.sock`.",
        _alpha(36),
        _beta(37),
    ),
    "KubeletPodResourcesListUseActivePods": Gate(
        "`List` of the PodResources API omits finished Pods.",
        _stable(ALWAYS, on=False),
        _deprecated(34),
    ),
    # Dray's own: KEP-4816, story 2, in clusters that do not have all classes of a manifest.
    "DRASkipUnknownClasses": Gate(
        "Alternatives of a prioritized list whose device class does not exist are skipped.",
        _alpha(ALWAYS),
        requires=("DRAPrioritizedList",),
    ),
    # Dray's own.
    "QuotaFollowsAllocation": Gate(
        "An allocated claim is charged to quotas for the devices that it got, not for the most that it could get.",
        _alpha(ALWAYS),
        requires=_DRA,
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
