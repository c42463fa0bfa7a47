"""A small API server in memory: enough of Kubernetes' semantics for tests of clients and controllers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from dray.api.document import Document, GroupResource
from dray.api.errors import (
    AlreadyExistsError,
    APIError,
    ConflictError,
    ExpiredError,
    NotFoundError,
    PathNotFoundError,
)
from dray.client.codec import copy_json
from dray.client.interface import LocalRequest, ServedResource, WatchBatch

VERBS = frozenset({"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"})
NOW = "2026-01-01T00:00:00Z"


def served(plural: str, kind: str, group: str = "", *, namespaced: bool = True, version: str = "v1") -> ServedResource:
    return ServedResource(group, version, plural, kind, namespaced, VERBS)


DEFAULT_SERVED = (
    served("namespaces", "Namespace", namespaced=False),
    served("configmaps", "ConfigMap"),
    served("events", "Event"),
    served("pods", "Pod"),
    served("serviceaccounts", "ServiceAccount"),
    served("leases", "Lease", "coordination.k8s.io"),
)


class FakeLocalServer:
    def __init__(self, *resources: ServedResource) -> None:
        self.served = list(resources or DEFAULT_SERVED)
        self.revision = 1
        self.compacted = 0
        # (revision, type, (group, plural), object) of every write, in order.
        self.history: list[tuple[int, str, tuple[str, str], Document]] = []
        self.objects: dict[tuple[str, str], dict[tuple[str, str], Document]] = {}
        self.requests: list[LocalRequest] = []
        # Called with every request; may raise.
        self.before: Callable[[LocalRequest], None] = lambda _: None
        self.epoch = 0
        self._changed = asyncio.Event()
        self._uids = 0

    # --- The LocalServer protocol. ---

    async def handle(self, request: LocalRequest) -> Document:
        self.requests.append(request)
        self.before(request)
        if request.path:
            return self._discovery(request.path)
        self._kind(request)
        answer: Document = getattr(self, f"_{request.verb}")(request)
        return answer

    async def watch(self, request: LocalRequest) -> AsyncIterator[WatchBatch]:
        self.requests.append(request)
        self.before(request)
        self._kind(request)
        return self._batches(request)

    async def _batches(self, request: LocalRequest) -> AsyncIterator[WatchBatch]:
        async for event in self._events(request):
            yield [event]

    async def _events(self, request: LocalRequest) -> AsyncIterator[tuple[str, Document]]:
        epoch = self.epoch
        start = request.query.get("resourceVersion") or ""
        revision = int(start or 0)
        streaming = request.query.get("sendInitialEvents") == "true"
        if streaming or start in ("", "0"):
            revision = self.revision
            for obj in self._selected(request):
                yield "ADDED", obj
            if streaming:
                yield "BOOKMARK", _bookmark(revision, ended=True)
        elif revision < self.compacted:
            yield "ERROR", ExpiredError(f"too old resource version: {revision} ({self.compacted})").status()
            return
        while epoch == self.epoch:
            for position in range(self._after(revision), len(self.history)):
                revision, kind, place, obj = self.history[position]
                if place == (request.group, request.resource) and self._matches(request, obj):
                    yield kind, obj
            changed = self._changed
            if epoch == self.epoch and revision >= self._newest():
                await changed.wait()

    # --- Faults. ---

    def break_watches(self) -> None:
        """End every watch quietly, as a restarting server does."""
        self.epoch += 1
        self._wake()

    def compact(self) -> None:
        """Forget history: watches from before must list again."""
        self.compacted = self.revision
        self.history.clear()

    # --- Writing directly. ---

    def put(self, group: str, plural: str, obj: Document) -> Document:
        """Create or replace without a request."""
        place, key = (group, plural), _key(obj)
        kind = "MODIFIED" if key in self.objects.setdefault(place, {}) else "ADDED"
        return self._commit(kind, place, obj)

    def remove(self, group: str, plural: str, name: str, namespace: str = "") -> None:
        """Delete without a request, finalizers or not."""
        place = (group, plural)
        self._commit("DELETED", place, self.objects[place][(namespace, name)])

    def all(self, plural: str, group: str = "") -> list[Document]:
        return list(self.objects.get((group, plural), {}).values())

    def find(self, plural: str, name: str, namespace: str = "", group: str = "") -> Document | None:
        return self.objects.get((group, plural), {}).get((namespace, name))

    # --- Verbs. ---

    def _get(self, request: LocalRequest) -> Document:
        return self._existing(request)

    def _list(self, request: LocalRequest) -> Document:
        items = self._selected(request)
        revision, start = self.revision, 0
        if token := request.query.get("continue"):
            at, _, offset = token.partition(":")
            revision, start = int(at), int(offset)
            if revision != self.revision:
                raise ExpiredError("The provided continue parameter is too old")
        limit = int(request.query.get("limit") or 0) or len(items) or 1
        page = items[start : start + limit]
        metadata: Document = {"resourceVersion": str(revision)}
        if start + limit < len(items):
            metadata |= {"continue": f"{revision}:{start + limit}", "remainingItemCount": len(items) - start - limit}
        return {"apiVersion": "v1", "kind": f"{self._kind(request).kind}List", "metadata": metadata, "items": page}

    def _create(self, request: LocalRequest) -> Document:
        if request.subresource:
            return {"subresource": request.subresource, "body": request.body}
        assert isinstance(request.body, dict)
        obj = copy_json(request.body)
        metadata = obj.setdefault("metadata", {})
        if request.namespace:
            metadata["namespace"] = request.namespace
        if not metadata.get("name"):
            metadata["name"] = f"{metadata['generateName']}{self.revision:05d}"
        if _key(obj) in self.objects.get((request.group, request.resource), {}):
            raise AlreadyExistsError(GroupResource(request.group, request.resource), metadata["name"])
        return self._commit("ADDED", (request.group, request.resource), obj)

    def _update(self, request: LocalRequest) -> Document:
        assert isinstance(request.body, dict)
        old = self._existing(request)
        sent = request.body["metadata"].get("resourceVersion")
        if sent and sent != old["metadata"]["resourceVersion"]:
            raise ConflictError(GroupResource(request.group, request.resource), request.name)
        obj = copy_json(request.body)
        if request.subresource == "status":
            obj = {**copy_json(old), "status": obj.get("status")}
        elif request.subresource == "finalize":
            finalizers = (obj.get("spec") or {}).get("finalizers")
            obj = {**copy_json(old), "spec": {**old.get("spec", {}), "finalizers": finalizers}}
        else:
            obj["metadata"]["uid"] = old["metadata"]["uid"]
            for key in ("deletionTimestamp",):
                if key in old["metadata"]:
                    obj["metadata"][key] = old["metadata"][key]
        return self._changed_to(request, obj)

    def _patch(self, request: LocalRequest) -> Document:
        old = self._existing(request)
        if request.content_type == "application/json-patch+json":
            raise NotImplementedError
        body: Any = request.body
        uid = (body.get("metadata") or {}).get("uid")
        version = (body.get("metadata") or {}).get("resourceVersion")
        if (uid and uid != old["metadata"]["uid"]) or (version and version != old["metadata"]["resourceVersion"]):
            raise ConflictError(GroupResource(request.group, request.resource), request.name)
        return self._changed_to(request, _merge(copy_json(old), body))

    def _delete(self, request: LocalRequest) -> Document:
        old = self._existing(request)
        options: Any = request.body or {}
        preconditions = options.get("preconditions") or {}
        for field in ("uid", "resourceVersion"):
            if field in preconditions and preconditions[field] != old["metadata"].get(field):
                raise ConflictError(GroupResource(request.group, request.resource), request.name, "precondition")
        obj = copy_json(old)
        finalizers = list(obj["metadata"].get("finalizers") or ())
        policy = options.get("propagationPolicy")
        wanted = {"Foreground": "foregroundDeletion", "Orphan": "orphan"}.get(policy)
        finalizers = [item for item in finalizers if item not in ("foregroundDeletion", "orphan") or not policy]
        if wanted:
            finalizers.append(wanted)
        obj["metadata"]["finalizers"] = finalizers
        if not finalizers and not (obj.get("spec") or {}).get("finalizers"):
            return self._commit("DELETED", (request.group, request.resource), obj)
        obj["metadata"]["deletionTimestamp"] = NOW
        if request.resource == "namespaces":
            obj["status"] = {**obj.get("status", {}), "phase": "Terminating"}
        return self._commit("MODIFIED", (request.group, request.resource), obj)

    def _deletecollection(self, request: LocalRequest) -> Document:
        for obj in self._selected(request):
            key = _key(obj)
            single = LocalRequest(
                request.user, request.groups, "delete", request.group, request.version, request.resource, *key,
                body=request.body,
            )  # fmt: skip
            self._delete(single)
        return {"kind": "Status", "apiVersion": "v1", "status": "Success"}

    # --- Common ground. ---

    def _changed_to(self, request: LocalRequest, obj: Document) -> Document:
        metadata = obj["metadata"]
        held = metadata.get("finalizers") or (obj.get("spec") or {}).get("finalizers")
        gone = metadata.get("deletionTimestamp") and not held
        return self._commit("DELETED" if gone else "MODIFIED", (request.group, request.resource), obj)

    def _commit(self, kind: str, place: tuple[str, str], obj: Document) -> Document:
        obj = copy_json(obj)
        self.revision += 1
        metadata = obj.setdefault("metadata", {})
        metadata["resourceVersion"] = str(self.revision)
        if not metadata.get("uid"):
            self._uids += 1
            metadata["uid"] = f"uid-{self._uids}"
        if kind == "DELETED":
            del self.objects[place][_key(obj)]
        else:
            self.objects.setdefault(place, {})[_key(obj)] = obj
        self.history.append((self.revision, kind, place, obj))
        self._wake()
        return obj

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _existing(self, request: LocalRequest) -> Document:
        place = self.objects.get((request.group, request.resource), {})
        obj = place.get((request.namespace, request.name))
        if obj is None:
            raise NotFoundError(GroupResource(request.group, request.resource), request.name)
        return obj

    def _selected(self, request: LocalRequest) -> list[Document]:
        place = self.objects.get((request.group, request.resource), {})
        return [obj for _, obj in sorted(place.items()) if self._matches(request, obj)]

    def _matches(self, request: LocalRequest, obj: Document) -> bool:
        if request.namespace and obj["metadata"].get("namespace") != request.namespace:
            return False
        field = request.query.get("fieldSelector") or ""
        if field and field != f"metadata.name={obj['metadata']['name']}":
            return False
        wanted = request.query.get("labelSelector") or ""
        labels = obj["metadata"].get("labels") or {}
        return all(
            labels.get(name) == value for name, _, value in (part.partition("=") for part in wanted.split(",") if part)
        )

    def _after(self, revision: int) -> int:
        position = len(self.history)
        while position and self.history[position - 1][0] > revision:
            position -= 1
        return position

    def _newest(self) -> int:
        return self.history[-1][0] if self.history else 0

    def _kind(self, request: LocalRequest) -> ServedResource:
        for item in self.served:
            if (item.group, item.version, item.plural) == (request.group, request.version, request.resource):
                return item
        raise PathNotFoundError

    def _discovery(self, path: str) -> Document:
        groups = sorted({(item.group, item.version) for item in self.served if item.group})
        if path == "/api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        if path == "/apis":
            versions = [(group, {"groupVersion": f"{group}/{version}"}) for group, version in groups]
            return {"groups": [{"name": name, "versions": [v], "preferredVersion": v} for name, v in versions]}
        prefix = "/api/" if path.startswith("/api/") else "/apis/"
        wanted = path.removeprefix(prefix)
        found = [
            {"name": item.plural, "kind": item.kind, "namespaced": item.namespaced, "verbs": sorted(item.verbs)}
            for item in self.served
            if wanted == (f"{item.group}/{item.version}" if item.group else item.version)
        ]
        if not found:
            raise PathNotFoundError
        return {"kind": "APIResourceList", "groupVersion": wanted, "resources": found}


def fail(times: int, error: APIError, **wanted: str) -> Callable[[LocalRequest], None]:
    """A `before` that fails the first requests with the given attributes."""
    left = [times]

    def before(request: LocalRequest) -> None:
        if left[0] and all(getattr(request, name) == value for name, value in wanted.items()):
            left[0] -= 1
            raise error

    return before


def _key(obj: Document) -> tuple[str, str]:
    return obj["metadata"].get("namespace") or "", obj["metadata"]["name"]


def _bookmark(revision: int, *, ended: bool) -> Document:
    annotations = {"k8s.io/initial-events-end": "true"} if ended else {}
    return {"metadata": {"resourceVersion": str(revision), "annotations": annotations}}


def _merge(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict) or not isinstance(target, dict):
        return patch
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        else:
            target[key] = _merge(target.get(key, {}) if isinstance(value, dict) else None, value)
    return target
