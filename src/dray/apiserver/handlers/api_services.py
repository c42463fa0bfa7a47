"""APIServices: the stored ones, and one of each group version that is served here, which is not stored."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Final

from dray.api.document import Document, GroupVersion
from dray.api.errors import NotFoundError
from dray.apiserver.call import Call, ListResult, ObjectResult, Pacer
from dray.apiserver.catalog import Catalog
from dray.apiserver.discovery import group_versions
from dray.apiserver.endpoint import Endpoint
from dray.apiserver.handlers.get import GetHandler
from dray.apiserver.options import ListOptions
from dray.apiserver.registry.api_services import LOCAL
from dray.apiserver.registry.resource_metrics import GROUP as METRICS_GROUP
from dray.apiserver.selection import select
from dray.store.interface import Entry, Store

# In Kubernetes an add-on serves them, and brings the APIService: its chart must find none that it does not own.
INSTALLED_GROUPS: Final = frozenset({METRICS_GROUP})
_CORE_PRIORITY: Final = 18000
_PRIORITY_STEP: Final = 100
# They do not change while the server runs.
_REVISION: Final = 1


class APIServices(GetHandler):
    """Answers get and list."""

    def __init__(self, store: Store, catalog: Catalog) -> None:
        super().__init__(store)
        self._catalog = catalog

    async def get(self, call: Call, endpoint: Endpoint) -> ObjectResult:
        """Return one APIService."""
        try:
            return await super().get(call, endpoint)
        except NotFoundError:
            key = endpoint.key("", call.info.name)
            for entry in self._own(endpoint):
                if entry.key == key:
                    return ObjectResult(endpoint, entry)
            raise

    async def list_selected(
        self, endpoint: Endpoint, namespace: str, options: ListOptions, *, name: str = "", pacer: Pacer | None = None
    ) -> ListResult:
        """Return a list; those that are not stored come with its first page."""
        found = await super().list_selected(endpoint, namespace, options, name=name, pacer=pacer)
        if options.continue_token:
            return found
        selection = select(endpoint, namespace, name, options)
        entries = {
            entry.key: entry
            for entry in self._own(endpoint)
            if entry.key.startswith(selection.prefix)
            and (selection.matches is None or selection.matches(endpoint.decode(entry.value, entry.revision)))
        }
        entries.update((entry.key, entry) for entry in found.entries)
        merged = [entries[key] for key in sorted(entries)]
        return ListResult(endpoint, merged, found.revision, found.continue_token, found.remaining)

    def _own(self, endpoint: Endpoint) -> Iterator[Entry]:
        for position, (group, versions) in enumerate(group_versions(self._catalog.endpoints()).items()):
            if group in INSTALLED_GROUPS:
                continue
            for rank, version in enumerate(reversed(versions), 1):
                document = _api_service(GroupVersion(group, version), _CORE_PRIORITY - _PRIORITY_STEP * position, rank)
                value = endpoint.dump(endpoint.content(document))
                yield Entry(endpoint.key("", document["metadata"]["name"]), value, _REVISION, _REVISION)


def _api_service(place: GroupVersion, group_priority: int, version_priority: int) -> Document:
    spec: Document = {"version": place.version}
    if place.group:
        spec["group"] = place.group
    name = f"{place.version}.{place.group}"
    return {
        "metadata": {
            "name": name,
            "uid": str(uuid.uuid5(uuid.NAMESPACE_OID, name)),
            "labels": {"kube-aggregator.kubernetes.io/automanaged": "onstart"},
        },
        "spec": spec | {"groupPriorityMinimum": group_priority, "versionPriority": version_priority},
        "status": {"conditions": [LOCAL]},
    }
