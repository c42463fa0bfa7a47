"""Endpoints of a custom resource definition."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from dray.api.document import Document, GroupResource, GroupVersionKind
from dray.api.structural.paths import PathSyntaxError, compile_path, simple_names
from dray.apiserver.catalog import Catalog
from dray.apiserver.custom.columns import printer_columns
from dray.apiserver.custom.endpoint import CustomEndpoint
from dray.apiserver.custom.schema import CompiledSchema
from dray.apiserver.custom.status import needs_webhook
from dray.apiserver.custom.strategy import CustomStatusStrategy, CustomStrategy
from dray.apiserver.discovery import version_priority
from dray.apiserver.endpoint import Conversion
from dray.apiserver.registry.strategy import (
    SCALE,
    ResourceDefinition,
)
from dray.apiserver.scale import Scaler

# In the order of kube-apiserver.
_VERBS: Final = ("delete", "deletecollection", "get", "list", "patch", "create", "update", "watch")
_NO_SELECTOR: Final = ("status", "")


# Returns the conversion by the webhook of a definition, given the schemas of its versions.
OpenConversion: TypeAlias = Callable[[Document, Mapping[str, CompiledSchema]], Conversion]


def build_endpoints(definition: Document, open_conversion: OpenConversion) -> tuple[CustomEndpoint, ...]:
    """Return an endpoint for each served version, with the accepted names; webhooks get an `open_conversion`."""
    versions = definition["spec"]["versions"]
    schemas = {item["name"]: _compiled(definition, item) for item in versions}
    exact = len(versions) == 1 and definition["metadata"].get("generation") == 1
    conversion = open_conversion(definition, schemas) if needs_webhook(definition) else None
    return tuple(
        _endpoint(definition, item, schemas, exact=exact, conversion=conversion)
        for item in versions
        if item.get("served")
    )


def schema_source(catalog: Catalog) -> Callable[[GroupVersionKind], Document | None]:
    """Return a function that finds the schema of a served custom kind."""

    def find(gvk: GroupVersionKind) -> Document | None:
        for endpoints in catalog.custom().values():
            for endpoint in endpoints:
                if endpoint.gvk == gvk and isinstance(endpoint, CustomEndpoint):
                    return endpoint.schema.document
        return None

    return find


def _compiled(definition: Document, version: Document) -> CompiledSchema:
    spec = definition["spec"]
    schema = (version.get("schema") or {}).get("openAPIV3Schema")
    if schema is not None and spec.get("preserveUnknownFields"):
        schema = schema | {"x-kubernetes-preserve-unknown-fields": True}
    return CompiledSchema(schema, f"custom.{spec['group']}.{version['name']}.{spec['names']['kind']}")


def _endpoint(
    definition: Document,
    version: Document,
    schemas: dict[str, CompiledSchema],
    *,
    exact: bool,
    conversion: Conversion | None,
) -> CustomEndpoint:
    scale = (version.get("subresources") or {}).get("scale")
    return CustomEndpoint(
        _resource_definition(definition, version, schemas[version["name"]]),
        version["name"],
        schemas,
        deprecation=_deprecation(definition["spec"], version),
        scaler=_scaler(scale) if scale else None,
        exact=exact,
        conversion=conversion,
    )


def _resource_definition(definition: Document, version: Document, schema: CompiledSchema) -> ResourceDefinition:
    spec = definition["spec"]
    names, subresources = spec["names"], version.get("subresources") or {}
    terminating = "deletionTimestamp" in definition["metadata"]
    has_status, scale = "status" in subresources, subresources.get("scale")
    options: dict[str, Any] = {
        "resource": GroupResource(spec["group"], names["plural"]),
        "has_status": has_status,
        "scale": scale,
        "terminating": terminating,
    }
    return ResourceDefinition(
        group=spec["group"],
        resource=names["plural"],
        singular=names.get("singular") or names["kind"].lower(),
        kind=names["kind"],
        namespaced=spec["scope"] == "Namespaced",
        versions=tuple(item["name"] for item in spec["versions"] if item.get("served")),
        # Each endpoint of a webhook's objects works on a store in which they have its own version.
        storage_version=version["name"]
        if needs_webhook(definition)
        else next(item["name"] for item in spec["versions"] if item.get("storage")),
        strategy=CustomStrategy(schema, **options),
        status_strategy=CustomStatusStrategy(schema, **options) if has_status else None,
        subresources=(SCALE,) if scale else (),
        short_names=tuple(names.get("shortNames") or ()),
        categories=tuple(names.get("categories") or ()),
        own_list_kind=names.get("listKind") or "",
        columns=printer_columns(version.get("additionalPrinterColumns") or ()),
        selectable_fields=_selectable_fields(version),
        verbs=tuple(verb for verb in _VERBS if verb != "create" or not terminating),
    )


def _scaler(scale: Document) -> Scaler:
    selector = scale.get("labelSelectorPath")
    return Scaler(
        simple_names(scale["specReplicasPath"]),
        simple_names(scale["statusReplicasPath"]),
        simple_names(selector) if selector else _NO_SELECTOR,
    )


def _selectable_fields(version: Document) -> Mapping[str, Callable[[Document], str]]:
    found: dict[str, Callable[[Document], str]] = {}
    for item in version.get("selectableFields") or ():
        path = item["jsonPath"]
        try:
            found[path.removeprefix(".")] = _text_getter(path)
        except PathSyntaxError:
            continue
    return found


def _text_getter(path: str) -> Callable[[Document], str]:
    find = compile_path(path)

    def get(document: Document) -> str:
        values = find(document)
        value = values[0] if values else None
        if isinstance(value, bool):
            return "true" if value else "false"
        return "" if value is None else str(value)

    return get


def _deprecation(spec: Document, version: Document) -> str:
    if not version.get("deprecated"):
        return ""
    if version.get("deprecationWarning"):
        return str(version["deprecationWarning"])
    kind = spec["names"]["kind"]
    own = version_priority(version["name"])
    preferred = sorted(
        (item["name"] for item in spec["versions"] if item.get("served") and not item.get("deprecated")),
        key=version_priority,
    )
    text = f"{spec['group']}/{version['name']} {kind} is deprecated"
    if preferred and version_priority(preferred[0]) < own:
        text += f"; use {spec['group']}/{preferred[0]} {kind}"
    return text
