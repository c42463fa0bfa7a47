"""Which attributes of a device a selector reads. Pure.

Devices that differ in other attributes only, such as serial numbers, need not be evaluated one by one.
"""

from __future__ import annotations

from typing import Final

from dray.cel.tree import INDEX, OPTIONAL_INDEX, Bind, Call, Ident, Literal, Node, Select, children

_DEVICE: Final = "device"
_ATTRIBUTES: Final = "attributes"


def attributes_read(root: Node) -> frozenset[str] | None:
    """Return the ids of all attributes, of any domain, on which the selector may depend; None if on all of them."""
    found: set[str] = set()
    return frozenset(found) if _collect(root, frozenset(), found) else None


def _collect(node: Node, domains: frozenset[str], found: set[str]) -> bool:
    """Add the ids that a part of the selector reads; `domains` are the variables with the attributes of a domain.

    Return False if the part uses attributes in another way, for example all of a domain.
    """
    read = _attribute(node, domains)
    if read is not None:
        found.add(read)
        return True
    if isinstance(node, Bind) and _is_domain(node.value, domains):
        return _collect(node.body, domains | {node.name}, found)
    if _is_domain(node, domains) or (isinstance(node, Ident) and node.name == _DEVICE):
        return False
    if isinstance(node, Select) and isinstance(node.operand, Ident) and node.operand.name == _DEVICE:
        return node.field != _ATTRIBUTES
    return all(_collect(child, domains, found) for child in children(node))


def _attribute(node: Node, domains: frozenset[str]) -> str | None:
    """Return the id of `domain.id` or `domain["id"]`, also of their optional forms and of `has(domain.id)`."""
    if isinstance(node, Select):
        return node.field if _is_domain(node.operand, domains) else None
    if isinstance(node, Call) and node.function in (INDEX, OPTIONAL_INDEX) and _is_domain(node.args[0], domains):
        return _text(node.args[1])
    return None


def _is_domain(node: Node, domains: frozenset[str]) -> bool:
    """Return whether it is `device.attributes["domain"]`.

    The optional form is not one: it tells whether the device has any attribute of the domain.
    """
    if isinstance(node, Ident):
        return node.name in domains
    if not isinstance(node, Call) or node.function != INDEX or _text(node.args[1]) is None:
        return False
    table = node.args[0]
    return (
        isinstance(table, Select)
        and not table.optional
        and table.field == _ATTRIBUTES
        and isinstance(table.operand, Ident)
        and table.operand.name == _DEVICE
    )


def _text(node: Node) -> str | None:
    return node.value if isinstance(node, Literal) and isinstance(node.value, str) else None
