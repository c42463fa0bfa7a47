"""RBAC policy rules: matching, and coverage of one set of rules by another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from dray.api.document import Document
from dray.api.field_errors import quote
from dray.lib.processor_time import tick

ALL: Final = "*"
# Single permissions (verbs times resources times names) that are compared with those of a user; the largest role of
# Kubernetes itself has some thousand.
PERMISSIONS_MAX: Final = 20_000


class TooManyPermissionsError(Exception):
    """Rules that stand for more permissions than are compared one by one."""

    def __init__(self) -> None:
        super().__init__(f"the rules stand for more than {PERMISSIONS_MAX} permissions not held as a whole")


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
    """Return the single permissions among the wanted ones that the owned rules do not grant.

    Raises `TooManyPermissionsError` if the rules stand for too many of them, since their number is a product.
    """
    missing: list[Rule] = []
    left = PERMISSIONS_MAX
    for rule in wanted:
        if not (rule.urls and rule.resources) and any(candidate.covers(rule) for candidate in owned):
            continue
        left -= len(rule.verbs) * (len(rule.urls) + len(rule.groups) * len(rule.resources) * max(1, len(rule.names)))
        if left < 0:
            raise TooManyPermissionsError
        for single in _singles(rule):
            tick()
            if not any(candidate.covers(single) for candidate in owned):
                missing.append(single)
    return missing


def compact(rules: Iterable[Rule]) -> list[Rule]:
    """Merge single permissions on the same resource into one rule with several verbs."""
    verbs: dict[Rule, dict[str, None]] = {}
    for rule in rules:
        things = Rule((), rule.groups, rule.resources, rule.names, rule.urls)
        verbs.setdefault(things, {}).update(dict.fromkeys(rule.verbs))
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
