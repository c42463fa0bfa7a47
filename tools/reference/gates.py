"""Feature gates, from `dray.api.features`, with what each switches."""

from __future__ import annotations

from tools.reference.markdown import page, table

from dray.api.features import ALIASES, GATES, Gate

INTRODUCTION = """`--feature-gates=A=true,B=false` switches features; `AllAlpha` and `AllBeta` switch whole stages,
and named gates win over them. Names and defaults are those of Kubernetes 1.36. Give all processes of a cluster the
same gates. A field of a feature that is off is dropped from what is written, unless the object has it already."""
# What a gate switches, in one sentence.
MEANINGS = {
    "DevicePlugins": "Device plugins on nodes; without it there is no `kubelet.sock`.",
    "DynamicResourceAllocation": "Claims, classes and slices of `resource.k8s.io`, controller and scheduling.",
    "DRAControlPlaneController": "Classic claims of `cdi.k8s.io`, which their drivers allocate.",
    "DRAAdminAccess": "`adminAccess` requests: devices for monitoring and repair, whoever else uses them.",
    "DRAPrioritizedList": "`firstAvailable`: a list of alternatives in a request.",
    "DRAExtendedResource": "`extendedResourceName` of a class: Pods ask for its devices as for an extended resource.",
    "DRADeviceTaints": "Taints of devices in slices, and tolerations in requests.",
    "DRADeviceTaintRules": "DeviceTaintRules: taints by an administrator; needs `DRADeviceTaints`.",
    "DRAPartitionableDevices": "Shared counters, and slices whose devices name their own nodes.",
    "DRAConsumableCapacity": "Devices that several claims share by capacity, and `distinctAttribute`.",
    "DRADeviceBindingConditions": "Devices that must be made ready before a Pod may be bound.",
    "DRAResourceClaimDeviceStatus": "`status.devices` of a claim, written by drivers.",
    "DRAResourceClaimGranularStatusAuthorization": "Rights for single parts of a claim's status, by driver.",
    "DRASchedulerFilterTimeout": "A limit for the time that the search for devices takes on one node.",
    "DRAListTypeAttributes": "Attributes of devices with lists of values.",
    "DRANodeAllocatableResources": "Keeps `nodeAllocatableResourceMappings` of devices; nothing here counts with them.",
    "DRAResourcePoolStatus": "Known by name, without effect.",
    "DRAWorkloadResourceClaims": "Known by name, without effect.",
    "ResourceHealthStatus": "The health of devices in `allocatedResourcesStatus` of a Pod's containers.",
    "KubeletPodResourcesDynamicResources": "Claims in the PodResources API.",
    "KubeletPodResourcesGet": "`Get` of the PodResources API.",
    "KubeletPodResourcesListUseActivePods": "`List` of the PodResources API leaves out Pods that have ended.",
}


def gates_page() -> str:
    """docs/reference/feature-gates.md."""
    rows = [(f"`{name}`", gate.stage or "GA", _default(gate), MEANINGS[name]) for name, gate in sorted(GATES.items())]
    others = [f"* `{name}` is `{target}`." for name, target in sorted(ALIASES.items())]
    return page(
        "Feature gates",
        INTRODUCTION,
        table(("gate", "stage", "default", "what it switches"), rows),
        "## Other names",
        "\n".join(others),
    )


def _default(gate: Gate) -> str:
    return ("on" if gate.default else "off") + (", cannot be switched" if gate.locked else "")
