"""Validation of pod affinity terms and spread constraints, and the merging of label keys at creation."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from dray.api.field_errors import Path
from dray.api.pod_label_keys import merge_label_keys
from dray.api.schema import load
from dray.api.validation.core_v1_scheduling import validate_affinity, validate_topology_spread

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
WEB = {"matchLabels": {"app": "web"}}
BOTH = "exists in both matchLabelKeys and labelSelector"


def term(**fields: Any) -> dict[str, Any]:
    return {"topologyKey": "zone", "labelSelector": WEB, **fields}


TERMS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "good": (term(matchLabelKeys=["a"], mismatchLabelKeys=["b"]), []),
    "no key": (
        term(topologyKey=""),
        [
            "t.topologyKey: Required value: can not be empty",
            't.topologyKey: Invalid value: "": name part must be non-empty',
            't.topologyKey: Invalid value: "": name part must consist',
        ],
    ),
    "namespace": (term(namespaces=["A"]), ['t.namespace: Invalid value: "A"']),
    "bad label key": (term(matchLabelKeys=["/a"]), ['t.matchLabelKeys[0]: Invalid value: "/a"']),
    "keys without a selector": (
        {"topologyKey": "zone", "matchLabelKeys": ["a"], "mismatchLabelKeys": ["b"]},
        [
            "t.matchLabelKeys: Forbidden: must not be specified when labelSelector is not set",
            "t.mismatchLabelKeys: Forbidden: must not be specified when labelSelector is not set",
        ],
    ),
    "a key in both lists": (
        term(matchLabelKeys=["x", "a"], mismatchLabelKeys=["a"]),
        ['t.matchLabelKeys[1]: Invalid value: "a": exists in both matchLabelKeys and mismatchLabelKeys'],
    ),
    "a key that the selector has too": (
        term(
            labelSelector=WEB | {"matchExpressions": [{"key": "app", "operator": "In", "values": ["web"]}]},
            matchLabelKeys=["x", "app"],
        ),
        [f't[1]: Invalid value: "app": {BOTH}'],
    ),
    "a key that was merged": (
        term(
            labelSelector={"matchExpressions": [{"key": "app", "operator": "In", "values": ["web"]}]},
            matchLabelKeys=["app"],
        ),
        [],
    ),
}


@pytest.mark.behaviour("IA-05")
@pytest.mark.parametrize("kind", ["podAffinity", "podAntiAffinity"])
@pytest.mark.parametrize(("given", "expected"), TERMS.values(), ids=TERMS)
def test_pod_affinity_term(kind: str, given: dict[str, Any], expected: list[str]) -> None:
    required, preferred = {kind: {REQUIRED: [given]}}, {kind: {PREFERRED: [{"weight": 1, "podAffinityTerm": given}]}}
    for affinity, path in ((required, f"{kind}.{REQUIRED}[0]"), (preferred, f"{kind}.{PREFERRED}[0].podAffinityTerm")):
        found = [str(error).replace(f"a.{path}", "t") for error in validate_affinity(affinity, Path("a"))]
        assert len(found) == len(expected)
        assert all(text.startswith(start) for text, start in zip(found, expected, strict=True)), found


@pytest.mark.behaviour("IA-05")
@pytest.mark.parametrize(("weight", "good"), [(0, False), (1, True), (100, True), (101, False)])
def test_weight(weight: int, good: bool) -> None:
    affinity = {"podAffinity": {PREFERRED: [{"weight": weight, "podAffinityTerm": term()}]}}
    errors = [str(error) for error in validate_affinity(affinity, Path("a"))]
    text = f"a.podAffinity.{PREFERRED}[0].weight: Invalid value: {weight}: must be in the range 1-100"
    assert errors == ([] if good else [text])


def constraint(**fields: Any) -> dict[str, Any]:
    return {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": WEB, **fields}


CONSTRAINTS: dict[str, tuple[list[dict[str, Any]], list[str]]] = {
    "good": ([constraint(minDomains=2, nodeAffinityPolicy="Ignore", nodeTaintsPolicy="Honor")], []),
    "skew": ([constraint(maxSkew=0)], ["c[0].maxSkew: Invalid value: 0: must be greater than zero"]),
    "no key": ([constraint(topologyKey="")], ["c[0].topologyKey: Required value: can not be empty"]),
    "action": (
        [constraint(whenUnsatisfiable="Never")],
        ['c[0].whenUnsatisfiable: Unsupported value: "Never": supported values: "DoNotSchedule", "ScheduleAnyway"'],
    ),
    "repeated": (
        [constraint(), constraint(topologyKey="rack"), constraint(maxSkew=2)],
        ['c[0].{topologyKey, whenUnsatisfiable}: Duplicate value: "{zone, DoNotSchedule}"'],
    ),
    "no domains": ([constraint(minDomains=0)], ["c[0].minDomains: Invalid value: 0: must be greater than zero"]),
    "domains of a soft constraint": (
        [constraint(minDomains=2, whenUnsatisfiable="ScheduleAnyway")],
        [
            "c[0].minDomains: Invalid value: 2: can only use minDomains if whenUnsatisfiable=DoNotSchedule, "
            "not ScheduleAnyway"
        ],
    ),
    "policy": (
        [constraint(nodeTaintsPolicy="Maybe")],
        ['c[0].nodeTaintsPolicy: Unsupported value: "Maybe": supported values: "Honor", "Ignore"'],
    ),
    "keys without a selector": (
        [{**constraint(matchLabelKeys=["a"]), "labelSelector": None}],
        ["c[0].matchLabelKeys: Forbidden: must not be specified when labelSelector is not set"],
    ),
}


@pytest.mark.behaviour("TS-03")
@pytest.mark.parametrize(("given", "expected"), CONSTRAINTS.values(), ids=CONSTRAINTS)
def test_spread_constraints(given: list[dict[str, Any]], expected: list[str]) -> None:
    assert [str(error) for error in validate_topology_spread(given, Path("c"))] == expected


@pytest.mark.behaviour("IA-06", "TS-04")
def test_label_keys_are_merged_into_selectors() -> None:
    keys = term(matchLabelKeys=["hash", "absent"], mismatchLabelKeys=["tenant"])
    pod: dict[str, Any] = {
        "metadata": {"labels": {"hash": "1", "tenant": "t"}},
        "spec": {
            "affinity": {
                "podAffinity": {REQUIRED: [copy.deepcopy(keys)]},
                "podAntiAffinity": {PREFERRED: [{"weight": 1, "podAffinityTerm": copy.deepcopy(keys)}]},
            },
            "topologySpreadConstraints": [
                constraint(matchLabelKeys=["hash"]),
                {**constraint(matchLabelKeys=["hash"]), "labelSelector": None},
            ],
        },
    }
    merge_label_keys(pod)
    equal = {"key": "hash", "operator": "In", "values": ["1"]}
    different = {"key": "tenant", "operator": "NotIn", "values": ["t"]}
    expected = WEB | {"matchExpressions": [equal, different]}
    affinity, constraints = pod["spec"]["affinity"], pod["spec"]["topologySpreadConstraints"]
    assert affinity["podAffinity"][REQUIRED][0]["labelSelector"] == expected
    assert affinity["podAntiAffinity"][PREFERRED][0]["podAffinityTerm"]["labelSelector"] == expected
    assert constraints[0]["labelSelector"] == WEB | {"matchExpressions": [equal]}
    assert constraints[1]["labelSelector"] is None
    assert not validate_affinity(affinity, Path("a"))
    assert WEB == {"matchLabels": {"app": "web"}}


@pytest.mark.behaviour("IA-06", "TS-04")
def test_a_key_of_both_is_found_after_the_merge() -> None:
    labels = {"app": "web"}
    pod: dict[str, Any] = {
        "metadata": {"labels": labels},
        "spec": {"topologySpreadConstraints": [constraint(matchLabelKeys=["app"])]},
    }
    merge_label_keys(pod)
    found = validate_topology_spread(pod["spec"]["topologySpreadConstraints"], Path("c"))
    assert [str(error) for error in found] == [f'c[0][0]: Invalid value: "app": {BOTH}']


def numbers(name: str) -> dict[str, int]:
    fields = load.struct(f"io.k8s.api.core.v1.{name}").fields
    return {field.name: field.number for field in fields.values()}


@pytest.mark.behaviour("IA-01", "TS-01")
def test_protobuf_numbers() -> None:
    assert numbers("PodAffinityTerm") == {
        "labelSelector": 1,
        "namespaces": 2,
        "topologyKey": 3,
        "namespaceSelector": 4,
        "matchLabelKeys": 5,
        "mismatchLabelKeys": 6,
    }
    assert numbers("WeightedPodAffinityTerm") == {"weight": 1, "podAffinityTerm": 2}
    assert numbers("TopologySpreadConstraint") == {
        "maxSkew": 1,
        "topologyKey": 2,
        "whenUnsatisfiable": 3,
        "labelSelector": 4,
        "minDomains": 5,
        "nodeAffinityPolicy": 6,
        "nodeTaintsPolicy": 7,
        "matchLabelKeys": 8,
    }
    assert numbers("PodSpec")["topologySpreadConstraints"] == 33
