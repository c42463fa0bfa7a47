"""PodDisruptionBudgets: validation, preparation, columns, protobuf."""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from typing import Any

import pytest

from dray.api.document import GroupVersionKind
from dray.api.features import FeatureGates
from dray.api.schema.load import kind_type
from dray.api.schema.model import ListOf, ListType
from dray.api.types.policy_v1 import PodDisruptionBudget
from dray.api.validation.policy_v1 import (
    validate_pod_disruption_budget,
    validate_pod_disruption_budget_status,
    validate_pod_disruption_budget_update,
)
from dray.apiserver.registry import builtin
from dray.apiserver.registry.pod_disruption_budgets import POD_DISRUPTION_BUDGETS
from dray.apiserver.registry.strategy import WriteContext
from dray.apiserver.request import UserInfo
from dray.client.resources import POD_DISRUPTION_BUDGETS as CLIENT_RESOURCE

Document = dict[str, Any]
NOW = datetime(2026, 11, 15, 12, 0, 0, tzinfo=UTC)
CONTEXT = WriteContext(now=NOW, gates=FeatureGates({}), user=UserInfo("alice"))
NO_PODS = {"currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0}


def budget(**spec: Any) -> Document:
    return {"metadata": {"name": "web", "namespace": "default"}, "spec": spec}


# From Kubernetes' validation tests: spec -> errors.
SPECS: dict[str, tuple[Document, list[str]]] = {
    "empty": ({}, []),
    "number": ({"minAvailable": 3, "selector": {"matchLabels": {"a": "b"}}}, []),
    "percentages": ({"maxUnavailable": "100%"}, []),
    "zero": ({"minAvailable": 0}, []),
    "both": (
        {"minAvailable": 1, "maxUnavailable": 2},
        [
            'spec: Invalid value: {"minAvailable":1,"maxUnavailable":2}: '
            "minAvailable and maxUnavailable cannot be both set"
        ],
    ),
    "negative": (
        {"minAvailable": -1},
        ["spec.minAvailable: Invalid value: -1: must be greater than or equal to 0"],
    ),
    "above 100%": (
        {"maxUnavailable": "101%"},
        ['spec.maxUnavailable: Invalid value: "101%": must not be greater than 100%'],
    ),
    "no percentage": (
        {"minAvailable": "five"},
        [
            'spec.minAvailable: Invalid value: "five": a valid percent string must be a numeric string followed by an '
            "ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')"
        ],
    ),
    "selector": (
        {"selector": {"matchExpressions": [{"key": "a", "operator": "In"}]}},
        [
            "spec.selector.matchExpressions[0].values: Required value: must be specified when `operator` is 'In' or "
            "'NotIn'"
        ],
    ),
    "policy": ({"unhealthyPodEvictionPolicy": "AlwaysAllow"}, []),
    "unknown policy": (
        {"unhealthyPodEvictionPolicy": "Never"},
        [
            'spec.unhealthyPodEvictionPolicy: Unsupported value: "Never": supported values: "AlwaysAllow", '
            '"IfHealthyBudget"'
        ],
    ),
}


@pytest.mark.behaviour("DB-07")
@pytest.mark.behaviour("DB-08")
@pytest.mark.behaviour("DB-09")
@pytest.mark.parametrize("name", SPECS)
def test_spec(name: str) -> None:
    spec, expected = SPECS[name]
    assert [str(error) for error in validate_pod_disruption_budget(budget(**spec))] == expected


@pytest.mark.behaviour("DB-09")
def test_a_stored_selector_may_stay() -> None:
    stored = budget(selector={"matchLabels": {"a": "not a label"}})
    changed = budget(selector={"matchLabels": {"a": "not a label"}}, minAvailable=1)
    assert validate_pod_disruption_budget_update(changed, stored) == []
    other = budget(selector={"matchLabels": {"a": "another, bad"}})
    assert len(validate_pod_disruption_budget_update(other, stored)) == 1


@pytest.mark.behaviour("DB-10")
def test_status() -> None:
    good = {"disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 3, "expectedPods": 4}
    assert validate_pod_disruption_budget_status({"status": good}, {}) == []
    for field in good:
        (error,) = validate_pod_disruption_budget_status({"status": good | {field: -1}}, {})
        assert str(error) == f"status.{field}: Invalid value: -1: must be greater than or equal to 0"
    bad = {"conditions": [{"type": "DisruptionAllowed", "status": "maybe"}]}
    assert [error.path for error in validate_pod_disruption_budget_status({"status": bad}, {})] == [
        "status.conditions[0].status",
        "status.conditions[0].lastTransitionTime",
        "status.conditions[0].reason",
    ]


@pytest.mark.behaviour("DB-05")
@pytest.mark.behaviour("DB-06")
def test_preparation() -> None:
    strategy, status_strategy = POD_DISRUPTION_BUDGETS.strategy, POD_DISRUPTION_BUDGETS.status_strategy
    assert status_strategy is not None
    assert not strategy.allow_create_on_update
    assert not strategy.allow_unconditional_update
    assert builtin.endpoint(POD_DISRUPTION_BUDGETS, "v1").default is None

    stored = budget(minAvailable=1) | {"status": {"disruptionsAllowed": 7}}
    strategy.prepare_for_create(stored, CONTEXT)
    assert stored["status"] == NO_PODS
    assert stored["metadata"]["generation"] == 1

    changed = copy.deepcopy(stored) | {"status": {"disruptionsAllowed": 9}}
    changed["spec"]["selector"] = {}
    strategy.prepare_for_update(changed, stored, CONTEXT)
    assert changed["status"] == NO_PODS
    assert changed["metadata"]["generation"] == 2

    reported = copy.deepcopy(stored) | {"spec": {}, "status": {"disruptionsAllowed": 9}}
    status_strategy.prepare_for_update(reported, stored, CONTEXT)
    assert reported["spec"] == {"minAvailable": 1}
    assert reported["status"] == {"disruptionsAllowed": 9}
    assert reported["metadata"]["generation"] == 1


@pytest.mark.behaviour("DB-11")
def test_columns() -> None:
    columns = POD_DISRUPTION_BUDGETS.columns
    assert [column.name for column in columns] == [
        "Name",
        "Min Available",
        "Max Unavailable",
        "Allowed Disruptions",
        "Age",
    ]
    document = budget(minAvailable="50%") | {"status": {"disruptionsAllowed": 2}}
    document["metadata"]["creationTimestamp"] = "2026-11-15T11:55:00Z"
    assert [column.cell(document, NOW) for column in columns] == ["web", "50%", "N/A", 2, "5m"]
    assert [column.cell(budget(), NOW) for column in columns][1:4] == ["N/A", "N/A", 0]


@pytest.mark.behaviour("DB-01")
@pytest.mark.behaviour("DB-02")
@pytest.mark.behaviour("DB-03")
def test_definition_and_field_numbers() -> None:
    definition = POD_DISRUPTION_BUDGETS
    assert (definition.group, definition.resource, definition.short_names, definition.namespaced) == (
        "policy",
        "poddisruptionbudgets",
        ("pdb",),
        True,
    )
    assert CLIENT_RESOURCE.type is PodDisruptionBudget
    struct = kind_type(GroupVersionKind("policy", "v1", "PodDisruptionBudget"))
    assert struct is not None
    assert {name: field.number for name, field in struct.fields.items() if field.number} == {
        "metadata": 1,
        "spec": 2,
        "status": 3,
    }
    spec, status = struct.fields["spec"].type, struct.fields["status"].type
    assert {name: field.number for name, field in spec.fields.items()} == {  # type: ignore[union-attr]
        "minAvailable": 1,
        "selector": 2,
        "maxUnavailable": 3,
        "unhealthyPodEvictionPolicy": 4,
    }
    assert spec.fields["selector"].patch_strategies == ("replace",)  # type: ignore[union-attr]
    assert {name: field.number for name, field in status.fields.items()} == {  # type: ignore[union-attr]
        "observedGeneration": 1,
        "disruptedPods": 2,
        "disruptionsAllowed": 3,
        "currentHealthy": 4,
        "desiredHealthy": 5,
        "expectedPods": 6,
        "conditions": 7,
    }
    conditions = status.fields["conditions"].type  # type: ignore[union-attr]
    assert isinstance(conditions, ListOf)
    assert (conditions.list_type, conditions.map_keys) == (ListType.MAP, ("type",))
