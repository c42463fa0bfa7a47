"""Finds misspelt names, impossible amounts and wrong classes in selectors and constraints of claims. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from dray.api.quantity import Quantity, QuantityError
from dray.api.types.resource_v1 import DeviceClass, DeviceSelector, DeviceSubRequest, ExactDeviceRequest, ResourceClaim
from dray.cel.environments import CompiledSelector, compile_device_selector
from dray.cel.errors import CELError
from dray.cel.explain import Comparison, compared_quantities, compared_strings
from dray.sim.explain.device_catalogue import Catalogue, meant_attribute
from dray.sim.explain.similar_names import listed, nearest
from dray.sim.snapshot import Snapshot

_SHOWN_MAX: Final = 60


@dataclass(frozen=True, slots=True)
class SelectorHint:
    """A selector or constraint that no device meets, and what was probably meant."""

    text: str
    # The expression, attribute or class, and how it is probably meant; empty if that is unknown.
    expression: str = ""
    corrected: str = ""
    action: str = ""


@dataclass(frozen=True, slots=True)
class _Request:
    """A request or alternative, with the devices of its class and those that match its selectors too."""

    name: str
    device_class: str
    selectors: tuple[str, ...]
    of_class: Catalogue
    matching: Catalogue


class HintFinder:
    """Finds hints on the claims of one Pod."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._everything = Catalogue.of(snapshot)
        self._classes = {item.metadata.name or "": item for item in snapshot.classes}
        self._by_class: dict[str, Catalogue] = {}

    @property
    def catalogue(self) -> Catalogue:
        """The devices of the cluster."""
        return self._everything

    def hints(self, claims: Iterable[ResourceClaim]) -> list[SelectorHint]:
        """Return hints on selectors and constraints of the claims that no device meets."""
        if not self._everything.count:
            return []
        found: list[SelectorHint] = []
        for claim in claims:
            requests = list(self._requests(claim))
            for request in requests:
                found += self._request_hints(request)
            found += self._constraint_hints(claim, requests)
        return list(dict.fromkeys(found))

    def _requests(self, claim: ResourceClaim) -> Iterator[_Request]:
        for request in claim.spec.devices.requests:
            if request.exactly is not None:
                yield self._request(request.name, request.exactly)
            for item in request.first_available:
                yield self._request(f"{request.name}/{item.name}", item)

    def _request(self, name: str, item: ExactDeviceRequest | DeviceSubRequest) -> _Request:
        selectors = tuple(_texts(item.selectors))
        of_class = self._of_class(item.device_class_name)
        return _Request(name, item.device_class_name, selectors, of_class, of_class.matching(selectors))

    def _of_class(self, name: str) -> Catalogue:
        if name not in self._by_class:
            self._by_class[name] = self._everything.matching(_class_texts(self._classes.get(name)))
        return self._by_class[name]

    def _request_hints(self, request: _Request) -> Iterator[SelectorHint]:
        if not request.of_class.count:
            for expression in _class_texts(self._classes.get(request.device_class)):
                for hint in self._selector_hints(expression, self._everything, ""):
                    action = hint.action and f"{hint.action} in DeviceClass {request.device_class}"
                    yield replace(hint, text=f"DeviceClass {request.device_class}: {hint.text}", action=action)
            return
        if request.matching.count:
            return
        for expression in request.selectors:
            yield from self._selector_hints(expression, request.of_class, request.device_class)
        yield from self._class_hints(request)

    def _selector_hints(self, expression: str, devices: Catalogue, device_class: str) -> Iterator[SelectorHint]:
        """Yield hints on a selector that none of the devices matches."""
        try:
            selector = compile_device_selector(expression)
        except CELError as error:
            yield SelectorHint(f"`{shortened(expression)}` does not compile: {error}")
            return
        explanation = devices.explain(selector)
        if explanation.matching:
            return
        elsewhere = self._everything.names()
        for reference in explanation.references:
            if not reference.present:
                where = f" of class {device_class}" if reference.name in elsewhere else ""
                yield _attribute_hint(
                    expression, reference.name, meant_attribute(reference.name, devices.names()), where
                )
        for comparison in compared_strings(selector):
            values = devices.values(comparison.domain, comparison.name)
            known = self._everything.values(comparison.domain, comparison.name)
            if values and comparison.value not in known:
                yield _value_hint(expression, comparison, values)
        yield from _amount_hints(expression, selector, devices, device_class)

    def _class_hints(self, request: _Request) -> Iterator[SelectorHint]:
        """Yield the class whose devices match the selectors, if those of the requested class do not."""
        counts = {name: self._of_class(name).matching(request.selectors).count for name in sorted(self._classes)}
        name = max(counts, key=counts.__getitem__, default="")
        if not name or not counts[name]:
            return
        own = request.device_class
        others = f"{_number(counts[name])} of class {name}"
        text = f"no device of class {own} matches the selectors of request {request.name}; {others}"
        action = f"use class {name} instead of {own} in request {request.name}"
        yield SelectorHint(f"{text} {'does' if counts[name] == 1 else 'do'}", own, name, action)

    def _constraint_hints(self, claim: ResourceClaim, requests: Sequence[_Request]) -> Iterator[SelectorHint]:
        known = self._everything.attributes()
        for constraint in claim.spec.devices.constraints:
            name = constraint.match_attribute or constraint.distinct_attribute or ""
            if not name:
                continue
            if name not in known:
                yield _constraint_hint(name, f"no device has {name}", meant_attribute(name, known))
                continue
            used = [item for item in requests if not constraint.requests or _is_named(item.name, constraint.requests)]
            lacking = [item for item in used if item.of_class.count and name not in item.of_class.attributes()]
            if lacking:
                common = set.intersection(*(item.of_class.attributes() for item in used if item.of_class.count))
                classes = listed(dict.fromkeys(item.device_class for item in lacking))
                yield _constraint_hint(name, f"no device of class {classes} has {name}", meant_attribute(name, common))


def _is_named(request: str, names: Sequence[str]) -> bool:
    return request in names or request.partition("/")[0] in names


def _class_texts(device_class: DeviceClass | None) -> list[str]:
    return [] if device_class is None else list(_texts(device_class.spec.selectors))


def _texts(selectors: Iterable[DeviceSelector]) -> Iterator[str]:
    return (item.cel.expression for item in selectors if item.cel is not None)


def _number(count: int) -> str:
    return f"{count} device" if count == 1 else f"{count} devices"


def _attribute_hint(expression: str, name: str, meant: str, where: str) -> SelectorHint:
    text = f"no device{where} has {name}"
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
    text = f"{what}; {_number(values[meant])} {'has' if values[meant] == 1 else 'have'} `{meant}`"
    corrected = _with_literal(expression, comparison.value, meant)
    return SelectorHint(text, expression, corrected, f"write {meant} instead of {comparison.value}")


def _amount_hints(
    expression: str, selector: CompiledSelector, devices: Catalogue, device_class: str
) -> Iterator[SelectorHint]:
    """Yield amounts that are more than what any device has, if the most that there is would match."""
    for comparison in compared_quantities(selector):
        amounts = devices.amounts(comparison.domain, comparison.name)
        try:
            wanted = Quantity.parse(comparison.value)
        except QuantityError:
            continue
        most = max(amounts, default=wanted)
        corrected = _with_literal(expression, comparison.value, str(most))
        if most >= wanted or not devices.matching([corrected]).count:
            continue
        where = f" of class {device_class}" if device_class else ""
        what, most_of = comparison.name, f"the most is {most}, of {_number(amounts[most])}"
        text = f"no device{where} has {comparison.value} of {what}; {most_of}"
        yield SelectorHint(text, expression, corrected, f"ask for {most} of {what} instead of {comparison.value}")


def _with_literal(expression: str, value: str, other: str) -> str:
    for quote in ('"', "'"):
        expression = expression.replace(f"{quote}{value}{quote}", f"{quote}{other}{quote}")
    return expression


def _constraint_hint(name: str, problem: str, meant: str) -> SelectorHint:
    suggestion = f" (did you mean {meant}?)" if meant else ""
    action = f"write {meant} instead of {name} in the constraint" if meant else "drop the constraint"
    return SelectorHint(f"{problem}, which a constraint needs{suggestion}", name, meant, action)


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
