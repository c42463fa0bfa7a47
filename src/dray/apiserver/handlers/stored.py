"""The verbs of stored objects, on one store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Final

from dray.apiserver.call import Call, Result
from dray.apiserver.endpoint import Endpoint
from dray.apiserver.handlers.backend import Backend
from dray.apiserver.handlers.create import CreateHandler
from dray.apiserver.handlers.delete import DeleteHandler
from dray.apiserver.handlers.get import GetHandler
from dray.apiserver.handlers.subresources.scale import ScaleSubresource
from dray.apiserver.handlers.update import UpdateHandler
from dray.apiserver.handlers.watch import WatchHandler
from dray.apiserver.registry.strategy import Strategy
from dray.runtime.tasks import ChildTasks

Handler = Callable[[Call, Endpoint], Awaitable[Result]]


class StoredHandlers:
    """The handlers that work on one store."""

    def __init__(
        self,
        backend: Backend,
        tasks: ChildTasks,
        *,
        watcher: WatchHandler | None = None,
        get: GetHandler | None = None,
    ) -> None:
        """`watcher` closes the watches of these handlers, too; `get` reads more than what is stored."""
        self._backend = backend
        self._tasks = tasks
        self.get: Final = get or GetHandler(backend.store)
        create = CreateHandler(backend)
        self.update: Final = UpdateHandler(backend, create)
        self.delete: Final = DeleteHandler(backend, self.get)
        self.watcher: Final = WatchHandler(backend, self.get, tasks, opened=watcher)
        scale = ScaleSubresource(self.get, self.update, backend.clock)
        self.verbs: Final[Mapping[str, Handler]] = {
            "get": self.get.get,
            "list": self.get.list,
            "watch": self.watcher.watch,
            "create": create.create,
            "update": lambda call, endpoint: self.update.update(call, endpoint, endpoint.definition.strategy),
            "patch": lambda call, endpoint: self.update.patch(call, endpoint, endpoint.definition.strategy),
            "delete": self.delete.delete,
            "deletecollection": self.delete.delete_collection,
        }
        # Of subresources that are a part of the object.
        self.part_verbs: Final[Mapping[str, Handler]] = {
            "get": self.get.get,
            "update": lambda call, endpoint: self.update.update(call, endpoint, _part_strategy(call, endpoint)),
            "patch": lambda call, endpoint: self.update.patch(call, endpoint, _part_strategy(call, endpoint)),
        }
        self.scale_verbs: Final[Mapping[str, Handler]] = {
            "get": scale.get,
            "update": scale.update,
            "patch": scale.update,
        }

    def of(self, endpoint: Endpoint) -> StoredHandlers:
        """Return the handlers for an endpoint: others if a webhook converts its objects."""
        if endpoint.conversion is None:
            return self
        store = endpoint.conversion.on(self._backend.store, endpoint.api_version)
        return StoredHandlers(replace(self._backend, store=store), self._tasks, watcher=self.watcher)


def _part_strategy(call: Call, endpoint: Endpoint) -> Strategy:
    strategy = endpoint.subresources[call.info.subresource].strategy
    assert strategy is not None
    return strategy
