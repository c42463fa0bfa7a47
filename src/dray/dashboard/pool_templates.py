"""What many pools have in common, computed once. Pure.

Most nodes have the same devices as others: their slices have equal devices, or devices that differ only in attributes
that neither a class nor the page reads, such as serial numbers. For such pools only the names of the devices in use
differ. `rows.pool_rows` is the plain way to the same rows.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from dray.api.devices import newest_generation
from dray.dashboard import rows
from dray.dashboard.rows import MODEL_ATTRIBUTES, Cards, Row, Shape

if TYPE_CHECKING:
    from dray.allocator.pools import Pool
    from dray.dashboard.summaries import SliceSummary
    from dray.sim.devices import DeviceSurvey

# Pools with different content, and different contents; beyond that they are computed again.
_KNOWN_MAX: Final = 8192
# The common forms of an attribute that has exactly one value and cannot fail to be read.
_SIMPLE_VALUES: Final = (b'{"string":"', b'{"int":', b'{"bool":')
_NAME: Final = b'":'

_Key: TypeAlias = Hashable


class PoolTemplate(msgspec.Struct, frozen=True):
    """A pool of one node, in which only allocations decide on the states of devices; any of those that are equal."""

    pool: Pool
    cards: Cards
    shape: Shape

    def row(self, slices: Collection[SliceSummary], in_use: Collection[str]) -> Row:
        """Return the row of an equal pool with these slices, of whose devices these are in use."""
        return [*self._identity(slices), 0, *rows.plain_states(self.pool, self.cards, in_use), {}]

    def outline_row(self, slices: Collection[SliceSummary]) -> Row:
        """Return the row of an equal pool whose allocations are not known yet."""
        return [*self._identity(slices), 0, *rows.unknown_states(self.cards), {}]

    def _identity(self, slices: Collection[SliceSummary]) -> Row:
        newest = newest_slices(slices)
        first = newest[0]
        return [first.driver, first.pool.name, first.node_name if self.cards else "", [item.name for item in newest]]


class PoolTemplates:
    """Finds the template of a pool."""

    def __init__(self, survey: DeviceSurvey) -> None:
        self._survey = survey
        self._classes_version = -1
        self._attributes: frozenset[str] | None = None
        # By the JSON of the slices, and by what it says: comparing text is cheaper than decoding it.
        self._by_json: dict[_Key, PoolTemplate | None] = {}
        self._by_content: dict[_Key, PoolTemplate | None] = {}

    def find(self, slices: Collection[SliceSummary]) -> PoolTemplate | None:
        """Return the template of the pool with these slices; None if the pool has to be surveyed by itself.

        Rules and reports of Pods that concern the pool are not considered.
        """
        if len({item.node_name for item in slices}) != 1 or not next(iter(slices)).node_name:
            return None
        self._forget_other_classes()
        newest = newest_slices(slices)
        key = _content(newest, [item.devices for item in newest])
        if key in self._by_json:
            return self._by_json[key]
        projected = _content(newest, [projected_devices(item.devices, self._attributes) for item in newest])
        if projected in self._by_content:
            template = self._by_content[projected]
        else:
            template = _put(self._by_content, projected, self._computed(newest))
        return _put(self._by_json, key, template)

    def _forget_other_classes(self) -> None:
        version = self._survey.inventory.classes_version
        if version == self._classes_version:
            return
        self._classes_version = version
        read = self._survey.class_attributes
        self._attributes = None if read is None else read | MODEL_ATTRIBUTES
        self._by_json.clear()
        self._by_content.clear()

    def _computed(self, slices: Iterable[SliceSummary]) -> PoolTemplate | None:
        from dray.allocator import Inventory

        inventory = Inventory()
        for item in slices:
            inventory.apply_slice(item.decoded())
        pool = next(iter(inventory.pools()))
        if not self._survey.is_published_plain(pool):
            return None
        cards = rows.cards_of(self._survey, pool)
        return PoolTemplate(pool, cards, rows.shape_of(self._survey, cards))


def newest_slices(slices: Collection[SliceSummary]) -> Sequence[SliceSummary]:
    """Return the slices of the newest generation, by name."""
    return sorted(newest_generation(slices, lambda item: item.pool.generation), key=lambda item: item.name)


def _content(slices: Sequence[SliceSummary], devices: Sequence[Hashable]) -> _Key:
    counts = tuple([(item.pool.resource_slice_count, item.shared_counters) for item in slices])
    return slices[0].driver, counts, tuple(devices)


def _put(table: dict[_Key, PoolTemplate | None], key: _Key, template: PoolTemplate | None) -> PoolTemplate | None:
    if len(table) >= _KNOWN_MAX:
        table.clear()
    table[key] = template
    return template


class _Device(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """The fields of a device that decide on its row, as JSON but for names."""

    name: str = ""
    attributes: dict[str, msgspec.Raw] = {}
    allow_multiple_allocations: msgspec.Raw = msgspec.Raw()
    capacity: msgspec.Raw = msgspec.Raw()
    consumes_counters: msgspec.Raw = msgspec.Raw()
    taints: msgspec.Raw = msgspec.Raw()


_DEVICES: Final = msgspec.json.Decoder(list[_Device])


def projected_devices(devices: bytes, attributes: frozenset[str] | None) -> Hashable:
    """Return the devices without attributes that can be neither seen nor selected.

    These are attributes with a simple value whose id is not among `attributes`; None keeps all. An attribute with an
    invalid value matters whatever its id: no selector matches its device.
    """
    if attributes is None:
        return devices
    return tuple(
        [
            (
                item.name,
                tuple(
                    [
                        (name, value)
                        for name, value in [(name, bytes(raw)) for name, raw in item.attributes.items()]
                        if name.rpartition("/")[2] in attributes or not _is_simple(value)
                    ]
                ),
                bytes(item.capacity),
                bytes(item.consumes_counters),
                bytes(item.taints),
                bytes(item.allow_multiple_allocations),
            )
            for item in _DEVICES.decode(devices)
        ]
    )


def _is_simple(value: bytes) -> bool:
    return value.startswith(_SIMPLE_VALUES) and value.count(_NAME) == 1
