"""What a test asks of the API server, in the cluster's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from dray.api.document import Document
from dray.api.errors import ForbiddenError, NotFoundError
from dray.client import resources
from dray.client.credentials import load_access
from dray.client.http import HttpTransport
from dray.client.interface import (
    Client,
    DeleteOptions,
    ListOptions,
    Patch,
    PatchType,
    Resource,
    ServedResource,
    WriteOptions,
)
from dray.client.resources import EVENTS, FieldManager
from dray.cmd.testing.conditions import Condition, describe, hopeless, reached
from dray.cmd.testing.stack import Stack
from dray.cmd.testing.story import Surroundings, story

LOOK_SECONDS: Final = 0.01
# A new namespace has its account a moment later; Pods are refused until then.
ACCOUNT_SECONDS_MAX: Final = 10.0
LOG_LINES: Final = 20
PODS: Final = resources.PODS.unstructured


class WaitError(AssertionError):
    """Something did not come to pass; the text says all that is known about why."""


class Requests:
    """The verbs of `Cluster`, as coroutines."""

    def __init__(self, stack: Stack, outputs: Callable[[], dict[str, str]]) -> None:
        self._stack = stack
        self._outputs = outputs
        self._served: tuple[ServedResource, ...] = ()
        self._logs: HttpTransport | None = None

    @property
    def client(self) -> Client:
        """An administrator's."""
        return self._stack.client

    async def close(self) -> None:
        """Let go of connections."""
        if self._logs is not None:
            await self._logs.close()

    # --- Objects. ---

    async def apply(self, documents: Sequence[Document], namespace: str) -> Sequence[Document]:
        """Create or change each, in order."""
        return [await self._with_account(document, namespace) for document in documents]

    async def get(self, target: str, namespace: str) -> Document:
        """One object."""
        resource, name = await self._target(target)
        found = await self.client.get(resource, name, namespace)
        return {"apiVersion": str(resource.group_version), "kind": resource.kind, **found}

    async def find(self, target: str, namespace: str) -> Document | None:
        """One object, or None."""
        try:
            return await self.get(target, namespace)
        except NotFoundError:
            return None

    async def list(self, kind: str, namespace: str, options: ListOptions) -> Sequence[Document]:
        """Every object of a kind."""
        resource = await self._resource(kind)
        return list((await self.client.list(resource, namespace, options)).items)

    async def delete(self, target: str, namespace: str, grace_seconds: int | None) -> None:
        """Delete; nothing there is fine."""
        resource, name = await self._target(target)
        try:
            await self.client.delete(resource, name, namespace, DeleteOptions(grace_period_seconds=grace_seconds))
        except NotFoundError:
            return

    async def logs(self, pod: str, namespace: str, query: dict[str, str]) -> str:
        """A container's output, by the API server as kubectl has it."""
        if self._logs is None:
            access = load_access({}, path=str(self._stack.running.kubeconfig))
            self._logs = HttpTransport(access, self._stack.running.clock, user_agent="dray-test")
        chunks = [chunk async for chunk in self._logs.stream_bytes(PODS.path(namespace, pod, "log"), query)]
        return b"".join(chunks).decode(errors="replace")

    async def events(self, name: str, namespace: str) -> Sequence[Document]:
        """Events in the order they were last seen, of one object if it is named."""
        options = ListOptions(field_selector=f"involvedObject.name={name}" if name else "")
        found = (await self.client.list(EVENTS, namespace, options)).items
        return sorted(found, key=lambda item: item.get("lastTimestamp") or item.get("eventTime") or "")

    # --- Waiting. ---

    async def wait_for(
        self, target: str, condition: Condition, namespace: str, timeout_seconds: float
    ) -> Document | WaitError:
        """The object as soon as it is as wanted, empty when it was to go; or why it is not."""
        obj: Document | None = None
        hurdle = f"within {timeout_seconds:g} s"
        try:
            async with asyncio.timeout(timeout_seconds):
                while True:
                    obj = await self.find(target, namespace)
                    if reached(obj, condition):
                        return obj or {}
                    if why := hopeless(obj, condition):
                        hurdle = f"and never will: {why}"
                        break
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            pass
        what = f"{target} did not {describe(condition)} {hurdle}"
        return WaitError(f"{what}\n{await self.explain(target, namespace)}")

    async def explain(self, target: str, namespace: str) -> str:
        """All that is known about why an object is as it is."""
        obj = await self.find(target, namespace)
        around = await self._surroundings(obj, target.rpartition("/")[2], namespace)
        return story(obj, around)

    async def _surroundings(self, obj: Document | None, name: str, namespace: str) -> Surroundings:
        stack, resource = self._stack, "resource.k8s.io"
        node = stack.node
        return Surroundings(
            events=await self.events(name, namespace),
            claims=await stack.objects(resource, "v1", "resourceclaims", namespace),
            slices=await stack.objects(resource, "v1", "resourceslices"),
            classes=await stack.objects(resource, "v1", "deviceclasses"),
            nodes=await stack.objects("", "v1", "nodes"),
            drivers=node.drivers() if node is not None else None,
            outputs={**self._outputs(), **await self._last_words(obj, namespace)},
            gates=stack.gates,
        )

    async def _last_words(self, obj: Document | None, namespace: str) -> dict[str, str]:
        found = {}
        if obj is not None and obj["kind"] == "Pod":
            for container in (obj.get("status") or {}).get("containerStatuses") or ():
                if "waiting" not in (container.get("state") or {}):
                    query = {"container": container["name"], "tailLines": str(LOG_LINES)}
                    try:
                        found[f"container {container['name']}"] = await self.logs(
                            obj["metadata"]["name"], namespace, query
                        )
                    except Exception as error:  # noqa: BLE001 - an explanation must not fail for want of one part
                        found[f"container {container['name']}"] = f"({error})"
        return found

    # --- Kinds. ---

    async def _with_account(self, document: Document, namespace: str) -> Document:
        resource = await self._kind(document)
        deadline = asyncio.get_running_loop().time() + ACCOUNT_SECONDS_MAX
        while True:
            try:
                return await self._write(resource, document, namespace)
            except ForbiddenError as error:
                if "service account" not in str(error) or asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(LOOK_SECONDS)

    async def _write(self, resource: Resource[Document], document: Document, namespace: str) -> Document:
        metadata = document.setdefault("metadata", {})
        namespace = (metadata.get("namespace") or namespace) if resource.namespaced else ""
        if "name" not in metadata:
            return await self.client.create(resource, document, namespace, WriteOptions(field_validation="Strict"))
        options = WriteOptions(FieldManager.TESTING, force=True, field_validation="Strict")
        return await self.client.patch(resource, metadata["name"], namespace, Patch(PatchType.APPLY, document), options)

    async def _kind(self, document: Document) -> Resource[Document]:
        group, _, version = str(document.get("apiVersion", "")).rpartition("/")
        kind = document.get("kind")
        for _ in range(2):
            for item in self._served:
                if (item.group, item.version, item.kind) == (group, version, kind):
                    return item.resource()
            self._served = await self.client.resources()
        raise LookupError(f"the server has no kind {kind} in {document.get('apiVersion')}")

    async def _target(self, target: str) -> tuple[Resource[Document], str]:
        kind, slash, name = target.partition("/")
        if not slash:
            raise LookupError(f'"{target}": say which kind, as in pod/{target}')
        return await self._resource(kind), name

    async def _resource(self, kind: str) -> Resource[Document]:
        """By any name that kubectl takes: plural, singular, short, kind, with or without its group."""
        wanted, _, group = kind.lower().partition(".")
        for _ in range(2):
            for item in self._served:
                names = (item.plural, item.singular, item.kind.lower(), *item.short_names)
                if item.preferred and wanted in names and group in ("", item.group):
                    return item.resource()
            self._served = await self.client.resources()
        raise LookupError(f'the server has no kind "{kind}"')
