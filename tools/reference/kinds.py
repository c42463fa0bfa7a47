"""The page of kinds that the API server serves, from its registry."""

from __future__ import annotations

from tools.reference.markdown import code, page, table

from dray.api.document import GroupResource
from dray.apiserver.registry.actors import ACTED_ON_BY
from dray.apiserver.registry.builtin import definitions
from dray.apiserver.registry.strategy import ResourceDefinition

INTRODUCTION = """`kubectl api-resources` lists these kinds. The storage version is in **bold**; all versions of a
kind serve the same objects. Add other kinds with CustomResourceDefinitions. `kubectl explain KIND` shows the
fields. Objects of a kind that nobody acts on are stored, validated and watched, and creating one is answered with a
warning; other components, such as a kube-controller-manager, can act on them."""
CORE = "core"


def kinds_page() -> str:
    """Return docs/reference/kinds.md."""
    groups: dict[str, list[ResourceDefinition]] = {}
    for definition in definitions():
        groups.setdefault(definition.group or CORE, []).append(definition)
    parts: list[str] = []
    for group, members in sorted(groups.items(), key=lambda item: (item[0] != CORE, item[0])):
        parts += [f"## {group}", _table(members)]
    return page("Kinds", INTRODUCTION, *parts)


def _table(members: list[ResourceDefinition]) -> str:
    heading = (
        "kind",
        "resource",
        "short",
        "versions",
        "namespaced",
        "verbs",
        "subresources",
        "field selectors",
        "acted on by",
    )
    return table(heading, (_row(item) for item in sorted(members, key=lambda item: item.kind)))


def _row(item: ResourceDefinition) -> tuple[str, ...]:
    versions = (
        f"**{name}**" if name == item.storage_version and len(item.versions) > 1 else name for name in item.versions
    )
    below = [row.name for row in item.all_subresources()]
    return (
        item.kind,
        code(item.resource),
        ", ".join(map(code, item.short_names)),
        ", ".join(versions),
        "yes" if item.namespaced else "no",
        _verbs(item),
        ", ".join(below),
        ", ".join(map(code, sorted(item.selectable_fields))),
        _actors(item),
    )


def _actors(item: ResourceDefinition) -> str:
    if "get" not in item.verbs:
        return "API server (answered at once)"
    return ACTED_ON_BY.get(GroupResource(item.group, item.resource), "nobody")


def _verbs(item: ResourceDefinition) -> str:
    all_verbs: object = ResourceDefinition.__dataclass_fields__["verbs"].default
    assert isinstance(all_verbs, tuple | frozenset)
    return "all" if set(item.verbs) == set(all_verbs) else ", ".join(item.verbs)
