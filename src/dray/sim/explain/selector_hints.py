"""Finds misspelt values, attributes and domains in the selectors and constraints of claims. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from dray.api.types.resource_v1 import Device, DeviceClass, DeviceSelector, ResourceClaim
from dray.cel.devices import DeviceView
from dray.cel.environments import CompiledSelector, compile_device_selector, device_view
from dray.cel.errors import CELError
from dray.cel.explain import Comparison, Explanation, compared_strings, explain_match
from dray.sim.explain.similar_names import listed, nearest
from dray.sim.snapshot import Snapshot

# Different devices that are compared with a selector; a cluster has few kinds of devices, unless they have serials.
_KINDS_MAX: Final = 2_000
_SHOWN_MAX: Final = 60


@dataclass(frozen=True, slots=True)
class SelectorHint:
    """A selector or constraint that no device meets, and what was probably meant."""

    text: str
    # The expression, and how it is probably meant; empty if that is unknown.
    expression: str = ""
    corrected: str = ""
    action: str = ""


class Catalogue:
    """The attributes of all devices of a snapshot; equal devices are counted once."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._counts: Counter[bytes] = Counter()
        self._devices: dict[bytes, tuple[str, Device]] = {}
        for resource_slice in snapshot.slices:
            driver = resource_slice.spec.driver
            for device in resource_slice.spec.devices:
                shape = msgspec.structs.replace(device, name="", taints=())
                key = driver.encode() + b"\0" + msgspec.json.encode(shape)
                self._counts[key] += 1
                if len(self._devices) < _KINDS_MAX:
                    self._devices.setdefault(key, (driver, device))
        self._views = [self._view(*item) for item in self._devices.values()]

    def _view(self, driver: str, device: Device) -> DeviceView:
        document = {
            "attributes": msgspec.to_builtins(device.attributes),
            "capacity": msgspec.to_builtins(device.capacity),
            "allowMultipleAllocations": device.allow_multiple_allocations,
        }
        return device_view(driver, document)

    def explain(self, selector: CompiledSelector) -> Explanation:
        """Evaluate a selector on all kinds of devices."""
        return explain_match(selector, self._views)

    def values(self, domain: str, name: str) -> dict[str, int]:
        """Return how many devices have each string value of the attribute."""
        found: Counter[str] = Counter()
        for key, view in zip(self._devices, self._views, strict=True):
            value = view.attributes.get(domain, {}).get(name)
            if isinstance(value, str):
                found[value] += self._counts[key]
        return dict(found)

    def attributes(self) -> set[str]:
        """Return all attributes, as `domain/name`."""
        return {
            f"{domain}/{name}" for view in self._views for domain, values in view.attributes.items() for name in values
        }

    def meant(self, attribute: str) -> str:
        """Return the attribute that was probably meant: of the same name in another domain, or of a similar name."""
        by_domain: dict[str, set[str]] = {}
        for known in self.attributes():
            by_domain.setdefault(known.rpartition("/")[0], set()).add(known.rpartition("/")[2])
        domain, _, name = attribute.rpartition("/")
        having = sorted(item for item, names in by_domain.items() if name in names)
        if having:
            return f"{nearest(domain, having) or having[0]}/{name}"
        likely = domain if domain in by_domain else nearest(domain, by_domain)
        meant = nearest(name, by_domain.get(likely, ()))
        return f"{likely}/{meant}" if meant else ""


def selector_hints(snapshot: Snapshot, claims: Sequence[ResourceClaim]) -> list[SelectorHint]:
    """Return hints on selectors and constraints of the claims that no device of the cluster meets."""
    if not snapshot.slices:
        return []
    catalogue = Catalogue(snapshot)
    classes = {item.metadata.name or "": item for item in snapshot.classes}
    found: list[SelectorHint] = []
    for claim in claims:
        for expression in dict.fromkeys(_expressions(claim, classes)):
            found += _selector_hints(expression, catalogue)
        found += _constraint_hints(claim, catalogue)
    return list(dict.fromkeys(found))


def _expressions(claim: ResourceClaim, classes: Mapping[str, DeviceClass]) -> Iterator[str]:
    for request in claim.spec.devices.requests:
        exact = () if request.exactly is None else (request.exactly,)
        for item in (*exact, *request.first_available):
            yield from _texts(item.selectors)
            if item.device_class_name in classes:
                yield from _texts(classes[item.device_class_name].spec.selectors)


def _texts(selectors: Iterable[DeviceSelector]) -> Iterator[str]:
    return (item.cel.expression for item in selectors if item.cel is not None)


def _selector_hints(expression: str, catalogue: Catalogue) -> Iterator[SelectorHint]:
    try:
        selector = compile_device_selector(expression)
    except CELError as error:
        yield SelectorHint(f"`{shortened(expression)}` does not compile: {error}")
        return
    explanation = catalogue.explain(selector)
    if explanation.matching:
        return
    for reference in explanation.references:
        if not reference.present:
            yield _attribute_hint(expression, reference.name, catalogue.meant(reference.name))
    for comparison in compared_strings(selector):
        values = catalogue.values(comparison.domain, comparison.name)
        if values and comparison.value not in values:
            yield _value_hint(expression, comparison, values)


def _attribute_hint(expression: str, name: str, meant: str) -> SelectorHint:
    text = f"no device has {name}"
    if not meant:
        return SelectorHint(text)
    domain, _, attribute = name.rpartition("/")
    other, _, known = meant.rpartition("/")
    corrected = expression
    for quote in ('"', "'"):
        corrected = corrected.replace(f"[{quote}{domain}{quote}].{attribute}", f"[{quote}{other}{quote}].{known}")
    if corrected == expression:
        return SelectorHint(f"{text} (did you mean {meant}?)")
    return SelectorHint(f"{text} (did you mean {meant}?)", expression, corrected, f"write {meant} instead of {name}")


def _value_hint(expression: str, comparison: Comparison, values: Mapping[str, int]) -> SelectorHint:
    meant = nearest(comparison.value, values)
    what = f"{comparison.name} `{comparison.value}` matches nothing"
    if not meant:
        return SelectorHint(f"{what}; devices have {listed(sorted(values), 5)}")
    count = values[meant]
    text = f"{what}; {count} {'device has' if count == 1 else 'devices have'} `{meant}`"
    corrected = expression
    for quote in ('"', "'"):
        corrected = corrected.replace(f"{quote}{comparison.value}{quote}", f"{quote}{meant}{quote}")
    return SelectorHint(text, expression, corrected, f"write {meant} instead of {comparison.value}")


def _constraint_hints(claim: ResourceClaim, catalogue: Catalogue) -> Iterator[SelectorHint]:
    known = catalogue.attributes()
    for constraint in claim.spec.devices.constraints:
        name = constraint.match_attribute or constraint.distinct_attribute or ""
        if name and name not in known:
            meant = catalogue.meant(name)
            suggestion = f" (did you mean {meant}?)" if meant else ""
            action = f"write {meant} instead of {name} in the constraint" if meant else "drop the constraint"
            yield SelectorHint(f"no device has {name}, which a constraint needs{suggestion}", name, meant, action)


def shortened(expression: str) -> str:
    """Return an expression on one line, without what every selector repeats."""
    line = " ".join(expression.split())
    for start in ("device.attributes[", "device.capacity["):
        while start in line:
            head, _, rest = line.partition(start)
            _, separator, tail = rest.partition("].")
            if not separator:
                break
            line = head + tail
    return line if len(line) <= _SHOWN_MAX else f"{line[: _SHOWN_MAX - 1]}…"
