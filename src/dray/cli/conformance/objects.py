"""The kit at the API server: slices that the driver publishes, and claims allocated from them as by a scheduler."""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from dray.allocator import Allocations, Allocator, Inventory
from dray.allocator.errors import AllocatorError
from dray.api.codec import from_document, to_document
from dray.api.document import Document, GroupVersion
from dray.api.errors import AlreadyExistsError, NotFoundError
from dray.api.types.core_v1 import Node
from dray.api.types.resource_v1 import DeviceClass, ResourceClaim, ResourceSlice
from dray.cli.conformance.findings import SkipError
from dray.cli.conformance.rules.answers import ClaimRef
from dray.cli.conformance.rules.slices import Written
from dray.client import resources
from dray.client.informer import Selection
from dray.client.interface import Client, ListOptions, Resource
from dray.client.shared_informers import SharedInformerFactory
from dray.lib.clock import Clock

_GROUP: Final = GroupVersion("resource.k8s.io", "v1")
SLICES: Final = resources.RESOURCE_SLICES.unstructured
CLASSES: Final = resources.DEVICE_CLASSES.unstructured
CLAIMS: Final = resources.RESOURCE_CLAIMS.unstructured
NODES: Final = resources.NODES.unstructured
CLASS_NAME: Final = "dray-conformance"
# Nobody's: kubelet would not prepare a claim that is reserved for nobody.
POD: Final = {"resource": "pods", "name": "dray-conformance", "uid": "00000000-0000-4000-8000-000000000000"}


@dataclass(frozen=True, slots=True)
class TestClaim:
    """A claim that the kit made."""

    ref: ClaimRef
    allocation: Document


class Objects:
    """Everything that the kit reads and writes."""

    def __init__(self, client: Client, clock: Clock, node_name: str, namespace: str, template: Document | None) -> None:
        self._client = client
        self._node_name = node_name
        self._namespace = namespace
        # A claim of the driver's author, for drivers that need parameters.
        self._template = template
        self._made: list[tuple[Resource[Document], str, str]] = []
        self._claims = 0
        self._rng = random.Random()  # noqa: S311 - names, guards nothing
        self._informers = SharedInformerFactory(client, clock, self._rng)
        self._mark = f"{self._rng.getrandbits(24):06x}"
        self.history: list[Written] = []
        # Set once the driver has said its name.
        self.driver = ""

    async def start(self, others: Sequence[tuple[Resource[Document], Document]] = ()) -> None:
        """Make what every driver needs: its Node, and what the author's claim refers to."""
        await self._make(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self._node_name}})
        for resource, document in others:
            await self._make(resource, document)

    async def follow(self, driver: str) -> asyncio.Task[None]:
        """Note every slice of the driver from now on, until the task is cancelled."""
        self.driver = driver
        slices = self._informers.informer(SLICES, Selection(field_selector=f"spec.driver={driver}"))
        slices.add_handler(self._written)
        task = asyncio.create_task(self._informers.run())
        await slices.wait_for_sync()
        return task

    async def followed(self) -> bool:
        """Whether everything that is there now has been noted."""
        seen = {(item.name, item.generation) for item in self.history}
        now = await self.slices()
        return all((item["metadata"]["name"], item["spec"]["pool"].get("generation") or 0) in seen for item in now)

    async def slices(self) -> list[Document]:
        """The driver's slices now."""
        options = ListOptions(field_selector=f"spec.driver={self.driver}")
        return list((await self._client.list(SLICES, "", options)).items)

    async def delete_slice(self, name: str) -> None:
        """As someone with too many rights would."""
        await self._client.delete(SLICES, name)

    async def claim(self, *, allocated: bool = True) -> TestClaim:
        """A claim; with an allocation from the driver's devices, or a `SkipError`."""
        self._claims += 1
        name = f"dray-conformance-{self._mark}-{self._claims}"
        document = await self._claim_document(name)
        allocation = await self._allocation(document) if allocated else {}
        made = await self._client.create(CLAIMS, document, self._namespace)
        self._made.append((CLAIMS, name, self._namespace))
        if allocated:
            status = {"allocation": allocation, "reservedFor": [POD]}
            await self._client.update_status(CLAIMS, {**made, "status": status})
        return TestClaim(ClaimRef(self._namespace, name, made["metadata"]["uid"]), allocation)

    async def delete_claim(self, claim: TestClaim) -> None:
        """Delete a claim's object; nothing there is fine."""
        await self._delete(CLAIMS, claim.ref.name, self._namespace)

    async def close(self) -> None:
        """Remove what the kit has made."""
        for resource, name, namespace in reversed(self._made):
            await self._delete(resource, name, namespace)

    def _written(self, _old: Document | None, new: Document | None) -> None:
        if new is not None:
            pool = new["spec"]["pool"]
            self.history.append(Written(pool["name"], pool.get("generation") or 0, new["metadata"]["name"]))

    async def _make(self, resource: Resource[Document], document: Document) -> None:
        with suppress(AlreadyExistsError):
            made = await self._client.create(resource, document, self._namespace)
            self._made.append((resource, made["metadata"]["name"], made["metadata"].get("namespace") or ""))

    async def _delete(self, resource: Resource[Document], name: str, namespace: str) -> None:
        with suppress(NotFoundError):
            await self._client.delete(resource, name, namespace)

    async def _claim_document(self, name: str) -> Document:
        if self._template is not None:
            document = copy.deepcopy(self._template)
            document["metadata"] = {"name": name}
            return document
        selector = {"cel": {"expression": f'device.driver == "{self.driver}"'}}
        metadata = {"name": f"{CLASS_NAME}-{self._mark}"}
        kind = {"apiVersion": str(_GROUP), "kind": "DeviceClass"}
        await self._make(CLASSES, {**kind, "metadata": metadata, "spec": {"selectors": [selector]}})
        request = {"name": "device", "exactly": {"deviceClassName": metadata["name"]}}
        return {
            "apiVersion": str(_GROUP),
            "kind": "ResourceClaim",
            "metadata": {"name": name},
            "spec": {"devices": {"requests": [request]}},
        }

    async def _allocation(self, document: Document) -> Document:
        """What the scheduler would give it."""
        inventory, allocations = Inventory(), Allocations()
        for item in await self.slices():
            inventory.apply_slice(from_document(ResourceSlice, item))
        for item in (await self._client.list(CLASSES)).items:
            inventory.apply_class(from_document(DeviceClass, item))
        for item in (await self._client.list(CLAIMS)).items:
            allocations.apply_claim(from_document(ResourceClaim, item))
        node = from_document(Node, await self._client.get(NODES, self._node_name))
        allocator, wanted = Allocator(inventory, allocations), [from_document(ResourceClaim, document)]
        try:
            outcome = await asyncio.to_thread(allocator.allocate, node, wanted)
        except AllocatorError as error:
            raise SkipError(f"no device can be allocated: {error}") from error
        if outcome.allocations is None:
            raise SkipError(f"no device can be allocated: {allocator.explain(node, wanted).summary}")
        return to_document(outcome.allocations[0])
