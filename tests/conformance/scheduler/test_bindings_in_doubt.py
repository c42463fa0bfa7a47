"""A binding without a response: it is repeated, and reported as failed only when it cannot succeed any more."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from dray.api.document import Document
from dray.api.errors import APIError, ConflictError, ForbiddenError, InsufficientStorageError, ServiceUnavailableError
from dray.api.types.core_v1 import Pod
from dray.api.types.scheduling_v1beta1 import PodGroup
from dray.client.in_process import InProcessTransport
from dray.client.interface import DeleteOptions, Patch, PatchType
from dray.client.resources import PODS
from dray.client.rest import Call, RestClient
from dray.client.shared_informers import SharedInformerFactory
from dray.framework.cycle_state import CycleState, GroupState
from dray.framework.pod_info import PodInfo
from dray.framework.status import Status
from dray.scheduler.handle import Handle
from dray.scheduler.plugins.default_binder import ATTEMPTS_MAX, DefaultBinder
from dray.sim.replica.virtual_time import LoopClock, run_virtually
from tests.in_process_server import in_process_server

TEAM = "team"
LOST = ServiceUnavailableError("no response")


@dataclass
class Network:
    """A transport whose requests are handled by `on_binding` and `on_patch`, if given."""

    inner: InProcessTransport
    on_binding: Callable[[Call], Awaitable[Document]] | None = None
    on_patch: Callable[[Call], Awaitable[Document]] | None = None
    bindings: list[Call] = field(default_factory=list)

    async def send(self, call: Call) -> Document:
        if call.subresource == "binding":
            self.bindings.append(call)
            if self.on_binding is not None:
                return await self.on_binding(call)
        if call.verb == "patch" and self.on_patch is not None:
            return await self.on_patch(call)
        return await self.inner.send(call)

    def stream(self, call: Call) -> Any:
        return self.inner.stream(call)

    async def close(self) -> None:
        await self.inner.close()


@dataclass
class Fixture:
    network: Network
    user: RestClient
    binder: DefaultBinder
    pod: Pod
    state: CycleState

    async def bind(self) -> Status:
        return await self.binder.bind(self.state, self.pod, "n1")

    async def live(self) -> Pod:
        return await self.user.get(PODS, "p", TEAM)

    async def annotate(self) -> Pod:
        patch = Patch(PatchType.MERGE, {"metadata": {"annotations": {"changed": "yes"}}})
        return await self.user.patch(PODS, "p", TEAM, patch)

    async def arrives_late(self, call: Call) -> bool:
        """Return whether a request that was on its way all the time has an effect."""
        try:
            await self.network.inner.send(call)
        except APIError:
            return False
        return True


def drive(story: Callable[[Fixture], Awaitable[None]]) -> None:
    async def run() -> None:
        clock = LoopClock()
        async with in_process_server(clock, random.Random(1), TEAM) as server:
            user = RestClient(InProcessTransport(server, user="u", groups=("system:masters",), user_agent="u"))
            network = Network(InProcessTransport(server, user="s", groups=("system:masters",), user_agent="s"))
            client = RestClient(network)
            informers = SharedInformerFactory(client, clock, random.Random(1))
            handle = Handle(client, informers, clock, *(None,) * 4)  # type: ignore[arg-type]
            document = {
                "metadata": {"name": "p", "namespace": TEAM},
                "spec": {"containers": [{"name": "c", "image": "i"}]},
            }
            pod = await user.create(PODS, msgspec.convert(document, Pod))
            await story(Fixture(network, user, DefaultBinder(handle), pod, CycleState(PodInfo(pod))))

    run_virtually(run())


async def lose(_call: Call) -> Document:
    raise LOST


def test_a_binding_is_conditional_on_the_version_of_the_pod() -> None:
    async def story(cluster: Fixture) -> None:
        assert (await cluster.bind()).is_success
        [call] = cluster.network.bindings
        assert isinstance(call.body, dict)
        assert call.body["metadata"]["resourceVersion"] == cluster.pod.metadata.resource_version
        assert call.body["metadata"]["uid"] == cluster.pod.metadata.uid

    drive(story)


def test_a_pod_that_changed_is_bound_at_its_new_version() -> None:
    async def story(cluster: Fixture) -> None:
        await cluster.annotate()
        assert (await cluster.bind()).is_success
        assert len(cluster.network.bindings) == 2
        assert (await cluster.live()).spec.node_name == "n1"

    drive(story)


def test_a_pod_that_must_have_a_version_is_not_bound_at_another() -> None:
    async def story(cluster: Fixture) -> None:
        cluster.state.pod_version = cluster.pod.metadata.resource_version or ""
        await cluster.annotate()
        assert "Precondition failed" in (await cluster.bind()).message
        assert not (await cluster.live()).spec.node_name

    drive(story)


def test_an_executed_binding_without_a_response_is_a_success() -> None:
    async def story(cluster: Fixture) -> None:
        async def execute(call: Call) -> Document:
            await cluster.network.inner.send(call)
            raise LOST

        cluster.network.on_binding = execute
        assert (await cluster.bind()).is_success
        assert len(cluster.network.bindings) == 1

    drive(story)


def test_a_binding_that_was_reported_as_failed_cannot_succeed_later() -> None:
    async def story(cluster: Fixture) -> None:
        cluster.network.on_binding = lose
        status = await cluster.bind()
        assert "no response" in status.message
        assert len(cluster.network.bindings) == ATTEMPTS_MAX
        assert [await cluster.arrives_late(call) for call in cluster.network.bindings] == [False] * ATTEMPTS_MAX
        live = await cluster.live()
        assert not live.spec.node_name
        [condition] = [item for item in live.status.conditions if item.type == "PodScheduled"]
        assert (condition.status, condition.reason) == ("False", "SchedulerError")

    drive(story)


def test_a_rejection_of_the_repetition_does_not_settle_the_first_request() -> None:
    async def story(cluster: Fixture) -> None:
        async def lose_then_forbid(call: Call) -> Document:
            if len(cluster.network.bindings) == 1:
                raise LOST
            assert call.resource is not None
            raise ForbiddenError(call.resource.group_resource, call.name, "no")

        cluster.network.on_binding = lose_then_forbid
        assert not (await cluster.bind()).is_success
        assert not await cluster.arrives_late(cluster.network.bindings[0])

    drive(story)


def test_a_binding_that_a_full_store_refused_is_not_in_doubt() -> None:
    async def story(cluster: Fixture) -> None:
        async def refuse(_call: Call) -> Document:
            raise InsufficientStorageError("the store is full")

        cluster.network.on_binding = cluster.network.on_patch = refuse
        async with asyncio.timeout(1):
            status = await cluster.bind()
        assert "the store is full" in status.message
        assert (await cluster.live()).metadata.resource_version == cluster.pod.metadata.resource_version

    drive(story)


def test_it_is_not_reported_while_the_server_does_not_respond() -> None:
    async def story(cluster: Fixture) -> None:
        patches = 0

        async def lose_some(call: Call) -> Document:
            nonlocal patches
            patches += 1
            if patches < 20:
                raise LOST
            return await cluster.network.inner.send(call)

        cluster.network.on_binding, cluster.network.on_patch = lose, lose_some
        assert not (await cluster.bind()).is_success
        assert patches == 20
        assert not await cluster.arrives_late(cluster.network.bindings[-1])

    drive(story)


def test_it_may_succeed_while_it_is_settled() -> None:
    async def story(cluster: Fixture) -> None:
        async def arrive(_call: Call) -> Document:
            assert await cluster.arrives_late(cluster.network.bindings[0])
            raise LOST

        cluster.network.on_binding, cluster.network.on_patch = lose, arrive
        assert (await cluster.bind()).is_success

    drive(story)


@pytest.mark.parametrize("grace", [0, 30])
def test_a_deleted_pod_settles_it(grace: int) -> None:
    async def story(cluster: Fixture) -> None:
        async def delete(_call: Call) -> Document:
            await cluster.user.delete(PODS, "p", TEAM, DeleteOptions(grace_period_seconds=grace))
            raise LOST

        cluster.network.on_binding = delete
        assert not (await cluster.bind()).is_success
        assert not await cluster.arrives_late(cluster.network.bindings[0])

    drive(story)


def test_whoever_else_bound_the_pod_to_the_same_node_bound_it() -> None:
    async def story(cluster: Fixture) -> None:
        async def overtaken(call: Call) -> Document:
            await cluster.network.inner.send(call)
            assert call.resource is not None
            raise ConflictError(call.resource.group_resource, call.name, "already assigned")

        cluster.network.on_binding = overtaken
        assert "already assigned" in (await cluster.bind()).message

    drive(story)


# --- Pods of a group. ---


@pytest.mark.behaviour("GW-58")
@pytest.mark.parametrize("end", ["answers", "forbids", "deleted"])
def test_a_pod_of_a_group_is_bound_however_long_the_server_does_not_answer(end: str) -> None:
    """Others of its gang may be bound already; it gives up if the server refuses it, or if it is gone."""

    async def story(cluster: Fixture) -> None:
        cluster.state.group = GroupState(PodGroup())

        async def late(call: Call) -> Document:
            if len(cluster.network.bindings) <= 3 * ATTEMPTS_MAX:
                raise LOST
            if end == "forbids":
                assert call.resource is not None
                raise ForbiddenError(call.resource.group_resource, call.name, "no")
            return await cluster.network.inner.send(call)

        cluster.network.on_binding = late
        if end == "deleted":
            cluster.network.on_binding = lose
            work = asyncio.ensure_future(cluster.bind())
            await asyncio.sleep(60)
            assert not work.done()
            await cluster.user.delete(PODS, "p", TEAM, DeleteOptions(grace_period_seconds=0))
            assert not (await work).is_success
            return
        status = await cluster.bind()
        assert len(cluster.network.bindings) > 3 * ATTEMPTS_MAX
        assert status.is_success is (end == "answers")
        # None of the requests without an answer can succeed any more.
        if end == "forbids":
            assert not any([await cluster.arrives_late(call) for call in cluster.network.bindings[:-1]])

    drive(story)


def test_a_pod_alone_is_given_back_when_its_binding_cannot_succeed_any_more() -> None:
    async def story(cluster: Fixture) -> None:
        cluster.network.on_binding = lose
        assert not (await cluster.bind()).is_success
        assert len(cluster.network.bindings) == ATTEMPTS_MAX

    drive(story)
