"""RBAC policy rules: matching, and coverage of one set of rules by another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from dray.api.document import Document
from dray.api.field_errors import quote

ALL: Final = "*"


@dataclass(frozen=True, slots=True)
class Rule:
    """One policy rule, parsed so that a check takes a few set lookups."""

    verbs: tuple[str, ...]
    groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()

    def allows_resource(self, verb: str, group: str, resource: str, subresource: str) -> bool:
        """Report whether the rule allows the verb on the resource, regardless of object names."""
        if verb not in self.verbs and ALL not in self.verbs:
            return False
        if group not in self.groups and ALL not in self.groups:
            return False
        combined = f"{resource}/{subresource}" if subresource else resource
        if combined in self.resources or ALL in self.resources:
            return True
        return bool(subresource) and f"*/{subresource}" in self.resources

    def allows_path(self, verb: str, path: str) -> bool:
        """Report whether the rule allows the verb on the path; a trailing `*` matches any suffix."""
        if verb not in self.verbs and ALL not in self.verbs:
            return False
        return any(_url_covers(url, path) for url in self.urls)

    def covers(self, other: Rule) -> bool:
        """Report whether this rule allows everything that the other one does."""
        if not _covers_all(self.verbs, other.verbs):
            return False
        if other.urls:
            return all(any(_url_covers(mine, url) for mine in self.urls) for url in other.urls)
        return (
            _covers_all(self.groups, other.groups)
            and all(self._covers_resource(resource) for resource in other.resources)
            and (not self.names or (bool(other.names) and set(other.names) <= set(self.names)))
        )

    def _covers_resource(self, resource: str) -> bool:
        if resource in self.resources or ALL in self.resources:
            return True
        _, slash, subresource = resource.partition("/")
        return bool(slash) and f"*/{subresource}" in self.resources

    def __str__(self) -> str:
        parts = (
            ("APIGroups", self.groups),
            ("Resources", self.resources),
            ("NonResourceURLs", self.urls),
            ("ResourceNames", self.names),
            ("Verbs", self.verbs),
        )
        return "{" + ", ".join(f"{label}:{quoted(values)}" for label, values in parts if values) + "}"

    def document(self) -> Document:
        """Return the rule as access reviews list it."""
        document: Document = {"verbs": list(self.verbs)}
        for key, values in (
            ("apiGroups", self.groups),
            ("resources", self.resources),
            ("resourceNames", self.names),
            ("nonResourceURLs", self.urls),
        ):
            if values:
                document[key] = list(values)
        return document


def quoted(values: Iterable[str]) -> str:
    """Return a list of texts as Go's %q prints it."""
    return "[" + " ".join(quote(value) for value in values) + "]"


def read_rules(rules: Sequence[Document] | None) -> tuple[Rule, ...]:
    """Parse a role's `rules`."""
    return tuple(
        Rule(
            verbs=tuple(rule.get("verbs") or ()),
            groups=tuple(rule.get("apiGroups") or ()),
            resources=tuple(rule.get("resources") or ()),
            names=tuple(rule.get("resourceNames") or ()),
            urls=tuple(rule.get("nonResourceURLs") or ()),
        )
        for rule in rules or ()
    )


def not_covered(owned: Sequence[Rule], wanted: Iterable[Rule]) -> list[Rule]:
    """Return the single permissions among the wanted ones that the owned rules do not grant."""
    return [
        single
        for rule in wanted
        for single in _singles(rule)
        if not any(candidate.covers(single) for candidate in owned)
    ]


def compact(rules: Iterable[Rule]) -> list[Rule]:
    """Merge single permissions on the same resource into one rule with several verbs."""
    verbs: dict[Rule, list[str]] = {}
    for rule in rules:
        things = Rule((), rule.groups, rule.resources, rule.names, rule.urls)
        known = verbs.setdefault(things, [])
        known.extend(verb for verb in rule.verbs if verb not in known)
    return [Rule(tuple(known), key.groups, key.resources, key.names, key.urls) for key, known in verbs.items()]


def _singles(rule: Rule) -> Iterator[Rule]:
    for verb in rule.verbs:
        for url in rule.urls:
            yield Rule((verb,), urls=(url,))
        for group in rule.groups:
            for resource in rule.resources:
                if not rule.names:
                    yield Rule((verb,), (group,), (resource,))
                for name in rule.names:
                    yield Rule((verb,), (group,), (resource,), (name,))


def _covers_all(mine: Sequence[str], others: Sequence[str]) -> bool:
    return ALL in mine or set(others) <= set(mine)


def _url_covers(mine: str, path: str) -> bool:
    if mine in {ALL, path}:
        return True
    return mine.endswith(ALL) and path.startswith(mine.rstrip(ALL))
