"""Explains why a selector matches no device: conditions that fail, and unknown attribute names."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dray.cel import tree
from dray.cel.devices import DeviceView
from dray.cel.environments import CompiledSelector, compile_device_selector
from dray.cel.errors import CELRuntimeError
from dray.cel.lexer import tokenize
from dray.cel.tree import Call, Literal, Node, Select

_MAPS: Final = {"device.attributes": "attributes", "device.capacity": "capacity"}
# Minimum similarity of a suggested name.
_SIMILARITY_MIN: Final = 0.6


@dataclass(frozen=True, slots=True)
class Condition:
    """A top-level condition: the number of devices it holds for, and an error from one of the others."""

    expression: str
    matching: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class Reference:
    """A referenced attribute or capacity: the number of devices that have it, and a suggestion."""

    name: str
    present: int
    nearest: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of an attribute or capacity with a literal, as in `device.attributes["domain"].name == "value"`."""

    # Empty for `device.driver`.
    domain: str
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """The result of a selector on some devices."""

    devices: int
    matching: int
    conditions: tuple[Condition, ...]
    references: tuple[Reference, ...]


def explain_match(selector: CompiledSelector, devices: Sequence[DeviceView]) -> Explanation:
    """Evaluate the selector and each of its top-level conditions on the devices."""
    source, root = selector.expression, selector.program.root
    parts = _conditions(source, root)
    return Explanation(
        len(devices),
        _count(selector, devices).matching,
        tuple(_count(compile_device_selector(part), devices) for part in parts),
        tuple(_reference(kind, domain, name, devices) for kind, domain, name in _references(root)),
    )


def compared_strings(selector: CompiledSelector) -> list[Comparison]:
    """Return the comparisons of attributes, or of the driver, with strings, anywhere in the selector."""
    found = []
    for node in tree.walk(selector.program.root):
        if not isinstance(node, Call) or node.function != tree.EQUALS:
            continue
        for side, other in (node.args, tuple(reversed(node.args))):
            is_driver = tree.qualified_name(side) == "device.driver"
            reference = ("", "driver") if is_driver else _member(side, "device.attributes")
            if reference is not None and isinstance(other, Literal) and isinstance(other.value, str):
                found.append(Comparison(*reference, other.value))
    return found


def compared_quantities(selector: CompiledSelector) -> list[Comparison]:
    """Return the comparisons of capacities with quantities, anywhere in the selector."""
    found = []
    for node in tree.walk(selector.program.root):
        if not isinstance(node, Call):
            continue
        operands = node.args if node.target is None else (node.target, *node.args)
        references = [item for operand in operands if (item := _member(operand, "device.capacity")) is not None]
        amounts = [amount for operand in operands if (amount := _quantity(operand)) is not None]
        found += [Comparison(*reference, amount) for reference in references for amount in amounts]
    return found


def _quantity(node: Node) -> str | None:
    """Return the text of `quantity("text")`."""
    if not isinstance(node, Call) or node.function != "quantity" or len(node.args) != 1:
        return None
    text = node.args[0]
    return text.value if isinstance(text, Literal) and isinstance(text.value, str) else None


def _member(node: Node, map_name: str) -> tuple[str, str] | None:
    """Return domain and name if the node is a member of `device.attributes` or `device.capacity`."""
    name, inner = _last_step(node)
    domain, outer = _last_step(inner) if inner is not None else (None, None)
    if not name or not domain or outer is None or tree.qualified_name(outer) != map_name:
        return None
    return domain, name


def _count(selector: CompiledSelector, devices: Sequence[DeviceView]) -> Condition:
    matching, problem = 0, ""
    for device in devices:
        try:
            matching += selector.evaluate(device)
        except CELRuntimeError as error:
            problem = problem or str(error)
    return Condition(selector.expression, matching, problem)


def _conditions(source: str, root: Node) -> list[str]:
    """Return the operands of the top-level `&&`."""
    if not isinstance(root, Call) or root.function != tree.AND:
        return [source.strip()]
    ends = _and_offsets(source, len(root.args) - 1)
    starts = [0, *(end + len("&&") for end in ends)]
    return [source[start:end].strip() for start, end in zip(starts, [*ends, len(source)], strict=True)]


def _and_offsets(source: str, count: int) -> list[int]:
    """Return the offsets of `&&` outside of all brackets; the expression has parsed, so brackets match."""
    depth, found = 0, []
    for token in tokenize(source)[0]:
        if token.kind in "([{":
            depth += 1
        elif token.kind in ")]}":
            depth -= 1
        elif token.kind == "&&" and depth == 0:
            found.append(token.offset)
    return found[:count]


def _references(root: Node) -> list[tuple[str, str, str]]:
    """Return every distinct `device.attributes["domain"].name` or `device.capacity["domain"].name`."""
    found: dict[tuple[str, str, str], None] = {}
    for node in tree.walk(root):
        name, inner = _last_step(node)
        domain, outer = _last_step(inner) if inner is not None else (None, None)
        if name and domain and tree.qualified_name(outer) in _MAPS:
            found[_MAPS[tree.qualified_name(outer) or ""], domain, name] = None
    return list(found)


def _last_step(node: Node) -> tuple[str | None, Node | None]:
    if isinstance(node, Select):
        return node.field, node.operand
    if isinstance(node, Call) and node.function in (tree.INDEX, tree.OPTIONAL_INDEX):
        key = node.args[1]
        if isinstance(key, Literal) and isinstance(key.value, str):
            return key.value, node.args[0]
    return None, None


def _values(kind: str, device: DeviceView) -> Mapping[str, Mapping[str, object]]:
    return device.attributes if kind == "attributes" else device.capacity


def _reference(kind: str, domain: str, name: str, devices: Sequence[DeviceView]) -> Reference:
    shown = f"{domain}/{name}"
    present = sum(name in _values(kind, device).get(domain, {}) for device in devices)
    if present:
        return Reference(shown, present)
    known = {
        f"{other}/{identifier}"
        for device in devices
        for other, values in _values(kind, device).items()
        for identifier in values
    }
    nearest = difflib.get_close_matches(shown, sorted(known), n=1, cutoff=_SIMILARITY_MIN)
    return Reference(shown, 0, nearest[0] if nearest else "")
