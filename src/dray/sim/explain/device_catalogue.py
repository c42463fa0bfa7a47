"""The kinds of devices of a snapshot, with what they have and how many there are. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from dray.api.quantity import Quantity
from dray.api.types.resource_v1 import Device
from dray.cel.devices import DeviceView
from dray.cel.environments import CompiledSelector, compile_device_selector, device_view
from dray.cel.errors import CELError, CELRuntimeError
from dray.cel.explain import Explanation, explain_match
from dray.sim.explain.similar_names import nearest
from dray.sim.snapshot import Snapshot

# Different devices that are compared with a selector; a cluster has few kinds of devices, unless they have serials.
_KINDS_MAX: Final = 2_000


class Catalogue:
    """The attributes and capacities of devices; equal devices are one kind with a count."""

    def __init__(self, kinds: Sequence[tuple[DeviceView, int]]) -> None:
        self._kinds = kinds

    @classmethod
    def of(cls, snapshot: Snapshot) -> Catalogue:
        """Return the kinds of all devices of a snapshot."""
        counts: Counter[bytes] = Counter()
        devices: dict[bytes, tuple[str, Device]] = {}
        for resource_slice in snapshot.slices:
            driver = resource_slice.spec.driver
            for device in resource_slice.spec.devices:
                shape = msgspec.structs.replace(device, name="", taints=())
                key = driver.encode() + b"\0" + msgspec.json.encode(shape)
                counts[key] += 1
                if len(devices) < _KINDS_MAX:
                    devices.setdefault(key, (driver, device))
        return cls([(_view(*item), counts[key]) for key, item in devices.items()])

    @property
    def count(self) -> int:
        """The number of devices."""
        return sum(count for _, count in self._kinds)

    def matching(self, expressions: Iterable[str]) -> Catalogue:
        """Return the kinds that match all expressions; one that does not compile or fails matches nothing."""
        kinds = self._kinds
        for expression in expressions:
            try:
                selector = compile_device_selector(expression)
            except CELError:
                return Catalogue([])
            kinds = [(view, count) for view, count in kinds if _matches(selector, view)]
        return Catalogue(kinds)

    def explain(self, selector: CompiledSelector) -> Explanation:
        """Evaluate a selector on all kinds of devices."""
        return explain_match(selector, [view for view, _ in self._kinds])

    def values(self, domain: str, name: str) -> dict[str, int]:
        """Return how many devices have each string value of the attribute; without a domain, each driver."""
        found: Counter[str] = Counter()
        for view, count in self._kinds:
            attributes = view.attributes.get(domain, {}) if domain else {name: view.driver}
            if name in attributes and isinstance(attributes[name], str):
                found[attributes[name]] += count
        return dict(found)

    def amounts(self, domain: str, name: str) -> dict[Quantity, int]:
        """Return how many devices have each amount of the capacity."""
        found: Counter[Quantity] = Counter()
        for view, count in self._kinds:
            capacities = view.capacity.get(domain, {})
            if name in capacities:
                found[capacities[name]] += count
        return dict(found)

    def attributes(self) -> set[str]:
        """Return all attributes, as `domain/name`."""
        return {
            f"{domain}/{name}"
            for view, _ in self._kinds
            for domain, values in view.attributes.items()
            for name in values
        }

    def names(self) -> set[str]:
        """Return all attributes and capacities, as `domain/name`."""
        capacities = (
            f"{domain}/{name}" for view, _ in self._kinds for domain, values in view.capacity.items() for name in values
        )
        return self.attributes() | set(capacities)


def meant_attribute(attribute: str, known: Iterable[str]) -> str:
    """Return the attribute that was probably meant: of the same name in another domain, or of a similar name."""
    by_domain: dict[str, set[str]] = {}
    for item in known:
        by_domain.setdefault(item.rpartition("/")[0], set()).add(item.rpartition("/")[2])
    domain, _, name = attribute.rpartition("/")
    having = sorted(item for item, names in by_domain.items() if name in names)
    if having:
        return f"{nearest(domain, having) or having[0]}/{name}"
    likely = domain if domain in by_domain else nearest(domain, by_domain)
    meant = nearest(name, by_domain.get(likely, ()))
    return f"{likely}/{meant}" if meant else ""


def _matches(selector: CompiledSelector, view: DeviceView) -> bool:
    try:
        return bool(selector.evaluate(view))
    except CELRuntimeError:
        return False


def _view(driver: str, device: Device) -> DeviceView:
    document = {
        "attributes": msgspec.to_builtins(device.attributes),
        "capacity": msgspec.to_builtins(device.capacity),
        "allowMultipleAllocations": device.allow_multiple_allocations,
    }
    return device_view(driver, document)
