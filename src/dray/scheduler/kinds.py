"""The resources that the scheduler follows, by the names that plugins' event registrations use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dray.api.types import cdi_v1alpha1 as cdi
from dray.api.types.core_v1 import Node, Pod
from dray.api.types.resource_v1 import DeviceClass, ResourceClaim, ResourceSlice
from dray.client.informer import Selection
from dray.client.interface import Resource
from dray.framework import events

PODS: Final[Resource[Pod]] = Resource("", "v1", "pods", "Pod", Pod)
NODES: Final[Resource[Node]] = Resource("", "v1", "nodes", "Node", Node, namespaced=False)
RESOURCE_CLAIMS: Final[Resource[ResourceClaim]] = Resource(
    "resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", ResourceClaim
)
RESOURCE_SLICES: Final[Resource[ResourceSlice]] = Resource(
    "resource.k8s.io", "v1", "resourceslices", "ResourceSlice", ResourceSlice, namespaced=False
)
DEVICE_CLASSES: Final[Resource[DeviceClass]] = Resource(
    "resource.k8s.io", "v1", "deviceclasses", "DeviceClass", DeviceClass, namespaced=False
)
CLASSIC_CLAIMS: Final[Resource[cdi.ResourceClaim]] = Resource(
    "cdi.k8s.io", "v1alpha1", "resourceclaims", "ResourceClaim", cdi.ResourceClaim
)
CLASSIC_CLASSES: Final[Resource[cdi.ResourceClass]] = Resource(
    "cdi.k8s.io", "v1alpha1", "resourceclasses", "ResourceClass", cdi.ResourceClass, namespaced=False
)

# Finished Pods take nothing, so they need not be heard of.
UNFINISHED: Final = Selection(field_selector="status.phase!=Succeeded,status.phase!=Failed")

# Followed when a plugin registers for their events; Pods and nodes always are.
EXTRA: Final[Mapping[str, Resource[Any]]] = {
    events.RESOURCE_CLAIM: RESOURCE_CLAIMS,
    events.RESOURCE_SLICE: RESOURCE_SLICES,
    events.DEVICE_CLASS: DEVICE_CLASSES,
    events.CLASSIC_CLAIM: CLASSIC_CLAIMS,
    events.CLASSIC_CLASS: CLASSIC_CLASSES,
}
