"""Defaults of custom resource definitions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

from dray.api.document import Document, GroupVersion, GroupVersionKind

_HTTPS: Final = 443


def _default_definition(obj: Document, _now: datetime) -> None:
    spec: Document = obj.setdefault("spec", {})
    names: Document = spec.setdefault("names", {})
    kind = names.get("kind") or ""
    if kind and not names.get("singular"):
        names["singular"] = kind.lower()
    if kind and not names.get("listKind"):
        names["listKind"] = f"{kind}List"
    conversion: Document = spec.setdefault("conversion", {})
    conversion.setdefault("strategy", "None")
    service = ((conversion.get("webhook") or {}).get("clientConfig") or {}).get("service")
    if service is not None:
        service.setdefault("port", _HTTPS)


DEFAULTERS: Final[Mapping[GroupVersionKind, Callable[[Document, datetime], None]]] = {
    GroupVersion("apiextensions.k8s.io", "v1").kind("CustomResourceDefinition"): _default_definition,
}
