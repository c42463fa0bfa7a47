"""Rules for fields that several kinds of resource.k8s.io share: names, lists, opaque configuration, taints.

Paths are built only for errors: a slice of 128 devices has thousands of fields, and nearly all are valid.
Hence the rules for single values take the path of the structure, and the names of the field below it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from dray.api import names
from dray.api.document import Document
from dray.api.field_errors import (
    FieldErrors,
    Path,
    duplicate,
    forbidden,
    invalid,
    itself,
    not_supported,
    required,
    too_long,
    too_many,
    too_many_characters,
    unique,
)
from dray.api.validation.meta_v1 import validate_annotations, validate_labels
from dray.api.validation.resource_rendering import NODE_SELECTOR_TERM, internal_form

IMMUTABLE: Final = "field is immutable"

DRIVER_NAME_LENGTH_MAX: Final = 63
POOL_NAME_LENGTH_MAX: Final = 253
DEVICE_ID_LENGTH_MAX: Final = 32
SELECTORS_MAX: Final = 32
CONFIGS_MAX: Final = 32
REQUESTS_MAX: Final = 32
OPAQUE_LENGTH_MAX: Final = 10 * 1024
BINDING_CONDITIONS_MAX: Final = 4
CONDITIONS_MAX: Final = 8

TAINT_EFFECTS: Final = ("NoExecute", "NoSchedule", "None")
TOLERATION_OPERATORS: Final = ("Equal", "Exists")
PREPARE: Final = "NodePrepareResources"
UNPREPARE: Final = "NodeUnprepareResources"
EVERY_OPERATION: Final = "*"
NODE_OPERATIONS: Final = (EVERY_OPERATION, PREPARE, UNPREPARE)

_matches_uuid = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}").fullmatch

ItemRule = Callable[[Any, Path], FieldErrors]


def byte_length(text: str) -> int:
    """Return the length in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def messages_at(path: Path, value: Any, messages: Iterable[str]) -> FieldErrors:
    """Return one `Invalid` error for each message."""
    return [invalid(path, value, message) for message in messages]


def each(items: Sequence[Any] | None, rule: ItemRule, path: Path) -> FieldErrors:
    """Apply a rule to every item."""
    errors: FieldErrors = []
    for index, item in enumerate(items or ()):
        errors += rule(item, path.index(index))
    return errors


def bounded(items: Sequence[Any] | None, count_max: int, rule: ItemRule, path: Path) -> FieldErrors:
    """Apply a rule to every item; a list that is too long is only reported as such."""
    if items and len(items) > count_max:
        return [too_many(path, len(items), count_max)]
    return each(items, rule, path)


def bounded_set(
    items: Sequence[Any] | None, count_max: int, rule: ItemRule, key: Callable[[Any], Any], path: Path
) -> FieldErrors:
    """Apply a rule to every item of a set; a list that is too long is only reported as such."""
    if items and len(items) > count_max:
        return [too_many(path, len(items), count_max)]
    return each(items, rule, path) + unique(items, key, path)


def below(path: Path, at: tuple[str, ...]) -> Path:
    """Return the path of a field below another one; rules build it for errors alone."""
    return path.child(*at) if at else path


def label(value: str | None, path: Path, *at: str) -> FieldErrors:
    """Validate a DNS label."""
    messages = names.dns1123_label(value or "")
    return messages_at(below(path, at), value or "", messages) if messages else []


def subdomain(value: str, path: Path, *at: str) -> FieldErrors:
    """Validate a DNS subdomain."""
    messages = names.dns1123_subdomain(value)
    return messages_at(below(path, at), value, messages) if messages else []


def label_name(value: str | None, path: Path, *at: str) -> FieldErrors:
    """Validate a label key."""
    messages = names.qualified_name(value or "")
    return messages_at(below(path, at), value or "", messages) if messages else []


def label_value(value: str | None, path: Path, *at: str) -> FieldErrors:
    """Validate a label value."""
    messages = names.label_value(value or "")
    return messages_at(below(path, at), value, messages) if messages else []


def driver_name(value: str | None, path: Path, *at: str) -> FieldErrors:
    """Validate a driver name: a subdomain of at most 63 characters, upper case allowed."""
    if not value:
        return [required(below(path, at))]
    messages = names.dns1123_subdomain(value.lower())
    if not messages and len(value) <= DRIVER_NAME_LENGTH_MAX:
        return []
    path = below(path, at)
    errors = [too_many_characters(path, DRIVER_NAME_LENGTH_MAX)] if len(value) > DRIVER_NAME_LENGTH_MAX else []
    return errors + messages_at(path, value, messages)


def pool_name(value: str | None, path: Path, *at: str) -> FieldErrors:
    """Validate a pool name: subdomains joined by slashes."""
    if not value:
        return [required(below(path, at))]
    errors = [too_long(below(path, at), POOL_NAME_LENGTH_MAX)] if byte_length(value) > POOL_NAME_LENGTH_MAX else []
    for index, part in enumerate(value.split("/")):
        messages = names.dns1123_subdomain(part) if part else ["must not be empty"]
        if messages:
            errors += messages_at(below(path, at), part, (f"segment {index}: {message}" for message in messages))
    return errors


def node_name(value: str, path: Path, *at: str) -> FieldErrors:
    """Validate a node name."""
    return subdomain(value, path, *at)


def uid(value: str, path: Path) -> FieldErrors:
    """Validate a lower-case UUID."""
    if _matches_uuid(value):
        return []
    return [invalid(path, value, "must be a lowercase UUID in 8-4-4-4-12 format")]


def qualified_id(value: str, path: Path) -> FieldErrors:
    """Validate the name of an attribute or capacity: a C identifier with an optional domain."""
    domain, separator, identifier = value.partition("/")
    if not separator:
        return _identifier(value, path)
    if "/" in identifier:
        return [invalid(path, value, "must not contain more than one slash")]
    errors = _prefix(domain, path)
    if not identifier:
        return [*errors, invalid(path, "", "name must not be empty")]
    return errors + _identifier(identifier, path)


def _prefix(domain: str, path: Path) -> FieldErrors:
    if not domain:
        return [invalid(path, "", "prefix must not be empty")]
    errors = [too_many_characters(path, DRIVER_NAME_LENGTH_MAX)] if len(domain) > DRIVER_NAME_LENGTH_MAX else []
    return errors + messages_at(path, domain, (f"prefix: {text}" for text in names.dns1123_subdomain(domain.lower())))


def fully_qualified_id(value: str, path: Path) -> FieldErrors:
    """Validate the name of an attribute with its domain."""
    errors = qualified_id(value, path)
    if "/" not in value:
        errors.append(invalid(path, value, "a fully qualified name must be a domain and a name separated by a slash"))
    return errors


def _identifier(value: str, path: Path) -> FieldErrors:
    errors = [too_long(path, DEVICE_ID_LENGTH_MAX)] if byte_length(value) > DEVICE_ID_LENGTH_MAX else []
    messages = names.c_identifier(value)
    return errors + messages_at(path, value, messages) if messages else errors


def raw_object(value: Any, path: Path, *, stored: bool, length_max: int) -> FieldErrors:
    """Validate opaque parameters: a JSON object of limited size; a stored one may be larger."""
    if value is None:
        return [required(path)]
    if not stored and len(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()) > length_max:
        return [too_long(path, length_max)]
    return [] if isinstance(value, dict) else [invalid(path, "<value omitted>", "must be a valid JSON object")]


def configuration(config: Document, path: Path, *, stored: bool) -> FieldErrors:
    """Validate a configuration entry, which must be opaque."""
    opaque = config.get("opaque")
    if opaque is None:
        return [required(path.child("opaque"))]
    errors = driver_name(opaque.get("driver"), path, "opaque", "driver")
    parameters_path = path.child("opaque", "parameters")
    return errors + raw_object(opaque.get("parameters"), parameters_path, stored=stored, length_max=OPAQUE_LENGTH_MAX)


def toleration(item: Document, path: Path) -> FieldErrors:
    """Validate a toleration of device taints."""
    key, operator, value, effect = (item.get(name) or "" for name in ("key", "operator", "value", "effect"))
    errors = label_name(key, path, "key") if key else []
    if operator == "Exists":
        if value:
            errors.append(invalid(path.child("value"), value, "must be empty for operator `Exists`"))
    elif operator == "Equal":
        errors += label_value(value, path, "value")
    elif not operator:
        errors.append(required(path.child("operator")))
    else:
        errors.append(not_supported(path.child("operator"), operator, TOLERATION_OPERATORS))
    if effect and effect not in TAINT_EFFECTS:
        errors.append(not_supported(path.child("effect"), effect, TAINT_EFFECTS))
    return errors


def taint(item: Document, path: Path, old: Document | None = None) -> FieldErrors:
    """Validate a device taint; an unchanged effect is ratcheted."""
    errors = label_name(item.get("key"), path, "key")
    errors += label_value(item.get("value"), path, "value")
    effect = item.get("effect") or ""
    if old is not None and (old.get("effect") or "") == effect:
        return errors
    if not effect:
        errors.append(required(path.child("effect")))
    elif effect not in TAINT_EFFECTS:
        errors.append(not_supported(path.child("effect"), effect, TAINT_EFFECTS))
    return errors


def binding_conditions(item: Document, path: Path) -> FieldErrors:
    """Validate binding conditions and binding failure conditions: both or none, without duplicates."""
    conditions, failures = item.get("bindingConditions"), item.get("bindingFailureConditions")
    if not conditions and not failures:
        return []
    conditions_path, failures_path = path.child("bindingConditions"), path.child("bindingFailureConditions")
    errors = bounded(conditions, BINDING_CONDITIONS_MAX, label_name, conditions_path)
    errors += bounded(failures, BINDING_CONDITIONS_MAX, label_name, failures_path)
    errors += unique(conditions, itself, conditions_path)
    errors += _failure_overlap(conditions or (), failures or (), failures_path)
    if not conditions:
        errors.append(
            invalid(conditions_path, conditions, "bindingConditions are required to use bindingFailureConditions")
        )
    if not failures:
        errors.append(
            invalid(failures_path, failures, "bindingFailureConditions are required to use bindingConditions")
        )
    return errors


def _failure_overlap(conditions: Sequence[str], failures: Sequence[str], path: Path) -> FieldErrors:
    errors: FieldErrors = []
    seen: set[str] = set()
    for index, condition in enumerate(failures):
        if condition in seen:
            errors.append(duplicate(path.index(index), condition))
        seen.add(condition)
        if condition in conditions:
            text = "bindingFailureConditions must not overlap with bindingConditions"
            errors.append(invalid(path.index(index), condition, text))
    return errors


def skipped_operations(operations: Sequence[str] | None, path: Path) -> FieldErrors:
    """Validate the node operations that a driver does not need: prepare can be skipped only with unprepare."""
    if not operations:
        return []
    errors: FieldErrors = [
        not_supported(path.index(index), operation, NODE_OPERATIONS)
        for index, operation in enumerate(operations)
        if operation not in NODE_OPERATIONS
    ]
    errors += unique(operations, itself, path)
    if PREPARE in operations and UNPREPARE not in operations and EVERY_OPERATION not in operations:
        text = f"{PREPARE} cannot be skipped unless {UNPREPARE} is also skipped"
        errors.append(invalid(path, list(operations), text))
    return errors


def node_selector(selector: Document, path: Path) -> FieldErrors:
    """Validate a node selector with at least one term."""
    terms_path = path.child("nodeSelectorTerms")
    if not selector.get("nodeSelectorTerms"):
        return [required(terms_path, "must have at least one node selector term")]
    return each(selector["nodeSelectorTerms"], _node_selector_term, terms_path)


def _node_selector_term(term: Document, path: Path) -> FieldErrors:
    errors: FieldErrors = []
    if expressions := term.get("matchExpressions"):
        errors += each(expressions, _node_requirement, path.child("matchExpressions"))
    if match_fields := term.get("matchFields"):
        errors += each(match_fields, _node_field_requirement, path.child("matchFields"))
    return errors


def _node_requirement(item: Document, path: Path) -> FieldErrors:
    operator, values = item.get("operator") or "", item.get("values") or ()
    errors: FieldErrors = []
    if operator in ("In", "NotIn"):
        if not values:
            errors.append(required(path.child("values"), "must be specified when `operator` is 'In' or 'NotIn'"))
    elif operator in ("Exists", "DoesNotExist"):
        if values:
            text = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            errors.append(forbidden(path.child("values"), text))
    elif operator in ("Gt", "Lt"):
        if len(values) != 1:
            text = "must be specified single value when `operator` is 'Lt' or 'Gt'"
            errors.append(required(path.child("values"), text))
    else:
        errors.append(invalid(path.child("operator"), operator, "not a valid selector operator"))
    errors += label_name(item.get("key"), path, "key")
    return errors + each(values, label_value, path.child("values"))


def _node_field_requirement(item: Document, path: Path) -> FieldErrors:
    operator, key, values = item.get("operator") or "", item.get("key") or "", item.get("values") or ()
    errors: FieldErrors = []
    if operator not in ("In", "NotIn"):
        errors.append(invalid(path.child("operator"), operator, "not a valid selector operator"))
    elif len(values) != 1:
        text = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
        errors.append(required(path.child("values"), text))
    if key != "metadata.name":
        return [*errors, invalid(path.child("key"), key, "not a valid field selector key")]
    return errors + each(values, node_name, path.child("values"))


def single_term(selector: Document, path: Path) -> FieldErrors:
    """Validate a node selector with exactly one term, which can be merged with others."""
    errors = node_selector(selector, path)
    terms = selector.get("nodeSelectorTerms")
    if len(terms or ()) != 1:
        shown = None if terms is None else [internal_form(NODE_SELECTOR_TERM, term) for term in terms]
        errors.append(invalid(path.child("nodeSelectorTerms"), shown, "must have exactly one node selector term"))
    return errors


_TRUNCATED_LENGTH_MIN: Final = 16


def shortened(key: str, length_max: int) -> str:
    """Return a map key for a path, with the middle of a long one omitted."""
    length_max = max(length_max, _TRUNCATED_LENGTH_MIN)
    if len(key) <= length_max:
        return key
    remaining = length_max - len("...")
    return f"{key[: (remaining + 1) // 2]}...{key[len(key) - remaining // 2 :]}"


def labels_only(metadata: Mapping[str, Any] | None, path: Path) -> FieldErrors:
    """Validate the metadata of a template: labels and annotations only."""
    if not metadata:
        return []
    errors = validate_annotations(metadata.get("annotations") or {}, path.child("annotations"))
    errors += validate_labels(metadata.get("labels") or {}, path.child("labels"))
    others = (key for key, value in metadata.items() if value and key not in ("labels", "annotations"))
    return errors + [forbidden(path.child("uID" if key == "uid" else key), "cannot be set") for key in others]
