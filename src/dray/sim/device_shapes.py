"""Simulated devices: what `--devices` asks for, and the classes and ResourceSlices that it means. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from dray.api.document import Document
from dray.sim.explain.similar_names import did_you_mean

API_VERSION: Final = "resource.k8s.io/v1"
# Bounds of a ResourceSlice: devices with counters, devices without, and counter sets.
_PARTITIONS_PER_SLICE: Final = 64
_DEVICES_PER_SLICE: Final = 128
_COUNTER_SETS_PER_SLICE: Final = 8
# Of one kind on one node; no machine has more.
COUNT_MAX: Final = 256
# PCIe root complexes and NUMA nodes of a simulated machine, over which its devices are spread.
_PCIE_ROOTS: Final = 4
_NUMA_NODES: Final = 2
_WANTED: Final = re.compile(r"(?P<name>[a-z0-9]([-a-z0-9.]*[a-z0-9])?):(?:(?P<count>\d+)x)?(?P<shape>\S+)")


# A quantity, which may be a plain number.
Amount: TypeAlias = str | int


class ShapeError(ValueError):
    """A shape or a flag that cannot be read."""


class Partition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A kind of partition of a card: how many are published, and what each takes of the card's counters."""

    count: int
    counters: dict[str, Amount]
    capacity: dict[str, Amount] = {}
    attributes: dict[str, Any] = {}


class Option(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Partitions that are published beside the whole card."""

    partitions: dict[str, Partition]
    attributes: dict[str, Any] = {}


class Shape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A card."""

    driver: str
    # The beginning of the names of devices.
    device: str
    attributes: dict[str, Any] = {}
    capacity: dict[str, Amount] = {}
    # What partitions take their part of.
    counters: dict[str, Amount] = {}
    options: dict[str, Option] = {}


class Wanted(msgspec.Struct, frozen=True):
    """One value of `--devices`: a class, the number of cards on each node, and their shape."""

    name: str
    count: int
    model: str
    shape: Shape
    options: tuple[str, ...] = ()


def read_shapes(document: Any, source: str) -> dict[str, Shape]:
    """Decode shapes by name; raises `ShapeError` with the source."""
    try:
        shapes = msgspec.convert(document, dict[str, Shape])
    except msgspec.ValidationError as error:
        raise ShapeError(f"{source}: {error}") from error
    for name, shape in shapes.items():
        for option in shape.options.values():
            for kind, partition in option.partitions.items():
                unknown = sorted(partition.counters.keys() - shape.counters.keys())
                if unknown or not partition.counters:
                    what = f"has no counter {unknown[0]!r}" if unknown else "needs counters"
                    raise ShapeError(f"{source}: {name}: partition {kind!r} {what}")
    return shapes


def parse_devices(
    texts: Sequence[str], catalogue: Mapping[str, Shape], read_file: Callable[[str], Mapping[str, Shape]]
) -> tuple[Wanted, ...]:
    """Parse `--devices`: CLASS:[COUNTx]SHAPE, each followed by its options, which have no colon."""
    found: list[Wanted] = []
    for text in texts:
        if ":" not in text:
            if not found:
                raise ShapeError(f'"{text}" is not CLASS:COUNTxSHAPE, as in gpu:8xH100')
            found[-1] = _with_option(found[-1], text)
            continue
        match = _WANTED.fullmatch(text)
        if match is None:
            raise ShapeError(f'"{text}" is not CLASS:COUNTxSHAPE, as in gpu:8xH100')
        count = int(match["count"] or 1)
        if not 1 <= count <= COUNT_MAX:
            raise ShapeError(f'"{text}": a node can have 1 to {COUNT_MAX} devices of a shape')
        model, shape = _find(match["shape"], catalogue, read_file)
        found.append(Wanted(match["name"], count, model, shape))
    return tuple(found)


def _find(
    text: str, catalogue: Mapping[str, Shape], read_file: Callable[[str], Mapping[str, Shape]]
) -> tuple[str, Shape]:
    """Return the shape of a name, in any case, or of a file."""
    if text.endswith((".yaml", ".yml")):
        shapes = read_file(text)
        if len(shapes) != 1:
            raise ShapeError(f"{text} has {len(shapes)} shapes; it must have one")
        return next(iter(shapes.items()))
    names = {name.lower(): name for name in catalogue}
    name = names.get(text.lower())
    if name is None:
        known = ", ".join(catalogue)
        raise ShapeError(f'there is no shape "{text}"{did_you_mean(text, catalogue)}: choose {known}, or a YAML file')
    return name, catalogue[name]


def _with_option(wanted: Wanted, text: str) -> Wanted:
    if text not in wanted.shape.options:
        known = ", ".join(wanted.shape.options) or "none"
        raise ShapeError(f'{wanted.model} has no option "{text}"; it has {known}')
    return msgspec.structs.replace(wanted, options=(*wanted.options, text))


# --- Objects. ---


def class_documents(wanted: Iterable[Wanted]) -> list[Document]:
    """Return the DeviceClasses: one for each name, and one for each option, as in `mig`."""
    expressions: dict[str, list[str]] = {}
    for item in wanted:
        domain = f'device.attributes["{item.shape.driver}"]'
        driver = f'device.driver == "{item.shape.driver}" && {domain}.model == "{item.model}"'
        expressions.setdefault(item.name, []).append(f"{driver} && !{domain}.partition")
        for option in item.options:
            expressions.setdefault(option, []).append(f"{driver} && {domain}.partition")
    return [
        {
            "apiVersion": API_VERSION,
            "kind": "DeviceClass",
            "metadata": {"name": name},
            "spec": {"selectors": [{"cel": {"expression": " || ".join(f"({text})" for text in dict.fromkeys(parts))}}]},
        }
        for name, parts in expressions.items()
    ]


def slice_documents(wanted: Sequence[Wanted], node: str) -> list[Document]:
    """Return the ResourceSlices of a node: a pool for each driver."""
    found: list[Document] = []
    for driver in dict.fromkeys(item.shape.driver for item in wanted):
        counters: list[Document] = []
        partitioned: list[Document] = []
        whole: list[Document] = []
        for item in (item for item in wanted if item.shape.driver == driver):
            first = sum(1 for device in (*partitioned, *whole) if not device["attributes"]["partition"]["bool"])
            for number in range(item.count):
                if item.options:
                    counters.append(_counter_set(item, first + number))
                    partitioned += _partitioned(item, first + number, number)
                else:
                    whole.append(_card(item, first + number, number))
        parts = [
            *({"sharedCounters": part} for part in _chunks(counters, _COUNTER_SETS_PER_SLICE)),
            *({"devices": part} for part in _chunks(partitioned, _PARTITIONS_PER_SLICE)),
            *({"devices": part} for part in _chunks(whole, _DEVICES_PER_SLICE)),
        ]
        pool = {"name": node, "generation": 1, "resourceSliceCount": len(parts)}
        found += [
            {
                "apiVersion": API_VERSION,
                "kind": "ResourceSlice",
                "metadata": {"name": f"{node}-{driver}-{number}"},
                "spec": {"driver": driver, "nodeName": node, "pool": pool, **part},
            }
            for number, part in enumerate(parts)
        ]
    return found


def _chunks(items: Sequence[Document], size: int) -> Iterator[Sequence[Document]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def _counter_set(item: Wanted, number: int) -> Document:
    counters = {name: {"value": str(value)} for name, value in item.shape.counters.items()}
    return {"name": f"{item.shape.device}-{number}", "counters": counters}


def _partitioned(item: Wanted, number: int, index: int) -> Iterator[Document]:
    """Yield a whole card and its partitions, which take their part of its counters."""
    card = f"{item.shape.device}-{number}"
    yield {**_card(item, number, index), **_consumes(card, item.shape.counters)}
    for option in (item.shape.options[name] for name in item.options):
        for kind, partition in option.partitions.items():
            own = {
                **item.shape.attributes,
                **option.attributes,
                **partition.attributes,
                "profile": kind,
                "parent": card,
            }
            for part in range(partition.count):
                yield {
                    "name": f"{card}-{kind.replace('.', '-')}-{part}",
                    "attributes": _attributes(item, own, number, index, partition=True),
                    "capacity": _capacity(partition.capacity),
                    **_consumes(card, partition.counters),
                }


def _card(item: Wanted, number: int, index: int) -> Document:
    return {
        "name": f"{item.shape.device}-{number}",
        "attributes": _attributes(item, item.shape.attributes, number, index, partition=False),
        "capacity": _capacity(item.shape.capacity),
    }


def _attributes(
    item: Wanted, own: Mapping[str, Any], number: int, index: int, *, partition: bool
) -> dict[str, Document]:
    """Return the attributes of a card or partition; `index` is its place among those of its kind on the node."""
    root = index * _PCIE_ROOTS // item.count
    common = {
        "model": item.model,
        "partition": partition,
        "index": number,
        "numaNode": index * _NUMA_NODES // item.count,
        "resource.kubernetes.io/pcieRoot": f"pci0000:{root:02x}",
    }
    return {name: _typed(name, value) for name, value in {**own, **common}.items()}


def _typed(name: str, value: Any) -> Document:
    """Return an attribute value with its type."""
    if isinstance(value, dict) and len(value) == 1 and next(iter(value)) in ("string", "int", "bool", "version"):
        return {key: str(item) if key in ("string", "version") else item for key, item in value.items()}
    if isinstance(value, bool):
        return {"bool": value}
    if isinstance(value, int):
        return {"int": value}
    if isinstance(value, str):
        return {"string": value}
    raise ShapeError(f'attribute "{name}" must be a string, integer, boolean or {{version: …}}')


def _capacity(amounts: Mapping[str, Amount]) -> Document:
    return {name: {"value": str(value)} for name, value in amounts.items()}


def _consumes(card: str, counters: Mapping[str, Amount]) -> Document:
    return {
        "consumesCounters": [
            {"counterSet": card, "counters": {name: {"value": str(value)} for name, value in counters.items()}}
        ]
    }
