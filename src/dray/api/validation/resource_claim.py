"""ResourceClaims, ResourceClaimTemplates and DeviceClasses: specs, selectors, constraints and configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dray.api.document import Document
from dray.api.field_errors import (
    FieldErrors,
    Path,
    invalid,
    itself,
    not_supported,
    quote,
    required,
)
from dray.api.names import qualified_name
from dray.api.validation import resource_fields as fields
from dray.api.validation.core_v1_resources import KUBERNETES_DOMAIN, REQUESTS_PREFIX
from dray.api.validation.resource_expressions import Compilers, SelectorCompiler, derived_attributes, selectors

CONSTRAINTS_MAX: Final = 32
ALTERNATIVES_MAX: Final = 8
ALLOCATION_MODES: Final = ("All", "ExactCount")

_BAD_REFERENCE: Final = (
    "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
)
_ONE_KIND: Final = "exactly one of `exactly` or `firstAvailable` is required"
# The fields of a constraint, of which exactly one is set, with the rule of each.
_CONSTRAINTS: Final[Mapping[str, fields.ItemRule]] = {
    "matchAttribute": fields.fully_qualified_id,
    "distinctAttribute": fields.fully_qualified_id,
}
_ONE_CONSTRAINT: Final = (
    f"exactly one of {' or '.join(quote(name) for name in _CONSTRAINTS)} is required, but multiple fields are set"
)

SPEC: Final = Path("spec")


# Request name -> names of its alternatives, None when it has none.
RequestNames = Mapping[str, frozenset[str] | None]


def validate_claim(claim: Document, compilers: Compilers) -> FieldErrors:
    """Return the validation errors of a new claim."""
    return validate_claim_spec(claim.get("spec") or {}, SPEC, compilers)


def validate_claim_update(claim: Document, old: Document) -> FieldErrors:
    """Validate a changed claim; its spec is immutable, so an unchanged one is not validated again."""
    spec = claim.get("spec")
    if spec == old.get("spec"):
        return []
    return [invalid(SPEC, None, fields.IMMUTABLE)]


def validate_claim_spec(spec: Document, path: Path, compilers: Compilers) -> FieldErrors:
    """Return the validation errors of a claim's spec."""
    devices = spec.get("devices") or {}
    path = path.child("devices")
    requests = request_names(devices)
    errors = fields.bounded_set(
        devices.get("requests"),
        fields.REQUESTS_MAX,
        lambda item, at: _request(item, at, compilers.selector),
        _name_of,
        path.child("requests"),
    )
    if devices.get("constraints"):
        errors += fields.bounded(
            devices["constraints"],
            CONSTRAINTS_MAX,
            lambda item, at: _constraint(item, at, requests),
            path.child("constraints"),
        )
    if devices.get("config"):
        errors += fields.bounded(
            devices["config"],
            fields.CONFIGS_MAX,
            lambda item, at: _claim_configuration(item, at, requests),
            path.child("config"),
        )
    return errors + derived_attributes(devices, path, compilers.derived_attribute)


def request_names(devices: Document) -> RequestNames:
    """Return the names that constraints, configuration and results may refer to."""
    return {
        request.get("name") or "": frozenset(item.get("name") or "" for item in request["firstAvailable"])
        if request.get("firstAvailable")
        else None
        for request in devices.get("requests") or ()
    }


def request_reference(name: str, requests: RequestNames, path: Path, *at: str) -> FieldErrors:
    """Validate a reference to a request, or to one of its alternatives as `request/alternative`."""
    segments = name.split("/")
    if len(segments) > _SEGMENTS_MAX:
        return [invalid(fields.below(path, at), name, _BAD_REFERENCE)]
    errors = [error for segment in segments for error in fields.label(segment, path, *at)]
    if not _is_known(segments, requests):
        errors.append(invalid(fields.below(path, at), name, _BAD_REFERENCE))
    return errors


_SEGMENTS_MAX: Final = 2


def _is_known(segments: list[str], requests: RequestNames) -> bool:
    if segments[0] not in requests:
        return False
    return len(segments) == 1 or segments[1] in (requests[segments[0]] or ())


def request_references(names: list[str] | None, path: Path, requests: RequestNames) -> FieldErrors:
    """Validate a set of references to requests; an empty one means all."""
    if not names:
        return []
    return fields.bounded_set(
        names, fields.REQUESTS_MAX, lambda item, at: request_reference(item, requests, at), itself, path
    )


def _name_of(item: Document) -> str:
    name: str = item.get("name") or ""
    return name


def _request(request: Document, path: Path, compile_selector: SelectorCompiler) -> FieldErrors:
    errors = fields.label(request.get("name"), path, "name")
    exactly, alternatives = request.get("exactly"), request.get("firstAvailable")
    if exactly is not None and alternatives:
        return [*errors, invalid(path, None, f"{_ONE_KIND}, but multiple fields are set")]
    if exactly is not None:
        return errors + _device_request(exactly, path.child("exactly"), compile_selector)
    if not alternatives:
        return [*errors, required(path, _ONE_KIND)]
    return errors + fields.bounded_set(
        alternatives,
        ALTERNATIVES_MAX,
        lambda item, at: _alternative(item, at, compile_selector),
        _name_of,
        path.child("firstAvailable"),
    )


def _alternative(item: Document, path: Path, compile_selector: SelectorCompiler) -> FieldErrors:
    return fields.label(item.get("name"), path, "name") + _device_request(item, path, compile_selector)


def _device_request(item: Document, path: Path, compile_selector: SelectorCompiler) -> FieldErrors:
    """Validate the fields that `exactly` and each alternative share."""
    class_name = item.get("deviceClassName")
    if class_name:
        errors = fields.subdomain(class_name, path, "deviceClassName")
    else:
        errors = [required(path.child("deviceClassName"))]
    errors += selectors(item.get("selectors"), path.child("selectors"), compile_selector)
    errors += _allocation_mode(item, path)
    return errors + fields.each(item.get("tolerations"), fields.toleration, path.child("tolerations"))


def _allocation_mode(item: Document, path: Path) -> FieldErrors:
    mode, count = item.get("allocationMode") or "", item.get("count") or 0
    if mode == "ExactCount":
        return [] if count > 0 else [invalid(path.child("count"), count, "must be greater than zero")]
    if mode == "All":
        if not count:
            return []
        return [invalid(path.child("count"), count, "must not be specified when allocationMode is 'All'")]
    return [not_supported(path.child("allocationMode"), mode, ALLOCATION_MODES)]


def _constraint(item: Document, path: Path, requests: RequestNames) -> FieldErrors:
    errors = request_references(item.get("requests"), path.child("requests"), requests)
    given = [name for name in _CONSTRAINTS if item.get(name) is not None]
    if len(given) > 1:
        return [*errors, invalid(path, None, _ONE_CONSTRAINT)]
    if not given:
        return [*errors, required(path, _ONE_CONSTRAINT)]
    rule = _CONSTRAINTS[given[0]]
    return errors + rule(item[given[0]], path.child(given[0]))


def _claim_configuration(item: Document, path: Path, requests: RequestNames) -> FieldErrors:
    errors = request_references(item.get("requests"), path.child("requests"), requests)
    return errors + fields.configuration(item, path, stored=False)


def validate_template(template: Document, compilers: Compilers) -> FieldErrors:
    """Return the validation errors of a new template."""
    spec = template.get("spec") or {}
    errors = fields.labels_only(spec.get("metadata"), SPEC.child("metadata"))
    return errors + validate_claim_spec(spec.get("spec") or {}, SPEC.child("spec"), compilers)


def validate_template_update(template: Document, old: Document) -> FieldErrors:
    """Validate a changed template; its spec is immutable."""
    spec = template.get("spec")
    if spec == old.get("spec"):
        return []
    return [invalid(SPEC, None, fields.IMMUTABLE)]


def validate_class(
    device_class: Document, compile_selector: SelectorCompiler, old: Document | None = None
) -> FieldErrors:
    """Return the validation errors of a new or changed class; unchanged fields are ratcheted."""
    spec = device_class.get("spec") or {}
    old_spec = None if old is None else old.get("spec") or {}
    errors = selectors(
        spec.get("selectors"),
        SPEC.child("selectors"),
        compile_selector,
        stored=_unchanged(spec, old_spec, "selectors"),
    )
    stored = _unchanged(spec, old_spec, "config")
    errors += fields.bounded(
        spec.get("config"),
        fields.CONFIGS_MAX,
        lambda item, at: fields.configuration(item, at, stored=stored),
        SPEC.child("config"),
    )
    extended = spec.get("extendedResourceName")
    if extended is not None and not _unchanged(spec, old_spec, "extendedResourceName"):
        at = SPEC.child("extendedResourceName")
        errors += [invalid(at, extended, problem) for problem in _extended_resource_name_problems(extended)]
    return errors


def _extended_resource_name_problems(name: str) -> list[str]:
    problems: list[str] = []
    if "/" not in name:
        problems.append("a name must be a domain-prefixed path, such as 'example.com/my-prop'")
    elif KUBERNETES_DOMAIN in name:
        problems.append(f'must not have "{KUBERNETES_DOMAIN}" domain')
    if name.startswith(REQUESTS_PREFIX):
        problems.append(f'must not have "{REQUESTS_PREFIX}" prefix')
    # It must also be valid as a quota name.
    return problems + qualified_name(REQUESTS_PREFIX + name)


def _unchanged(spec: Document, old_spec: Document | None, name: str) -> bool:
    return old_spec is not None and (spec.get(name) or []) == (old_spec.get(name) or [])
