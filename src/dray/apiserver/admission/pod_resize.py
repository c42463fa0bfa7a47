"""The plugin PodResizeValidator: a Pod on a node is not resized beyond what the node has."""

from __future__ import annotations

from dray.api.codec import from_document
from dray.api.document import Document, GroupResource
from dray.api.errors import ForbiddenError
from dray.api.quantity import Quantity
from dray.api.quota.usage import pod_requests
from dray.api.types.core_v1 import Pod
from dray.apiserver.admission.plugin import AdmissionAttributes, AdmissionPlugin, Operation, Undo
from dray.apiserver.object_cache import PODS
from dray.apiserver.object_lookup import ObjectLookup

_OS_LABEL = "kubernetes.io/os"


class PodResizeValidator(AdmissionPlugin):
    """Refuses resizes that the Pod's node can never grant."""

    name = "PodResizeValidator"

    def __init__(self, objects: ObjectLookup) -> None:
        self._objects = objects

    def handles(self, resource: GroupResource, subresource: str, operation: Operation) -> bool:
        """Take part in resizes of Pods."""
        return resource == PODS and subresource == "resize" and operation is Operation.UPDATE

    async def validate(self, attributes: AdmissionAttributes) -> Undo | None:
        """Compare the new requests with the node, if the Pod has one and its spec has changed."""
        pod, old = attributes.object, attributes.old_object
        assert pod is not None
        assert old is not None
        name = pod["spec"].get("nodeName")
        if not name or pod["metadata"].get("generation") == old["metadata"].get("generation"):
            return None
        node = await self._objects.node(name)
        if node is None:
            raise ForbiddenError(PODS, attributes.name, f'node "{name}" not found')
        system = (node["metadata"].get("labels") or {}).get(_OS_LABEL, "linux")
        if system != "linux":
            text = f'pod resize is only supported on linux nodes, node "{name}" is "{system}"'
            raise ForbiddenError(PODS, attributes.name, text, causes=[{"reason": "UnsupportedPlatform"}])
        if shortages := _shortages(pod, node):
            text = f"node didn't have enough allocatable resources: {'; '.join(shortages)}"
            raise ForbiddenError(PODS, attributes.name, text, causes=[{"reason": "NodeCapacity"}])
        return None


def _shortages(pod: Document, node: Document) -> list[str]:
    requests = pod_requests(from_document(Pod, pod))
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    found = []
    for name in ("cpu", "memory"):
        wanted, offered = requests.get(name) or Quantity(0), Quantity.parse(allocatable.get(name) or "0")
        if wanted > offered:
            shown = [item.milli_value() if name == "cpu" else item.value() for item in (wanted, offered)]
            found.append(f"{name}, requested: {shown[0]}, allocatable: {shown[1]}")
    return found
