"""APIServices: one of each served group version, all of them local. They are not stored, and cannot be changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dray.api.document import Document, GroupResource, GroupVersion
from dray.api.errors import NotFoundError
from dray.apiserver.call import Call, ListResult, ObjectResult, Result
from dray.apiserver.catalog import Catalog
from dray.apiserver.discovery import group_versions
from dray.apiserver.endpoint import Endpoint
from dray.store.interface import Entry

API_SERVICES: Final = GroupResource("apiregistration.k8s.io", "apiservices")
_CORE_PRIORITY: Final = 18000
_PRIORITY_STEP: Final = 100
_CONDITION: Final = {
    "type": "Available",
    "status": "True",
    "reason": "Local",
    "message": "Local APIServices are always available",
}
# They do not change while the server runs.
_REVISION: Final = 1


class APIServices:
    """Answers get and list."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    async def get(self, call: Call, endpoint: Endpoint) -> Result:
        """Return one APIService."""
        for entry in self._entries(endpoint):
            if entry.key == endpoint.key("", call.info.name):
                return ObjectResult(endpoint, entry)
        raise NotFoundError(endpoint.resource, call.info.name)

    async def list(self, call: Call, endpoint: Endpoint) -> Result:
        """Return all of them."""
        return ListResult(endpoint, sorted(self._entries(endpoint), key=lambda entry: entry.key), _REVISION)

    def _entries(self, endpoint: Endpoint) -> Iterator[Entry]:
        for position, (group, versions) in enumerate(group_versions(self._catalog.endpoints()).items()):
            for rank, version in enumerate(reversed(versions), 1):
                document = _api_service(GroupVersion(group, version), _CORE_PRIORITY - _PRIORITY_STEP * position, rank)
                value = endpoint.dump(endpoint.content(document))
                yield Entry(endpoint.key("", document["metadata"]["name"]), value, _REVISION, _REVISION)


def _api_service(place: GroupVersion, group_priority: int, version_priority: int) -> Document:
    spec: Document = {"version": place.version}
    if place.group:
        spec["group"] = place.group
    return {
        "metadata": {
            "name": f"{place.version}.{place.group}",
            "labels": {"kube-aggregator.kubernetes.io/automanaged": "onstart"},
        },
        "spec": spec | {"groupPriorityMinimum": group_priority, "versionPriority": version_priority},
        "status": {"conditions": [_CONDITION]},
    }
