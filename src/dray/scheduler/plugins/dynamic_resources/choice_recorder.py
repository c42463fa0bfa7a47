"""Tells which alternatives of prioritized lists Pods got: by a metric, and by an event if there was a better one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dray.allocator import claim_label
from dray.api.prioritized_lists import Choice, choices
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import AllocationResult, ResourceClaim
from dray.scheduler.handle import Handle

LOWER_CHOICE: Final = "LowerChoiceAllocated"
_NORMAL: Final = "Normal"
# Users choose the names of requests; beyond these, all share one label.
LABELS_MAX: Final = 500
OTHER: Final = "other"


class ChoiceRecorder:
    """One per scheduler."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._labels: set[tuple[str, str]] = set()
        self._counter = handle.metrics.counter(
            "dray_prioritized_list_choices_total",
            "Alternatives of prioritized lists that were allocated, by class, request and rank.",
            ("class", "request", "rank"),
        )

    def record(self, pod: Pod, claim: ResourceClaim, allocation: AllocationResult) -> None:
        """Record what the claim got, whose allocation has been written for the Pod."""
        lower: list[Choice] = []
        for choice in choices(claim, allocation):
            rank = "fallback" if choice.is_fallback else "first"
            self._counter.labels(*self._bounded(choice.alternative.device_class_name, choice.request.name), rank).inc()
            if choice.is_fallback:
                lower.append(choice)
        if lower:
            self._handle.record(pod, _NORMAL, LOWER_CHOICE, self._text(claim, lower))

    def _bounded(self, class_name: str, request: str) -> tuple[str, str]:
        labels = class_name, request
        if labels not in self._labels:
            if len(self._labels) >= LABELS_MAX:
                return OTHER, OTHER
            self._labels.add(labels)
        return labels

    def _text(self, claim: ResourceClaim, lower: Sequence[Choice]) -> str:
        got = ", ".join(f"{choice} of class {choice.alternative.device_class_name}" for choice in lower)
        return f"claim {claim_label(claim)} got a lower choice: {got}"
