"""Plugins for where Pods run: RuntimeClass and PodTopologyLabels."""

from __future__ import annotations

from dray.api.document import Document, GroupResource, metadata_of
from dray.api.errors import ForbiddenError
from dray.api.quota.usage import parse_amounts
from dray.apiserver.admission.plugin import AdmissionAttributes, AdmissionPlugin, Operation, Undo
from dray.apiserver.object_cache import PODS
from dray.apiserver.object_lookup import ObjectLookup


class RuntimeClass(AdmissionPlugin):
    """Gives a Pod the overhead, node selector and tolerations of its RuntimeClass."""

    name = "RuntimeClass"

    def __init__(self, objects: ObjectLookup) -> None:
        self._objects = objects

    def handles(self, resource: GroupResource, subresource: str, operation: Operation) -> bool:
        """Take part in creates of Pods."""
        return operation is Operation.CREATE and resource == PODS and not subresource

    async def admit(self, attributes: AdmissionAttributes) -> None:
        """Complete the Pod; refuse an unknown class, another overhead, or a conflicting node selector."""
        pod = attributes.object
        assert pod is not None
        runtime_class = await self._class_of(pod)
        if runtime_class is None:
            return
        spec = pod["spec"]
        overhead = (runtime_class.get("overhead") or {}).get("podFixed")
        if runtime_class.get("overhead") is not None:
            if spec.get("overhead") and not _same_amounts(spec["overhead"], overhead):
                raise _refusal(pod, _OTHER_OVERHEAD)
            if overhead:
                spec["overhead"] = dict(overhead)
        _set_scheduling(pod, runtime_class.get("scheduling") or {})

    async def validate(self, attributes: AdmissionAttributes) -> Undo | None:
        """Refuse an overhead that is not the one of the class."""
        pod = attributes.object
        assert pod is not None
        runtime_class = await self._class_of(pod)
        given = pod["spec"].get("overhead")
        if runtime_class is not None and runtime_class.get("overhead") is not None:
            if not _same_amounts(given, runtime_class["overhead"].get("podFixed")):
                raise _refusal(pod, _OTHER_OVERHEAD)
        elif given:
            raise _refusal(pod, "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead")
        return None

    async def _class_of(self, pod: Document) -> Document | None:
        name = pod["spec"].get("runtimeClassName")
        if name is None:
            return None
        runtime_class = await self._objects.runtime_class(name)
        if runtime_class is None:
            raise _refusal(pod, f'pod rejected: RuntimeClass "{name}" not found')
        return runtime_class


_OTHER_OVERHEAD = "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead"


def _refusal(pod: Document, text: str) -> ForbiddenError:
    return ForbiddenError(PODS, pod["metadata"].get("name", ""), text)


def _same_amounts(one: Document | None, other: Document | None) -> bool:
    return parse_amounts(one or {}) == parse_amounts(other or {})


def _set_scheduling(pod: Document, scheduling: Document) -> None:
    spec = pod["spec"]
    selector = scheduling.get("nodeSelector") or {}
    given = spec.get("nodeSelector") or {}
    for key in sorted(selector.keys() & given.keys()):
        if selector[key] != given[key]:
            text = f"runtimeClass.scheduling.nodeSelector[{key}] = {selector[key]}; pod.spec.nodeSelector[{key}] = "
            raise _refusal(pod, f"conflict: {text}{given[key]}")
    if selector:
        spec["nodeSelector"] = given | selector
    tolerations = list(spec.get("tolerations") or ())
    added = [item for item in scheduling.get("tolerations") or () if item not in tolerations]
    if added:
        spec["tolerations"] = tolerations + added


class PodTopologyLabels(AdmissionPlugin):
    """Gives a Pod the zone and region labels of its node when it is bound, by those of the Binding."""

    name = "PodTopologyLabels"

    def __init__(self, objects: ObjectLookup) -> None:
        self._objects = objects

    def handles(self, resource: GroupResource, subresource: str, operation: Operation) -> bool:
        """Take part in bindings, and in creates of Pods, which may have a node already."""
        return resource == PODS and operation is Operation.CREATE and subresource in ("", "binding")

    async def admit(self, attributes: AdmissionAttributes) -> None:
        """Set the labels; those of the node win."""
        given = attributes.object
        assert given is not None
        # A Binding names the node as its target.
        node = (given.get("target") or {}).get("name") or (given.get("spec") or {}).get("nodeName")
        topology = await self._objects.node_topology(node) if node else {}
        if topology:
            metadata_of(given)["labels"] = (metadata_of(given).get("labels") or {}) | topology
