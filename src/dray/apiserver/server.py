"""The request flow: authorize, find the endpoint, run the verb. Transports call `execute` and encode its result."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final

from dray.api.document import Document, GroupResource
from dray.api.errors import (
    APIError,
    InternalError,
    MethodNotAllowedError,
    PathNotFoundError,
    ServiceUnavailableError,
    UnauthorizedError,
)
from dray.api.features import FeatureGates
from dray.apiserver.admission import RESOURCE_QUOTA, Admission
from dray.apiserver.admission_quota import Quotas
from dray.apiserver.authentication.authenticator import Authenticator
from dray.apiserver.authorization.authorizer import Authorizer
from dray.apiserver.call import Call, ObjectResult, Result
from dray.apiserver.catalog import Catalog
from dray.apiserver.decoding import decode_body
from dray.apiserver.document_cache import DocumentCache
from dray.apiserver.endpoint import Endpoint, ScaleSource
from dray.apiserver.handlers.create import Creator
from dray.apiserver.handlers.delete import Deleter
from dray.apiserver.handlers.get import Reader
from dray.apiserver.handlers.nonresource import DATA, Pages, Paths
from dray.apiserver.handlers.reviews import Reviews
from dray.apiserver.handlers.services import Services
from dray.apiserver.handlers.subresources import STREAMS, Subresources
from dray.apiserver.handlers.update import Changer
from dray.apiserver.handlers.watch import Watcher
from dray.apiserver.object_cache import DEFINITIONS, ObjectCache, TokenLookup
from dray.apiserver.registry.strategy import Strategy
from dray.apiserver.request import ANONYMOUS, Attributes
from dray.apiserver.routes import RequestInfo
from dray.apiserver.scale import Scaler
from dray.lib.clock import Clock
from dray.store.interface import Store, StoreError, StoreUnavailableError

Handler = Callable[[Call, Endpoint], Awaitable[Result]]

_REPLICAS: Final = Scaler()
_CHANGING: Final = frozenset({"create", "update", "patch"})


async def _settled_already(_definition: Document) -> None:
    """Nobody serves custom resources here."""


def told(error: StoreError) -> APIError:
    """What the store says, as a client is told."""
    if isinstance(error, StoreUnavailableError):
        return ServiceUnavailableError(f"the store does not answer: {error}")
    return InternalError(error)


class APIServer:
    """One API server over one store; every transport ends here."""

    def __init__(  # noqa: PLR0913 - the parts of a server, by name
        self,
        *,
        store: Store,
        catalog: Catalog,
        cache: ObjectCache,
        clock: Clock,
        gates: FeatureGates,
        authenticator: Authenticator,
        authorizer: Authorizer,
        paths: Paths,
        lookup: TokenLookup,
        random_source: random.Random,
        disabled_plugins: Collection[str] = (),
    ) -> None:
        self.catalog: Final = catalog
        self.cache: Final = cache
        self.clock: Final = clock
        self.authenticator: Final = authenticator
        self.authorizer: Final = authorizer
        self.paths: Final = paths
        # Waits until a written custom resource definition has taken effect, so that its objects can follow at once.
        self.settle_definition: Callable[[Document], Awaitable[None]] = _settled_already
        # Pages for people; none unless somebody brings them.
        self.pages: Pages | None = None
        admission = Admission(cache, authorizer.authorize, random_source, disabled_plugins)
        self.documents: Final = DocumentCache()
        quotas = Quotas(store, cache, gates, clock, enabled=RESOURCE_QUOTA not in disabled_plugins)
        services = Services(store, clock, gates, cache, admission, random_source, self.documents, quotas)
        self._reader: Final = Reader(store)
        self._creator: Final = Creator(services)
        self._changer: Final = Changer(services, self._creator)
        self._deleter: Final = Deleter(services, self._reader)
        self.watcher: Final = Watcher(store, self._reader, self.documents, random_source)
        self._reviews: Final = Reviews(authenticator, authorizer, clock)
        self.subresources: Final = Subresources(
            services, self._reader, self._changer, self._deleter, authenticator.service_accounts, lookup
        )
        self._verbs: Final[Mapping[str, Handler]] = {
            "get": self._reader.get,
            "list": self._reader.list,
            "watch": self.watcher.watch,
            "create": self._creator.create,
            "update": lambda call, endpoint: self._changer.update(call, endpoint, endpoint.definition.strategy),
            "patch": lambda call, endpoint: self._changer.patch(call, endpoint, endpoint.definition.strategy),
            "delete": self._deleter.delete,
            "deletecollection": self._deleter.delete_collection,
        }
        self._status_verbs: Final[Mapping[str, Handler]] = {
            "get": self._reader.get,
            "update": lambda call, endpoint: self._changer.update(call, endpoint, _status_strategy(endpoint)),
            "patch": lambda call, endpoint: self._changer.patch(call, endpoint, _status_strategy(endpoint)),
        }
        self._special: Final[Mapping[tuple[str, str], Handler]] = {
            ("binding", "create"): self.subresources.bind,
            ("eviction", "create"): self.subresources.evict,
            ("log", "get"): self.subresources.log,
            ("token", "create"): self.subresources.create_token,
            ("finalize", "update"): self.subresources.finalize,
            ("scale", "get"): lambda call, endpoint: self.subresources.get_scale(call, endpoint, _scaler(endpoint)),
            **dict.fromkeys((("scale", "update"), ("scale", "patch")), self._update_scale),
            **dict.fromkeys(STREAMS, self.subresources.stream),
        }

    async def execute(self, call: Call) -> Result:
        """Run one authenticated request to its result, or raise the `APIError` that the client sees."""
        info = call.info
        if self.pages is not None and info.path.startswith(DATA):
            return await self._page_data(self.pages, call)
        self.authorizer.check(attributes_of(call))
        try:
            if not info.resource:
                return await self.paths.serve(call)
            endpoint = self._endpoint(info)
            if endpoint.deprecation:
                call.warnings.append(endpoint.deprecation)
            result = await self._handler(info, endpoint)(call, endpoint)
            if endpoint.resource == DEFINITIONS:
                await self._settle(info, endpoint, result)
        except StoreError as error:
            raise told(error) from error
        return result

    @staticmethod
    async def _page_data(pages: Pages, call: Call) -> Result:
        """Whatever is behind it asks this server again as the same user, who therefore needs no right of its own."""
        if call.user.name == ANONYMOUS.name:
            raise UnauthorizedError
        return await pages.data(call)

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
        return self.paths.not_found()

    def _handler(self, info: RequestInfo, endpoint: Endpoint) -> Handler:
        """Who does it; a request that nobody does is refused."""
        if info.subresource:
            return self._subresource_handler(info, endpoint)
        definition = endpoint.definition
        if "get" not in definition.verbs:
            return self._answer
        handler = self._verbs.get(info.verb)
        # A custom resource whose definition is going takes no new objects, and says so in its own words.
        known = info.verb in definition.verbs or (endpoint.custom and info.verb == "create")
        allowed = known and info.method not in ("HEAD", "OPTIONS")
        if handler is None or not allowed or (info.name and info.verb == "create"):
            raise MethodNotAllowedError
        if not info.name and info.verb in ("update", "patch"):
            raise MethodNotAllowedError
        return handler

    async def _settle(self, info: RequestInfo, endpoint: Endpoint, result: Result) -> None:
        if info.verb in _CHANGING and not info.subresource and isinstance(result, ObjectResult):
            await self.settle_definition(endpoint.decode(result.entry.value, result.entry.revision))

    async def _answer(self, call: Call, endpoint: Endpoint) -> Result:
        """A kind that is never stored: a review, or a binding posted to its own collection."""
        if call.info.verb != "create" or call.info.name:
            raise MethodNotAllowedError
        if endpoint.resource == GroupResource("", "bindings"):
            return await self._bind_named(call)
        return self._reviews.review(call, endpoint)

    async def _bind_named(self, call: Call) -> Result:
        binding, _ = decode_body(call.body, call.content_type, "Binding")
        pods = self.catalog.get("", "v1", "pods")
        assert pods is not None
        name = (binding.get("metadata") or {}).get("name", "")
        info = call.info
        call.info = RequestInfo(info.method, info.path, "create", "", "v1", "pods", "binding", info.namespace, name)
        call.body = binding
        return await self.subresources.bind(call, pods)

    def _subresource_handler(self, info: RequestInfo, endpoint: Endpoint) -> Handler:
        name, definition = info.subresource, endpoint.definition
        if name == "status" and definition.status_strategy is not None:
            handler = self._status_verbs.get(info.verb)
        elif name in definition.subresources:
            handler = self._special.get((name, info.verb))
        else:
            raise PathNotFoundError
        if handler is None:
            raise MethodNotAllowedError
        return handler

    def _update_scale(self, call: Call, endpoint: Endpoint) -> Awaitable[Result]:
        return self.subresources.update_scale(call, endpoint, _scaler(endpoint))


def _status_strategy(endpoint: Endpoint) -> Strategy:
    strategy = endpoint.definition.status_strategy
    assert strategy is not None
    return strategy


def _scaler(endpoint: Endpoint) -> ScaleSource:
    return endpoint.scaler or _REPLICAS


def attributes_of(call: Call) -> Attributes:
    """What the authorizer decides on."""
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
        field_selector=call.query.get("fieldSelector", ""),
        label_selector=call.query.get("labelSelector", ""),
    )
