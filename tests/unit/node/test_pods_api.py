"""The Pods API over a real socket, with Pods that the test changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from dray.api.document import Document, GroupVersionKind
from dray.api.protobuf.decode import decode_message
from dray.api.schema import load
from dray.api.types.core_v1 import Pod
from dray.node.pods_api.pod_watchers import EVENTS_WAITING_MAX, PodWatchers, ReportedPod
from dray.node.pods_api.servicer import PodsServer
from dray.rpc.pb.pods.v1alpha1 import api_pb2 as pb
from dray.rpc.pb.pods.v1alpha1.api_pb2_grpc import PodsStub
from dray.rpc.sockets import connect
from dray.runtime.metrics import Metrics
from dray.runtime.system import SystemClock
from tests.unit.node.agent.builders import pod

POD_TYPE = load.kind_type(GroupVersionKind("", "v1", "Pod"))
SCHEDULED = {"type": "PodScheduled", "status": "True"}
READY = {"type": "Ready", "status": "True"}


@dataclass
class Item:
    """A Pod with its status."""

    pod: Pod
    reported: Document | None = None

    @property
    def uid(self) -> str:
        return self.pod.metadata.uid or ""

    def status(self) -> Document | None:
        return self.reported


class Pods:
    """The Pods of a node, changed by the test."""

    def __init__(self) -> None:
        self.synced = True
        self.items: dict[str, Item] = {}
        self.changed: Callable[[ReportedPod], None] = lambda _item: None
        self.deleted: Callable[[ReportedPod], None] = lambda _item: None

    def reported(self) -> Iterable[Item]:
        return self.items.values()

    def reported_pod(self, uid: str) -> Item | None:
        return self.items.get(uid)

    def on_pod_changed(self, listener: Callable[[ReportedPod], None]) -> None:
        self.changed = listener

    def on_pod_deleted(self, listener: Callable[[ReportedPod], None]) -> None:
        self.deleted = listener

    def put(self, uid: str, reported: Document | None = None, **status: Any) -> Item:
        item = self.items[uid] = Item(pod(metadata={"uid": uid, "name": f"p-{uid}"}, status=status), reported)
        self.changed(item)
        return item

    def delete(self, uid: str) -> None:
        self.deleted(self.items.pop(uid))


@pytest.fixture
def pods() -> Pods:
    return Pods()


@pytest_asyncio.fixture
async def client(pods: Pods, tmp_path: Path) -> AsyncIterator[Any]:
    server = PodsServer(str(tmp_path), pods, SystemClock(), Metrics())
    async with asyncio.TaskGroup() as group:
        task = group.create_task(server.run())
        async with connect(str(tmp_path / "pods-api" / "pods-api.sock")) as channel:
            await channel.channel_ready()
            yield PodsStub(channel)
        task.cancel()


def decoded(body: bytes) -> Document:
    assert POD_TYPE is not None
    return decode_message(body, POD_TYPE)


@pytest.mark.behaviour("N-140")
async def test_list_is_ordered_by_uid_and_has_the_status_of_the_agent(pods: Pods, client: Any) -> None:
    pods.put("b", {"phase": "Running", "conditions": [READY]}, phase="Pending", conditions=[SCHEDULED])
    pods.put("a", None, phase="Succeeded")
    answer = await client.ListPods(pb.ListPodsRequest())
    first, second = map(decoded, answer.pods)
    assert [item["metadata"]["uid"] for item in (first, second)] == ["a", "b"]
    # The API server has the final status of a Pod that ended before the agent started.
    assert first["status"]["phase"] == "Succeeded"
    assert second["status"]["phase"] == "Running"
    assert [condition["type"] for condition in second["status"]["conditions"]] == ["PodScheduled", "Ready"]


@pytest.mark.behaviour("N-140")
async def test_get_by_uid(pods: Pods, client: Any) -> None:
    pods.put("a")
    answer = await client.GetPod(pb.GetPodRequest(podUID="a"))
    assert decoded(answer.pod)["metadata"]["name"] == "p-a"
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await client.GetPod(pb.GetPodRequest(podUID="other"))
    assert failure.value.code() is grpc.StatusCode.NOT_FOUND
    assert failure.value.details() == "pod with UID other not found"


@pytest.mark.behaviour("N-140")
async def test_nothing_is_answered_before_the_pods_are_known(pods: Pods, client: Any) -> None:
    pods.synced = False
    for call in (client.ListPods(pb.ListPodsRequest()), client.GetPod(pb.GetPodRequest(podUID="a"))):
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await call
        assert failure.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert failure.value.details() == "Kubelet is initializing"
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await client.WatchPods(pb.WatchPodsRequest()).read()
    assert failure.value.code() is grpc.StatusCode.FAILED_PRECONDITION


@pytest.mark.behaviour("N-140")
async def test_watch(pods: Pods, client: Any) -> None:
    pods.put("a", phase="Pending")
    watch = client.WatchPods(pb.WatchPodsRequest())
    events = [await watch.read(), await watch.read()]
    assert [event.type for event in events] == [pb.ADDED, pb.INITIAL_SYNC_COMPLETE]
    pods.put("b", phase="Pending")
    pods.put("b", phase="Pending")
    pods.put("b", phase="Running")
    pods.delete("b")
    events = [await watch.read() for _ in range(3)]
    # The update without a difference was not sent.
    assert [event.type for event in events] == [pb.ADDED, pb.MODIFIED, pb.DELETED]
    assert decoded(events[1].pod)["status"]["phase"] == "Running"
    assert decoded(events[2].pod)["metadata"] == {"name": "p-b", "namespace": "ns", "uid": "b"}
    watch.cancel()


@pytest.mark.behaviour("N-140")
async def test_more_requests_than_the_rate_limit_allows(pods: Pods, client: Any) -> None:
    pods.put("a")
    calls = [client.ListPods(pb.ListPodsRequest()) for _ in range(200)]
    codes = {await call.code() for call in calls}
    assert codes == {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}


@pytest.mark.behaviour("N-140")
def test_a_slow_client_is_disconnected_and_others_are_not(pods: Pods) -> None:
    metrics = Metrics()
    watchers = PodWatchers(pods, metrics)
    slow, quick = watchers.add(), watchers.add()
    received = []
    for number in range(EVENTS_WAITING_MAX + 5):
        pods.put(f"u{number:03}")
        received.append(quick.get_nowait())
    assert len(received) == EVENTS_WAITING_MAX + 5
    waiting = [slow.get_nowait() for _ in range(slow.qsize())]
    assert len(waiting) == EVENTS_WAITING_MAX + 1
    assert waiting[-1] is None
    assert metrics.value("kubelet_pod_watch_events_dropped_total") == 1


@pytest.mark.behaviour("N-140")
def test_changes_cost_nothing_while_nobody_watches(pods: Pods) -> None:
    watchers = PodWatchers(pods, Metrics())
    item = pods.put("a")
    item.status = pytest.fail  # type: ignore[method-assign]
    pods.changed(item)
    del item.status
    queue = watchers.add()
    watchers.remove(queue)
    item.status = pytest.fail  # type: ignore[method-assign]
    pods.changed(item)
    assert queue.empty()
