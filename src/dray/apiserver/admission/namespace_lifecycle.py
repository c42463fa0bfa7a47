"""NamespaceLifecycle: no new objects in a namespace that is missing or terminating; system namespaces stay."""

from __future__ import annotations

from typing import Final

from dray.api.document import Document, GroupResource
from dray.api.errors import ForbiddenError, NotFoundError
from dray.apiserver.admission.plugin import AdmissionAttributes, AdmissionPlugin, Operation
from dray.apiserver.object_cache import NAMESPACES
from dray.apiserver.object_lookup import ObjectLookup

_IMMORTAL_NAMESPACES: Final = frozenset({"default", "kube-system", "kube-public"})


class NamespaceLifecycle(AdmissionPlugin):
    """Refuses creates in namespaces that are missing or terminating, and deletes of system namespaces."""

    name = "NamespaceLifecycle"

    def __init__(self, objects: ObjectLookup) -> None:
        self._objects = objects

    def handles(self, resource: GroupResource, subresource: str, operation: Operation) -> bool:
        """Take part in creates, and in deletes of namespaces."""
        if subresource:
            return False
        return operation is Operation.CREATE or (operation is Operation.DELETE and resource == NAMESPACES)

    async def admit(self, attributes: AdmissionAttributes) -> None:
        """Check the namespace of a new object, or the namespace that is deleted."""
        if attributes.operation is Operation.DELETE:
            if attributes.name in _IMMORTAL_NAMESPACES:
                raise ForbiddenError(NAMESPACES, attributes.name, "this namespace may not be deleted")
            return
        if not attributes.namespace:
            return
        namespace = await self._objects.namespace(attributes.namespace)
        if namespace is None:
            raise NotFoundError(NAMESPACES, attributes.namespace)
        if "deletionTimestamp" in namespace["metadata"]:
            assert attributes.object is not None
            raise _terminating(attributes.resource, attributes.object, attributes.namespace)


def _terminating(resource: GroupResource, document: Document, namespace: str) -> ForbiddenError:
    return ForbiddenError(
        resource,
        document["metadata"].get("name", ""),
        f"unable to create new content in namespace {namespace} because it is being terminated",
        causes=[
            {
                "reason": "NamespaceTerminating",
                "message": f"namespace {namespace} is being terminated",
                "field": "metadata.namespace",
            }
        ],
    )
