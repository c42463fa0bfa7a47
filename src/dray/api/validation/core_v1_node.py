"""Nodes: taints, capacity and immutable fields."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors, Path, duplicate, forbidden, invalid, too_long
from dray.api.validation.core_v1_namespace import validate_kube_finalizers
from dray.api.validation.core_v1_resources import parse_quantity, validate_amount
from dray.api.validation.core_v1_scheduling import validate_taints
from dray.lib.ip_addresses import parse_address

SPEC: Final = Path("spec")
STATUS: Final = Path("status")
FEATURE_LENGTH_MAX: Final = 253

_is_feature_name = re.compile(r"[A-Z][A-Za-z0-9]*(?:/[A-Z][A-Za-z0-9]*)*").fullmatch


def validate_node(node: Document) -> FieldErrors:
    """Validate a new node."""
    spec = node.get("spec") or {}
    errors = validate_kube_finalizers(node)
    if taints := spec.get("taints"):
        errors += validate_taints(taints, SPEC.child("taints"))
    errors += _validate_resources(node.get("status") or {})
    errors += _validate_declared_features(node.get("status") or {})
    for i, cidr in enumerate(spec.get("podCIDRs") or ()):
        errors += _validate_cidr(cidr, SPEC.child("podCIDRs").index(i))
    return errors


def _validate_resources(status: Document) -> FieldErrors:
    errors: FieldErrors = []
    for field in ("capacity", "allocatable"):
        for name, value in (status.get(field) or {}).items():
            path = STATUS.child(field, name)
            quantity = parse_quantity(value, path, errors)
            if quantity is not None:
                errors += validate_amount(name, quantity, path)
    return errors


def _validate_declared_features(status: Document) -> FieldErrors:
    """Validate the names of features: parts in upper camel case, sorted and unique."""
    names: list[str] = status.get("declaredFeatures") or []
    path = STATUS.child("declaredFeatures")
    errors: FieldErrors = []
    seen: set[str] = set()
    for index, name in enumerate(names):
        if len(name) > FEATURE_LENGTH_MAX:
            errors.append(too_long(path.index(index), FEATURE_LENGTH_MAX))
        if not _is_feature_name(name):
            errors.append(invalid(path.index(index), name, "must be UpperCamelCase names separated by '/'"))
        if name in seen:
            errors.append(duplicate(path.index(index), name))
        seen.add(name)
    if names != sorted(names):
        errors.append(invalid(path, names, "list must be sorted alphabetically"))
    return errors


def _validate_cidr(text: str, path: Path) -> FieldErrors:
    address, _, length = text.partition("/")
    try:
        ipaddress.ip_network(f"{address}/{length}" if parse_address(address) else "", strict=False)
    except ValueError:
        return [invalid(path, text, "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)")]
    return []


def validate_node_update(new: Document, old: Document) -> FieldErrors:
    """Validate a changed node."""
    spec, previous, status = new.get("spec") or {}, old.get("spec") or {}, new.get("status") or {}
    errors = _validate_resources(status)
    if status.get("declaredFeatures") != (old.get("status") or {}).get("declaredFeatures"):
        errors += _validate_declared_features(status)
    if taints := spec.get("taints"):
        errors += validate_taints(taints, SPEC.child("taints"))
    seen: list[Document] = []
    for i, address in enumerate(status.get("addresses") or ()):
        if address in seen:
            errors.append(duplicate(STATUS.child("addresses").index(i), address))
        seen.append(address)
    if previous.get("podCIDRs") and spec.get("podCIDRs") != previous["podCIDRs"]:
        text = 'node updates may not change podCIDR except from "" to valid'
        errors.append(forbidden(SPEC.child("podCIDRs"), text))
    if previous.get("providerID") and spec.get("providerID") != previous["providerID"]:
        text = 'node updates may not change providerID except from "" to valid'
        errors.append(forbidden(SPEC.child("providerID"), text))
    return errors
