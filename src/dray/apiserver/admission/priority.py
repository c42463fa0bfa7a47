"""Priority: resolves the priority classes of Pods and PodGroups, and allows one default class."""

from __future__ import annotations

from typing import Final

from dray.api.document import Document, GroupResource
from dray.api.errors import ForbiddenError
from dray.api.validation.other_groups import SYSTEM_CLASSES
from dray.apiserver.admission.plugin import AdmissionAttributes, AdmissionPlugin, Operation, Undo
from dray.apiserver.object_cache import PRIORITY_CLASSES, ObjectCache
from dray.apiserver.object_lookup import ObjectLookup

PODS: Final = GroupResource("", "pods")
POD_GROUPS: Final = GroupResource("scheduling.k8s.io", "podgroups")
DEFAULT_POLICY: Final = "PreemptLowerPriority"
# Immutable fields of a Pod that come from its class.
_COMPUTED: Final = ("priority", "preemptionPolicy")


class Priority(AdmissionPlugin):
    """Resolves the priority class of a Pod to its priority and preemption policy; guards the classes themselves."""

    name = "Priority"

    def __init__(self, cache: ObjectCache, objects: ObjectLookup) -> None:
        self._cache = cache
        self._objects = objects

    def handles(self, resource: GroupResource, subresource: str, operation: Operation) -> bool:
        """Take part in writes of Pods and priority classes, and in creates of PodGroups."""
        if subresource:
            return False
        if resource == POD_GROUPS:
            return operation is Operation.CREATE
        return resource == PRIORITY_CLASSES or (resource == PODS and operation is not Operation.DELETE)

    async def admit(self, attributes: AdmissionAttributes) -> None:
        """Set the priority of a new Pod or PodGroup; restore what an update of a Pod leaves out."""
        if attributes.resource == POD_GROUPS:
            assert attributes.object is not None
            await self._resolve_group(attributes.object)
        if attributes.resource != PODS:
            return
        pod = attributes.object
        assert pod is not None
        spec = pod.setdefault("spec", {})
        if attributes.operation is Operation.CREATE:
            await self._resolve(pod["metadata"].get("name", ""), spec)
        elif attributes.old_object is not None:
            before = attributes.old_object.get("spec") or {}
            for name in _COMPUTED:
                if spec.get(name) is None and before.get(name) is not None:
                    spec[name] = before[name]

    async def validate(self, attributes: AdmissionAttributes) -> Undo | None:
        """Refuse a second default class, and the deletion of a system class."""
        if attributes.resource == PRIORITY_CLASSES:
            if attributes.operation is Operation.DELETE:
                _check_deletion(attributes.name or _name_of(attributes.old_object))
            else:
                self._check_default(attributes.object or {})
        return None

    async def _class_of(self, resource: GroupResource, owner: str, spec: Document) -> Document | None:
        """Return the named class, or the default one."""
        name = spec.get("priorityClassName") or ""
        chosen = await self._objects.priority_class(name) if name else self._default_class()
        if name and chosen is None:
            raise ForbiddenError(resource, owner, f"no PriorityClass with name {name} was found")
        return chosen

    async def _resolve_group(self, group: Document) -> None:
        name, spec = group["metadata"].get("name", ""), group.setdefault("spec", {})
        chosen = await self._class_of(POD_GROUPS, name, spec)
        value, given = int(chosen["value"]) if chosen else 0, spec.get("priority")
        if given is not None and given != value:
            text = (
                f"priority set in the pod group ({given}) must match the priority computed ({value}) "
                "based on the priority class set in the spec"
            )
            raise ForbiddenError(POD_GROUPS, name, text)
        spec["priority"] = value
        if chosen:
            spec["priorityClassName"] = chosen["metadata"]["name"]

    async def _resolve(self, pod_name: str, spec: Document) -> None:
        name = spec.get("priorityClassName") or ""
        chosen = await self._class_of(PODS, pod_name, spec)
        value = int(chosen["value"]) if chosen else 0
        if (given := spec.get("priority")) is not None:
            _check_given(pod_name, "integer value of priority", given, value)
        policy = (chosen or {}).get("preemptionPolicy") or DEFAULT_POLICY
        if (given := spec.get("preemptionPolicy")) is not None:
            _check_given(pod_name, "string value of PreemptionPolicy", given, policy)
        spec["priority"], spec["preemptionPolicy"] = value, policy
        if chosen and not name:
            spec["priorityClassName"] = chosen["metadata"]["name"]

    def _default_class(self) -> Document | None:
        """Return the default class; the one with the lowest value, should a race have made two."""
        defaults = [item for item in self._cache.priority_classes.values() if item.get("globalDefault")]
        return min(defaults, key=lambda item: item["value"]) if defaults else None

    def _check_default(self, priority_class: Document) -> None:
        default = self._default_class() if priority_class.get("globalDefault") else None
        name = _name_of(priority_class)
        if default is not None and default["metadata"]["name"] != name:
            other = default["metadata"]["name"]
            text = f"PriorityClass {other} is already marked as default. Only one default can exist"
            raise ForbiddenError(PRIORITY_CLASSES, name, text)


def _name_of(priority_class: Document | None) -> str:
    return ((priority_class or {}).get("metadata") or {}).get("name") or ""


def _check_deletion(name: str) -> None:
    if name in SYSTEM_CLASSES:
        raise ForbiddenError(PRIORITY_CLASSES, name, "this is a system priority class and cannot be deleted")


def _check_given(pod_name: str, what: str, given: object, computed: object) -> None:
    """Raise if the Pod has another value than its class."""
    if given != computed:
        raise ForbiddenError(
            PODS,
            pod_name,
            f"the {what} ({given}) must not be provided in pod spec; priority admission "
            f"controller computed {computed} from the given PriorityClass name",
        )
