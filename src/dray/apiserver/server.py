"""The API server: authorizes a request, finds its endpoint and runs the handler of its verb.

Transports call `execute` and encode its result.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from dray.api.document import GroupResource
from dray.api.errors import (
    APIError,
    InsufficientStorageError,
    InternalError,
    MethodNotAllowedError,
    PathNotFoundError,
    RequestEntityTooLargeError,
    ServiceUnavailableError,
    UnauthorizedError,
)
from dray.apiserver.authentication.authenticator import Authenticator
from dray.apiserver.call import Call, Result, TextResult
from dray.apiserver.catalog import Catalog
from dray.apiserver.decoding import decode_message
from dray.apiserver.endpoint import ConversionFailedError, Endpoint
from dray.apiserver.handlers.api_services import APIServices
from dray.apiserver.handlers.backend import Backend
from dray.apiserver.handlers.decisions import DecisionsHandler, DecisionSource
from dray.apiserver.handlers.nonresource import NonResourceHandler
from dray.apiserver.handlers.resource_metrics import METRICS_GROUP, ResourceMetrics
from dray.apiserver.handlers.reviews import ReviewHandler
from dray.apiserver.handlers.stored import Handler, StoredHandlers
from dray.apiserver.handlers.subresources.evictions import EvictionHandler
from dray.apiserver.handlers.subresources.namespaces import FinalizeSubresource
from dray.apiserver.handlers.subresources.pods import BINDING, LogSource, PodSubresources
from dray.apiserver.handlers.subresources.proxy import NodeProxy, ProxyHandler
from dray.apiserver.handlers.subresources.service_accounts import TokenSubresource
from dray.apiserver.handlers.subresources.streams import NodeStreams, PodStreams
from dray.apiserver.handlers.usage import UsageHandler, UsageSource
from dray.apiserver.node_stats import NodeStats
from dray.apiserver.registry.api_services import API_SERVICES
from dray.apiserver.registry.pods import PODS
from dray.apiserver.registry.strategy import PROXY_VERBS, SCALE
from dray.apiserver.request import ANONYMOUS, Attributes
from dray.apiserver.routes import RequestInfo
from dray.apiserver.service_resolver import ServiceResolver
from dray.runtime.tasks import ChildTasks
from dray.store.interface import StoreError, StoreFullError, StoreUnavailableError, ValueTooLargeError

# Waits until a request, which has had a result, is in effect in this server.
Settle = Callable[[Call, Endpoint, Result], Awaitable[None]]
UI_ROOT: Final = "/ui"
UI_DATA: Final = "/ui/data/"
UI_STREAM: Final = "/ui/data/stream"
DECISIONS: Final = "/debug/decisions"
USAGE: Final = "/debug/usage"


class UIPages(Protocol):
    """The dashboard: answers paths below `UI_ROOT`."""

    def public(self, path: str, known_tag: str) -> TextResult | None:
        """Return a static file, which needs no credentials; None if there is none at the path."""

    async def data(self, call: Call, server: APIServer) -> TextResult:
        """Answer with the caller's own permissions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerParts:
    """What an API server is composed of."""

    backend: Backend
    catalog: Catalog
    authenticator: Authenticator
    nonresource: NonResourceHandler
    # Tasks that requests start; supervised by the process.
    tasks: ChildTasks
    # Of resources that change what the server does: custom resource definitions, policies, webhooks.
    settle: Mapping[GroupResource, Settle]
    # None if no node can be asked for logs.
    log_source: LogSource | None = None
    # None if no node can be asked for streams.
    node_streams: NodeStreams | None = None
    # None if requests cannot be passed on to nodes.
    node_proxy: NodeProxy | None = None
    pages: UIPages | None = None
    # None unless the scheduler runs in this process.
    decisions: DecisionSource | None = None
    # None unless usage is recorded in this process.
    usage: UsageSource | None = None


class _ConversionError(APIError):
    """An object could not be converted; kube-apiserver gives no reason either."""

    code = 500
    reason = ""


def store_error(error: StoreError) -> APIError:
    """Return the error that a client gets for a failure of the store."""
    if isinstance(error, StoreFullError):
        return InsufficientStorageError(f"the store is full: {error}")
    if isinstance(error, ValueTooLargeError):
        return RequestEntityTooLargeError(f"Request entity too large: {error}")
    if isinstance(error, ConversionFailedError):
        return _ConversionError(str(error))
    if isinstance(error, StoreUnavailableError):
        return ServiceUnavailableError(f"the store does not answer: {error}")
    return InternalError(error)


class APIServer:
    """One API server over one store; every transport ends here."""

    def __init__(self, parts: ServerParts, components: APIServer | None = None) -> None:
        backend = parts.backend
        # The same server for controllers and the scheduler in this process, whose writes are committed asynchronously.
        self.components: Final = components or self
        self.catalog: Final = parts.catalog
        self.cache: Final = backend.cache
        self.clock: Final = backend.clock
        self.documents: Final = backend.documents
        self.authenticator: Final = parts.authenticator
        self.authorizer: Final = backend.authorizer
        self.pages: Final = parts.pages
        self.health: Final = parts.nonresource.health
        self._nonresource: Final = parts.nonresource
        self.component_metrics: Final = parts.nonresource.component_metrics
        self._decisions: Final = DecisionsHandler(backend.authorizer, parts.decisions)
        self._usage: Final = UsageHandler(backend.authorizer, parts.usage)
        self._settle: Final = parts.settle
        self._stored: Final = StoredHandlers(backend, parts.tasks)
        get, update = self._stored.get, self._stored.update
        self.tasks: Final = parts.tasks
        self.watcher: Final = self._stored.watcher
        parts.catalog.on_changed = self.watcher.end
        self._reviews: Final = ReviewHandler(parts.authenticator, backend.authorizer, backend.clock)
        self._pods: Final = PodSubresources(backend, get, update, parts.log_source)
        streams = PodStreams(backend, get, backend.authorizer, attributes_of, parts.node_streams)
        proxy = ProxyHandler(backend, get, ServiceResolver(backend.store, backend.random), parts.node_proxy)
        evictions = EvictionHandler(backend, update, self._stored.delete, parts.catalog)
        api_services = StoredHandlers(
            backend, parts.tasks, watcher=self.watcher, get=APIServices(backend.store, parts.catalog)
        )
        metrics = ResourceMetrics(backend, get, parts.catalog, NodeStats(parts.node_proxy, backend.clock))
        # The verbs of groups whose objects are not stored, or not all of them.
        self._unstored: Final[Mapping[str, Mapping[str, Handler]]] = {
            API_SERVICES.group: api_services.verbs,
            METRICS_GROUP: {"get": metrics.get, "list": metrics.list},
        }
        self._subresources: Final[Mapping[tuple[str, str], Handler]] = {
            ("binding", "create"): self._pods.bind,
            ("eviction", "create"): evictions.evict,
            ("log", "get"): self._pods.log,
            ("token", "create"): TokenSubresource(backend, get, parts.authenticator.service_accounts).create,
            ("finalize", "update"): FinalizeSubresource(update).update,
            **{("proxy", verb): proxy.connect for verb in PROXY_VERBS},
            **{(row.name, verb): streams.connect for row in PODS.subresources if row.stream_path for verb in row.verbs},
        }

    async def execute(self, call: Call) -> Result:
        """Run one authenticated request to its result, or raise the `APIError` that the client sees."""
        info = call.info
        if not info.resource:
            return await self._execute_path(call)
        self._authorize(call)
        try:
            endpoint = self._endpoint(info)
            if endpoint.deprecation:
                call.warnings.append(endpoint.deprecation)
            result = await self._handler(info, endpoint)(call, endpoint)
            if endpoint.resource in self._settle:
                await self._settle[endpoint.resource](call, endpoint, result)
        except StoreError as error:
            raise store_error(error) from error
        return result

    async def _execute_path(self, call: Call) -> Result:
        """Run a request whose path is not that of a resource."""
        path = call.info.path
        if self.pages is not None and path.startswith(UI_DATA):
            return await self._ui_data(self.pages, call)
        if path == DECISIONS and self._decisions.is_served:
            return self._decisions.serve(call)
        if path == USAGE and self._usage.is_served:
            return await self._usage.serve(call)
        self._authorize(call)
        try:
            return await self._nonresource.serve(call)
        except StoreError as error:
            raise store_error(error) from error

    def _authorize(self, call: Call) -> None:
        attributes = attributes_of(call)
        if call.audit is not None:
            decision = self.authorizer.authorize(attributes)
            call.audit["authorization.k8s.io/decision"] = "allow" if decision.allowed else "forbid"
            call.audit["authorization.k8s.io/reason"] = decision.reason
        self.authorizer.check(attributes)

    async def _ui_data(self, pages: UIPages, call: Call) -> Result:
        """Serve data of the dashboard. It sends requests as the same user, so that each is authorized by itself."""
        if call.user.name == ANONYMOUS.name:
            raise UnauthorizedError
        return await pages.data(call, self)

    def _endpoint(self, info: RequestInfo) -> Endpoint:
        endpoint = self.catalog.get(info.group, info.version, info.resource)
        if endpoint is None:
            raise self._unknown(info)
        namespaced = endpoint.definition.namespaced
        if info.namespace and not namespaced:
            raise PathNotFoundError
        if namespaced and not info.namespace and (info.name or info.verb not in ("list", "watch", "deletecollection")):
            raise PathNotFoundError if info.name else MethodNotAllowedError
        return endpoint

    def _unknown(self, info: RequestInfo) -> APIError:
        if self.catalog.has_group_version(info.group, info.version):
            return PathNotFoundError()
        return self._nonresource.not_found()

    def _handler(self, info: RequestInfo, endpoint: Endpoint) -> Handler:
        """Return the handler of the request, or raise what the client gets if there is none."""
        if info.subresource:
            return self._subresource_handler(info, endpoint)
        definition = endpoint.definition
        if "get" not in definition.verbs:
            return self._answer
        handlers = self._unstored.get(endpoint.resource.group) or self._stored.of(endpoint).verbs
        handler = handlers.get(info.verb)
        # The strategy of a custom resource whose definition is being deleted refuses creates with its own message.
        known = info.verb in definition.verbs or (endpoint.custom and info.verb == "create")
        allowed = known and info.method not in ("HEAD", "OPTIONS")
        if handler is None or not allowed or (info.name and info.verb == "create"):
            raise MethodNotAllowedError
        if not info.name and info.verb in ("update", "patch"):
            raise MethodNotAllowedError
        return handler

    async def _answer(self, call: Call, endpoint: Endpoint) -> Result:
        """Answer a kind that is never stored: a review, or a binding posted to its own collection."""
        if call.info.verb != "create" or call.info.name:
            raise MethodNotAllowedError
        if endpoint.resource == GroupResource("", "bindings"):
            return await self._bind_named(call)
        return self._reviews.review(call, endpoint)

    async def _bind_named(self, call: Call) -> Result:
        binding = decode_message(call.body, call.content_type, BINDING)
        pods = self.catalog.get("", "v1", "pods")
        assert pods is not None
        name = (binding.get("metadata") or {}).get("name", "")
        info = call.info
        call.info = RequestInfo(
            method=info.method,
            path=info.path,
            verb="create",
            group="",
            version="v1",
            resource="pods",
            subresource="binding",
            namespace=info.namespace,
            name=name,
        )
        call.body = binding
        return await self._pods.bind(call, pods)

    def _subresource_handler(self, info: RequestInfo, endpoint: Endpoint) -> Handler:
        row = endpoint.subresources.get(info.subresource)
        if row is None:
            raise PathNotFoundError
        if row.strategy is not None:
            handler = self._stored.of(endpoint).part_verbs.get(info.verb)
        elif row.name == SCALE.name:
            handler = self._stored.of(endpoint).scale_verbs.get(info.verb)
        else:
            handler = self._subresources.get((row.name, info.verb))
        if handler is None:
            raise MethodNotAllowedError
        return handler


def attributes_of(call: Call) -> Attributes:
    """Return what the authorizer decides on."""
    info = call.info
    if not info.resource:
        return Attributes(user=call.user, verb=info.verb, path=info.path)
    return Attributes(
        user=call.user,
        verb=info.verb,
        group=info.group,
        version=info.version,
        resource=info.resource,
        subresource=info.subresource,
        namespace=info.namespace or (info.name if info.resource == "namespaces" and not info.group else ""),
        name=info.name,
        path="",
        field_selector=call.query.get("fieldSelector", ""),
        label_selector=call.query.get("labelSelector", ""),
    )
