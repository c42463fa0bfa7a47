"""Registers the Node, updates its status, and renews its Lease."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from dray.api.document import Document
from dray.api.errors import AlreadyExistsError, APIError, ConflictError, NotFoundError
from dray.client import resources
from dray.client.interface import Client, Patch, PatchType, WriteOptions
from dray.client.request_state import RequestState
from dray.lib.clock import Clock
from dray.node.agent.node_object import (
    LEASE_NAMESPACE,
    LEASE_SECONDS,
    NodeSpec,
    allocatable,
    extended_resources,
    lease_document,
    node_document,
    node_status,
    own_labels,
    stale_resources,
    without_heartbeats,
)
from dray.node.resource_manager import NodeResources

_log = logging.getLogger(__name__)

NODES: Final = resources.NODES.unstructured
LEASES: Final = resources.LEASES.unstructured
# kubelet's periods of checking the status, and of writing it without a change.
STATUS_SECONDS: Final = 10.0
REPORT_SECONDS: Final = 300.0
RETRY_SECONDS: Final = 1.0
RETRY_SECONDS_MAX: Final = 7.0
# Shorter than the Lease: an API server that does not respond is left for the next one before the Lease expires.
_NODE: Final = WriteOptions(timeout_seconds=STATUS_SECONDS)
_STATUS: Final = WriteOptions(subresource="status", timeout_seconds=STATUS_SECONDS)


@dataclass(frozen=True, slots=True)
class ReportTimes:
    """How long the Lease is valid, and after how long a status is written that has not changed."""

    lease_seconds: int = LEASE_SECONDS
    status_seconds: float = REPORT_SECONDS


_DEFAULT_TIMES: Final = ReportTimes()


class NodeRegistration:
    """The Node object and the Lease of one node."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        spec: NodeSpec,
        added: Callable[[], Sequence[NodeResources]] = lambda: (),
        *,
        times: ReportTimes = _DEFAULT_TIMES,
        is_new_node: bool = False,
    ) -> None:
        self._client = client
        self._clock = clock
        self.spec = spec
        self._added = added
        self._lease_seconds = times.lease_seconds
        self._report_seconds = times.status_seconds
        # As kubelet does: how often the Lease is renewed, and how long each renewal may take.
        self._renew_seconds = times.lease_seconds / 4
        self._lease_options = WriteOptions(timeout_seconds=self._renew_seconds)
        # The extended resources of an existing Node object are outdated.
        self._drop_resources = is_new_node
        self._changed = asyncio.Event()
        self._node: Document = {}
        self._last_reported: Document | None = None
        self._reported_at = 0.0
        self._lease: Document | None = None
        self._node_state = RequestState(_log, f"node {spec.name}", NODES)
        self._lease_state = RequestState(_log, f"lease {LEASE_NAMESPACE}/{spec.name}", LEASES, LEASE_NAMESPACE)
        # The latest requests for the Node and for the Lease.
        self._node_verb = self._lease_verb = "create"

    def node_health(self) -> str | None:
        """Return why the Node cannot be registered or updated, None if it can; a health check."""
        return self._node_state.health("the Node has not been registered")

    def lease_health(self) -> str | None:
        """Return why the Lease cannot be renewed, None if it can; a health check."""
        return self._lease_state.health("the Lease has not been renewed")

    @property
    def allocatable(self) -> dict[str, str]:
        """Return the allocatable resources, including extended resources that others have set in the Node's status."""
        own = allocatable(self.spec, self._added())
        return {**extended_resources((self._node.get("status") or {}).get("allocatable") or {}), **own}

    @property
    def labels(self) -> dict[str, str]:
        """The Node's labels, as last observed."""
        return (self._node.get("metadata") or {}).get("labels") or own_labels(self.spec)

    @property
    def node(self) -> Document:
        """The Node, as last observed."""
        return self._node

    def set_endpoint(self, port: int, runtime_version: str) -> None:
        """Set what is known only when the runtime and the HTTPS server have started."""
        self.spec = replace(self.spec, port=port, runtime_version=runtime_version)

    def set_images(self, images: tuple[Document, ...]) -> None:
        """Report the images of the node, soon if they have changed."""
        if images != self.spec.images:
            self.spec = replace(self.spec, images=images)
            self.resources_changed()

    def set_conditions(self, conditions: tuple[tuple[str, str, str, str], ...]) -> None:
        """Report further conditions: type, status, reason and message of each."""
        if conditions != self.spec.conditions:
            self.spec = replace(self.spec, conditions=conditions)
            self.resources_changed()

    def observe(self, node: Document) -> None:
        """Note the Node that the API server has."""
        self._node = node

    async def refresh(self) -> None:
        """Read the Node; a failure is only logged."""
        self._node_verb = "get"
        try:
            self.observe(await self._client.get(NODES, self.spec.name))
        except APIError as error:
            self._node_state.failed(self._node_verb, error)

    async def correct_once(self) -> None:
        """Write the status if it is due or was changed by another client; a failure is only logged."""
        try:
            await self._write_status()
        except APIError as error:
            self._node_state.failed(self._node_verb, error)
        else:
            self._node_state.succeeded()

    def resources_changed(self) -> None:
        """Write the status soon."""
        self._changed.set()

    async def register(self) -> None:
        """Create or update the Node with labels and status; retry until it succeeds."""
        delay = RETRY_SECONDS
        while True:
            try:
                await self._register()
                await self._write_status()
            except APIError as error:
                self._node_state.failed(self._node_verb, error)
                await self._clock.sleep(delay)
                delay = min(delay * 2, RETRY_SECONDS_MAX)
            else:
                self._node_state.succeeded()
                return

    async def run(self) -> None:
        """Update the status until cancelled."""
        while True:
            try:
                async with asyncio.timeout(STATUS_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                pass
            self._changed.clear()
            try:
                self._node_verb = "get"
                # The node lifecycle controller may have changed the conditions.
                self.observe(await self._client.get(NODES, self.spec.name, resource_version="0"))
                await self._write_status()
            except NotFoundError:
                self._last_reported = None
                await self.register()
            except APIError as error:
                self._node_state.failed(self._node_verb, error)
            else:
                self._node_state.succeeded()

    async def renew_lease(self) -> None:
        """Renew the Lease until cancelled; sooner again after a failure."""
        delay = RETRY_SECONDS
        while True:
            if await self.renew_once():
                delay = RETRY_SECONDS
                await self._clock.sleep(self._renew_seconds)
            else:
                await self._clock.sleep(min(delay, self._renew_seconds))
                delay = min(delay * 2, RETRY_SECONDS_MAX)

    async def renew_once(self) -> bool:
        """Renew the Lease once, and return whether that succeeded; a failure is only logged."""
        try:
            await self._renew()
        except APIError as error:
            self._lease = None
            self._lease_state.failed(self._lease_verb, error)
            return False
        self._lease_state.succeeded()
        return True

    async def _register(self) -> None:
        wanted = node_document(self.spec)
        self._node_verb = "create"
        try:
            self._node = await self._client.create(NODES, wanted, options=_NODE)
        except AlreadyExistsError:
            metadata = {
                name: wanted["metadata"][name] for name in ("labels", "annotations") if name in wanted["metadata"]
            }
            patch = Patch(PatchType.STRATEGIC, {"metadata": metadata})
            self._node_verb = "patch"
            self._node = await self._client.patch(NODES, self.spec.name, "", patch, _NODE)
            if self._drop_resources:
                self.spec = replace(self.spec, stale=stale_resources(self._node.get("status") or {}))
        # From now on the Node object has what this agent wrote.
        self._drop_resources = False

    async def _write_status(self) -> None:
        now = self._clock.now()
        status = node_status(self.spec, self._added(), self._node.get("status") or {}, now)
        same = self._last_reported is not None and without_heartbeats(status) == without_heartbeats(self._last_reported)
        if same and self._clock.monotonic() - self._reported_at < self._report_seconds:
            return
        patch = Patch(PatchType.STRATEGIC, {"status": status})
        self._node_verb = "patch"
        self._node = await self._client.patch(NODES, self.spec.name, "", patch, _STATUS)
        self._last_reported, self._reported_at = status, self._clock.monotonic()

    async def _renew(self) -> None:
        uid = (self._node.get("metadata") or {}).get("uid") or ""
        wanted = lease_document(self.spec.name, uid, self._clock.now(), seconds=self._lease_seconds)
        if self._lease is None:
            self._lease_verb = "create"
            try:
                self._lease = await self._client.create(LEASES, wanted, LEASE_NAMESPACE, self._lease_options)
            except AlreadyExistsError:
                self._lease = await self._read_lease()
            else:
                return
        renewed = {**self._lease, "spec": {**self._lease.get("spec", {}), **wanted["spec"]}}
        self._lease_verb = "update"
        try:
            self._lease = await self._client.update(LEASES, renewed, self._lease_options)
        except ConflictError:
            self._lease = await self._read_lease()
        except NotFoundError:
            # Collected together with a Node that was deleted.
            self._lease_verb = "create"
            self._lease = await self._client.create(LEASES, wanted, LEASE_NAMESPACE, self._lease_options)

    async def _read_lease(self) -> Document:
        self._lease_verb = "get"
        return await self._client.get(LEASES, self.spec.name, LEASE_NAMESPACE)
