"""Whether a Pod that uses a claim is gone: its word frees devices, and a cache that is behind must not give it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

from dray.api.types.core_v1 import Pod
from dray.client.interface import Client, ignore_not_found
from dray.client.resources import PODS
from dray.client.shared_informers import SharedInformer
from dray.lib.lru import LRUSet

# Pods known to be deleted; forgetting one costs a question to the server.
DELETED_MAX: Final = 500

# The Pod of a name, None when there is none.
FindPod: TypeAlias = Callable[[str], Pod | None]


class UserPods:
    """The Pods of the informer, those it has told the end of, and the server's word where it is needed."""

    def __init__(self, client: Client, pods: SharedInformer[Pod]) -> None:
        self._client = client
        self._pods = pods
        self._deleted: LRUSet[str] = LRUSet(DELETED_MAX)

    def told_deleted(self, pod: Pod) -> None:
        """The informer has told that the Pod is gone."""
        self._deleted.add(pod.metadata.uid or "")

    def is_deleted(self, uid: str) -> bool:
        """Whether the Pod is known to be gone; it may be without that being known."""
        return uid in self._deleted

    def cached(self, namespace: str) -> FindPod:
        """Find Pods in the cache."""
        get = self._pods.lister.get
        return lambda name: get(name, namespace)

    async def confirmed(self, names: Iterable[str], namespace: str) -> FindPod:
        """Ask the server for these, and find the others in the cache."""
        cached = self.cached(namespace)
        answers: dict[str, Pod | None] = {}
        for name in names:
            answer = await ignore_not_found(self._client.get(PODS, name, namespace))
            answers[name] = answer
        return lambda name: answers[name] if name in answers else cached(name)


@dataclass(frozen=True, slots=True)
class Problem:
    """Why an entry cannot have its claim."""

    entry: str
    message: str

    @property
    def event_message(self) -> str:
        """As the Pod's user reads it."""
        return f"PodResourceClaim {self.entry}: {self.message}"
