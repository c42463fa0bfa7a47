"""Resource names and amounts: what containers, nodes and quotas may ask for."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors, Path, forbidden, invalid, required
from dray.api.names import qualified_name
from dray.api.quantity import Quantity, QuantityError
from dray.api.validation.meta_v1 import NOT_NEGATIVE

# Every device class can be asked for by this name without further set-up (XR-02).
IMPLICIT_CLASS_PREFIX: Final = "deviceclass.resource.kubernetes.io/"
_REQUESTS_PREFIX: Final = "requests."
_HUGE_PAGES_PREFIX: Final = "hugepages-"
_CACHE_SIZE: Final = 2048

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
    """Whether the resource is a size of huge pages."""
    return name.startswith(_HUGE_PAGES_PREFIX)


def is_native(name: str) -> bool:
    """Whether Kubernetes itself defines the resource."""
    return "/" not in name or "kubernetes.io/" in name


@lru_cache(maxsize=_CACHE_SIZE)
def is_extended(name: str) -> bool:
    """Whether the resource is one that drivers and device plugins offer."""
    if name.startswith(IMPLICIT_CLASS_PREFIX):
        return not qualified_name(name)
    if is_native(name) or name.startswith(_REQUESTS_PREFIX):
        return False
    # A quota for it must be nameable too.
    return not qualified_name(_REQUESTS_PREFIX + name)


def is_standard_quota(name: str) -> bool:
    """Whether quotas know the name without a domain."""
    return name in STANDARD_QUOTA or is_huge_pages(name.removeprefix(_REQUESTS_PREFIX))


@lru_cache(maxsize=_CACHE_SIZE)
def _name_problems(name: str) -> tuple[str, ...]:
    problems = tuple(qualified_name(name))
    if "/" not in name and name not in _STANDARD and not is_huge_pages(name):
        problems += ("must be a standard resource type or fully qualified",)
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
    """A resource name of any sort."""
    return [invalid(path, name, problem) for problem in _name_problems(name)]


def validate_quota_resource_name(name: str, path: Path) -> FieldErrors:
    """A name that a quota may limit."""
    errors = validate_resource_name(name, path)
    if "/" not in name and not is_standard_quota(name):
        errors.append(invalid(path, name, "must be a standard resource for quota"))
    return errors


def parse_quantity(value: Any, path: Path, errors: FieldErrors) -> Quantity | None:
    """Read a quantity, or record what is wrong with it."""
    try:
        return Quantity.parse(value)
    except QuantityError as error:
        errors.append(invalid(path, value, str(error)))
        return None


def validate_amount(name: str, quantity: Quantity, path: Path) -> FieldErrors:
    """Amounts are not negative; what cannot be split is whole (XR-09)."""
    errors: FieldErrors = []
    if quantity.nanos < 0:
        errors.append(invalid(path, str(quantity), NOT_NEGATIVE))
    if (name in _OBJECT_COUNTS or is_extended(name)) and quantity.milli_value() % 1000:
        errors.append(invalid(path, str(quantity), "must be an integer"))
    return errors


def validate_resource_list(resources: Document | None, path: Path) -> FieldErrors:
    """Amounts under names that are not checked further (capacity, overhead)."""
    errors: FieldErrors = []
    for name, value in (resources or {}).items():
        quantity = parse_quantity(value, path.key(name), errors)
        if quantity is not None:
            errors += validate_amount(name, quantity, path.key(name))
    return errors


def validate_resource_requirements(resources: Document, path: Path) -> FieldErrors:
    """A container's limits and requests; claims are judged with the pod's."""
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    if not limits and not requests:
        return []
    errors: FieldErrors = []
    parsed_limits = _validate_container_list(limits, path.child("limits"), errors)
    parsed_requests = _validate_container_list(requests, path.child("requests"), errors)
    for name, quantity in parsed_requests.items():
        errors += _compare_with_limit(name, quantity, parsed_limits.get(name), path)
    names = limits.keys() | requests.keys()
    if any(map(is_huge_pages, names)) and not names & {"cpu", "memory"}:
        errors.append(forbidden(path, "HugePages require cpu or memory"))
    return errors


def _validate_container_list(resources: Document, path: Path, errors: FieldErrors) -> dict[str, Quantity]:
    parsed: dict[str, Quantity] = {}
    for name, value in resources.items():
        problems = _container_name_problems(name)
        if problems:
            errors += [invalid(path.key(name), name, problem) for problem in problems]
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
    if limit is None:
        # What cannot be overcommitted needs its limit; the implicit names count as native here.
        if is_native(name) and not is_huge_pages(name):
            return []
        return [required(path.child("limits"), "Limit must be set for non overcommitable resources")]
    if request != limit and (is_extended(name) or is_huge_pages(name) or not is_native(name)):
        return [invalid(path.child("requests"), str(request), f"must be equal to {name} limit of {limit}")]
    if request > limit:
        return [invalid(path.child("requests"), str(request), f"must be less than or equal to {name} limit of {limit}")]
    return []
