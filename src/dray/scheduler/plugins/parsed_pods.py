"""What queueing hints parse from pending Pods, kept as long as the Pod's spec and labels are the same. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Generic, TypeVar

from dray.api.types.core_v1 import Pod, PodSpec

T = TypeVar("T")

# Pods; beyond that all are parsed again.
PODS_MAX: Final = 10_000


class ParsedPods(Generic[T]):
    """Parsed values by the Pod's uid."""

    def __init__(self, parse: Callable[[Pod], T]) -> None:
        self._parse = parse
        self._found: dict[str, tuple[PodSpec, Mapping[str, str], T]] = {}

    def get(self, pod: Pod) -> T:
        """Return the parsed value of a Pod."""
        uid, spec, labels = pod.metadata.uid or "", pod.spec, pod.metadata.labels
        known = self._found.get(uid)
        if known is not None and known[0] is spec and known[1] is labels:
            return known[2]
        if len(self._found) >= PODS_MAX:
            self._found.clear()
        value = self._parse(pod)
        self._found[uid] = (spec, labels, value)
        return value
