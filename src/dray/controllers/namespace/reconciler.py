"""The namespace controller's hands: delete everything in a terminating namespace, report, finalize."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any, Final

from dray.api.document import Document, GroupResource
from dray.api.errors import APIError, ConflictError, MethodNotAllowedError, NotFoundError, PathNotFoundError
from dray.client.controller import Controller, Requeue, Result
from dray.client.interface import (
    Client,
    DeleteOptions,
    EventType,
    ListPage,
    PropagationPolicy,
    Resource,
    ServedResource,
    WatchEvent,
    WatchOptions,
    WriteOptions,
    ignore_not_found,
)
from dray.client.objects import key_of
from dray.client.resources import NAMESPACES
from dray.client.shared_informers import SharedInformerFactory
from dray.controllers.namespace import plan
from dray.lib.clock import Clock
from dray.runtime.metrics import Metrics
from dray.runtime.tasks import TaskGroup

WORKERS: Final = 10
# What is left is watched, and its going wakes the namespace at once; this only covers a watch that failed.
RECHECK_SECONDS: Final = 15.0
_BACKGROUND: Final = DeleteOptions(propagation_policy=PropagationPolicy.BACKGROUND)


class ContentDeletionError(Exception):
    """Something in the namespace could not be deleted; told in its conditions, and tried again."""


class NamespaceController:
    """Runs until cancelled."""

    def __init__(
        self, client: Client, informers: SharedInformerFactory, clock: Clock, metrics: Metrics | None = None
    ) -> None:
        self._client = client
        self._clock = clock
        self._tasks: TaskGroup | None = None
        # Namespaces whose leftovers are being watched.
        self._waiting: dict[str, asyncio.Task[Any]] = {}
        self.controller: Controller[str] = Controller(
            "namespace", self.reconcile, clock, metrics=metrics, workers=WORKERS
        )
        self._namespaces = informers.informer(NAMESPACES)
        self.controller.watch(self._namespaces, lambda obj: (key_of(obj).name,) if plan.is_waiting(obj) else ())

    async def run(self) -> None:
        """Empty namespaces until cancelled."""
        async with TaskGroup("namespace") as group:
            self._tasks = group
            await self.controller.run()

    async def reconcile(self, name: str) -> Result:
        """Empty one namespace as far as it goes."""
        namespace = await ignore_not_found(self._client.get(NAMESPACES, name))
        if namespace is None or not plan.is_waiting(namespace):
            return None
        self._stop_waiting(name)
        outcome = plan.Outcome()
        left = await self._empty(name, outcome)
        namespace = await self._report(namespace, outcome)
        if outcome.empty:
            await self._finalize(namespace)
            return None
        if outcome.failed:
            raise ContentDeletionError(f"namespace {name}: {outcome.discovery_error or outcome.deletion_errors}")
        self._wait_for(name, left)
        return Requeue(RECHECK_SECONDS)

    # --- Deleting. ---

    async def _empty(self, name: str, outcome: plan.Outcome) -> dict[Resource[Document], str]:
        """Delete everything; returns the kinds with something left, and from which version to watch them."""
        try:
            kinds = plan.deletable(await self._client.resources())
        except APIError as error:
            outcome.discovery_error = error.message
            return {}
        left: dict[Resource[Document], str] = {}
        for item in kinds:
            resource = item.resource(metadata_only=True)
            try:
                page = await self._delete_all(item, resource, name)
            except (PathNotFoundError, NotFoundError, MethodNotAllowedError):
                # The kind went (its definition was deleted), or cannot be deleted this way.
                continue
            except APIError as error:
                outcome.deletion_errors.append(f"{GroupResource(item.group, item.plural)}: {error.message}")
                continue
            outcome.count(GroupResource(item.group, item.plural), page.items)
            if page.items:
                left[resource] = page.resource_version
                if GroupResource(item.group, item.plural) == plan.PODS:
                    # Pods may still need their Secrets, claims and service accounts to end well.
                    break
        return left

    async def _delete_all(self, item: ServedResource, resource: Resource[Document], name: str) -> ListPage[Document]:
        page = await self._client.list(resource, name)
        if not page.items:
            return page
        if "deletecollection" in item.verbs:
            await self._client.delete_collection(resource, name, options=_BACKGROUND)
        else:
            for document in page.items:
                await self._delete_one(resource, document)
        return await self._client.list(resource, name)

    async def _delete_one(self, resource: Resource[Document], document: Document) -> None:
        key = key_of(document)
        await ignore_not_found(self._client.delete(resource, key.name, key.namespace, _BACKGROUND))

    # --- Reporting and finishing. ---

    async def _report(self, namespace: Document, outcome: plan.Outcome) -> Document:
        status = namespace.get("status") or {}
        conditions = plan.plan_conditions(status.get("conditions") or (), outcome, self._clock.now())
        # An empty namespace goes at once: nobody would read why it had to wait.
        if conditions is None or outcome.empty:
            return namespace
        changed = {**namespace, "status": {**status, "phase": "Terminating", "conditions": conditions}}
        try:
            return await self._client.update_status(NAMESPACES, changed)
        except ConflictError:
            # Only told, never decided on: the next pass tells again.
            return await self._client.get(NAMESPACES, key_of(namespace).name)

    async def _finalize(self, namespace: Document) -> None:
        options = WriteOptions(subresource="finalize")
        await ignore_not_found(self._client.update(NAMESPACES, plan.without_finalizer(namespace), options))

    # --- Waiting for what is left. ---

    def _wait_for(self, name: str, left: dict[Resource[Document], str]) -> None:
        if left and self._tasks is not None:
            self._waiting[name] = self._tasks.spawn(self._wake_on_deletion(name, left), f"leftovers of {name}")

    def _stop_waiting(self, name: str) -> None:
        task = self._waiting.pop(name, None)
        if task is not None:
            task.cancel()

    async def _wake_on_deletion(self, name: str, left: dict[Resource[Document], str]) -> None:
        watches = [asyncio.ensure_future(self._first_deletion(name, item, version)) for item, version in left.items()]
        try:
            await asyncio.wait(watches, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for watch in watches:
                watch.cancel()
            await asyncio.gather(*watches, return_exceptions=True)
        self._waiting.pop(name, None)
        self.controller.queue.add(name)

    async def _first_deletion(self, name: str, resource: Resource[Document], version: str) -> None:
        options = WatchOptions(resource_version=version, timeout_seconds=int(RECHECK_SECONDS))
        try:
            async with aclosing(self._client.watch(resource, name, options)) as events:
                async for event in events:
                    if isinstance(event, WatchEvent) and event.type is EventType.DELETED:
                        return
        except APIError:
            # The recheck covers it; waking at once could spin.
            await self._clock.sleep(RECHECK_SECONDS)
