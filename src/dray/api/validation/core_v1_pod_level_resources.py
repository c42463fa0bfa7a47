"""The resources of a Pod as a whole: their names, and that they cover those of its containers."""

from __future__ import annotations

from dray.api.document import Document
from dray.api.field_errors import FieldErrors, Path, forbidden, invalid, not_supported
from dray.api.pod_level_resources import SUPPORTED, aggregate, is_supported
from dray.api.quantity import QuantityError
from dray.api.quota.usage import Usage, is_huge_pages, parse_amounts
from dray.api.validation.core_v1_resources import validate_resource_name, validate_resource_requirements
from dray.api.validation.resource_pod import claim_names, validate_container_claims


def validate_pod_level_resources(spec: Document, path: Path) -> FieldErrors:
    """Validate `spec.resources`."""
    resources = spec.get("resources")
    if resources is None:
        return []
    if (spec.get("os") or {}).get("name") == "windows":
        return [forbidden(path, "may not be set for a windows pod")]
    errors: FieldErrors = []
    if resources.get("claims"):
        errors.append(forbidden(path.child("claims"), "claims may not be set for Resources at pod-level"))
        errors += validate_container_claims(resources["claims"], claim_names(spec), path.child("claims"))
    errors += validate_resource_requirements(resources, path, _validate_name)
    try:
        return errors + _validate_consistency(spec, path)
    except QuantityError:
        # It is reported where it stands.
        return errors


def _validate_name(name: str, path: Path) -> FieldErrors:
    errors = validate_resource_name(name, path)
    return errors if errors or is_supported(name) else [not_supported(path, name, SUPPORTED)]


def _validate_consistency(spec: Document, path: Path) -> FieldErrors:
    resources = spec["resources"]
    requests, limits = (parse_amounts(resources.get(field) or {}) for field in ("requests", "limits"))
    errors = _validate_cover(requests, aggregate(spec, "requests"), path.child("requests"), "requests")
    pages = {name: amount for name, amount in aggregate(spec, "limits").items() if is_huge_pages(name)}
    errors += _validate_cover(limits, pages, path.child("limits"), "limits")
    for i, container in enumerate(spec.get("containers") or ()):
        for name, amount in parse_amounts((container.get("resources") or {}).get("limits") or {}).items():
            if name in limits and amount > limits[name]:
                at = path.child("containers").index(i).key(name).child("limits")
                errors.append(invalid(at, str(amount), f"must be less than or equal to pod limits of {limits[name]}"))
    return errors


def _validate_cover(amounts: Usage, needed: Usage, path: Path, what: str) -> FieldErrors:
    return [
        invalid(
            path.key(name),
            str(amounts[name]),
            f"must be greater than or equal to aggregate container {what} of {amount}",
        )
        for name, amount in needed.items()
        if name in amounts and amount > amounts[name]
    ]
