"""Puts a case into an API server, one Pod after the other, and reads what the scheduler there decided.

The driver also plays everybody else: the kubelet that starts Pods and ends evicted ones, and the garbage collector. A
Pod that gets no node is deleted before the next one comes, so that each decision depends on known objects alone.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol

from dray.api.document import Document, GroupVersion
from dray.api.errors import AlreadyExistsError, InvalidError, NotFoundError
from dray.api.timestamps import format_time
from dray.client.interface import Client, DeleteOptions, Patch, PatchType, Resource, WriteOptions, unstructured
from tests.differential.cases import NAMESPACE, Case, Step

_CLUSTER_KINDS: Final = frozenset(
    {"Namespace", "Node", "PriorityClass", "DeviceClass", "ResourceSlice", "DeviceTaintRule"}
)
_PLURALS: Final = {"PriorityClass": "priorityclasses", "DeviceClass": "deviceclasses"}
_STATUS: Final = WriteOptions(subresource="status")
_POLL_SECONDS: Final = 0.005
_START: Final = datetime(2026, 1, 1, tzinfo=UTC)
# In front of the message of an attempt that ended with an error.
SCHEDULER_ERROR: Final = "SchedulerError: "
_NODE_NAME: Final = "metadata.name"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a scheduler decided about a Pod."""

    # Empty if the Pod got none.
    node: str = ""
    # By entry in `spec.resourceClaims`, "*" for extended resources: the devices with their requests, in order.
    devices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # The first rejection; with a node, the one before preemption.
    message: str = ""
    victims: tuple[str, ...] = ()


class World(Protocol):
    """A cluster with a scheduler."""

    client: Client
    seconds_max: float

    async def settle(self) -> None:
        """Wait until the scheduler has observed all objects."""


def resource_of(document: Document) -> Resource[Document]:
    """Return the resource of an object."""
    kind = document["kind"]
    plural = _PLURALS.get(kind, kind.lower() + "s")
    version = GroupVersion.parse(document["apiVersion"])
    return unstructured(version, plural, kind, namespaced=kind not in _CLUSTER_KINDS)


def _named(kind: str, version: str = "v1") -> Resource[Document]:
    return resource_of({"kind": kind, "apiVersion": version})


PODS: Final = _named("Pod")
CLAIMS: Final = _named("ResourceClaim", "resource.k8s.io/v1")


class Driver:
    """Runs the steps of one case."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._client = world.client
        self._started = 0

    async def apply(self, documents: tuple[Document, ...]) -> None:
        """Create or replace objects."""
        for document in documents:
            await self._put(document)
        await self._world.settle()

    async def change(self, step: Step) -> None:
        """Do what is not a Pod's turn."""
        if step.action == "apply":
            await self.apply(step.objects)
            return
        for document in step.objects:
            if document["kind"] == "Pod":
                await self.remove_pod(document["metadata"]["name"])
            else:
                with suppress(NotFoundError):
                    await self._client.delete(resource_of(document), document["metadata"]["name"])
        await self._world.settle()

    async def place(self, step: Step, *, on: str = "") -> Answer:
        """Create a Pod with its objects and return the decision; with `on`, it may only go to this node.

        A Pod without a node is gone afterwards.
        """
        *others, pod = step.objects
        for document in others:
            await self._put(document)
        await self._world.settle()
        try:
            await self._client.create(PODS, _pinned(pod, on) if on else pod, NAMESPACE)
        except InvalidError as error:
            return Answer(message=str(error))
        name = pod["metadata"]["name"]
        message, victims = "", set[str]()

        async def decided() -> Document | None:
            nonlocal message
            current = await self._client.get(PODS, name, NAMESPACE)
            message = message or _rejection(current)
            if message:
                # Not earlier: a Pod that is bound at once would not say what it preempted for.
                victims.update(await self._end_victims())
            is_waiting = current["status"].get("nominatedNodeName")
            return current if current["spec"].get("nodeName") or (message and not is_waiting) else None

        found = await self._until(decided, f"no decision about {name}")
        node = found["spec"].get("nodeName", "")
        if not node:
            message = _without_generated_names(message, found)
            await self.remove_pod(name)
            return Answer("", {}, message, tuple(sorted(victims)))
        devices = await self._devices(found)
        await self._start(name)
        await self._world.settle()
        return Answer(node, devices, _without_generated_names(message, found), tuple(sorted(victims)))

    async def remove_pod(self, name: str) -> None:
        """Delete a Pod at once, with its claims, and wait for the controller to free the others."""
        with suppress(NotFoundError):
            await self._client.delete(PODS, name, NAMESPACE, DeleteOptions(grace_period_seconds=0))
        await self._freed()
        await self._world.settle()

    # --- Parts. ---

    async def _put(self, document: Document) -> None:
        resource, metadata = resource_of(document), document["metadata"]
        try:
            made = await self._client.create(resource, document, metadata.get("namespace", ""))
        except AlreadyExistsError:
            old = await self._client.get(resource, metadata["name"], metadata.get("namespace", ""))
            version = {"resourceVersion": old["metadata"]["resourceVersion"]}
            made = await self._client.update(resource, document | {"metadata": metadata | version})
        if "status" in document and made.get("status") != document["status"]:
            await self._client.update_status(resource, {**made, "status": document["status"]})

    async def _end_victims(self) -> list[str]:
        """End evicted Pods as a kubelet does; return their names."""
        pods = (await self._client.list(PODS, NAMESPACE)).items
        names = [pod["metadata"]["name"] for pod in pods if pod["metadata"].get("deletionTimestamp")]
        for name in names:
            # First its devices: whether the Pod that waits for its place finds them free would be a matter of luck.
            await self._free_devices(name)
            with suppress(NotFoundError):
                await self._client.delete(PODS, name, NAMESPACE, DeleteOptions(grace_period_seconds=0))
        if names:
            await self._freed()
        return names

    async def _free_devices(self, pod: str) -> None:
        for claim in (await self._client.list(CLAIMS, NAMESPACE)).items:
            status = claim.get("status") or {}
            if [user["name"] for user in status.get("reservedFor", ())] == [pod]:
                await self._client.update_status(CLAIMS, {**claim, "status": {}})
        await self._world.settle()

    async def _start(self, name: str) -> None:
        """Report the Pod as running; each starts a minute after the one before."""
        self._started += 1
        started = format_time(_START + timedelta(minutes=self._started))
        body = {"status": {"phase": "Running", "startTime": started}}
        await self._client.patch(PODS, name, NAMESPACE, Patch(PatchType.MERGE, body), _STATUS)

    async def _freed(self) -> None:
        """Delete claims of Pods that are gone, and wait until no claim is kept for such a Pod."""

        async def is_freed() -> bool:
            uids = {pod["metadata"]["uid"] for pod in (await self._client.list(PODS, NAMESPACE)).items}
            is_done = True
            for claim in (await self._client.list(CLAIMS, NAMESPACE)).items:
                metadata, status = claim["metadata"], claim.get("status") or {}
                owners = [owner["uid"] for owner in metadata.get("ownerReferences", ())]
                users = [user["uid"] for user in status.get("reservedFor", ())]
                if owners and not uids.issuperset(owners):
                    is_done = False
                    if not metadata.get("deletionTimestamp"):
                        with suppress(NotFoundError):
                            await self._client.delete(CLAIMS, metadata["name"], NAMESPACE)
                if not uids.issuperset(users) or ("allocation" in status and not users):
                    is_done = False
            return is_done

        await self._until(is_freed, "claims were not freed")

    async def _devices(self, pod: Document) -> dict[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {}
        for entry, name in _claim_names(pod).items():
            claim = await self._client.get(CLAIMS, name, NAMESPACE)
            found[entry] = tuple(_result(item) for item in claim["status"]["allocation"]["devices"].get("results", ()))
        return found

    async def _until(self, condition: Callable[[], Awaitable[Any]], problem: str) -> Any:
        try:
            async with asyncio.timeout(self._world.seconds_max):
                while not (found := await condition()):  # noqa: ASYNC110 - also what another process does
                    await asyncio.sleep(_POLL_SECONDS)
                return found
        except TimeoutError:
            raise AssertionError(problem) from None


def _rejection(pod: Document) -> str:
    for condition in pod["status"].get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            text: str = condition.get("message", "")
            return text if condition.get("reason") == "Unschedulable" else f"{SCHEDULER_ERROR}{text}"
    return ""


def _claim_names(pod: Document) -> dict[str, str]:
    """Return the names of the Pod's claims by entry."""
    names = {item["name"]: item.get("resourceClaimName", "") for item in pod["spec"].get("resourceClaims", ())}
    names |= {item["name"]: item["resourceClaimName"] for item in pod["status"].get("resourceClaimStatuses", ())}
    extended = pod["status"].get("extendedResourceClaimStatus")
    if extended:
        names["*"] = extended["resourceClaimName"]
    return {entry: name for entry, name in names.items() if name}


def _without_generated_names(message: str, pod: Document) -> str:
    for entry, name in _claim_names(pod).items():
        message = re.sub(rf"\b{re.escape(name)}\b", f"<{entry}>", message)
    return message


def _result(item: Document) -> str:
    """Return a device with its request; tolerations and ids of shares are not a choice."""
    text = f"{item['request']}={item['driver'].partition('.')[0]}/{item['pool']}/{item['device']}"
    if item.get("adminAccess"):
        text += " admin"
    for name, amount in sorted((item.get("consumedCapacity") or {}).items()):
        text += f" {name}:{amount}"
    return text


def _pinned(pod: Document, node: str) -> Document:
    """Return the Pod with its choice of nodes narrowed to one."""
    affinity = pod["spec"].get("affinity", {})
    only = {"key": _NODE_NAME, "operator": "In", "values": [node]}
    required = affinity.get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", {})
    terms = [
        term | {"matchFields": [*term.get("matchFields", ()), only]}
        for term in required.get("nodeSelectorTerms", ({},))
    ]
    wanted = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    rules = affinity | {"nodeAffinity": affinity.get("nodeAffinity", {}) | wanted}
    return pod | {"spec": pod["spec"] | {"affinity": rules}}


async def run_case(world: World, case: Case) -> list[Answer]:
    """Return the decisions about the Pods of a case, in order; the objects of the case exist already."""
    driver = Driver(world)
    answers: list[Answer] = []
    for step in case.steps:
        if step.action == "pod":
            answers.append(await driver.place(step))
        else:
            await driver.change(step)
    return answers
