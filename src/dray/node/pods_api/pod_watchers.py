"""The Pods of the node in protobuf, and their changes for the clients that watch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import cache
from typing import Final, Protocol

from dray.api.codec import to_document
from dray.api.document import Document, GroupVersionKind
from dray.api.protobuf.encode import encode_message
from dray.api.schema import load
from dray.api.schema.model import StructType
from dray.api.types.core_v1 import Pod
from dray.rpc.pb.pods.v1alpha1 import api_pb2 as pb
from dray.runtime.metrics import Metrics

# Events that may wait for one client; a client that is further behind is disconnected.
EVENTS_WAITING_MAX: Final = 100
_IDENTITY: Final = ("name", "namespace", "uid")


class ReportedPod(Protocol):
    """A Pod of the node with the status that the agent reports."""

    pod: Pod

    @property
    def uid(self) -> str:
        """The Pod's UID."""

    def status(self) -> Document | None:
        """Return the status to report; None if the API server has a final one."""


class Pods(Protocol):
    """The Pods of the node."""

    @property
    def synced(self) -> bool:
        """Whether every Pod that the API server has for this node is known."""

    def reported(self) -> Iterable[ReportedPod]:
        """Return every Pod."""

    def reported_pod(self, uid: str) -> ReportedPod | None:
        """Return the Pod with the UID."""

    def on_pod_changed(self, listener: Callable[[ReportedPod], None]) -> None:
        """Call the listener when a Pod or its status may have changed."""

    def on_pod_deleted(self, listener: Callable[[ReportedPod], None]) -> None:
        """Call the listener when a Pod is gone."""


class PodWatchers:
    """Sends the changes of Pods to the clients that watch.

    Without clients a change costs nothing: Pods are encoded only while somebody watches.
    """

    def __init__(self, pods: Pods, metrics: Metrics) -> None:
        self._pods = pods
        self._queues: set[asyncio.Queue[pb.WatchPodsEvent | None]] = set()
        # The last encoding of each Pod, so that updates without a difference are not sent. Empty without clients.
        self._encoded: dict[str, bytes] = {}
        self._dropped = metrics.counter(
            "kubelet_pod_watch_events_dropped_total", "Events of the Pods API that a slow client did not get"
        )
        pods.on_pod_changed(self._pod_changed)
        pods.on_pod_deleted(self._pod_deleted)

    def add(self) -> asyncio.Queue[pb.WatchPodsEvent | None]:
        """Return the queue of a new client; None in it ends the watch of a client that is too slow."""
        if not self._queues:
            self._encoded = {item.uid: encode_pod(item) for item in self._pods.reported()}
        queue: asyncio.Queue[pb.WatchPodsEvent | None] = asyncio.Queue()
        self._queues.add(queue)
        return queue

    def remove(self, queue: asyncio.Queue[pb.WatchPodsEvent | None]) -> None:
        """Stop sending events to a client."""
        self._queues.discard(queue)
        if not self._queues:
            self._encoded.clear()

    def present(self) -> list[bytes]:
        """Return the Pods in the order of their UIDs."""
        return [encode_pod(item) for item in sorted(self._pods.reported(), key=lambda item: item.uid)]

    def _pod_changed(self, item: ReportedPod) -> None:
        if not self._queues:
            return
        body, before = encode_pod(item), self._encoded.get(item.uid)
        if body != before:
            self._encoded[item.uid] = body
            self._send(pb.ADDED if before is None else pb.MODIFIED, body)

    def _pod_deleted(self, item: ReportedPod) -> None:
        if self._queues:
            self._encoded.pop(item.uid, None)
            metadata = to_document(item.pod.metadata)
            identity = {"metadata": {name: metadata[name] for name in _IDENTITY}}
            self._send(pb.DELETED, encode_message(identity, _pod_type()))

    def _send(self, event_type: pb.EventType, body: bytes) -> None:
        event = pb.WatchPodsEvent(type=event_type, pod=body)
        for queue in tuple(self._queues):
            if queue.qsize() < EVENTS_WAITING_MAX:
                queue.put_nowait(event)
            else:
                self._dropped.inc()
                self.remove(queue)
                queue.put_nowait(None)


def encode_pod(item: ReportedPod) -> bytes:
    """Return the Pod in the protobuf form of core/v1, with the status that the agent reports."""
    document = to_document(item.pod)
    reported = item.status()
    if reported is not None:
        stored = document.get("status") or {}
        own = {condition["type"] for condition in reported.get("conditions") or ()}
        others = [condition for condition in stored.get("conditions") or () if condition["type"] not in own]
        document["status"] = {**stored, **reported, "conditions": [*others, *(reported.get("conditions") or ())]}
    return encode_message(document, _pod_type())


@cache
def _pod_type() -> StructType:
    struct_type = load.kind_type(GroupVersionKind("", "v1", "Pod"))
    assert struct_type is not None
    return struct_type
