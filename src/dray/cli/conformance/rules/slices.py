"""Rules for a driver's ResourceSlices, current and over time. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dray.api.devices import newest_generation
from dray.api.document import Document
from dray.api.validation.resource_slice import validate_slice


@dataclass(frozen=True, slots=True)
class SliceWrite:
    """One write of a slice."""

    pool: str
    generation: int
    name: str


def invalid_problems(slices: Sequence[Document]) -> Iterator[str]:
    """Slices must pass Kubernetes' validation."""
    for item in slices:
        yield from (f"{item['metadata']['name']}: {error}" for error in validate_slice(item))


def node_problems(slices: Sequence[Document], node_name: str) -> Iterator[str]:
    """Slices of a node must name that node."""
    for item in slices:
        named = item["spec"].get("nodeName")
        if named and named != node_name:
            yield f'{item["metadata"]["name"]}: nodeName is "{named}", the driver runs on "{node_name}"'


def count_problems(slices: Sequence[Document]) -> Iterator[str]:
    """The scheduler uses a pool only when it is complete."""
    for pool, newest in _newest(slices).items():
        counts = sorted({item["spec"]["pool"]["resourceSliceCount"] for item in newest})
        if len(counts) > 1:
            yield f"pool {pool}: slices disagree on resourceSliceCount: {', '.join(map(str, counts))}"
        elif counts[0] != len(newest):
            yield f"pool {pool}: resourceSliceCount is {counts[0]}, there are {len(newest)} slices"


def outdated_problems(slices: Sequence[Document]) -> Iterator[str]:
    """Outdated slices must be removed."""
    newest = {pool: _generation(items[0]) for pool, items in _newest(slices).items()}
    for item in slices:
        pool = item["spec"]["pool"]["name"]
        if _generation(item) < newest[pool]:
            yield f"{item['metadata']['name']}: generation {_generation(item)}, pool {pool} is at {newest[pool]}"


def name_problems(slices: Sequence[Document]) -> Iterator[str]:
    """A device is identified by driver, pool and name."""
    for pool, newest in _newest(slices).items():
        names = Counter(device["name"] for item in newest for device in item["spec"].get("devices") or ())
        yield from (f"pool {pool}: device {name} is listed {times} times" for name, times in names.items() if times > 1)


def decrease_problems(history: Sequence[SliceWrite]) -> Iterator[str]:
    """The scheduler treats the highest generation as the latest."""
    highest: dict[str, int] = {}
    for written in history:
        known = highest.get(written.pool, 0)
        if written.generation < known:
            yield f"pool {written.pool}: {written.name} was written with generation {written.generation} after {known}"
        highest[written.pool] = max(known, written.generation)


def _newest(slices: Sequence[Document]) -> dict[str, list[Document]]:
    pools: dict[str, list[Document]] = {}
    for item in slices:
        pools.setdefault(item["spec"]["pool"]["name"], []).append(item)
    return {pool: newest_generation(items, _generation) for pool, items in sorted(pools.items())}


def _generation(item: Document) -> int:
    return item["spec"]["pool"].get("generation") or 0
