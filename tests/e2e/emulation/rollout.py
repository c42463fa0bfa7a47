"""A cluster in one process and in virtual time, whose components restart with other gates while its nodes run on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from dray.api.document import Document, GroupVersion
from dray.api.errors import ServiceUnavailableError
from dray.api.features import FeatureGates
from dray.api.gate_table import CURRENT, Release
from dray.apiserver.composition import running_server
from dray.apiserver.in_process import in_process_config
from dray.apiserver.local_transport import LocalTransport
from dray.apiserver.registry import builtin
from dray.apiserver.registry.served_versions import parse_runtime_config
from dray.client.in_process import in_process_client
from dray.client.interface import LocalRequest, WatchBatch, unstructured
from dray.client.resources import (
    DEVICE_CLASSES,
    NAMESPACES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    SERVICE_ACCOUNTS,
)
from dray.client.rest import RestClient
from dray.client.shared_informers import SharedInformerFactory
from dray.cmd.controllers import spawn_controllers
from dray.cmd.scheduler import spawn_scheduler
from dray.cmd.served_features import resources_of, served_features
from dray.cmd.simulated_devices import read_devices
from dray.cmd.simulated_nodes import SimulatedNodes, Simulation
from dray.cmd.testing.threads import ContextTask
from dray.runtime.metrics import Metrics
from dray.runtime.tasks import TaskGroup
from dray.scheduler.config import SchedulerConfig
from dray.sim.replica.virtual_time import LoopClock, run_virtually
from dray.store.memory import MemoryStore

T = TypeVar("T")
MASTERS = ("system:masters",)
GPU = "gpu"
SECONDS_MAX = 120.0
LOOK_SECONDS = 0.25
EVENTS = unstructured(GroupVersion("", "v1"), "events", "Event")


def gates(text: str = "", release: Release = CURRENT) -> FeatureGates:
    return FeatureGates.parse(text, release)


class Entrance:
    """The server that runs now; while there is none, requests fail as at a port that nobody listens on."""

    def __init__(self) -> None:
        self.server: LocalTransport | None = None

    async def handle(self, request: LocalRequest) -> Document:
        return await self._running().handle(request)

    async def watch(self, request: LocalRequest) -> AsyncIterator[WatchBatch]:
        return await self._running().watch(request)

    def _running(self) -> LocalTransport:
        if self.server is None:
            raise ServiceUnavailableError("connection refused")
        return self.server


class Rollout:
    """A cluster with one node of two GPUs; every component can be restarted alone."""

    def __init__(self) -> None:
        self.clock = LoopClock()
        self.entrance = Entrance()
        self.client = self._client("admin")
        self.warnings: list[str] = []
        self._store = MemoryStore()
        self._parts: dict[str, ContextTask[Any]] = {}

    async def serve(self, features: FeatureGates, runtime_config: Sequence[str] = ()) -> None:
        """Start the API server anew, on the same store."""
        await self._stop("server")
        self.entrance.server = None
        self._parts["server"] = await ContextTask.start(self._server(features, runtime_config), "server")

    async def schedule(self, features: FeatureGates) -> None:
        """Start the scheduler anew."""

        def spawn(group: TaskGroup, client: RestClient, own: FeatureGates) -> SharedInformerFactory:
            return spawn_scheduler(group, client, self.clock, self.metrics, config=SchedulerConfig(), features=own)

        self.metrics = Metrics()
        await self._start("scheduler", features, spawn)

    async def control(self, features: FeatureGates) -> None:
        """Start the controllers anew."""

        def spawn(group: TaskGroup, client: RestClient, own: FeatureGates) -> SharedInformerFactory:
            return spawn_controllers(group, client, self.clock, Metrics(), root_ca="PEM", gates=own)

        await self._start("controllers", features, spawn)

    async def start_node(self, devices: str = f"{GPU}:2xL4") -> None:
        """Start the node, which nothing restarts."""
        self._parts["node"] = await ContextTask.start(self._node(devices), "node")

    async def stop(self) -> None:
        for name in reversed(list(self._parts)):
            await self._stop(name)
        await self._store.close()

    async def _start(
        self,
        name: str,
        features: FeatureGates,
        spawn: Callable[[TaskGroup, RestClient, FeatureGates], SharedInformerFactory],
    ) -> None:
        await self._stop(name)

        @asynccontextmanager
        async def running() -> AsyncIterator[None]:
            client = self._client(name)
            # As the processes do.
            own = served_features(resources_of(await client.resources()), features)
            async with TaskGroup(name) as group:
                informers = spawn(group, client, own)
                await self.eventually(lambda: _look(informers.out_of_sync), lambda late: not late)
                yield
                await group.cancel()

        self._parts[name] = await ContextTask.start(running(), name)

    async def _stop(self, name: str) -> None:
        part = self._parts.pop(name, None)
        if part is not None:
            await part.stop()

    @asynccontextmanager
    async def _server(self, features: FeatureGates, runtime_config: Sequence[str]) -> AsyncIterator[None]:
        config = in_process_config(self._store, self.clock, random.Random(1), gates=features)
        apis = parse_runtime_config(runtime_config, builtin.endpoints(), features.release)
        async with running_server(replace(config, runtime_config=apis)) as server:
            self.entrance.server = LocalTransport(server)
            yield

    @asynccontextmanager
    async def _node(self, devices: str) -> AsyncIterator[None]:
        simulation = Simulation(1, devices=read_devices([devices]) if devices else ())
        async with TaskGroup("node") as group:
            registered = asyncio.Event()
            group.spawn(SimulatedNodes(self._client("kubelet"), self.clock, simulation).run(registered), "node")
            await registered.wait()
            yield
            await group.cancel()

    def _client(self, user: str) -> RestClient:
        return in_process_client(self.entrance, user=user, groups=MASTERS, user_agent=user)

    # --- What a user does and sees. ---

    async def prepare(self) -> None:
        """Create what a new cluster has."""
        await self.client.create(NAMESPACES, {"metadata": {"name": "default"}})
        account = {"metadata": {"name": "default", "namespace": "default"}}
        await self.client.create(SERVICE_ACCOUNTS, account)

    async def claim(self, name: str, *requests: Document, version: str = "v1") -> Document:
        """Create a claim; return it as the server answers."""
        resource = unstructured(GroupVersion("resource.k8s.io", version), "resourceclaims", "ResourceClaim")
        spec = {"devices": {"requests": list(requests)}}
        return await self.client.create(resource, {"metadata": {"name": name, "namespace": "default"}, "spec": spec})

    async def template(self, name: str, *requests: Document) -> None:
        """Create a template of claims."""
        spec = {"spec": {"devices": {"requests": list(requests)}}}
        metadata = {"name": name, "namespace": "default"}
        await self.client.create(RESOURCE_CLAIM_TEMPLATES.unstructured, {"metadata": metadata, "spec": spec})

    async def stored_claim(self, name: str) -> Document:
        return await self.client.get(RESOURCE_CLAIMS.unstructured, name, "default")

    async def stored_pod(self, name: str) -> Document:
        return await self.client.get(PODS.unstructured, name, "default")

    async def pod(self, name: str, claim: str = "", *, template: str = "", **limits: str) -> Document:
        """Create a Pod with a claim, by name or from a template, or with extended resources."""
        container: Document = {"name": "a", "image": "image", "resources": {"limits": limits}}
        spec: Document = {"containers": [container], "terminationGracePeriodSeconds": 0}
        if claim or template:
            source = {"resourceClaimName": claim} if claim else {"resourceClaimTemplateName": template}
            container["resources"]["claims"] = [{"name": "gpu"}]
            spec["resourceClaims"] = [{"name": "gpu", **source}]
        metadata = {"name": name, "namespace": "default"}
        return await self.client.create(PODS.unstructured, {"metadata": metadata, "spec": spec})

    async def running(self, name: str) -> Document:
        """Wait until a Pod runs."""
        return await self.eventually(
            lambda: self.stored_pod(name), lambda pod: pod["status"].get("phase") == "Running" and bool(started_at(pod))
        )

    async def pending(self, name: str, message: str) -> None:
        """Wait until the condition of a Pod says why it is not scheduled."""
        await self.eventually(lambda: self.stored_pod(name), lambda pod: message in scheduling_message(pod))

    async def delete(self, *names: str) -> None:
        """Delete Pods, and wait until they are gone."""
        for name in names:
            await self.client.delete(PODS.unstructured, name, "default")
        await self.eventually(self._pod_names, lambda left: left.isdisjoint(names))

    async def _pod_names(self) -> set[str]:
        return {pod["metadata"]["name"] for pod in (await self.client.list(PODS.unstructured, "default")).items}

    async def name_extended_resource(self, name: str) -> Document:
        """Give the class a name for extended resources."""
        found = await self.client.get(DEVICE_CLASSES.unstructured, GPU)
        found["spec"]["extendedResourceName"] = name
        return await self.client.update(DEVICE_CLASSES.unstructured, found)

    async def events(self, reason: str) -> list[str]:
        """Return the messages of events with a reason."""
        return [
            item["message"] for item in (await self.client.list(EVENTS, "default")).items if item["reason"] == reason
        ]

    async def eventually(self, read: Callable[[], Awaitable[T]], good: Callable[[T], bool]) -> T:
        deadline = self.clock.monotonic() + SECONDS_MAX
        found: T | None = None
        while self.clock.monotonic() < deadline:
            try:
                found = await read()
            except ServiceUnavailableError:
                found = None
            if found is not None and good(found):
                return found
            await self.clock.sleep(LOOK_SECONDS)
        pytest.fail(f"still {found}")


async def _look(out_of_sync: Callable[[], str | None]) -> str:
    return out_of_sync() or ""


def exactly(**fields: Any) -> Document:
    return {"name": "gpu", "exactly": {"deviceClassName": GPU, **fields}}


def first_available(*counts: int) -> Document:
    alternatives = [
        {"name": f"a{number}", "deviceClassName": GPU, "count": count} for number, count in enumerate(counts)
    ]
    return {"name": "gpu", "firstAvailable": alternatives}


def scheduling_message(pod: Document) -> str:
    conditions = pod["status"].get("conditions") or ()
    return next((item.get("message", "") for item in conditions if item["type"] == "PodScheduled"), "")


def started_at(pod: Document) -> tuple[str, int]:
    """When the container was started and how often, which says that it is the same one."""
    statuses = pod["status"].get("containerStatuses") or ()
    found = [(item["state"].get("running", {}).get("startedAt", ""), item["restartCount"]) for item in statuses]
    return found[0] if found else ("", 0)


def rollout(test: Callable[[Rollout], Coroutine[Any, Any, None]]) -> None:
    """Run a test with a cluster that has no component yet."""

    async def main() -> None:
        cluster = Rollout()
        try:
            await test(cluster)
        finally:
            await cluster.stop()

    run_virtually(main())
