"""The objects of the scheduler benchmarks: nodes, slices, classes, templates, claims and Pods."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product
from typing import Any, Final

from dray.api.document import Document, GroupVersion
from dray.client.interface import Resource, unstructured

CORE: Final = GroupVersion("", "v1")
RESOURCE: Final = GroupVersion("resource.k8s.io", "v1")
NODES: Final = unstructured(CORE, "nodes", "Node", namespaced=False)
PODS: Final = unstructured(CORE, "pods", "Pod")
SERVICE_ACCOUNTS: Final = unstructured(CORE, "serviceaccounts", "ServiceAccount")
CLASSES: Final = unstructured(RESOURCE, "deviceclasses", "DeviceClass", namespaced=False)
SLICES: Final = unstructured(RESOURCE, "resourceslices", "ResourceSlice", namespaced=False)
TEMPLATES: Final = unstructured(RESOURCE, "resourceclaimtemplates", "ResourceClaimTemplate")
CLAIMS: Final = unstructured(RESOURCE, "resourceclaims", "ResourceClaim")

DRIVER: Final = "gpu.example.com"
PRIORITY_CLASSES: Final = unstructured(
    GroupVersion("scheduling.k8s.io", "v1"), "priorityclasses", "PriorityClass", namespaced=False
)
POD_GROUPS: Final = unstructured(GroupVersion("scheduling.k8s.io", "v1beta1"), "podgroups", "PodGroup")
PRIORITY_CLASS: Final = "urgent"
EXTENDED_RESOURCE: Final = "example.com/gpu"
TEMPLATE: Final = "devices"

# Slices have at most 64 devices that consume counters.
_CARDS_PER_SLICE: Final = 4

Objects = list[tuple[Resource[Any], Document]]


def node(number: int) -> Document:
    """Return a node for 110 Pods, in one of three zones."""
    labels = {"kubernetes.io/hostname": f"node-{number}", "topology.kubernetes.io/zone": f"zone-{number % 3}"}
    allocatable = {"cpu": "32", "memory": "128Gi", "ephemeral-storage": "500Gi", "pods": "110"}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    return {
        "metadata": {"name": f"node-{number}", "labels": labels},
        "status": {"allocatable": allocatable, "capacity": allocatable, "conditions": [ready]},
    }


def pod(number: int, **spec: Any) -> Document:
    """Return a small Pod."""
    resources = {"requests": {"cpu": "100m", "memory": "500Mi"}}
    containers = [{"name": "pause", "image": "registry.k8s.io/pause:3.10", "resources": resources}]
    return {"metadata": {"name": f"pod-{number}", "namespace": "default"}, "spec": {"containers": containers, **spec}}


def zonal_pod(number: int) -> Document:
    """Return a Pod with node affinity to one zone."""
    zone = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": [f"zone-{number % 3}"]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [zone]}]}
    return pod(number, affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}})


def lonely_pod(number: int) -> Document:
    """Return a Pod that shares its node with no other of its application."""
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "lonely"}}}
    found = pod(number, affinity={"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}})
    found["metadata"]["labels"] = {"app": "lonely"}
    return found


def spread_pod(number: int) -> Document:
    """Return a Pod whose application is spread evenly over zones."""
    constraint = {
        "maxSkew": 1,
        "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "spread"}},
    }
    found = pod(number, topologySpreadConstraints=[constraint])
    found["metadata"]["labels"] = {"app": "spread"}
    return found


def device_pod(number: int) -> Document:
    """Return a Pod with a claim from the template."""
    found = pod(number, resourceClaims=[{"name": "devices", "resourceClaimTemplateName": TEMPLATE}])
    found["spec"]["containers"][0]["resources"]["claims"] = [{"name": "devices"}]
    return found


def templated_pod(number: int, template: str, cpu: str = "100m") -> Document:
    """Return a Pod with a claim from one of several templates, and another request for CPU."""
    found = device_pod(number)
    found["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] = template
    found["spec"]["containers"][0]["resources"]["requests"] = {"cpu": cpu, "memory": "500Mi"}
    return found


def partition_pod(number: int) -> Document:
    """Return a Pod with a partition; of 15, eight have an eighth, four a quarter, two a half and one a whole card."""
    place = number % 15
    return templated_pod(number, f"parts-{8 if place < 8 else 4 if place < 12 else 2 if place < 14 else 1}")


def mixed_pod(number: int) -> Document:
    """Return a Pod of one of 20 kinds: one to four devices and five requests for CPU."""
    return templated_pod(number, f"devices-{1 + number % 4}", cpu=f"{100 * (1 + number % 5)}m")


def batch_pod(number: int) -> Document:
    """Return a Pod with a claim from the template that is deleted at once."""
    found = device_pod(number)
    found["metadata"]["name"] = f"batch-{number}"
    found["spec"]["terminationGracePeriodSeconds"] = 0
    return found


def urgent_pod(number: int) -> Document:
    """Return a Pod with a claim from the template, and with a high priority."""
    found = device_pod(number)
    found["spec"]["priorityClassName"] = PRIORITY_CLASS
    return found


def pod_group(number: int, size: int) -> Document:
    """Return a gang; the one with the number -1 is for the first Pod."""
    spec = {"schedulingPolicy": {"gang": {"minCount": size}}}
    return {"metadata": {"name": f"gang-{number}", "namespace": "default"}, "spec": spec}


def gang_pod(size: int) -> Callable[[int], Document]:
    """Return a function that returns Pods with a claim from the template, in gangs of a size."""

    def make(number: int) -> Document:
        found = device_pod(number)
        found["spec"]["schedulingGroup"] = {"podGroupName": f"gang-{number // size}"}
        return found

    return make


def extended_pod(number: int) -> Document:
    """Return a Pod that requests one device as an extended resource."""
    found = pod(number)
    resources = found["spec"]["containers"][0]["resources"]
    resources["requests"] = resources["requests"] | {EXTENDED_RESOURCE: "1"}
    resources["limits"] = {EXTENDED_RESOURCE: "1"}
    return found


# --- Devices. ---


def whole_devices(number: int, count: int) -> Iterator[Document]:
    """Return the slice of a node with equal devices on two NUMA nodes."""
    devices = [
        {
            "name": f"gpu-{index}",
            "attributes": {
                "uuid": {"string": f"GPU-{number:05}-{index:02}"},
                "model": {"string": "a100"},
                "numa": {"int": index % 2},
            },
            "capacity": {"memory": {"value": "80Gi"}},
        }
        for index in range(count)
    ]
    yield _slice(number, "devices", 1, devices=devices)


def partitions(number: int, count: int) -> Iterator[Document]:
    """Return the slices of a node with whole, half and quarter devices, the whole ones first."""
    counters = [{"name": f"gpu-{index}", "counters": {"memory": {"value": "80Gi"}}} for index in range(count)]
    yield _slice(number, "counters", 2, sharedCounters=counters)
    yield _slice(number, "devices", 2, devices=list(_partitions(range(count), (1, 2, 4))))


def mixed_partitions(number: int, count: int) -> Iterator[Document]:
    """Return the slices of a node whose cards have 15 partitions each: a whole one, halves, quarters and eighths."""
    slices = -(-count // _CARDS_PER_SLICE)
    counters = [{"name": f"gpu-{index}", "counters": {"memory": {"value": "80Gi"}}} for index in range(count)]
    yield _slice(number, "counters", 1 + slices, sharedCounters=counters)
    for first in range(0, count, _CARDS_PER_SLICE):
        cards = range(first, min(first + _CARDS_PER_SLICE, count))
        yield _slice(number, f"devices-{first}", 1 + slices, devices=list(_partitions(cards, (1, 2, 4, 8))))


def _partitions(cards: Iterable[int], sizes: Iterable[int]) -> Iterator[Document]:
    """Yield the partitions of cards, all of one size before the next."""
    for parts, index in product(sizes, cards):
        memory = {"memory": {"value": f"{80 // parts}Gi"}}
        for part in range(parts):
            yield {
                "name": f"gpu-{index}-{parts}-{part}",
                "attributes": {"parts": {"int": parts}},
                "consumesCounters": [{"counterSet": f"gpu-{index}", "counters": memory}],
            }


def _slice(number: int, what: str, of: int, **content: Any) -> Document:
    pool = {"name": f"node-{number}", "generation": 1, "resourceSliceCount": of}
    spec = {"driver": DRIVER, "nodeName": f"node-{number}", "pool": pool, **content}
    return {"metadata": {"name": f"node-{number}-{what}"}, "spec": spec}


def classes() -> Objects:
    """Return the class of the driver, and a class without devices."""
    usual = _class("gpu", DRIVER)
    usual["spec"]["extendedResourceName"] = EXTENDED_RESOURCE
    return [(CLASSES, usual), (CLASSES, _class("rare", "rare.example.com"))]


def _class(name: str, driver: str) -> Document:
    return {"metadata": {"name": name}, "spec": {"selectors": [_cel(f'device.driver == "{driver}"')]}}


def _cel(expression: str) -> Document:
    return {"cel": {"expression": expression}}


# --- Requests. ---

ONE_DEVICE: Final[Document] = {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}
# As the API server stores it.
ONE_DEVICE_DEFAULTED: Final[Document] = {
    "requests": [
        {"name": "gpu", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}},
    ]
}
# No device matches the first alternative.
SECOND_ALTERNATIVE: Final[Document] = {
    "requests": [
        {
            "name": "gpu",
            "firstAvailable": [
                {"name": "rare", "deviceClassName": "rare"},
                {"name": "usual", "deviceClassName": "gpu"},
            ],
        }
    ]
}
SAME_NUMA_NODE: Final[Document] = {
    "requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu", "count": 2}}],
    "constraints": [{"requests": ["gpu"], "matchAttribute": f"{DRIVER}/numa"}],
}


def _parts(name: str, comparison: str) -> Document:
    selector = _cel(f'device.attributes["{DRIVER}"].parts {comparison}')
    return {"name": name, "exactly": {"deviceClassName": "gpu", "selectors": [selector]}}


# Templates by name, for Pods of several kinds.
ONE_TO_FOUR_DEVICES: Final[Mapping[str, Document]] = {
    f"devices-{count}": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu", "count": count}}]}
    for count in range(1, 5)
}
ONE_PARTITION: Final[Mapping[str, Document]] = {
    f"parts-{parts}": {"requests": [_parts("gpu", f"== {parts}")]} for parts in (1, 2, 4, 8)
}
# The first two requests match whole devices, which leaves none for the others: the search must backtrack to halves, all
# four of the node's two devices.
FOUR_HALVES: Final[Document] = {
    "requests": [*(_parts(f"large-{n}", "<= 2") for n in range(2)), *(_parts(f"half-{n}", "== 2") for n in range(2))]
}


def template(devices: Document, name: str = TEMPLATE) -> Document:
    """Return a claim template with the requests."""
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"spec": {"devices": devices}}}


def held_claim(number: int) -> Document:
    """Return a claim without an allocation."""
    return {"metadata": {"name": f"held-{number}", "namespace": "default"}, "spec": {"devices": ONE_DEVICE}}


def holding(claim: Document, node_number: int, device: int) -> Document:
    """Return the claim with an allocated device of a node."""
    name = f"node-{node_number}"
    result = {"request": "gpu", "driver": DRIVER, "pool": name, "device": f"gpu-{device}"}
    field = {"key": "metadata.name", "operator": "In", "values": [name]}
    selector = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    return {**claim, "status": {"allocation": {"devices": {"results": [result]}, "nodeSelector": selector}}}
