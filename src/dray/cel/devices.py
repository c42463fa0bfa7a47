"""The CEL value of a device in a ResourceSlice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dray.api.document import Document
from dray.api.quantity import Quantity, QuantityError
from dray.api.semver import Semver, SemverError
from dray.cel.errors import CELRuntimeError

_EMPTY: Final[dict[str, Any]] = {}


class DomainMap(dict[str, dict[str, Any]]):
    """Attributes by domain: an unknown domain is an empty map when looked up, but is not `in` it."""

    __slots__ = ()

    def __missing__(self, key: str) -> dict[str, Any]:
        if isinstance(key, str):
            return _EMPTY
        raise KeyError(key)


class DeviceView:
    """The value of `device`; immutable."""

    __slots__ = ("allow_multiple", "attributes", "capacity", "driver")

    def __init__(
        self,
        driver: str,
        attributes: Mapping[str, Mapping[str, Any]] | None = None,
        capacity: Mapping[str, Mapping[str, Quantity]] | None = None,
        *,
        allow_multiple: bool = False,
    ) -> None:
        self.driver = driver
        self.attributes = DomainMap({domain: dict(values) for domain, values in (attributes or {}).items()})
        self.capacity = DomainMap({domain: dict(values) for domain, values in (capacity or {}).items()})
        self.allow_multiple = allow_multiple


def split_name(name: str, driver: str) -> tuple[str, str]:
    """Return domain and id of a qualified name; the default domain is the driver's."""
    domain, slash, identifier = name.partition("/")
    return (domain, identifier) if slash else (driver, name)


def device_view(driver: str, document: Document) -> DeviceView:
    """Return the view of a device; `basic` of v1beta1 is supported as well."""
    body: Document = document.get("basic") or document
    view = DeviceView(driver, allow_multiple=bool(body.get("allowMultipleAllocations")))
    for name, attribute in (body.get("attributes") or {}).items():
        domain, identifier = split_name(name, driver)
        view.attributes.setdefault(domain, {})[identifier] = _attribute_value(name, attribute)
    for name, capacity in (body.get("capacity") or {}).items():
        domain, identifier = split_name(name, driver)
        view.capacity.setdefault(domain, {})[identifier] = _capacity_value(name, capacity)
    return view


def _attribute_value(name: str, attribute: Document) -> Any:
    for key in ("ints", "bools", "strings"):
        if attribute.get(key) is not None:
            return list(attribute[key])
    if attribute.get("versions") is not None:
        return [_version(name, text) for text in attribute["versions"]]
    for key in ("int", "bool", "string"):
        if attribute.get(key) is not None:
            return attribute[key]
    if attribute.get("version") is not None:
        return _version(name, attribute["version"])
    raise CELRuntimeError(f"attribute {name}: unsupported attribute value")


def _version(name: str, text: str) -> Semver:
    try:
        return Semver.parse(text)
    except SemverError as error:
        raise CELRuntimeError(f"attribute {name}: parse semantic version: {error}") from None


def _capacity_value(name: str, capacity: Document | str) -> Quantity:
    try:
        return Quantity.parse(capacity["value"] if isinstance(capacity, dict) else capacity)
    except (QuantityError, KeyError) as error:
        raise CELRuntimeError(f"capacity {name}: {error}") from None
