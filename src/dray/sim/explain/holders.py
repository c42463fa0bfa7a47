"""Finds the claims that hold the devices and counters which a Pod lacks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from dray.allocator import DeviceReason, RequestExplanation, claim_label
from dray.allocator.device_reasons import InUse, LacksCounter
from dray.api.types.resource_v1 import ResourceClaim
from dray.sim.explain.answers import NodeAnswer
from dray.sim.explain.cluster_changes import Surroundings, holder_text
from dray.sim.explain.filters import DYNAMIC_RESOURCES
from dray.sim.explain.similar_names import listed

_CLAIMS_SHOWN: Final = 3


def holders(cluster: Surroundings, answers: Sequence[NodeAnswer]) -> tuple[str, ...]:
    """Return for nodes with enough devices which claims hold them, the node with the fewest missing devices first."""
    finder = _HolderFinder(cluster)
    found: list[tuple[int, str]] = []
    for answer in answers:
        if answer.rejections.keys() - {DYNAMIC_RESOURCES}:
            continue
        for request in answer.requests:
            held = [reason for reason in request.reasons if isinstance(reason, InUse | LacksCounter)]
            missing = request.needed - request.usable
            if request.note is None and 0 < missing <= len(held) and (text := finder.text(held)):
                found.append((missing, f"{answer.node} has {_usable(request)}: {text}"))
    # Alternatives of a request may lack the same devices.
    return tuple(dict.fromkeys(text for _, text in sorted(found, key=lambda item: item[0])))


def _usable(request: RequestExplanation) -> str:
    return f"{request.usable} of {request.needed}"


class _HolderFinder:
    """Finds claims by their labels, and by the counter sets that their devices consume."""

    def __init__(self, cluster: Surroundings) -> None:
        self._now = cluster.now
        # By pool and counter set: the claim, and its device.
        self._by_counter_set: dict[tuple[str, str], list[tuple[ResourceClaim, str]]] = {}
        self._labels = {claim_label(claim): claim for claim in cluster.claims}
        consumed = {
            device.key: {name for (name, _), _ in device.consumes}
            for pool in cluster.allocator.inventory.pools()
            for entry in pool.entries()
            for device in entry.devices
            if device.consumes
        }
        for claim in cluster.claims:
            results = () if claim.status.allocation is None else claim.status.allocation.devices.results
            for result in results:
                pool = f"{result.driver}/{result.pool}"
                for name in consumed.get(f"{pool}/{result.device}", ()):
                    self._by_counter_set.setdefault((pool, name), []).append((claim, result.device))

    def text(self, held: Sequence[DeviceReason]) -> str:
        """Return the claims that hold what these devices lack, each with its devices."""
        found: dict[str, dict[str, None]] = {}
        for reason in held:
            for label, device in self._of(reason):
                found.setdefault(label, {})[device] = None
        parts = [f"{self._shown(label)} holds {listed(devices)}" for label, devices in found.items()]
        return listed(parts, _CLAIMS_SHOWN)

    def _of(self, reason: DeviceReason) -> Iterator[tuple[str, str]]:
        pool, _, device = reason.device.rpartition("/")
        if isinstance(reason, InUse):
            yield from ((holder, device) for holder in reason.holders)
        elif isinstance(reason, LacksCounter):
            for claim, name in self._by_counter_set.get((pool, reason.counter_set), ()):
                yield claim_label(claim), name

    def _shown(self, label: str) -> str:
        claim = self._labels.get(label)
        return f"claim {label}" if claim is None else holder_text(claim, self._now)
