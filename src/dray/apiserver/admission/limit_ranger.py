"""LimitRanger: default requests and limits of containers, and the bounds of a namespace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from dray.api.document import Document, GroupResource
from dray.api.errors import ForbiddenError
from dray.api.limit_ranges import claim_problems, pod_problems, set_defaults
from dray.apiserver.admission.plugin import AdmissionAttributes, AdmissionPlugin, Operation, Undo
from dray.apiserver.object_cache import PODS, ObjectCache

_CLAIMS: Final = GroupResource("", "persistentvolumeclaims")
_CHECKS: Final[dict[GroupResource, Callable[[Document, Document], list[str]]]] = {
    PODS: pod_problems,
    _CLAIMS: claim_problems,
}


class LimitRanger(AdmissionPlugin):
    """Applies the LimitRanges of a namespace to its Pods and volume claims."""

    name = "LimitRanger"

    def __init__(self, cache: ObjectCache) -> None:
        self._cache = cache

    def handles(self, resource: GroupResource, subresource: str, operation: Operation) -> bool:
        """Take part in creates, and in updates of claims and resizes of Pods."""
        if operation is Operation.CREATE:
            return resource in _CHECKS and not subresource
        if operation is Operation.UPDATE:
            return (resource == _CLAIMS and not subresource) or (resource == PODS and subresource == "resize")
        return False

    async def admit(self, attributes: AdmissionAttributes) -> None:
        """Give the containers of a Pod default requests and limits."""
        if attributes.resource != PODS or attributes.object is None:
            return
        for limit_range in self._ranges(attributes.namespace):
            set_defaults(attributes.object, limit_range)

    async def validate(self, attributes: AdmissionAttributes) -> Undo | None:
        """Refuse amounts outside the bounds."""
        obj = attributes.object
        if obj is None:
            return None
        for limit_range in self._ranges(attributes.namespace):
            problems = list(dict.fromkeys(_CHECKS[attributes.resource](obj, limit_range)))
            if problems:
                text = problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]"
                raise ForbiddenError(attributes.resource, obj["metadata"].get("name", ""), text)
        return None

    def _ranges(self, namespace: str) -> Iterator[Document]:
        ranges = self._cache.limit_ranges.get(namespace) or {}
        for name in sorted(ranges):
            yield ranges[name]
