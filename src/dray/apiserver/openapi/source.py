"""The OpenAPI documents of a catalog, which change as custom resources come and go."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dray.api.document import Document, GroupVersionKind
from dray.apiserver.catalog import Catalog
from dray.apiserver.openapi.documents import Documents, Served

# Gives the `openAPIV3Schema` that a custom kind was defined with.
CustomSchema = Callable[[GroupVersionKind], Document | None]


class OpenAPI(Documents):
    """Documents of everything a catalog serves."""

    def __init__(self, catalog: Catalog, custom_schema: CustomSchema = lambda _gvk: None) -> None:
        def served() -> Iterator[Served]:
            for endpoint in catalog.endpoints():
                schema = custom_schema(endpoint.gvk) if endpoint.custom else None
                yield Served(endpoint.definition, endpoint.version, custom=endpoint.custom, schema=schema)

        super().__init__(served, lambda: catalog.generation)
