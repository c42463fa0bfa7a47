"""Requests of a test to the API server, run in the cluster's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from dray.api.document import Document, NamespacedName
from dray.api.errors import ForbiddenError, NotFoundError
from dray.cli.explain import lines as explanation
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
from dray.cmd.testing.conditions import Condition, describe, impossible_reason, is_met
from dray.cmd.testing.diagnosis import Related, diagnose
from dray.cmd.testing.stack import Stack
from dray.sim.cluster_reader import read_cluster
from dray.sim.explain.subject import claim_subject, pod_subject
from dray.sim.snapshot import PATH_KINDS

POLL_SECONDS: Final = 0.01
# Pods are rejected until a new namespace has its default service account.
ACCOUNT_SECONDS_MAX: Final = 10.0
LOG_LINES: Final = 20
PODS: Final = resources.PODS.unstructured
_SUBJECTS: Final = {"Pod": pod_subject, "ResourceClaim": claim_subject}


class WaitError(AssertionError):
    """A condition was not met; the message contains a diagnosis."""


class Requests:
    """The methods of `Cluster` as coroutines."""

    def __init__(self, stack: Stack, outputs: Callable[[], dict[str, str]]) -> None:
        self._stack = stack
        self._outputs = outputs
        self._served: tuple[ServedResource, ...] = ()
        self._logs: HttpTransport | None = None

    @property
    def client(self) -> Client:
        """Return the administrator's client."""
        return self._stack.client

    async def close(self) -> None:
        """Close the connections."""
        if self._logs is not None:
            await self._logs.close()

    # --- Objects. ---

    async def apply(self, documents: Sequence[Document], namespace: str) -> Sequence[Document]:
        """Apply each document, in order."""
        return [await self._apply(document, namespace) for document in documents]

    async def get(self, target: str, namespace: str) -> Document:
        """Return an object."""
        resource, name = await self._target(target)
        found = await self.client.get(resource, name, namespace)
        return {"apiVersion": str(resource.group_version), "kind": resource.kind, **found}

    async def find(self, target: str, namespace: str) -> Document | None:
        """Return an object, or None if it does not exist."""
        try:
            return await self.get(target, namespace)
        except NotFoundError:
            return None

    async def list(self, kind: str, namespace: str, options: ListOptions) -> Sequence[Document]:
        """List the objects of a kind."""
        resource = await self._resource(kind)
        return list((await self.client.list(resource, namespace, options)).items)

    async def delete(self, target: str, namespace: str, grace_seconds: int | None) -> None:
        """Delete an object, if it exists."""
        resource, name = await self._target(target)
        try:
            await self.client.delete(resource, name, namespace, DeleteOptions(grace_period_seconds=grace_seconds))
        except NotFoundError:
            return

    async def logs(self, pod: str, namespace: str, query: dict[str, str]) -> str:
        """Return a container's log through the API server, as kubectl does."""
        if self._logs is None:
            access = load_access({}, path=str(self._stack.running.kubeconfig))
            self._logs = HttpTransport(access, self._stack.running.clock, user_agent="dray-test")
        chunks = [chunk async for chunk in self._logs.stream_bytes(PODS.path(namespace, pod, "log"), query)]
        return b"".join(chunks).decode(errors="replace")

    async def events(self, name: str, namespace: str) -> Sequence[Document]:
        """Return Events, or those of one object, sorted by the time they were last seen."""
        options = ListOptions(field_selector=f"involvedObject.name={name}" if name else "")
        found = (await self.client.list(EVENTS, namespace, options)).items
        return sorted(found, key=lambda item: item.get("lastTimestamp") or item.get("eventTime") or "")

    # --- Waiting. ---

    async def wait_for(
        self, target: str, condition: Condition, namespace: str, timeout_seconds: float
    ) -> Document | WaitError:
        """Wait for a condition; return the object, empty if it was deleted, or an error with a diagnosis."""
        obj: Document | None = None
        suffix = f" within {timeout_seconds:g} s"
        try:
            async with asyncio.timeout(timeout_seconds):
                while True:
                    obj = await self.find(target, namespace)
                    if is_met(obj, condition):
                        return obj or {}
                    if reason := impossible_reason(obj, condition):
                        suffix = f": {reason}"
                        break
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            pass
        what = f"{target} did not {describe(condition)}{suffix}"
        return WaitError(f"{what}\n{await self.explain(target, namespace)}")

    async def explain(self, target: str, namespace: str) -> str:
        """Return a diagnosis of an object's state."""
        obj = await self.find(target, namespace)
        related = await self._related(obj, target.rpartition("/")[2], namespace)
        return diagnose(obj, related)

    async def _related(self, obj: Document | None, name: str, namespace: str) -> Related:
        stack, resource = self._stack, "resource.k8s.io"
        node = stack.node
        return Related(
            verdict=await self._verdict(obj, namespace),
            events=await self.events(name, namespace),
            claims=await stack.objects(resource, "v1", "resourceclaims", namespace),
            slices=await stack.objects(resource, "v1", "resourceslices"),
            drivers=node.drivers() if node is not None else None,
            outputs={**self._outputs(), **await self._container_logs(obj, namespace)},
        )

    async def _verdict(self, obj: Document | None, namespace: str) -> Sequence[str]:
        """Return what `dray explain` says of a Pod or claim."""
        subject_of = _SUBJECTS.get(obj["kind"]) if obj is not None else None
        if obj is None or subject_of is None:
            return ()
        # Imported lazily: it brings the scheduler along, and most waits succeed.
        from dray.sim.explain.explainer import explain

        snapshot = await read_cluster(self.client, PATH_KINDS)
        subject = subject_of(snapshot, NamespacedName(namespace, obj["metadata"]["name"]))
        # It has an event loop of its own.
        answer = await asyncio.to_thread(
            explain, snapshot, subject, self._stack.running.clock.now(), gates=self._stack.gates
        )
        return [line for line in explanation(answer) if line]

    async def _container_logs(self, obj: Document | None, namespace: str) -> dict[str, str]:
        found = {}
        if obj is not None and obj["kind"] == "Pod":
            for container in (obj.get("status") or {}).get("containerStatuses") or ():
                if "waiting" not in (container.get("state") or {}):
                    query = {"container": container["name"], "tailLines": str(LOG_LINES)}
                    try:
                        found[f"container {container['name']}"] = await self.logs(
                            obj["metadata"]["name"], namespace, query
                        )
                    except Exception as error:  # noqa: BLE001 - a diagnosis without a log is still useful
                        found[f"container {container['name']}"] = f"({error})"
        return found

    # --- Kinds. ---

    async def _apply(self, document: Document, namespace: str) -> Document:
        resource = await self._kind(document)
        deadline = asyncio.get_running_loop().time() + ACCOUNT_SECONDS_MAX
        while True:
            try:
                return await self._write(resource, document, namespace)
            except ForbiddenError as error:
                if "service account" not in str(error) or asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(POLL_SECONDS)

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
        raise LookupError(f"the server does not serve kind {kind} in {document.get('apiVersion')}")

    async def _target(self, target: str) -> tuple[Resource[Document], str]:
        kind, slash, name = target.partition("/")
        if not slash:
            raise LookupError(f'"{target}": specify the kind, for example pod/{target}')
        return await self._resource(kind), name

    async def _resource(self, kind: str) -> Resource[Document]:
        """Find a resource by any name that kubectl accepts: plural, singular, short name or kind, also with a group."""
        name, _, group = kind.lower().partition(".")
        for _ in range(2):
            for item in self._served:
                names = (item.plural, item.singular, item.kind.lower(), *item.short_names)
                if item.preferred and name in names and group in ("", item.group):
                    return item.resource()
            self._served = await self.client.resources()
        raise LookupError(f'the server does not serve kind "{kind}"')
