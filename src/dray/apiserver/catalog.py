"""The resources that the server serves: built-in ones, and those of CustomResourceDefinitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from dray.api.document import GroupResource
from dray.apiserver.endpoint import Endpoint

EndpointKey = tuple[str, str, str]


class Catalog:
    """Endpoints by group, version and resource; `generation` grows with every change."""

    def __init__(self, builtin: Iterable[Endpoint]) -> None:
        self._builtin: Final = {_key(endpoint): endpoint for endpoint in builtin}
        self._custom: dict[str, tuple[Endpoint, ...]] = {}
        self._endpoints: dict[EndpointKey, Endpoint] = dict(self._builtin)
        self._group_versions: dict[tuple[str, str], None] = {}
        self.generation = 1
        # Called with a resource whose schema has changed, so that its watches are to end.
        self.on_changed: Callable[[GroupResource], None] = lambda _resource: None
        self._index()

    def get(self, group: str, version: str, resource: str) -> Endpoint | None:
        """Return the endpoint of a resource; None if it is not served."""
        return self._endpoints.get((group, version, resource))

    def has_group_version(self, group: str, version: str) -> bool:
        """Return whether the group version is served."""
        return (group, version) in self._group_versions

    def endpoints(self) -> Iterable[Endpoint]:
        """Return all endpoints, built-in ones first."""
        return self._endpoints.values()

    def storage_endpoints(self) -> Iterable[Endpoint]:
        """Return the endpoint in the storage version of each stored resource."""
        return (item for item in self._endpoints.values() if item.is_storage_version and "get" in item.definition.verbs)

    def custom(self) -> Mapping[str, tuple[Endpoint, ...]]:
        """Return the endpoints of custom resources by the name of their CustomResourceDefinition."""
        return self._custom

    def set_custom(self, name: str, endpoints: tuple[Endpoint, ...]) -> None:
        """Replace the endpoints of a CustomResourceDefinition; an empty tuple removes them."""
        if self._custom.get(name, ()) == endpoints:
            return
        if endpoints:
            self._custom[name] = endpoints
        else:
            self._custom.pop(name, None)
        self._endpoints = dict(self._builtin)
        for group in self._custom.values():
            self._endpoints.update((_key(endpoint), endpoint) for endpoint in group)
        self.generation += 1
        self._index()

    def _index(self) -> None:
        self._group_versions = {(group, version): None for group, version, _ in self._endpoints}


def _key(endpoint: Endpoint) -> EndpointKey:
    return endpoint.definition.group, endpoint.version, endpoint.definition.resource
