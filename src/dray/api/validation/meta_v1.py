"""The rules that all kinds share: object metadata, label selectors and conditions.

Texts are those of k8s.io/apimachinery, since users and tests match them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias

from dray.api.document import Document
from dray.api.field_errors import (
    FieldErrors,
    Path,
    duplicate,
    forbidden,
    invalid,
    not_supported,
    quote,
    required,
    too_long,
)
from dray.api.names import NAME_RULES, dns1123_label, label_value, pattern_message, qualified_name
from dray.lib.processor_time import ticking

NameRule: TypeAlias = Callable[[str], list[str]]

METADATA: Final = Path("metadata")
_LABELS: Final = METADATA.child("labels")
_ANNOTATIONS: Final = METADATA.child("annotations")
_OWNER_REFERENCES: Final = METADATA.child("ownerReferences")
_FINALIZERS: Final = METADATA.child("finalizers")
IMMUTABLE: Final = "field is immutable"
NOT_NEGATIVE: Final = "must be greater than or equal to 0"
ANNOTATIONS_SIZE_MAX: Final = 256 * 1024
_MANAGER_LENGTH_MAX: Final = 128
_SUBRESOURCE_LENGTH_MAX: Final = 256
_ORPHAN: Final = "orphan"
_FOREGROUND: Final = "foregroundDeletion"
# The checks below run only for fields that are set, and most objects set few of these.
_CHECKED_ALWAYS: Final = frozenset({"name", "namespace", "uid", "resourceVersion", "creationTimestamp", "generateName"})


def validate_object_meta(metadata: Document, *, namespaced: bool, name_rule: str | NameRule = "") -> FieldErrors:
    """Validate the metadata of a new object; `name_rule` is a rule or a key of `NAME_RULES`."""
    rule = NAME_RULES[name_rule] if isinstance(name_rule, str) else name_rule
    errors = _validate_names(metadata, rule)
    namespace = metadata.get("namespace") or ""
    if not namespaced or not namespace or _namespace_problems(namespace):
        errors += _validate_namespace(namespace, namespaced=namespaced)
    if not metadata.keys() <= _CHECKED_ALWAYS:
        generation = metadata.get("generation") or 0
        if generation < 0:
            errors.append(invalid(METADATA.child("generation"), generation, NOT_NEGATIVE))
        errors += _validate_shared(metadata, {})
        if finalizers := metadata.get("finalizers"):
            errors += validate_finalizers(finalizers, _FINALIZERS)
    return errors


def _validate_names(metadata: Document, rule: NameRule) -> FieldErrors:
    errors: FieldErrors = []
    prefix = metadata.get("generateName") or ""
    if prefix:
        # The suffix is not generated yet; a trailing dash before it is allowed.
        masked = f"{prefix[:-2]}a" if len(prefix) > 1 and prefix.endswith("-") else prefix
        if problems := rule(masked):
            errors += [invalid(METADATA.child("generateName"), prefix, message) for message in problems]
    name = metadata.get("name") or ""
    if not name:
        errors.append(required(METADATA.child("name"), "name or generateName is required"))
        return errors
    if problems := rule(name):
        errors += [invalid(METADATA.child("name"), name, message) for message in problems]
    return errors


def _validate_namespace(namespace: str, *, namespaced: bool) -> FieldErrors:
    if not namespaced:
        return [forbidden(METADATA.child("namespace"), "not allowed on this type")] if namespace else []
    if not namespace:
        return [required(METADATA.child("namespace"))]
    return [invalid(METADATA.child("namespace"), namespace, message) for message in _namespace_problems(namespace)]


# A server has few namespaces.
@lru_cache(maxsize=4096)
def _namespace_problems(namespace: str) -> tuple[str, ...]:
    return tuple(dns1123_label(namespace))


def _validate_shared(metadata: Document, stored: Document) -> FieldErrors:
    """Validate the metadata that creation and update share; what is as it is stored was validated before."""
    errors: FieldErrors = []
    if (labels := metadata.get("labels")) and labels != stored.get("labels"):
        errors += validate_labels(labels, _LABELS)
    if (annotations := metadata.get("annotations")) and annotations != stored.get("annotations"):
        errors += validate_annotations(annotations, _ANNOTATIONS)
    if (owners := metadata.get("ownerReferences")) and owners != stored.get("ownerReferences"):
        errors += validate_owner_references(owners, _OWNER_REFERENCES)
    for position, entry in enumerate(metadata.get("managedFields") or ()):
        if not _is_plain_entry(entry):
            errors += _validate_managed_fields_entry(entry, METADATA.child("managedFields").index(position))
    return errors


def validate_object_meta_update(new: Document, old: Document) -> FieldErrors:
    """Validate changed metadata; an unset resourceVersion must have been filled in.

    Labels, annotations and owner references are validated only if they changed.
    """
    errors: FieldErrors = []
    if old.get("deletionTimestamp"):
        errors += validate_no_new_finalizers(new.get("finalizers") or (), old.get("finalizers") or (), METADATA)
    if not new.get("resourceVersion"):
        errors.append(invalid(METADATA.child("resourceVersion"), "", "must be specified for an update"))
    if (new.get("generation") or 0) < (old.get("generation") or 0):
        errors.append(invalid(METADATA.child("generation"), new.get("generation") or 0, "must not be decremented"))
    if list(map(new.get, _IMMUTABLE_FIELDS)) != list(map(old.get, _IMMUTABLE_FIELDS)):
        for field in _IMMUTABLE_FIELDS:
            errors += validate_immutable(new.get(field), old.get(field), METADATA.child(field))
    return errors + _validate_shared(new, old)


_IMMUTABLE_FIELDS: Final = (
    "name",
    "namespace",
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)


def validate_immutable(new: Any, old: Any, path: Path) -> FieldErrors:
    """Validate that both values are equal; unset and empty are."""
    if new == old or (not new and not old and not isinstance(new, int | bool) and not isinstance(old, int | bool)):
        return []
    return [invalid(path, new, IMMUTABLE)]


def validate_not_negative(value: Any, path: Path) -> FieldErrors:
    """Validate that a number is not negative, if set."""
    return [invalid(path, value, NOT_NEGATIVE)] if value is not None and value < 0 else []


def validate_no_new_finalizers(new: Sequence[str], old: Sequence[str], path: Path) -> FieldErrors:
    """Validate that an object under deletion gets no new finalizers."""
    extra = sorted(set(new) - set(old))
    if not extra:
        return []
    listed = ", ".join(quote(item) for item in extra)
    text = "no new finalizers can be added if the object is being deleted, found new finalizers []string{%s}"
    return [forbidden(path.child("finalizers"), text % listed)]


def validate_labels(labels: Mapping[str, str], path: Path) -> FieldErrors:
    """Validate the keys and values of labels."""
    errors: FieldErrors = []
    for key, value in ticking(labels.items()):
        if problems := _key_problems(key):
            errors += [invalid(path, key, message) for message in problems]
        if messages := label_value(value):
            errors += [invalid(path, value, message) for message in messages]
    return errors


def validate_label_name(name: str, path: Path) -> FieldErrors:
    """Validate a label key."""
    return [invalid(path, name, message) for message in _key_problems(name)]


# The same few keys occur in nearly every object.
@lru_cache(maxsize=4096)
def _key_problems(name: str) -> tuple[str, ...]:
    return tuple(qualified_name(name))


def validate_annotations(annotations: Mapping[str, str], path: Path) -> FieldErrors:
    """Validate the keys and the total size of annotations; keys may have upper-case letters."""
    errors: FieldErrors = []
    size = 0
    for key, value in ticking(annotations.items()):
        if problems := _key_problems(key.lower()):
            errors += [invalid(path, key, message) for message in problems]
        size += len(key) + (len(value) if value.isascii() else len(value.encode()))
    if size > ANNOTATIONS_SIZE_MAX:
        errors.append(too_long(path, ANNOTATIONS_SIZE_MAX))
    return errors


def validate_owner_references(owners: Sequence[Document], path: Path) -> FieldErrors:
    """Validate that every owner reference is complete and at most one is the controller."""
    errors: FieldErrors = []
    controller = ""
    for owner in ticking(owners):
        errors += _validate_owner_reference(owner, path)
        if not owner.get("controller"):
            continue
        current = f"{owner.get('kind', '')}/{owner.get('name', '')}"
        if controller:
            text = 'Only one reference can have Controller set to true. Found "true" in references for %s and %s'
            errors.append(invalid(path, owners, text % (controller, current)))
        else:
            controller = current
    return errors


def _validate_owner_reference(owner: Document, path: Path) -> FieldErrors:
    errors: FieldErrors = []
    api_version = owner.get("apiVersion") or ""
    if not api_version.rpartition("/")[2]:
        errors.append(invalid(path.child("apiVersion"), api_version, "version must not be empty"))
    for field in ("kind", "name", "uid"):
        if not owner.get(field):
            errors.append(invalid(path.child(field), owner.get(field) or "", "must not be empty"))
    if api_version == "v1" and owner.get("kind") == "Event":
        errors.append(invalid(path, owner, "/v1, Kind=Event is disallowed from being an owner"))
    return errors


def validate_finalizers(finalizers: Sequence[str], path: Path) -> FieldErrors:
    """Validate finalizer names; those of the garbage collector are mutually exclusive."""
    errors = [invalid(path, item, message) for item in ticking(finalizers) for message in _key_problems(item)]
    if _ORPHAN in finalizers and _FOREGROUND in finalizers:
        text = f"finalizer {_ORPHAN} and {_FOREGROUND} cannot be both set"
        errors.append(invalid(path, list(finalizers), text))
    return errors


def _is_plain_entry(entry: Document) -> bool:
    """Report whether an entry is certainly valid, as nearly all are; paths are built only for errors."""
    manager = entry.get("manager") or ""
    return (
        entry.get("operation") in ("Apply", "Update")
        and entry.get("fieldsType") == "FieldsV1"
        and len(manager) <= _MANAGER_LENGTH_MAX
        and manager.isascii()
        and manager.isprintable()
        and len(entry.get("subresource") or "") <= _SUBRESOURCE_LENGTH_MAX
    )


def _validate_managed_fields_entry(entry: Document, path: Path) -> FieldErrors:
    errors: FieldErrors = []
    operation, fields_type = entry.get("operation") or "", entry.get("fieldsType") or ""
    if operation not in ("Apply", "Update"):
        errors.append(invalid(path.child("operation"), operation, "must be `Apply` or `Update`"))
    if fields_type not in ("", "FieldsV1"):
        errors.append(invalid(path.child("fieldsType"), fields_type, "must be `FieldsV1`"))
    errors += validate_field_manager(entry.get("manager") or "", path.child("manager"))
    if len(entry.get("subresource") or "") > _SUBRESOURCE_LENGTH_MAX:
        errors.append(too_long(path.child("subresource"), _SUBRESOURCE_LENGTH_MAX))
    return errors


def validate_field_manager(manager: str, path: Path) -> FieldErrors:
    """Validate the name of a field manager: printable, at most 128 bytes."""
    if len(manager.encode()) > _MANAGER_LENGTH_MAX:
        return [too_long(path, _MANAGER_LENGTH_MAX)]
    if not manager.isprintable():
        return [invalid(path, manager, "should only contain printable characters")]
    return []


def validate_label_selector(selector: Document | None, path: Path) -> FieldErrors:
    """Validate a `metav1.LabelSelector`."""
    if not selector:
        return []
    errors = validate_labels(selector.get("matchLabels") or {}, path.child("matchLabels"))
    for i, expression in enumerate(selector.get("matchExpressions") or ()):
        errors += _validate_selector_requirement(expression, path.child("matchExpressions").index(i))
    return errors


def _validate_selector_requirement(expression: Document, path: Path) -> FieldErrors:
    errors: FieldErrors = []
    operator, values = expression.get("operator") or "", expression.get("values") or ()
    if operator in ("In", "NotIn"):
        if not values:
            errors.append(required(path.child("values"), "must be specified when `operator` is 'In' or 'NotIn'"))
    elif operator in ("Exists", "DoesNotExist"):
        if values:
            text = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            errors.append(forbidden(path.child("values"), text))
    else:
        errors.append(invalid(path.child("operator"), operator, "not a valid selector operator"))
    errors += validate_label_name(expression.get("key") or "", path.child("key"))
    for i, value in enumerate(values):
        errors += [invalid(path.child("values").index(i), value, message) for message in label_value(value)]
    return errors


_REASON: Final = "[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?"
_matches_reason: Final = re.compile(_REASON, re.ASCII).fullmatch
_BAD_REASON: Final = pattern_message(
    "a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric "
    "characters or '_,:', and must end with an alphanumeric character or '_'",
    _REASON,
    "my_name",
    "MY_NAME",
    "MyName",
    "ReasonA,ReasonB",
    "ReasonA:ReasonB",
)
_REASON_LENGTH_MAX: Final = 1024
_MESSAGE_LENGTH_MAX: Final = 32 * 1024
_CONDITION_STATUSES: Final = ("False", "True", "Unknown")


def validate_conditions(conditions: Sequence[Document], path: Path) -> FieldErrors:
    """Validate a list of `metav1.Condition`, unique by type."""
    errors: FieldErrors = []
    seen: set[str] = set()
    for i, condition in enumerate(conditions):
        kind = condition.get("type") or ""
        if kind in seen:
            errors.append(duplicate(path.index(i).child("type"), kind))
        seen.add(kind)
        errors += validate_condition(condition, path.index(i))
    return errors


def validate_condition(condition: Document, path: Path) -> FieldErrors:
    """Validate a `metav1.Condition`."""
    errors = validate_label_name(condition.get("type") or "", path.child("type"))
    status = condition.get("status") or ""
    if status not in _CONDITION_STATUSES:
        errors.append(not_supported(path.child("status"), status, _CONDITION_STATUSES))
    generation = condition.get("observedGeneration") or 0
    if generation < 0:
        errors.append(invalid(path.child("observedGeneration"), generation, "must be greater than or equal to zero"))
    if not condition.get("lastTransitionTime"):
        errors.append(required(path.child("lastTransitionTime"), "must be set"))
    errors += _validate_condition_reason(condition.get("reason") or "", path.child("reason"))
    if len((condition.get("message") or "").encode()) > _MESSAGE_LENGTH_MAX:
        errors.append(too_long(path.child("message"), _MESSAGE_LENGTH_MAX))
    return errors


def _validate_condition_reason(reason: str, path: Path) -> FieldErrors:
    if not reason:
        return [required(path, "must be set")]
    errors = [] if _matches_reason(reason) else [invalid(path, reason, _BAD_REASON)]
    if len(reason) > _REASON_LENGTH_MAX:
        errors.append(too_long(path, _REASON_LENGTH_MAX))
    return errors
