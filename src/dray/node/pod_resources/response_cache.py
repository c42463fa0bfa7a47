"""The cached response of `List` in encoded form. Pure.

Monitoring calls `List` every few seconds, while Pods and devices change rarely. When one Pod has changed, as after each
update of its status, only its part is encoded again.
"""

from __future__ import annotations

import operator

from dray.api.types.core_v1 import Pod
from dray.node.pod_resources.listing import in_order, pod_resources
from dray.node.pod_resources.sources import Sources
from dray.rpc.pb.podresources.v1 import api_pb2 as v1


class ListResponseCache:
    """Builds responses and caches the last one; Pods are immutable, so that identity is enough to compare them."""

    def __init__(self, sources: Sources, *, dynamic: bool, pod_level: bool = False) -> None:
        self._sources = sources
        self._dynamic = dynamic
        self._pod_level = pod_level
        self._pods: tuple[Pod, ...] = ()
        self._revision: tuple[int, ...] = ()
        # By UID: the Pod and its part of the response.
        self._parts: dict[str, tuple[Pod, bytes]] = {}
        self._answer = b""

    def all(self, pods: tuple[Pod, ...]) -> bytes:
        """Return an encoded `ListPodResourcesResponse` of the Pods, in the order of their names."""
        revision = self._sources.revision
        if revision != self._revision:
            self._parts.clear()
        elif _are_same(pods, self._pods):
            return self._answer
        self._parts = {pod.metadata.uid or "": self._part(pod) for pod in in_order(pods)}
        # Concatenated messages are one message with the list entries of all.
        self._answer = b"".join([part for _, part in self._parts.values()])
        self._pods, self._revision = pods, revision
        return self._answer

    def _part(self, pod: Pod) -> tuple[Pod, bytes]:
        found = self._parts.get(pod.metadata.uid or "")
        if found is not None and found[0] is pod:
            return found
        return pod, v1.ListPodResourcesResponse(pod_resources=[self.one(pod)]).SerializeToString()

    def one(self, pod: Pod) -> v1.PodResources:
        """Return the message of one Pod."""
        return pod_resources(pod, self._sources, dynamic=self._dynamic, pod_level=self._pod_level)


def _are_same(pods: tuple[Pod, ...], others: tuple[Pod, ...]) -> bool:
    return len(pods) == len(others) and all(map(operator.is_, pods, others))
