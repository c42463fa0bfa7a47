"""Deletes the content of terminating namespaces, reports the progress and finalizes them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from contextlib import aclosing
from typing import Any, Final

from dray.api.document import Document, GroupResource
from dray.api.errors import APIError, ConflictError, MethodNotAllowedError, NotFoundError, PathNotFoundError
from dray.client.controller import Requeue, Result
from dray.client.errors import ignore_not_found
from dray.client.interface import (
    DeleteOptions,
    EventType,
    IncompleteDiscoveryError,
    ListPage,
    PropagationPolicy,
    Resource,
    ServedResource,
    WatchEvent,
    WatchOptions,
    WriteOptions,
)
from dray.client.objects import key_of
from dray.client.resources import NAMESPACES
from dray.controllers.namespace import plan
from dray.controllers.reconciler import ControllerContext, Reconciler
from dray.runtime.tasks import ChildTasks, first_completed

# Remaining objects are watched, and their deletion enqueues the namespace at once; this covers failed watches.
RECHECK_SECONDS: Final = 15.0
_BACKGROUND: Final = DeleteOptions(propagation_policy=PropagationPolicy.BACKGROUND)


class ContentDeletionError(Exception):
    """Some content could not be deleted; the conditions say what, and the namespace is retried."""


class NamespaceController(Reconciler[str]):
    """Empties terminating namespaces; keys are their names."""

    name = "namespace"
    workers = 10

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._watches = ChildTasks("watches of remaining content")
        # Namespace -> the watch of its remaining content.
        self._watch_of: dict[str, asyncio.Task[Any]] = {}
        self._namespaces = context.informers.informer(NAMESPACES)
        self.controller.watch(self._namespaces, lambda obj: (key_of(obj).name,) if plan.is_terminating(obj) else ())

    def background_tasks(self) -> Mapping[str, Coroutine[Any, Any, None]]:
        """Supervise the watches of remaining content."""
        return {"watches of remaining content": self._watches.supervise()}

    async def reconcile(self, name: str) -> Result:
        """Delete the content of one namespace as far as possible."""
        namespace = await ignore_not_found(self._client.get(NAMESPACES, name))
        if namespace is None or not plan.is_terminating(namespace):
            return None
        self._stop_watch(name)
        outcome = plan.Outcome()
        left = await self._empty(name, outcome)
        namespace = await self._report(namespace, outcome)
        if outcome.empty:
            await self._finalize(namespace)
            return None
        if outcome.failed:
            raise ContentDeletionError(f"namespace {name}: {outcome.discovery_error or outcome.deletion_errors}")
        self._watch_remaining(name, left)
        return Requeue(RECHECK_SECONDS)

    # --- Deleting. ---

    async def _empty(self, name: str, outcome: plan.Outcome) -> dict[Resource[Document], str]:
        """Delete everything; return the remaining kinds with the resource version to watch them from."""
        try:
            kinds = plan.deletable(await self._client.resources(complete=True))
        except IncompleteDiscoveryError as error:
            # What is known is deleted; the namespace stays, since nobody knows what else is in it.
            kinds = plan.deletable(error.found)
            outcome.discovery_error = plan.incomplete_discovery(len(error.failures), error.message)
        except APIError as error:
            outcome.discovery_error = error.message
            return {}
        left: dict[Resource[Document], str] = {}
        for item in kinds:
            resource = item.resource(metadata_only=True)
            try:
                page = await self._delete_all(item, resource, name)
            except (PathNotFoundError, NotFoundError, MethodNotAllowedError):
                # The kind is no longer served (its definition was deleted), or does not support deletion.
                continue
            except APIError as error:
                outcome.deletion_errors.append(f"{GroupResource(item.group, item.plural)}: {error.message}")
                continue
            outcome.count(GroupResource(item.group, item.plural), page.items)
            if page.items:
                left[resource] = page.resource_version
                if GroupResource(item.group, item.plural) == plan.PODS:
                    # Pods may need their Secrets, claims and service accounts until they have terminated.
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
        # An empty namespace is removed next; its conditions would not be read.
        if conditions is None or outcome.empty:
            return namespace
        changed = {**namespace, "status": {**status, "phase": "Terminating", "conditions": conditions}}
        try:
            return await self._client.update_status(NAMESPACES, changed)
        except ConflictError:
            # No decision depends on the conditions; the next pass writes them again.
            return await self._client.get(NAMESPACES, key_of(namespace).name)

    async def _finalize(self, namespace: Document) -> None:
        options = WriteOptions(subresource="finalize")
        await ignore_not_found(self._client.update(NAMESPACES, plan.without_finalizer(namespace), options))

    # --- Remaining content. ---

    def _watch_remaining(self, name: str, left: dict[Resource[Document], str]) -> None:
        if left:
            self._watch_of[name] = self._watches.spawn(self._enqueue_on_deletion(name, left), f"content of {name}")

    def _stop_watch(self, name: str) -> None:
        task = self._watch_of.pop(name, None)
        if task is not None:
            task.cancel()

    async def _enqueue_on_deletion(self, name: str, left: dict[Resource[Document], str]) -> None:
        await first_completed(*(self._first_deletion(name, item, version) for item, version in left.items()))
        self._watch_of.pop(name, None)
        self.controller.queue.add(name)

    async def _first_deletion(self, name: str, resource: Resource[Document], version: str) -> None:
        options = WatchOptions(resource_version=version, timeout_seconds=int(RECHECK_SECONDS))
        try:
            async with aclosing(self._client.watch(resource, name, options)) as events:
                async for event in events:
                    if isinstance(event, WatchEvent) and event.type is EventType.DELETED:
                        return
        except APIError:
            # The recheck covers it; enqueueing at once could spin.
            await self._clock.sleep(RECHECK_SECONDS)
