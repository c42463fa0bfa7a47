"""The parameters of policies: objects of any kind, read from the store."""

from __future__ import annotations

from typing import Final

from dray.api.document import Document, GroupVersion
from dray.api.selectors import LabelSelector, SelectorError
from dray.apiserver.catalog import Catalog
from dray.apiserver.encoding import served_document
from dray.apiserver.endpoint import Endpoint
from dray.store.interface import Store

# More parameters than this for one binding would make every matching write slow.
PARAMS_MAX: Final = 500


class ParamsError(Exception):
    """The parameters of a binding cannot be found."""


class PolicyParams:
    """Finds the parameters of a binding."""

    def __init__(self, catalog: Catalog, store: Store) -> None:
        self._catalog = catalog
        self._store = store
        self._generation = 0
        self._endpoints: dict[tuple[str, str], Endpoint | None] = {}

    def problem(self, kind: Document | None) -> str:
        """Return why no object of a kind can be found; empty if some can, or if there is no kind."""
        if kind is None or self.endpoint(kind) is not None:
            return ""
        place = GroupVersion.parse(kind.get("apiVersion") or "")
        shown = f"{place.api_version}, Kind={kind.get('kind', '')}"
        return f"failed to find resource referenced by paramKind: '{shown}'"

    def endpoint(self, kind: Document) -> Endpoint | None:
        """Return the endpoint of a kind; None if it is not served."""
        if self._generation != self._catalog.generation:
            self._generation = self._catalog.generation
            self._endpoints.clear()
        key = (kind.get("apiVersion") or "", kind.get("kind") or "")
        if key not in self._endpoints:
            self._endpoints[key] = next(
                (item for item in self._catalog.endpoints() if (item.api_version, item.definition.kind) == key), None
            )
        return self._endpoints[key]

    async def find(self, kind: Document | None, reference: Document | None, namespace: str) -> list[Document | None]:
        """Return the parameters for a write in the namespace; one that is None if the policy or binding has none."""
        endpoint = None if kind is None else self.endpoint(kind)
        if endpoint is None or reference is None:
            return [None]
        place = reference.get("namespace") or ""
        if endpoint.definition.namespaced:
            place = place or namespace
            if not place:
                raise ParamsError(
                    "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources"
                )
        elif place:
            raise ParamsError("paramRef.namespace must not be provided for a cluster-scoped `paramKind`")
        found = await self._read(endpoint, place, reference)
        if not found and reference.get("parameterNotFoundAction") == "Deny":
            raise ParamsError("no params found for policy binding with `Deny` parameterNotFoundAction")
        return list(found)

    async def _read(self, endpoint: Endpoint, namespace: str, reference: Document) -> list[Document]:
        store = self._store
        if endpoint.conversion is not None:
            store = endpoint.conversion.on(store, endpoint.api_version)
        if reference.get("name"):
            entry = await store.get(endpoint.key(namespace, reference["name"]))
            return [] if entry is None else [served_document(endpoint, entry)]
        try:
            selector = LabelSelector.from_document(reference.get("selector") or {})
        except SelectorError as error:
            raise ParamsError(str(error)) from None
        page = await store.list_page(endpoint.scope_prefix(namespace))
        documents = (served_document(endpoint, entry) for entry in page.entries)
        found = [item for item in documents if selector.matches(item["metadata"].get("labels") or {})]
        if len(found) > PARAMS_MAX:
            raise ParamsError(f"paramRef.selector matches {len(found)} objects, more than {PARAMS_MAX}")
        return found
