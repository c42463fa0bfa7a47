"""The last answer to `List`, good for as long as nothing it tells of has changed. Pure.

Monitoring asks every few seconds, Pods and devices change now and then: most answers are the one before.
"""

from __future__ import annotations

import operator

from dray.api.types.core_v1 import Pod
from dray.node.pod_resources.interface import Sources
from dray.node.pod_resources.listing import pod_resources
from dray.rpc.pb.podresources.v1 import api_pb2 as v1


class Answers:
    """Makes answers and keeps the last one; Pods are never changed, only replaced."""

    def __init__(self, sources: Sources, *, dynamic: bool, extended: bool) -> None:
        self._sources = sources
        self._dynamic = dynamic
        self._extended = extended
        self._pods: tuple[Pod, ...] = ()
        self._revision: tuple[int, ...] = ()
        self._answer = v1.ListPodResourcesResponse()

    def all(self, pods: tuple[Pod, ...]) -> v1.ListPodResourcesResponse:
        """What these Pods have."""
        revision = self._sources.revision
        if revision != self._revision or not _are_same(pods, self._pods):
            self._answer = v1.ListPodResourcesResponse(pod_resources=[self.one(pod) for pod in pods])
            self._pods, self._revision = pods, revision
        return self._answer

    def one(self, pod: Pod) -> v1.PodResources:
        """What one Pod has."""
        return pod_resources(pod, self._sources, dynamic=self._dynamic, extended=self._extended)


def _are_same(pods: tuple[Pod, ...], others: tuple[Pod, ...]) -> bool:
    return len(pods) == len(others) and all(map(operator.is_, pods, others))
