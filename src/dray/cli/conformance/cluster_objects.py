"""API objects of a run: the driver's ResourceSlices, and claims allocated from them as the scheduler does."""

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
from dray.cli.conformance.rules.responses import ClaimRef
from dray.cli.conformance.rules.slices import SliceWrite
from dray.client import resources
from dray.client.informer import Selection
from dray.client.interface import Client, ListOptions, Resource
from dray.client.shared_informers import SharedInformerFactory
from dray.lib.clock import Clock
from dray.runtime.tasks import ChildTasks, first_completed

_GROUP: Final = GroupVersion("resource.k8s.io", "v1")
SLICES: Final = resources.RESOURCE_SLICES.unstructured
CLASSES: Final = resources.DEVICE_CLASSES.unstructured
CLAIMS: Final = resources.RESOURCE_CLAIMS.unstructured
NODES: Final = resources.NODES.unstructured
CLASS_NAME: Final = "dray-conformance"
# Does not exist. Kubelet prepares only claims that are reserved for a Pod.
POD: Final = {"resource": "pods", "name": "dray-conformance", "uid": "00000000-0000-4000-8000-000000000000"}


@dataclass(frozen=True, slots=True)
class CheckClaim:
    """A claim created for a check."""

    ref: ClaimRef
    allocation: Document


class ClusterObjects:
    """The API objects that checks read and write."""

    def __init__(self, client: Client, clock: Clock, node_name: str, namespace: str, template: Document | None) -> None:
        self._client = client
        self._node_name = node_name
        self._namespace = namespace
        # The claim given with --claim, for drivers that need parameters.
        self._template = template
        self._created: list[tuple[Resource[Document], str, str]] = []
        self._claims = 0
        rng = random.SystemRandom()
        self._informers = SharedInformerFactory(client, clock, rng)
        self._tasks = ChildTasks("conformance informers")
        self._suffix = f"{rng.getrandbits(24):06x}"
        # All writes of the driver's slices, oldest first.
        self.history: list[SliceWrite] = []
        # Set when the driver has registered.
        self.driver = ""

    async def start(self, others: Sequence[tuple[Resource[Document], Document]] = ()) -> None:
        """Create the objects that every driver needs: its Node, and those that the given claim refers to."""
        await self._create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self._node_name}})
        for resource, document in others:
            await self._create(resource, document)

    async def watch_slices(self, driver: str) -> None:
        """Record every write of the driver's slices from now on; return when the existing ones are listed."""
        self.driver = driver
        slices = self._informers.informer(SLICES, Selection(field_selector=f"spec.driver={driver}"))
        slices.add_handler(self._on_slice)
        await first_completed(self._tasks.spawn(self._informers.run(), "informers"), slices.wait_for_sync())

    async def has_recorded_all(self) -> bool:
        """Return whether all existing slices have been recorded."""
        seen = {(item.name, item.generation) for item in self.history}
        now = await self.slices()
        return all((item["metadata"]["name"], item["spec"]["pool"].get("generation") or 0) in seen for item in now)

    async def slices(self) -> list[Document]:
        """List the driver's slices."""
        options = ListOptions(field_selector=f"spec.driver={self.driver}")
        return list((await self._client.list(SLICES, "", options)).items)

    async def delete_slice(self, name: str) -> None:
        """Delete a slice of the driver, as an administrator could by mistake."""
        await self._client.delete(SLICES, name)

    async def claim(self, *, allocated: bool = True) -> CheckClaim:
        """Create a claim, by default allocated from the driver's devices; raises `SkipError` if that is impossible."""
        self._claims += 1
        name = f"dray-conformance-{self._suffix}-{self._claims}"
        document = await self._claim_document(name)
        allocation = await self._allocation(document) if allocated else {}
        created = await self._client.create(CLAIMS, document, self._namespace)
        self._created.append((CLAIMS, name, self._namespace))
        if allocated:
            status = {"allocation": allocation, "reservedFor": [POD]}
            await self._client.update_status(CLAIMS, {**created, "status": status})
        return CheckClaim(ClaimRef(self._namespace, name, created["metadata"]["uid"]), allocation)

    async def delete_claim(self, claim: CheckClaim) -> None:
        """Delete a claim's object, if it exists."""
        await self._delete(CLAIMS, claim.ref.name, self._namespace)

    async def close(self) -> None:
        """Stop watching and delete the objects created by this run."""
        try:
            await self._tasks.aclose()
        finally:
            for resource, name, namespace in reversed(self._created):
                await self._delete(resource, name, namespace)

    def _on_slice(self, _old: Document | None, new: Document | None) -> None:
        if new is not None:
            pool = new["spec"]["pool"]
            self.history.append(SliceWrite(pool["name"], pool.get("generation") or 0, new["metadata"]["name"]))

    async def _create(self, resource: Resource[Document], document: Document) -> None:
        with suppress(AlreadyExistsError):
            created = await self._client.create(resource, document, self._namespace)
            metadata = created["metadata"]
            self._created.append((resource, metadata["name"], metadata.get("namespace") or ""))

    async def _delete(self, resource: Resource[Document], name: str, namespace: str) -> None:
        with suppress(NotFoundError):
            await self._client.delete(resource, name, namespace)

    async def _claim_document(self, name: str) -> Document:
        if self._template is not None:
            document = copy.deepcopy(self._template)
            document["metadata"] = {"name": name}
            return document
        selector = {"cel": {"expression": f'device.driver == "{self.driver}"'}}
        metadata = {"name": f"{CLASS_NAME}-{self._suffix}"}
        kind = {"apiVersion": str(_GROUP), "kind": "DeviceClass"}
        await self._create(CLASSES, {**kind, "metadata": metadata, "spec": {"selectors": [selector]}})
        request = {"name": "device", "exactly": {"deviceClassName": metadata["name"]}}
        return {
            "apiVersion": str(_GROUP),
            "kind": "ResourceClaim",
            "metadata": {"name": name},
            "spec": {"devices": {"requests": [request]}},
        }

    async def _allocation(self, document: Document) -> Document:
        """Allocate the claim as the scheduler would."""
        inventory, allocations = Inventory(), Allocations()
        for item in await self.slices():
            inventory.apply_slice(from_document(ResourceSlice, item))
        for item in (await self._client.list(CLASSES)).items:
            inventory.apply_class(from_document(DeviceClass, item))
        for item in (await self._client.list(CLAIMS)).items:
            allocations.apply_claim(from_document(ResourceClaim, item))
        node = from_document(Node, await self._client.get(NODES, self._node_name))
        allocator, claims = Allocator(inventory, allocations), [from_document(ResourceClaim, document)]
        try:
            outcome = await asyncio.to_thread(allocator.allocate, node, claims)
        except AllocatorError as error:
            raise SkipError(f"no device can be allocated: {error}") from error
        if outcome.allocations is None:
            raise SkipError(f"no device can be allocated: {allocator.explain(node, claims).summary}")
        return to_document(outcome.allocations[0])
