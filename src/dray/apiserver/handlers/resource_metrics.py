"""metrics.k8s.io: what nodes and Pods use, asked of the nodes by each request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dray.api.document import Document, GroupResource
from dray.api.errors import NotFoundError, ServiceUnavailableError
from dray.api.timestamps import format_time
from dray.apiserver.call import Call, DocumentResult, Result
from dray.apiserver.catalog import Catalog
from dray.apiserver.encoding import list_document
from dray.apiserver.endpoint import Endpoint
from dray.apiserver.handlers.backend import Backend
from dray.apiserver.handlers.get import GetHandler
from dray.apiserver.malformed import each_shown
from dray.apiserver.node_stats import NodeStats
from dray.apiserver.options import ListOptions, parse_list_options
from dray.apiserver.registry.resource_metrics import GROUP
from dray.apiserver.selection import select
from dray.apiserver.usage_metrics import with_metadata

METRICS_GROUP: Final = GROUP
_PODS: Final = GroupResource(GROUP, "pods")
_ALL: Final = ListOptions()


class ResourceMetrics:
    """Answers get and list."""

    def __init__(self, backend: Backend, get: GetHandler, catalog: Catalog, stats: NodeStats) -> None:
        self._objects = backend.objects
        self._clock = backend.clock
        self._get = get
        self._catalog = catalog
        self._stats = stats

    async def get(self, call: Call, endpoint: Endpoint) -> Result:
        """Return the metrics of one node or Pod."""
        sources = await self._sources(endpoint, call.info.namespace, call.info.name)
        for document in await self._measured(endpoint, sources):
            return DocumentResult(endpoint.with_kind(document), endpoint=endpoint)
        raise NotFoundError(endpoint.resource, call.info.name)

    async def list(self, call: Call, endpoint: Endpoint) -> Result:
        """Return the metrics of all nodes or Pods that the selectors match."""
        options = parse_list_options(call.query, watch=False)
        matches = select(endpoint, call.info.namespace, "", options).matches
        sources = await self._sources(endpoint, call.info.namespace)
        if matches is not None:
            sources = [source for source in sources if matches(source)]
        documents = await self._measured(endpoint, sources)
        return DocumentResult(list_document(endpoint, documents, {}))

    async def _sources(self, endpoint: Endpoint, namespace: str, name: str = "") -> Sequence[Document]:
        """Return the stored nodes or Pods."""
        stored = self._catalog.get("", "v1", endpoint.definition.resource)
        assert stored is not None
        found = await self._get.list_selected(stored, namespace, _ALL, name=name)
        decoded = each_shown(lambda entry: stored.decode(entry.value, entry.revision), found.entries)
        return [document for document in decoded if isinstance(document.get("spec") or {}, dict)]

    async def _measured(self, endpoint: Endpoint, sources: Sequence[Document]) -> Sequence[Document]:
        """Return the metrics of nodes or Pods; raise ServiceUnavailableError if no node has answered."""
        of_pods = endpoint.resource == _PODS
        if of_pods:
            names = {(source.get("spec") or {}).get("nodeName") for source in sources}
            nodes = [node for node in await self._objects.nodes() if node["metadata"]["name"] in names]
        else:
            nodes = list(sources)
        if not nodes:
            return []
        answers = await self._stats.answers(nodes)
        if not answers:
            raise ServiceUnavailableError("no node has reported what it uses")
        created = format_time(self._clock.now())
        found = []
        for source in sources:
            name = source["spec"].get("nodeName") if of_pods else source["metadata"]["name"]
            answer = answers.get(name)
            if answer is None:
                continue
            metrics = answer.pods.get(source["metadata"]["uid"]) if of_pods else answer.node
            if metrics is not None:
                found.append(with_metadata(metrics, source, created))
        return found
