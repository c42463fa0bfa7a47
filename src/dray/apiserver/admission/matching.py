"""Which writes a policy or webhook is about: rules, selectors and equivalent versions of a resource."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from dray.api.document import Document, GroupResource
from dray.api.selectors import LabelSelector
from dray.apiserver.admission.plugin import AdmissionAttributes
from dray.apiserver.catalog import Catalog
from dray.apiserver.endpoint import Endpoint
from dray.apiserver.object_cache import NAMESPACES

# Policies and webhooks that guard themselves could never be repaired.
EXEMPT_GROUP: Final = "admissionregistration.k8s.io"
_ANY: Final = "*"
_NO_LABELS: Final[Mapping[str, str]] = {}

# Returns the labels of the namespace that counts for a write; None if no namespace does.
NamespaceLabels = Callable[[], Mapping[str, str] | None]


class Rule(msgspec.Struct, frozen=True):
    """One rule: operations on resources of some groups and versions."""

    operations: frozenset[str]
    groups: frozenset[str]
    versions: frozenset[str]
    # Resource and subresource; the latter is empty for the object itself.
    resources: tuple[tuple[str, str], ...]
    scope: str
    names: frozenset[str]

    @classmethod
    def of(cls, document: Document) -> Rule:
        """Return the rule of a document."""
        resources = []
        for text in document.get("resources") or ():
            resource, _, subresource = text.partition("/")
            resources.append((resource, subresource))
        return cls(
            frozenset(document.get("operations") or ()),
            frozenset(document.get("apiGroups") or ()),
            frozenset(document.get("apiVersions") or ()),
            tuple(resources),
            document.get("scope") or _ANY,
            frozenset(document.get("resourceNames") or ()),
        )

    def is_about(self, resource: GroupResource, subresource: str, operation: str) -> bool:
        """Return whether the rule covers such writes in some version."""
        if not (_ANY in self.operations or operation in self.operations):
            return False
        if not (_ANY in self.groups or resource.group in self.groups):
            return False
        return any(name in (_ANY, resource.resource) and part in (_ANY, subresource) for name, part in self.resources)

    def matches(self, endpoint: Endpoint, attributes: AdmissionAttributes) -> bool:
        """Return whether the rule covers a write, had it been sent to the endpoint."""
        if not (_ANY in self.versions or endpoint.version in self.versions):
            return False
        namespaced = bool(attributes.namespace) and attributes.resource != NAMESPACES
        if self.scope not in (_ANY, "Namespaced" if namespaced else "Cluster"):
            return False
        if self.names and (attributes.name or object_name(attributes)) not in self.names:
            return False
        return self.is_about(endpoint.resource, attributes.subresource, attributes.operation)


def object_name(attributes: AdmissionAttributes) -> str:
    """Return the name of the written object; empty if it is still to be generated."""
    metadata = ((attributes.object or attributes.old_object or {}).get("metadata")) or {}
    return metadata.get("name") or ""


class MatchResources:
    """The rules and selectors of a policy, a binding or a webhook."""

    def __init__(self, document: Document, *, rules: Sequence[Document] | None = None) -> None:
        listed = document.get("resourceRules") if rules is None else rules
        self._rules: Final = tuple(Rule.of(rule) for rule in listed or ())
        self._excluded: Final = tuple(Rule.of(rule) for rule in document.get("excludeResourceRules") or ())
        self._equivalent: Final = document.get("matchPolicy") != "Exact"
        self._namespaces: Final = LabelSelector.from_document(document.get("namespaceSelector") or {})
        self._objects: Final = LabelSelector.from_document(document.get("objectSelector") or {})

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Return the rules; without any, every write matches."""
        return self._rules

    def is_about(self, resources: Iterable[GroupResource], subresource: str, operation: str) -> bool:
        """Return whether a write to one of the equivalent resources may match."""
        return any(rule.is_about(resource, subresource, operation) for resource in resources for rule in self._rules)

    def find(
        self, attributes: AdmissionAttributes, equivalents: Sequence[Endpoint], labels: NamespaceLabels
    ) -> Endpoint | None:
        """Return the endpoint by which the write matches, the one of the request first; None if it does not match.

        `equivalents` are all endpoints of the resource, the one of the request first.
        """
        if not self._selects(attributes, labels):
            return None
        if self._by_rules(self._excluded, attributes, equivalents) is not None:
            return None
        return equivalents[0] if not self._rules else self._by_rules(self._rules, attributes, equivalents)

    def _by_rules(
        self, rules: Sequence[Rule], attributes: AdmissionAttributes, equivalents: Sequence[Endpoint]
    ) -> Endpoint | None:
        if not rules:
            return None
        for endpoint in equivalents if self._equivalent else equivalents[:1]:
            for rule in rules:
                if rule.matches(endpoint, attributes):
                    return endpoint
        return None

    def _selects(self, attributes: AdmissionAttributes, labels: NamespaceLabels) -> bool:
        if not self._objects.is_everything:
            objects = (item for item in (attributes.object, attributes.old_object) if item is not None)
            if not any(self._objects.matches(_labels(item)) for item in objects):
                return False
        if self._namespaces.is_everything:
            return True
        found = labels()
        return found is None or self._namespaces.matches(found)


def _labels(document: Document) -> Mapping[str, str]:
    return (document.get("metadata") or {}).get("labels") or _NO_LABELS


def own_labels(attributes: AdmissionAttributes) -> Mapping[str, str]:
    """Return the labels of a written Namespace: the new ones, unless it is deleted."""
    return _labels(attributes.object or attributes.old_object or {})


class Equivalents:
    """Finds all endpoints that serve the same objects: other versions, and events of both groups."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._generation = 0
        self._by_prefix: dict[str, list[Endpoint]] = {}
        self._found: dict[tuple[GroupResource, str], tuple[Endpoint, ...]] = {}

    @property
    def generation(self) -> int:
        """Return the generation of the catalog."""
        return self._catalog.generation

    def of(self, resource: GroupResource, version: str) -> tuple[Endpoint, ...]:
        """Return the endpoints of a resource, the one of the version first; empty if it is not served."""
        if self._generation != self._catalog.generation:
            self._rebuild()
        found = self._found.get((resource, version))
        if found is None:
            own = self._catalog.get(resource.group, version, resource.resource)
            others = [] if own is None else [item for item in self._by_prefix[own.prefix] if item is not own]
            found = () if own is None else (own, *others)
            self._found[resource, version] = found
        return found

    def resources(self, resource: GroupResource, version: str) -> tuple[GroupResource, ...]:
        """Return the names under which the objects of a resource are served."""
        return tuple(dict.fromkeys([resource, *(item.resource for item in self.of(resource, version))]))

    def _rebuild(self) -> None:
        self._generation = self._catalog.generation
        self._found.clear()
        self._by_prefix = {}
        for endpoint in self._catalog.endpoints():
            self._by_prefix.setdefault(endpoint.prefix, []).append(endpoint)
