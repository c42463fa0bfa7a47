"""What is configured for admission, found by what is written.

What a write can match is remembered for each kind of write, so that a write that nothing is about costs one lookup.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from dray.api.document import GroupResource
from dray.apiserver.admission.matching import EXEMPT_GROUP, Equivalents, MatchResources
from dray.apiserver.admission.plugin import AdmissionAttributes, AdmissionPlugin, Operation

T = TypeVar("T")
# Kinds of writes whose candidates are remembered; more than the resources, subresources and operations of a server.
_REMEMBERED_MAX: Final = 8192


class MatchCache(Generic[T]):
    """Items with rules, in their order, by the writes that they may match."""

    def __init__(self, equivalents: Equivalents, match_of: Callable[[T], MatchResources]) -> None:
        self._equivalents = equivalents
        self._match_of = match_of
        self._items: tuple[T, ...] = ()
        # Whether no write can match. Read for every write, so that it is not a property.
        self.is_empty = True
        self._candidates: dict[tuple[GroupResource, str, str, str], tuple[T, ...]] = {}
        self._catalog_generation = 0

    def replace(self, items: Sequence[T]) -> None:
        """Set all items."""
        self._items = tuple(items)
        self.is_empty = not self._items
        self._candidates.clear()

    def candidates(self, attributes: AdmissionAttributes) -> tuple[T, ...]:
        """Return the items that may match a write."""
        if self._catalog_generation != self._equivalents.generation:
            self._catalog_generation = self._equivalents.generation
            self._candidates.clear()
        # An operation is a string, and hashed as one; its value would be looked up at every write.
        key = (attributes.resource, attributes.version, attributes.subresource, attributes.operation)
        found = self._candidates.get(key)
        if found is None:
            if len(self._candidates) >= _REMEMBERED_MAX:
                self._candidates.clear()
            found = self._candidates[key] = self._find(*key)
        return found

    def _find(self, resource: GroupResource, version: str, subresource: str, operation: str) -> tuple[T, ...]:
        if resource.group == EXEMPT_GROUP:
            return ()
        resources = self._equivalents.resources(resource, version)
        return tuple(item for item in self._items if self._match_of(item).is_about(resources, subresource, operation))


class ConfiguredPlugin(AdmissionPlugin, Generic[T]):
    """Base of the plugins that act on what is configured: they take part in all writes but those of configurations."""

    def __init__(self, matches: MatchCache[T]) -> None:
        self._matches = self.configuration = matches

    def handles(self, resource: GroupResource, subresource: str, operation: Operation) -> bool:
        """Take part in all writes except those of policies and webhooks themselves."""
        return resource.group != EXEMPT_GROUP
