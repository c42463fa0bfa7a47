"""Publishes a driver's pools as ResourceSlices and repairs them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from dray.api.errors import APIError, InvalidError, NotFoundError
from dray.api.types.meta_v1 import OwnerReference
from dray.api.types.resource_v1 import ResourceSlice
from dray.client.controller import Controller, Requeue, Result
from dray.client.informer import Selection
from dray.client.interface import Client, DeleteOptions, ListOptions
from dray.client.objects import resource_version_of
from dray.client.request_state import RequestState
from dray.client.resources import NODES, RESOURCE_SLICES
from dray.client.shared_informers import SharedInformer, SharedInformerFactory
from dray.driver.devices import Pool
from dray.driver.publish.contents import SliceContent, content_of, dropped_gates
from dray.driver.publish.plan import Plan, Publisher, plan_pool
from dray.lib.clock import Clock
from dray.runtime.logs import fields
from dray.runtime.metrics import Metrics

_log = logging.getLogger(__name__)

POOL_INDEX: Final = "pool"
# Delay before a slice that was changed or deleted by others is repaired. Kubernetes waits 30 s; a shorter delay still
# limits the writes of two instances that disagree.
REPAIR_SECONDS: Final = 5.0
# How long to wait for the watch event of a write.
EVENT_SECONDS_MAX: Final = 10.0


class DroppedFieldsError(Exception):
    """The API server dropped fields: a feature is disabled, or the server is older."""


def log_publish_error(error: Exception) -> None:
    """Log the error; the default of `PublishSettings.on_error`."""
    _log.error("publishing devices failed", extra=fields(error=error))


@dataclass(frozen=True, slots=True)
class PublishSettings:
    """Settings of a publisher; without a node the pools must select nodes."""

    driver: str
    node_name: str = ""
    on_error: Callable[[Exception], None] = log_publish_error
    repair_seconds: float = REPAIR_SECONDS


class SlicePublisher:
    """Keeps the slices of one driver, on one node if it has one, equal to its pools."""

    def __init__(
        self,
        client: Client,
        informers: SharedInformerFactory,
        clock: Clock,
        settings: PublishSettings,
        metrics: Metrics | None = None,
    ) -> None:
        self._client = client
        self._driver, self._node_name = settings.driver, settings.node_name
        self._on_error = settings.on_error
        self._repair_seconds = settings.repair_seconds
        self._pools: Mapping[str, Pool] | None = None
        # By pool: requested and stored contents where the API server dropped fields.
        self._accepted: dict[str, list[tuple[SliceContent, SliceContent]]] = {}
        # The Node as last read; None before, and for a driver without a node.
        self._owner: OwnerReference | None = None
        self._node_state = RequestState(_log, f"node {self._node_name}", NODES)
        self._event = asyncio.Event()
        self._selector = f"spec.driver={self._driver}"
        if self._node_name:
            self._selector += f",spec.nodeName={self._node_name}"
        self._slices: SharedInformer[ResourceSlice] = informers.informer(
            RESOURCE_SLICES, Selection(field_selector=self._selector), indexes={POOL_INDEX: _pool_of}
        )
        self._controller: Controller[str] = Controller("resource slices", self._reconcile, clock, metrics=metrics)
        self._controller.follow(self._slices, self._changed)

    def publish(self, pools: Mapping[str, Pool]) -> None:
        """Replace the driver's pools; slices of other pools are deleted."""
        for name, pool in pools.items():
            # The informer selects slices by node name: others of this driver would not be found again.
            if pool.on_node != bool(self._node_name):
                place = "belongs to a node" if self._node_name else "has no node"
                raise ValueError(f"pool {name}: the driver {place}, the pool's choice of nodes says otherwise")
        affected = {*(self._pools or ()), *pools, *(item.spec.pool.name for item in self._slices.lister.list())}
        self._pools = dict(pools)
        for name in sorted(affected):
            self._controller.queue.add(name)

    async def run(self) -> None:
        """Publish and repair until cancelled."""
        await self._controller.run()

    async def remove_all(self) -> None:
        """Delete all slices of the driver, e.g. before it is removed from the node."""
        await self._client.delete_collection(RESOURCE_SLICES, selection=ListOptions(field_selector=self._selector))

    def has_pool(self, name: str) -> bool:
        """Whether the driver publishes the pool."""
        return self._pools is not None and name in self._pools

    @property
    def settled(self) -> bool:
        """Whether no write is pending."""
        return self._controller.queue.idle

    def _changed(self, old: ResourceSlice | None, new: ResourceSlice | None) -> None:
        self._event.set()
        for item in (old, new):
            if item is not None and self._pools is not None:
                self._controller.queue.add_after(item.spec.pool.name, self._repair_seconds)

    async def _reconcile(self, pool_name: str) -> Result:
        if self._pools is None:
            return None
        try:
            plan = await self._plan_with_owner(pool_name)
        except NotFoundError:
            # The node agent registers it again.
            return Requeue(self._repair_seconds)
        await self._write(plan, self._accepted.setdefault(pool_name, []))
        return None

    async def _plan_with_owner(self, pool_name: str) -> Plan:
        """Plan; slices are created for the Node that exists now, which may not be the one of the deleted slices."""
        if not self._node_name:
            return self._plan(pool_name)
        is_known = self._owner is not None
        if not is_known:
            await self._read_owner()
        plan = self._plan(pool_name)
        if not is_known or not plan.create:
            return plan
        before = self._owner
        await self._read_owner()
        if self._owner != before:
            for name in self._pools or ():
                self._controller.queue.add(name)
        return self._plan(pool_name)

    def _plan(self, pool_name: str) -> Plan:
        assert self._pools is not None
        publisher = Publisher(self._driver, self._node_name, self._owner)
        existing = self._slices.lister.by_index(POOL_INDEX, pool_name)
        accepted = self._accepted.setdefault(pool_name, [])
        return plan_pool(publisher, pool_name, self._pools.get(pool_name), existing, accepted)

    async def _write(self, plan: Plan, accepted: list[tuple[SliceContent, SliceContent]]) -> None:
        try:
            for item in plan.delete:
                await self._delete(item)
            for item, content in plan.update:
                await self._update(item, content, accepted)
            for item, content in plan.create:
                await self._create(item, content, accepted)
        except InvalidError as error:
            # A retry cannot succeed before the driver changes its pools.
            self._on_error(error)
        except APIError as error:
            self._on_error(error)
            raise

    async def _delete(self, item: ResourceSlice) -> None:
        options = DeleteOptions(uid=item.metadata.uid or "", resource_version=resource_version_of(item))
        name = item.metadata.name or ""
        try:
            await self._client.delete(RESOURCE_SLICES, name, options=options)
        except NotFoundError:
            return
        await self._wait_for_event(lambda: self._slices.lister.get(name) is None)

    async def _update(
        self, item: ResourceSlice, content: SliceContent, accepted: list[tuple[SliceContent, SliceContent]]
    ) -> None:
        written = await self._client.update(RESOURCE_SLICES, item)
        self._record_dropped(written, content, accepted)
        before = resource_version_of(item)
        await self._wait_for_event(lambda: self._version(written.metadata.name or "") != before)

    async def _create(
        self, item: ResourceSlice, content: SliceContent, accepted: list[tuple[SliceContent, SliceContent]]
    ) -> None:
        written = await self._client.create(RESOURCE_SLICES, item)
        self._record_dropped(written, content, accepted)
        await self._wait_for_event(lambda: self._version(written.metadata.name or "") != "")

    def _version(self, name: str) -> str:
        item = self._slices.lister.get(name)
        return "" if item is None else resource_version_of(item)

    async def _wait_for_event(self, condition: Callable[[], bool]) -> None:
        """Wait for the informer event of a write: planning without it would repeat the write."""
        try:
            async with asyncio.timeout(EVENT_SECONDS_MAX):
                while not condition():
                    self._event.clear()
                    await self._event.wait()
        except TimeoutError:
            _log.warning("no watch event for a written slice", extra=fields(driver=self._driver))

    def _record_dropped(
        self, written: ResourceSlice, content: SliceContent, accepted: list[tuple[SliceContent, SliceContent]]
    ) -> None:
        """Record what the API server dropped and report it once: a retry would drop it again."""
        made = content_of(written.spec)
        if made == content or any(asked == content and known == made for asked, known in accepted):
            return
        accepted[:] = [(asked, known) for asked, known in accepted if asked != content] + [(content, made)]
        text = f"pool {written.spec.pool.name}: slice {written.metadata.name}: the server dropped fields"
        gates = dropped_gates(content, made)
        self._on_error(DroppedFieldsError(f"{text} of {', '.join(gates)}" if gates else text))

    async def _read_owner(self) -> None:
        try:
            node = await self._client.get(NODES, self._node_name)
        except APIError as error:
            self._node_state.failed("get", error)
            raise
        self._node_state.succeeded()
        self._owner = OwnerReference(
            api_version="v1", kind="Node", name=self._node_name, uid=node.metadata.uid or "", controller=True
        )


def _pool_of(item: ResourceSlice) -> tuple[str, ...]:
    return (item.spec.pool.name,)
