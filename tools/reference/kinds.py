"""The page of kinds that the API server serves, from its registry."""

from __future__ import annotations

from tools.reference.markdown import code, page, table

from dray.api.document import GroupResource
from dray.apiserver.registry.actors import ACTED_ON_BY
from dray.apiserver.registry.builtin import definitions
from dray.apiserver.registry.strategy import ResourceDefinition

INTRODUCTION = """The kinds that the API server serves, and who acts on them. The storage version is in **bold**; all
versions of a kind serve the same objects. Add other kinds with CustomResourceDefinitions. `kubectl api-resources -o
wide` shows resources, short names and verbs, `kubectl explain KIND` the fields. Objects of a kind that nobody acts on
are stored, validated and watched, and creating one is answered with a warning; other components, such as a
kube-controller-manager, can act on them."""
CORE = "core"
SELECTORS = "Beside `metadata.name` and `metadata.namespace`:"


def kinds_page() -> str:
    """Return docs/reference/kinds.md."""
    groups: dict[str, list[ResourceDefinition]] = {}
    for definition in definitions():
        groups.setdefault(definition.group or CORE, []).append(definition)
    parts: list[str] = []
    for group, members in sorted(groups.items(), key=lambda item: (item[0] != CORE, item[0])):
        parts += [f"## {group}", _table(members)]
    return page("Kinds", INTRODUCTION, *parts, "## Field selectors", SELECTORS, _selectors())


def _table(members: list[ResourceDefinition]) -> str:
    heading = ("kind", "versions", "subresources", "acted on by")
    return table(heading, (_row(item) for item in sorted(members, key=lambda item: item.kind)))


def _row(item: ResourceDefinition) -> tuple[str, ...]:
    versions = (
        f"**{name}**" if name == item.storage_version and len(item.versions) > 1 else name for name in item.versions
    )
    below = [row.name for row in item.all_subresources()]
    return item.kind, ", ".join(versions), ", ".join(below), _actors(item)


def _actors(item: ResourceDefinition) -> str:
    if "get" not in item.verbs:
        return "API server (answered at once)"
    return ACTED_ON_BY.get(GroupResource(item.group, item.resource), "nobody")


def _selectors() -> str:
    rows = {
        str(GroupResource(item.group, item.resource)): sorted(item.selectable_fields)
        for item in definitions()
        if item.selectable_fields
    }
    return table(("resource", "fields"), ((code(name), ", ".join(map(code, rows[name]))) for name in sorted(rows)))
