"""Resource names and quantities of containers, nodes and quotas."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, TypeAlias

from dray.api.document import Document
from dray.api.field_errors import FieldErrors, Path, forbidden, invalid, required
from dray.api.names import qualified_name
from dray.api.quantity import Quantity, QuantityError
from dray.api.validation.meta_v1 import NOT_NEGATIVE

# The implicit name, by which every device class can be requested (XR-02).
IMPLICIT_CLASS_PREFIX: Final = "deviceclass.resource.kubernetes.io/"
REQUESTS_PREFIX: Final = "requests."
KUBERNETES_DOMAIN: Final = "kubernetes.io/"
_HUGE_PAGES_PREFIX: Final = "hugepages-"
_CACHE_SIZE: Final = 2048

ValidateName: TypeAlias = Callable[[str, Path], FieldErrors]

_COMPUTE: Final = frozenset({"cpu", "memory", "ephemeral-storage"})
_OBJECT_COUNTS: Final = frozenset(
    {
        "pods",
        "resourcequotas",
        "services",
        "replicationcontrollers",
        "secrets",
        "configmaps",
        "persistentvolumeclaims",
        "services.nodeports",
        "services.loadbalancers",
    }
)
STANDARD_QUOTA: Final = (
    _COMPUTE
    | _OBJECT_COUNTS
    | {f"{kind}.{name}" for kind in ("requests", "limits") for name in _COMPUTE}
    | {"requests.storage"}
)
_STANDARD: Final = STANDARD_QUOTA | {"storage"}


def is_huge_pages(name: str) -> bool:
    """Report whether the resource is a size of huge pages."""
    return name.startswith(_HUGE_PAGES_PREFIX)


def is_native(name: str) -> bool:
    """Report whether the resource is native to Kubernetes."""
    return "/" not in name or KUBERNETES_DOMAIN in name


@lru_cache(maxsize=_CACHE_SIZE)
def is_extended(name: str) -> bool:
    """Report whether the resource is an extended resource, of a driver or a device plugin."""
    if name.startswith(IMPLICIT_CLASS_PREFIX):
        return not qualified_name(name)
    if is_native(name) or name.startswith(REQUESTS_PREFIX):
        return False
    # Must also be valid as a quota name.
    return not qualified_name(REQUESTS_PREFIX + name)


def is_standard_quota(name: str) -> bool:
    """Report whether the name is a standard quota resource, without a domain."""
    return name in STANDARD_QUOTA or is_huge_pages(name.removeprefix(REQUESTS_PREFIX))


@lru_cache(maxsize=_CACHE_SIZE)
def _name_problems(name: str) -> tuple[str, ...]:
    problems = tuple(qualified_name(name))
    if not problems and "/" not in name and name not in _STANDARD and not is_huge_pages(name):
        problems = ("must be a standard resource type or fully qualified",)
    return problems


@lru_cache(maxsize=_CACHE_SIZE)
def _container_name_problems(name: str) -> tuple[str, ...]:
    problems = _name_problems(name)
    if "/" not in name:
        if name not in _COMPUTE and not is_huge_pages(name):
            problems += ("must be a standard resource for containers",)
    elif not is_native(name) and not is_extended(name):
        problems += ("doesn't follow extended resource name standard",)
    return problems


def validate_resource_name(name: str, path: Path) -> FieldErrors:
    """Validate a resource name of any kind."""
    return [invalid(path, name, problem) for problem in _name_problems(name)]


def validate_container_resource_name(name: str, path: Path) -> FieldErrors:
    """Validate a resource name of a container."""
    return [invalid(path, name, problem) for problem in _container_name_problems(name)]


def validate_quota_resource_name(name: str, path: Path) -> FieldErrors:
    """Validate a name that a quota may limit."""
    errors = validate_resource_name(name, path)
    if "/" not in name and not is_standard_quota(name):
        errors.append(invalid(path, name, "must be a standard resource for quota"))
    return errors


def parse_quantity(value: Any, path: Path, errors: FieldErrors) -> Quantity | None:
    """Parse a quantity, or append its error."""
    try:
        return Quantity.parse(value)
    except QuantityError as error:
        errors.append(invalid(path, value, str(error)))
        return None


def validate_amount(name: str, quantity: Quantity, path: Path) -> FieldErrors:
    """Validate that the quantity is not negative, and an integer where required (XR-09)."""
    errors: FieldErrors = []
    if quantity.nanos < 0:
        errors.append(invalid(path, str(quantity), NOT_NEGATIVE))
    if (name in _OBJECT_COUNTS or is_extended(name)) and quantity.milli_value() % 1000:
        errors.append(invalid(path, str(quantity), "must be an integer"))
    return errors


def validate_resource_list(resources: Document | None, path: Path) -> FieldErrors:
    """Validate the quantities of resources whose names are not restricted (capacity, overhead)."""
    errors: FieldErrors = []
    for name, value in (resources or {}).items():
        quantity = parse_quantity(value, path.key(name), errors)
        if quantity is not None:
            errors += validate_amount(name, quantity, path.key(name))
    return errors


def validate_resource_requirements(
    resources: Document, path: Path, validate_name: ValidateName = validate_container_resource_name
) -> FieldErrors:
    """Validate limits and requests, by default those of a container; claims are validated with the pod's."""
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    if not limits and not requests:
        return []
    errors: FieldErrors = []
    parsed_limits = _validate_list(limits, path.child("limits"), validate_name, errors)
    parsed_requests = _validate_list(requests, path.child("requests"), validate_name, errors)
    for name, quantity in parsed_requests.items():
        errors += _compare_with_limit(name, quantity, parsed_limits.get(name), path)
    names = limits.keys() | requests.keys()
    if any(map(is_huge_pages, names)) and not names & {"cpu", "memory"}:
        errors.append(forbidden(path, "HugePages require cpu or memory"))
    return errors


def _validate_list(
    resources: Document, path: Path, validate_name: ValidateName, errors: FieldErrors
) -> dict[str, Quantity]:
    parsed: dict[str, Quantity] = {}
    for name, value in resources.items():
        errors += validate_name(name, path.key(name))
        try:
            quantity = Quantity.parse(value)
        except QuantityError as error:
            errors.append(invalid(path.key(name), value, str(error)))
            continue
        parsed[name] = quantity
        if quantity.nanos < 0 or name not in _COMPUTE:
            errors += validate_amount(name, quantity, path.key(name))
    return parsed


def _compare_with_limit(name: str, request: Quantity, limit: Quantity | None, path: Path) -> FieldErrors:
    # The implicit names of device classes are native here: they may be requested without a limit, or below it.
    if limit is None:
        if is_native(name) and not is_huge_pages(name):
            return []
        return [required(path.child("limits"), "Limit must be set for non overcommitable resources")]
    if request != limit and (is_huge_pages(name) or not is_native(name)):
        return [invalid(path.child("requests"), str(request), f"must be equal to {name} limit of {limit}")]
    if request > limit:
        return [invalid(path.child("requests"), str(request), f"must be less than or equal to {name} limit of {limit}")]
    return []
