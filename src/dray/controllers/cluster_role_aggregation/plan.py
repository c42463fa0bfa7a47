"""Which rules an aggregated ClusterRole has: those of the roles its selectors choose, each once, in name order."""

from __future__ import annotations

from collections.abc import Iterable

from dray.api.document import Document
from dray.api.selectors import LabelSelector


def is_aggregated(role: Document) -> bool:
    """Whether the role's rules are gathered from others."""
    return bool((role.get("aggregationRule") or {}).get("clusterRoleSelectors"))


def plan_rules(role: Document, roles: Iterable[Document]) -> list[Document] | None:
    """The rules to write, None when they are there already."""
    selectors = [LabelSelector.from_document(item) for item in role["aggregationRule"]["clusterRoleSelectors"]]
    wanted: list[Document] = []
    for other in sorted(roles, key=lambda item: item["metadata"]["name"]):
        metadata = other["metadata"]
        if metadata["name"] == role["metadata"]["name"]:
            continue
        labels = metadata.get("labels") or {}
        if any(selector.matches(labels) for selector in selectors):
            wanted.extend(rule for rule in other.get("rules") or () if rule not in wanted)
    return None if wanted == (role.get("rules") or []) else wanted
