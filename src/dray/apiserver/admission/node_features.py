"""The plugin NodeDeclaredFeatureValidator: slices may use a feature only where the nodes declare it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from dray.api.document import Document, GroupResource
from dray.api.errors import ForbiddenError
from dray.api.features import FeatureGates
from dray.api.node_selection import matching_term
from dray.api.types.core_v1 import NodeSelector
from dray.apiserver.admission.plugin import AdmissionAttributes, AdmissionPlugin, Operation, Undo
from dray.apiserver.object_lookup import ObjectLookup

SLICES: Final = GroupResource("resource.k8s.io", "resourceslices")
NODE_ALLOCATABLE: Final = "DRANodeAllocatableResources"
# A device and the nodes from which it can be used: a name, or a selector; None means all nodes.
_Placed = tuple[str, str | NodeSelector | None]


class NodeDeclaredFeatureValidator(AdmissionPlugin):
    """Refuses devices that use resources of nodes whose agents would not count them."""

    name = "NodeDeclaredFeatureValidator"

    def __init__(self, objects: ObjectLookup, gates: FeatureGates) -> None:
        self._objects = objects
        self._enabled = gates.enabled(NODE_ALLOCATABLE) and gates.enabled("NodeDeclaredFeatures")

    def handles(self, resource: GroupResource, subresource: str, operation: Operation) -> bool:
        """Take part in writes of slices."""
        return self._enabled and resource == SLICES and operation is not Operation.DELETE

    async def validate(self, attributes: AdmissionAttributes) -> Undo | None:
        """Check the nodes of each device that uses resources of its node."""
        resource_slice = attributes.object
        assert resource_slice is not None
        nodes: list[Document] | None = None
        for device, place in _devices(resource_slice["spec"]):
            if isinstance(place, str):
                node = await self._objects.node(place)
                if node is None:
                    raise _refusal(attributes, f'node "{place}" not found for device "{device}"')
                reached = [node]
            else:
                nodes = nodes if nodes is not None else await self._objects.nodes()
                reached = [node for node in nodes if place is None or _matches(place, node)]
            if not reached:
                text = "in ResourceSlice has NodeAllocatableResources but does not map to any nodes"
                raise _refusal(attributes, f'device "{device}" {text}')
            for node in reached:
                if NODE_ALLOCATABLE not in ((node.get("status") or {}).get("declaredFeatures") or ()):
                    name = node["metadata"]["name"]
                    raise _refusal(attributes, f'node "{name}" does not support {NODE_ALLOCATABLE} feature')
        return None


def _devices(spec: Document) -> Iterator[_Placed]:
    for device in spec.get("devices") or ():
        if device.get("nodeAllocatableResources"):
            source = device if spec.get("perDeviceNodeSelection") else spec
            selector = source.get("nodeSelector")
            place = None if selector is None else msgspec.convert(selector, NodeSelector)
            yield device.get("name") or "", source.get("nodeName") or place


def _matches(selector: NodeSelector, node: Document) -> bool:
    metadata = node["metadata"]
    return matching_term(selector, metadata["name"], metadata.get("labels") or {}) is not None


def _refusal(attributes: AdmissionAttributes, text: str) -> ForbiddenError:
    made = attributes.object or {}
    return ForbiddenError(SLICES, (made.get("metadata") or {}).get("name") or attributes.name, text)
