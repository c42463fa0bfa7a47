"""Custom resource definitions: names, versions, subresources, columns and schemas.

Fields that are the same in every version are reported at the top-level path of the v1beta1 form
(`spec.validation`, `spec.subresources` …), as kube-apiserver does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors, Path, forbidden, invalid, not_supported, required
from dray.api.names import dns1035_label, dns1123_subdomain
from dray.api.structural.defaults import validate_defaults
from dray.api.structural.keywords import validate_keywords
from dray.api.structural.paths import PathSyntaxError, compile_path
from dray.api.structural.structure import validate_structural
from dray.api.validation.meta_v1 import METADATA, validate_immutable
from dray.api.validation.webhook_client import validate_webhook_client

_SPEC: Final = Path("spec")
_SCOPES: Final = ("Cluster", "Namespaced")
_STRATEGIES: Final = ("None", "Webhook")
_COLUMN_TYPES: Final = ("boolean", "date", "integer", "number", "string")
_COLUMN_FORMATS: Final = ("byte", "date", "date-time", "double", "float", "int32", "int64", "password")
_WARNING_LENGTH_MAX: Final = 256
_SELECTABLE_FIELDS_MAX: Final = 8
_APPROVED: Final = "api-approved.kubernetes.io"
_APPROVAL: Final = f'protected groups must have approval annotation "{_APPROVED}"'
_APPROVAL_LINK: Final = "see https://github.com/kubernetes/enhancements/pull/1111"
# Keywords that a root schema may have beside the status subresource, as the message lists them.
_AT_ROOT: Final = (
    "Description Type Format Title Maximum ExclusiveMaximum Minimum ExclusiveMinimum MaxLength MinLength Pattern "
    "MaxItems MinItems UniqueItems MultipleOf Required Items Properties ExternalDocs Example XPreserveUnknownFields "
    "XValidations"
)
_NOT_AT_ROOT: Final = frozenset(
    {"enum", "maxProperties", "minProperties", "allOf", "oneOf", "anyOf", "not", "additionalProperties", "default"}
    | {"nullable", "x-kubernetes-embedded-resource", "x-kubernetes-int-or-string", "x-kubernetes-list-type"}
    | {"x-kubernetes-list-map-keys", "x-kubernetes-map-type"}
)


def validate_definition(definition: Document) -> FieldErrors:
    """Return the validation errors of a new definition, except those of its CEL rules."""
    spec: Document = definition.get("spec") or {}
    return (
        _validate_name(definition, spec)
        + _validate_spec(spec)
        + _validate_approval(definition, spec)
        + _validate_pruning(spec)
    )


def validate_definition_update(definition: Document, old: Document) -> FieldErrors:
    """Return the validation errors of a changed definition; objects of it may be stored."""
    spec, old_spec = definition.get("spec") or {}, old["spec"]
    errors = _validate_spec(spec)
    names, old_names = spec.get("names") or {}, old_spec["names"]
    if _is_established(old):
        errors += validate_immutable(spec.get("scope"), old_spec.get("scope"), _SPEC.child("scope"))
        errors += validate_immutable(names.get("kind"), old_names.get("kind"), _SPEC.child("names", "kind"))
    errors += validate_immutable(spec.get("group"), old_spec.get("group"), _SPEC.child("group"))
    errors += validate_immutable(names.get("plural"), old_names.get("plural"), _SPEC.child("names", "plural"))
    errors += _validate_stored_versions(definition, spec)
    if _approval(definition) != _approval(old):
        errors += _validate_approval(definition, spec)
    return errors + _validate_pruning(spec)


def schemas_of(spec: Document) -> Iterator[tuple[Document, Path]]:
    """Return the distinct schemas of a definition, each with its path in errors."""
    versions: list[Document] = spec.get("versions") or []
    hoisted = _hoisted(versions, "schema")
    for position, version in enumerate(versions[:1] if hoisted else versions):
        at = _SPEC.child("validation") if hoisted else _SPEC.child("versions").index(position).child("schema")
        schema = (version.get("schema") or {}).get("openAPIV3Schema")
        if schema is not None:
            yield schema, at.child("openAPIV3Schema")


def _hoisted(versions: Sequence[Document], field: str) -> bool:
    return bool(versions) and all(item.get(field) and item[field] == versions[0].get(field) for item in versions)


def _is_established(definition: Document) -> bool:
    conditions = (definition.get("status") or {}).get("conditions") or ()
    return any(item.get("type") == "Established" and item.get("status") == "True" for item in conditions)


# --- The definition.


def _validate_name(definition: Document, spec: Document) -> FieldErrors:
    name = (definition.get("metadata") or {}).get("name") or ""
    wanted = f"{(spec.get('names') or {}).get('plural') or ''}.{spec.get('group') or ''}"
    if name in (wanted, ""):
        return []
    return [invalid(METADATA.child("name"), name, 'must be spec.names.plural+"."+spec.group')]


def _approval(definition: Document) -> str:
    annotations = (definition.get("metadata") or {}).get("annotations") or {}
    return annotations.get(_APPROVED) or ""


def _validate_approval(definition: Document, spec: Document) -> FieldErrors:
    group = spec.get("group") or ""
    if not any(group == domain or group.endswith(f".{domain}") for domain in ("k8s.io", "kubernetes.io")):
        return []
    approval, path = _approval(definition), METADATA.child("annotations").key(_APPROVED)
    if not approval:
        return [required(path, f"{_APPROVAL}, {_APPROVAL_LINK}")]
    if approval.startswith("unapproved") or "://" in approval:
        return []
    text = f'{_APPROVAL} with either a URL or a reason starting with "unapproved", {_APPROVAL_LINK}'
    return [invalid(path, approval, text)]


def _validate_pruning(spec: Document) -> FieldErrors:
    if not spec.get("preserveUnknownFields"):
        return []
    text = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead"
    return [invalid(_SPEC.child("preserveUnknownFields"), spec["preserveUnknownFields"], text)]


def _validate_stored_versions(definition: Document, spec: Document) -> FieldErrors:
    known = {item.get("name") for item in spec.get("versions") or ()}
    path = Path("status.storedVersions")
    stored = (definition.get("status") or {}).get("storedVersions") or ()
    return [
        invalid(path.index(position), version, "must appear in spec.versions")
        for position, version in enumerate(stored)
        if version not in known
    ]


# --- The spec.


def _validate_spec(spec: Document) -> FieldErrors:
    errors = _validate_group(spec.get("group") or "")
    scope = spec.get("scope") or ""
    if not scope:
        errors.append(required(_SPEC.child("scope")))
    elif scope not in _SCOPES:
        errors.append(not_supported(_SPEC.child("scope"), scope, _SCOPES))
    errors += _validate_versions(spec.get("versions") or [])
    errors += _validate_names(spec.get("names") or {})
    errors += _validate_hoisted(spec.get("versions") or [])
    return errors + _validate_conversion(spec.get("conversion") or {}, _SPEC.child("conversion"))


def _validate_group(group: str) -> FieldErrors:
    path = _SPEC.child("group")
    if not group:
        return [required(path)]
    problems = dns1123_subdomain(group)
    if problems:
        return [invalid(path, group, ",".join(problems))]
    return [] if "." in group else [invalid(path, group, "should be a domain with at least one dot")]


def _validate_versions(versions: list[Document]) -> FieldErrors:
    path = _SPEC.child("versions")
    errors: FieldErrors = [
        required(path.index(position).child("schema", "openAPIV3Schema"), "schemas are required")
        for position, version in enumerate(versions)
        if (version.get("schema") or {}).get("openAPIV3Schema") is None
    ]
    for position, version in enumerate(versions):
        errors += _validate_version(version, path.index(position), versions)
    names = [version.get("name") for version in versions]
    if len(set(names)) != len(names):
        errors.append(invalid(path, _shown(versions), "must contain unique version names"))
    if sum(bool(version.get("storage")) for version in versions) != 1:
        text = "must have exactly one version marked as storage version"
        errors.append(invalid(path, _shown(versions), text))
    return errors


def _shown(versions: Sequence[Document]) -> list[Document]:
    """Return the versions as messages print them, without the long parts."""
    return [
        {"name": item.get("name", ""), "served": bool(item.get("served")), "storage": bool(item.get("storage"))}
        for item in versions
    ]


def _validate_version(version: Document, path: Path, versions: Sequence[Document]) -> FieldErrors:
    name = version.get("name") or ""
    problems = dns1035_label(name)
    errors: FieldErrors = [invalid(path.child("name"), name, ",".join(problems))] if problems else []
    warning = version.get("deprecationWarning")
    if warning is not None:
        texts = _warning_problems(warning, deprecated=bool(version.get("deprecated")))
        errors += [invalid(path.child("deprecationWarning"), warning, text) for text in texts]
    for field, validate in _PARTS.items():
        if not _hoisted(versions, field):
            errors += validate(version, path.child(field))
    return errors


def _validate_hoisted(versions: Sequence[Document]) -> FieldErrors:
    errors: FieldErrors = []
    for field, validate in _PARTS.items():
        if _hoisted(versions, field):
            errors += validate(versions[0], _SPEC.child("validation" if field == "schema" else field))
    return errors


def _warning_problems(warning: str, *, deprecated: bool) -> list[str]:
    if not deprecated:
        return ["can only be set for deprecated versions"]
    problems: list[str] = []
    if len(warning.encode()) > _WARNING_LENGTH_MAX:
        problems.append(f"must be <= {_WARNING_LENGTH_MAX} characters long")
    if not warning:
        problems.append("must not be an empty string")
    for position, character in enumerate(warning):
        if not character.isprintable():
            text = f"must only contain printable UTF-8 characters; non-printable character found at index {position}"
            problems.append(text)
            break
    return problems


def _validate_names(names: Document) -> FieldErrors:
    path = _SPEC.child("names")
    needed = ("plural", "singular", "kind", "listKind")
    errors: FieldErrors = [required(path.child(field)) for field in needed if not names.get(field)]
    for field in ("plural", "singular"):
        errors += _validate_label(names.get(field) or "", path.child(field))
    for field in ("kind", "listKind"):
        name = names.get(field) or ""
        problems = dns1035_label(name.lower()) if name else []
        if problems:
            text = f"may have mixed case, but should otherwise match: {','.join(problems)}"
            errors.append(invalid(path.child(field), name, text))
    for position, name in enumerate(names.get("shortNames") or ()):
        errors += _validate_label(name, path.child("shortNames").index(position))
    if names.get("kind") and names.get("kind") == names.get("listKind"):
        errors.append(invalid(path.child("listKind"), names["listKind"], "kind and listKind may not be the same"))
    for position, name in enumerate(names.get("categories") or ()):
        errors += _validate_label(name, path.child("categories").index(position))
    return errors


def _validate_label(name: str, path: Path) -> FieldErrors:
    problems = dns1035_label(name) if name else []
    return [invalid(path, name, ",".join(problems))] if problems else []


def _validate_conversion(conversion: Document, path: Path) -> FieldErrors:
    strategy = conversion.get("strategy") or ""
    if not strategy:
        return [required(path.child("strategy"))]
    if strategy not in _STRATEGIES:
        return [not_supported(path.child("strategy"), strategy, _STRATEGIES)]
    webhook: Document | None = conversion.get("webhook")
    if strategy == "None":
        text = "should not be set when strategy is not set to Webhook"
        return [forbidden(path.child("webhookClientConfig"), text)] if webhook else []
    config = (webhook or {}).get("clientConfig")
    at = path.child("webhookClientConfig")
    errors: FieldErrors = []
    if config is None:
        errors.append(required(at, "required when strategy is set to Webhook"))
    else:
        errors += validate_webhook_client(config, at)
    if not (webhook or {}).get("conversionReviewVersions"):
        errors.append(required(path.child("conversionReviewVersions")))
    return errors


# --- The parts of a version.


def _validate_schema(version: Document, path: Path) -> FieldErrors:
    schema = (version.get("schema") or {}).get("openAPIV3Schema")
    if schema is None:
        return []
    at = path.child("openAPIV3Schema")
    errors: FieldErrors = []
    if "status" in (version.get("subresources") or {}):
        errors += _validate_root(schema, at)
    if schema.get("nullable"):
        errors.append(forbidden(at.child("nullable"), "nullable cannot be true at the root"))
    errors += validate_structural(schema, at) or validate_defaults(schema, at)
    return errors + validate_keywords(schema, at)


def _validate_root(schema: Document, path: Path) -> FieldErrors:
    kind = schema.get("type") or "object"
    if kind != "object":
        text = 'only "object" is allowed as the type at the root of the schema if the status subresource is enabled'
        return [invalid(path.child("type"), kind, text)]
    if any(schema.get(name) for name in _NOT_AT_ROOT):
        text = f"only [{_AT_ROOT}] fields are allowed at the root of the schema if the status subresource is enabled"
        return [invalid(path, schema, text)]
    return []


def _validate_subresources(version: Document, path: Path) -> FieldErrors:
    scale = (version.get("subresources") or {}).get("scale")
    if scale is None:
        return []
    errors: FieldErrors = []
    for field, roots in (("specReplicasPath", (".spec.",)), ("statusReplicasPath", (".status.",))):
        at = path.child(f"scale.{field}")
        if not scale.get(field):
            errors.append(required(at))
        else:
            errors += _validate_path(scale[field], at, roots)
    if scale.get("labelSelectorPath"):
        at = path.child("scale.labelSelectorPath")
        errors += _validate_path(scale["labelSelectorPath"], at, (".spec.", ".status."))
    return errors


def _validate_path(text: str, path: Path, roots: Sequence[str] = ()) -> FieldErrors:
    if not text.startswith("."):
        return [invalid(path, text, "must be a simple json path starting with .")]
    if not roots or text.startswith(tuple(roots)):
        return []
    named = [root.strip(".") for root in roots]
    where = f"either .{named[0]} or .{named[1]}" if len(named) > 1 else f".{named[0]}"
    return [invalid(path, text, f"should be a json path under {where}")]


def _validate_columns(version: Document, path: Path) -> FieldErrors:
    errors: FieldErrors = []
    for position, column in enumerate(version.get("additionalPrinterColumns") or ()):
        at = path.index(position)
        if not column.get("name"):
            errors.append(required(at.child("name")))
        errors += _validate_column_type(column, at)
        if not column.get("jsonPath"):
            errors.append(required(at.child("JSONPath")))
        else:
            errors += _validate_path(column["jsonPath"], at.child("JSONPath"))
    return errors


def _validate_column_type(column: Document, path: Path) -> FieldErrors:
    errors: FieldErrors = []
    kind, form = column.get("type") or "", column.get("format") or ""
    text = f"must be one of {','.join(_COLUMN_TYPES)}"
    if not kind:
        errors.append(required(path.child("type"), text))
    elif kind not in _COLUMN_TYPES:
        errors.append(invalid(path.child("type"), kind, text))
    if form and form not in _COLUMN_FORMATS:
        errors.append(invalid(path.child("format"), form, f"must be one of {','.join(_COLUMN_FORMATS)}"))
    return errors


def _validate_selectable(version: Document, path: Path) -> FieldErrors:
    fields = version.get("selectableFields") or ()
    schema = (version.get("schema") or {}).get("openAPIV3Schema") or {}
    errors: FieldErrors = []
    seen: set[str] = set()
    for position, field in enumerate(fields):
        at, text = path.index(position).child("jsonPath"), field.get("jsonPath") or ""
        if text in seen:
            errors.append(invalid(at, text, "must be unique"))
        seen.add(text)
        problem = _selectable_problem(text, schema)
        if problem:
            errors.append(required(at) if not text else invalid(at, text, problem))
    if len(fields) > _SELECTABLE_FIELDS_MAX:
        errors.append(invalid(path, len(fields), f"must have at most {_SELECTABLE_FIELDS_MAX} items"))
    return errors


def _selectable_problem(text: str, schema: Any) -> str:
    if not text:
        return "must not be empty"
    try:
        compile_path(text)
    except PathSyntaxError as error:
        return f"is an invalid path: {error}"
    if "[" in text:
        return "is an invalid path: array notation is not allowed"
    if text.startswith(".metadata."):
        return "must not point to fields in metadata"
    return _selectable_type_problem(text, schema)


def _selectable_type_problem(text: str, schema: Any) -> str:
    for name in text.removeprefix(".").split("."):
        schema = (schema.get("properties") or {}).get(name)
        if schema is None:
            return "is an invalid path: does not refer to a valid field"
    if schema.get("type") in ("string", "integer", "boolean"):
        return ""
    kinds = "a field of type string, boolean or integer"
    return f"must point to {kinds}. Enum string fields and strings with formats are allowed."


_PARTS: Final[dict[str, Callable[[Document, Path], FieldErrors]]] = {
    "schema": _validate_schema,
    "subresources": _validate_subresources,
    "additionalPrinterColumns": _validate_columns,
    "selectableFields": _validate_selectable,
}
