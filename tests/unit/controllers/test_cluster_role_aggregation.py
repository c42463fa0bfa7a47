from __future__ import annotations

from dray.api.document import Document
from dray.controllers.cluster_role_aggregation import is_aggregated, plan_rules


def rule(resource: str) -> Document:
    return {"apiGroups": [""], "resources": [resource], "verbs": ["get"]}


def role(name: str, *resources: str, **labels: str) -> Document:
    return {"metadata": {"name": name, "labels": labels}, "rules": [rule(item) for item in resources]}


AGGREGATED: Document = {
    "metadata": {"name": "all"},
    "aggregationRule": {
        "clusterRoleSelectors": [
            {"matchLabels": {"to": "a"}},
            {"matchExpressions": [{"key": "b", "operator": "Exists"}]},
        ]
    },
}
ROLES = [role("z", "pods", to="a"), role("y", "nodes", "pods", b=""), role("x", "secrets"), AGGREGATED]


def test_rules_are_gathered_once_each_in_name_order() -> None:
    assert plan_rules(AGGREGATED, ROLES) == [rule("nodes"), rule("pods")]


def test_nothing_is_written_when_the_rules_are_there() -> None:
    assert plan_rules({**AGGREGATED, "rules": [rule("nodes"), rule("pods")]}, ROLES) is None


def test_a_role_without_selectors_is_not_aggregated() -> None:
    assert is_aggregated(AGGREGATED)
    assert not is_aggregated(role("x", "pods"))
