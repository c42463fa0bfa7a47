"""Queries of the page that need more than its tables: single objects, explanations, simulations, problems."""

from __future__ import annotations

import asyncio
import hashlib
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import orjson

from dray.api.document import Document
from dray.api.errors import BadRequestError, ForbiddenError, InternalError, NotFoundError
from dray.api.names import dns1123_subdomain
from dray.api.quantity import Quantity, QuantityError
from dray.client.interface import Client, ListOptions, Resource
from dray.sim.cluster_reader import best_resources, read_cluster
from dray.sim.holdings import HEADER, header_of
from dray.sim.snapshot import KINDS, PATH_KINDS, PLACEMENT_KINDS, WORKLOAD_KINDS, Snapshot, in_hub_version

COMMAND_SECONDS_MAX: Final = 120.0
# More at a time would only slow down all of them.
CONCURRENT_COMMANDS_MAX: Final = 2
# Nodes of a simulation, and copies of a Pod that are tried.
ADDED_NODES_MAX: Final = 1000
COPIES_MAX: Final = 1000
EVENTS_MAX: Final = 100
COUNTED_MAX: Final = 8
DECISIONS: Final = "/debug/decisions"
EXPLAINED: Final = ("pod", "claim", "deployment", "replicaset", "daemonset", "statefulset", "job")
_SIMULATED_KINDS: Final = (*PLACEMENT_KINDS, "ResourceQuota")
# Fields that belong to the object at hand, and not to a copy of it.
_OWN_METADATA: Final = (
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "managedFields",
    "ownerReferences",
    "generateName",
)


class Queries:
    """Runs the queries of one process, with the permissions of the client passed in."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(CONCURRENT_COMMANDS_MAX)
        # Answers of `fragmentation` by the digest of the objects, oldest first.
        self._counted: dict[bytes, Any] = {}

    async def object(self, client: Client, query: Mapping[str, str]) -> Document:
        """Return an object in the hub version, and the events about it."""
        kind, name = query.get("kind", ""), named(query, "name")
        namespace = named(query, "namespace") if query.get("namespace") else ""
        served = best_resources(await client.resources())
        resource = served.get(kind) if kind in KINDS else None
        if resource is None:
            raise BadRequestError(f"the server does not serve {kind!r}")
        found, events = await asyncio.gather(
            client.get(resource, name, namespace), _events(client, served, resource, namespace, name)
        )
        header = {"apiVersion": resource.group_version.api_version, "kind": resource.kind}
        document = in_hub_version({**header, **found})
        metadata = {key: value for key, value in document["metadata"].items() if key != "managedFields"}
        return {"object": {**document, "metadata": metadata}, "events": events}

    async def explain(self, client: Client, query: Mapping[str, str]) -> Any:
        """Return the JSON output of `dray explain`."""
        kind, namespace, name = query.get("kind", ""), named(query, "namespace"), named(query, "name")
        if kind not in EXPLAINED:
            raise BadRequestError(f"kind must be one of {', '.join(EXPLAINED)}")
        snapshot = await read_cluster(client, PATH_KINDS, namespace)
        return await self._run(["explain", kind, name, "-n", namespace], snapshot)

    async def simulate(self, client: Client, query: Mapping[str, str]) -> Any:
        """Return the JSON output of `dray simulate` for one change."""
        change, name = query.get("change", ""), named(query, "name")
        if change == "raise-quota":
            return await self._simulate_quota(client, query)
        snapshot = await read_cluster(client, _SIMULATED_KINDS)
        documents = _documents(snapshot)
        if change == "drain":
            return await self._run(["simulate", f"--drain={name}"], snapshot)
        if change == "remove-node":
            return await self._run(["simulate", f"--remove-node={name}"], snapshot)
        if change == "add-nodes":
            count = _count(query, ADDED_NODES_MAX)
            pattern = [item for item in documents if _is_of_node(item, name)]
            arguments = ["simulate", f"--add-nodes={count}", "--node-template"]
            return await self._run(arguments, snapshot, _required(pattern, f"node {name}"))
        if change == "copies":
            namespace = named(query, "namespace")
            pods = [_copy(item) for item in documents if _is_named(item, "Pod", namespace, name)]
            arguments = ["simulate", f"--count-max={COPIES_MAX}", "--count-fit"]
            return await self._run(arguments, snapshot, _required(pods, f"pod {namespace}/{name}"))
        raise BadRequestError("change must be one of drain, remove-node, add-nodes, copies, raise-quota")

    async def _simulate_quota(self, client: Client, query: Mapping[str, str]) -> Any:
        # With the workloads: their controllers create the Pods that the quota keeps out.
        snapshot = await read_cluster(client, (*_SIMULATED_KINDS, *WORKLOAD_KINDS))
        quotas = with_quota(snapshot.documents.get("ResourceQuota", ()), query)
        changed = replace(snapshot, documents={**snapshot.documents, "ResourceQuota": quotas})
        return await self._run(["simulate"], changed)

    async def fragmentation(self, client: Client) -> Any:
        """Return the JSON output of `dray top fragmentation`: what more fits, and what would if packed ideally."""
        snapshot = await read_cluster(client, PLACEMENT_KINDS)
        # Pages ask for it whenever they are opened: the same objects have the same answer, whoever asks.
        stdin = await asyncio.to_thread(_dump, snapshot)
        digest = hashlib.sha256(stdin).digest()
        if digest not in self._counted:
            counted = await self._run_on(stdin, ["top", "fragmentation"])
            while len(self._counted) >= COUNTED_MAX:
                del self._counted[next(iter(self._counted))]
            self._counted[digest] = counted
        return self._counted[digest]

    async def doctor(self, client: Client) -> Any:
        """Return the JSON output of `dray doctor`."""
        return await self._run(["doctor"], await read_cluster(client, PATH_KINDS), several=True)

    async def decisions(self, client: Client) -> Document:
        """Return what the scheduler of the server's process decided; `recorded` is false if there is none."""
        try:
            return {**await client.get_path(DECISIONS), "recorded": True}
        except (NotFoundError, ForbiddenError):
            return {"decisions": [], "recorded": False}

    async def _run(
        self,
        arguments: Sequence[str],
        snapshot: Snapshot,
        file: Sequence[Document] = (),
        *,
        several: bool = False,
    ) -> Any:
        """Run a command of Dray on the objects, with those of a file as its last argument."""
        found = await self._run_on(await asyncio.to_thread(_dump, snapshot), arguments, file)
        return found if several else found[0]

    async def _run_on(self, stdin: bytes, arguments: Sequence[str], file: Sequence[Document] = ()) -> Any:
        """Run a command in a subprocess, because it is CPU-bound; return the items of its JSON output."""
        async with self._slots:
            with tempfile.TemporaryDirectory(prefix="dray-ui-") as folder:
                words = list(arguments)
                if file:
                    path = Path(folder, "objects.json")
                    await asyncio.to_thread(path.write_bytes, _list(file))
                    words.append(str(path))
                return (await _output(["-m", "dray", *words, "-f", "-", "-o", "json"], stdin))["items"]


async def _events(
    client: Client, served: Mapping[str, Resource[Document]], about: Resource[Document], namespace: str, name: str
) -> list[Document]:
    """Return the newest events about an object; none if the user may not read them."""
    resource = served.get("Event")
    if resource is None:
        return []
    selector = f"involvedObject.name={name},involvedObject.kind={about.kind}"
    try:
        page = await client.list(resource, namespace, ListOptions(field_selector=selector))
    except ForbiddenError:
        return []
    return sorted(page.items, key=lambda item: item.get("lastTimestamp") or item.get("eventTime") or "")[-EVENTS_MAX:]


def named(query: Mapping[str, str], part: str) -> str:
    """Return a name of the query. It becomes an argument of a command: no NUL, no leading dash, no excessive length."""
    value = query.get(part, "")
    if not value:
        raise BadRequestError(f"{part} is required")
    for problem in dns1123_subdomain(value):
        raise BadRequestError(f"{part} of an object is required: {problem}")
    return value


def with_quota(documents: Sequence[Document], query: Mapping[str, str]) -> list[Document]:
    """Return the objects with another limit of a quota: in its spec, and in its status, which admission goes by."""
    namespace, name = named(query, "namespace"), named(query, "name")
    resource, limit = query.get("resource", ""), query.get("limit", "")
    try:
        Quantity.parse(limit)
    except QuantityError as error:
        raise BadRequestError(f"limit must be a quantity: {error}") from error
    quotas = [item for item in documents if _is_named(item, "ResourceQuota", namespace, name)]
    (quota,) = _required(quotas, f"quota {namespace}/{name}")
    hard = (quota.get("spec") or {}).get("hard") or {}
    if resource not in hard:
        raise BadRequestError(f"quota {namespace}/{name} has no limit of {resource!r}")
    changed = dict(quota)
    for part in ("spec", "status"):
        content = quota.get(part) or {}
        changed[part] = {**content, "hard": {**(content.get("hard") or hard), resource: limit}}
    return [changed if item is quota else item for item in documents]


def _count(query: Mapping[str, str], most: int) -> int:
    value = query.get("count", "")
    if not (value.isascii() and value.isdigit()) or not 1 <= int(value[:9]) <= most:
        raise BadRequestError(f"count must be a number from 1 to {most}")
    return int(value)


def _required(documents: list[Document], what: str) -> list[Document]:
    if not documents:
        raise BadRequestError(f"there is no {what} that you can read")
    return documents


def _is_of_node(document: Document, node: str) -> bool:
    if document["kind"] == "Node":
        return bool(document["metadata"]["name"] == node)
    return document["kind"] == "ResourceSlice" and (document.get("spec") or {}).get("nodeName") == node


def _is_named(document: Document, kind: str, namespace: str, name: str) -> bool:
    metadata = document["metadata"]
    return document["kind"] == kind and (metadata.get("namespace"), metadata["name"]) == (namespace, name)


def _copy(pod: Document) -> Document:
    """Return a Pod like another that is not scheduled yet."""
    metadata = {key: value for key, value in pod["metadata"].items() if key not in _OWN_METADATA}
    spec = {key: value for key, value in pod["spec"].items() if key != "nodeName"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**metadata, "name": f"{metadata['name']}-copy"},
        "spec": spec,
    }


def _documents(snapshot: Snapshot) -> list[Document]:
    return [item for items in snapshot.documents.values() for item in items]


def _dump(snapshot: Snapshot) -> bytes:
    """Return the objects of a cluster as the JSON of a list that says which kinds it holds."""
    return _list(_documents(snapshot), orjson.dumps({HEADER: header_of(snapshot)}))


def _list(documents: Sequence[Document], metadata: bytes = b"{}") -> bytes:
    """Return the objects as the JSON of a list, one by one: encoding all of them at once would block other threads."""
    items = b",".join(map(_encoded, documents))
    return b'{"apiVersion":"v1","kind":"List","metadata":%b,"items":[%b]}' % (metadata, items)


def _encoded(document: Document) -> bytes:
    # A third of a large cluster's bytes, and no answer depends on them.
    metadata = {key: value for key, value in document["metadata"].items() if key != "managedFields"}
    return orjson.dumps({**document, "metadata": metadata})


async def _output(command: Sequence[str], stdin: bytes) -> Any:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stdin=pipe, stdout=pipe, stderr=pipe)
    name = f"dray {command[2]}"
    try:
        async with asyncio.timeout(COMMAND_SECONDS_MAX):
            stdout, stderr = await process.communicate(stdin)
    except TimeoutError as error:
        raise InternalError(f"{name} took more than {COMMAND_SECONDS_MAX:.0f} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    # `dray doctor` ends with 1 if it found something.
    if process.returncode and not stdout:
        raise InternalError(stderr.decode(errors="replace").strip() or f"{name} failed")
    return orjson.loads(stdout)
