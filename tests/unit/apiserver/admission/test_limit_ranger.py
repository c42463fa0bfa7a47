"""LimitRanges: defaults, validation, and what LimitRanger sets and refuses."""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from typing import Any

import pytest

from dray.api.limit_ranges import ANNOTATION, claim_problems, pod_problems, set_defaults
from dray.api.validation.core_v1_limit_range import validate_limit_range
from dray.apiserver.registry import builtin
from dray.apiserver.registry.pod_policies import LIMIT_RANGES

Document = dict[str, Any]
NOW = datetime(2026, 11, 15, 12, 0, 0, tzinfo=UTC)


def limit_range(*items: Document) -> Document:
    return {"metadata": {"name": "limits", "namespace": "default"}, "spec": {"limits": list(items)}}


def pod(requests: Document | None = None, limits: Document | None = None, **spec: Any) -> Document:
    resources = {key: value for key, value in (("requests", requests), ("limits", limits)) if value is not None}
    return {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c", "resources": resources}], **spec}}


def test_defaults_of_a_container_item() -> None:
    made = limit_range({"type": "Container", "max": {"cpu": "1000m"}, "min": {"memory": "1024Mi"}})
    default = builtin.endpoint(LIMIT_RANGES, "v1").default
    assert default is not None
    default(made, NOW)
    assert made["spec"]["limits"] == [
        {
            "type": "Container",
            "max": {"cpu": "1"},
            "min": {"memory": "1Gi"},
            "default": {"cpu": "1"},
            "defaultRequest": {"memory": "1Gi", "cpu": "1"},
        }
    ]


# Name -> item, errors.
ITEMS: dict[str, tuple[Document, list[str]]] = {
    "valid": ({"type": "Pod", "max": {"cpu": "1"}, "min": {"cpu": "500m"}, "maxLimitRequestRatio": {"cpu": "2"}}, []),
    "type": (
        {"type": "Wheelbarrow"},
        ['spec.limits[0].type: Invalid value: "Wheelbarrow": must be a standard limit type or fully qualified'],
    ),
    "own type": ({"type": "example.com/Wheelbarrow"}, []),
    "pod defaults": (
        {"type": "Pod", "default": {"cpu": "1"}, "defaultRequest": {"cpu": "1"}},
        [
            "spec.limits[0].default: Forbidden: may not be specified when `type` is 'Pod'",
            "spec.limits[0].defaultRequest: Forbidden: may not be specified when `type` is 'Pod'",
        ],
    ),
    "min above max": (
        {"type": "Pod", "max": {"cpu": "1"}, "min": {"cpu": "2"}},
        ['spec.limits[0].min[cpu]: Invalid value: "2": min value 2 is greater than max value 1'],
    ),
    "request above limit": (
        {"type": "Container", "default": {"cpu": "1"}, "defaultRequest": {"cpu": "2"}},
        [
            'spec.limits[0].defaultRequest[cpu]: Invalid value: "2": default request value 2 is greater than default '
            "limit value 1"
        ],
    ),
    "ratio below one": (
        {"type": "Pod", "maxLimitRequestRatio": {"cpu": "800m"}},
        ['spec.limits[0].maxLimitRequestRatio[cpu]: Invalid value: "800m": ratio 800m is less than 1'],
    ),
    "ratio above max/min": (
        {"type": "Pod", "max": {"cpu": "2"}, "min": {"cpu": "1"}, "maxLimitRequestRatio": {"cpu": "10"}},
        ['spec.limits[0].maxLimitRequestRatio[cpu]: Invalid value: "10": ratio 10 is greater than max/min = 2.000000'],
    ),
    "claim without storage": (
        {"type": "PersistentVolumeClaim"},
        [
            "spec.limits[0].limits: Required value: either minimum or maximum storage value is required, but neither "
            "was provided"
        ],
    ),
    "resource name": (
        {"type": "Container", "max": {"wheels": "4"}},
        [
            'spec.limits[0].max[wheels]: Invalid value: "wheels": must be a standard resource type or fully qualified',
            'spec.limits[0].max[wheels]: Invalid value: "wheels": must be a standard resource for containers',
        ],
    ),
}


@pytest.mark.parametrize("name", ITEMS)
def test_validation(name: str) -> None:
    item, expected = ITEMS[name]
    assert [str(error) for error in validate_limit_range(limit_range(item))] == expected


def test_a_type_has_one_item() -> None:
    errors = validate_limit_range(limit_range({"type": "Pod"}, {"type": "Pod"}))
    assert [str(error) for error in errors] == ['spec.limits[1].type: Duplicate value: "Pod"']


def test_containers_get_defaults_and_the_pod_an_annotation() -> None:
    item = {"type": "Container", "default": {"cpu": "1", "memory": "1Gi"}, "defaultRequest": {"cpu": "500m"}}
    made = pod(limits={"memory": "2Gi"}, initContainers=[{"name": "i"}])
    set_defaults(made, limit_range(item))
    assert made["spec"]["containers"][0]["resources"] == {
        "limits": {"memory": "2Gi", "cpu": "1"},
        "requests": {"cpu": "500m"},
    }
    assert made["spec"]["initContainers"][0]["resources"] == {
        "limits": {"cpu": "1", "memory": "1Gi"},
        "requests": {"cpu": "500m"},
    }
    assert made["metadata"]["annotations"] == {
        ANNOTATION: "LimitRanger plugin set: cpu request for container c; cpu limit for container c; "
        "cpu request for init container i; cpu, memory limit for init container i"
    }
    again = copy.deepcopy(made)
    set_defaults(again, limit_range(item))
    assert again == made


# Item, Pod, problems.
PROBLEMS: dict[str, tuple[Document, Document, list[str]]] = {
    "fits": ({"type": "Container", "max": {"cpu": "1"}}, pod({"cpu": "1"}, {"cpu": "1"}), []),
    "no limit": (
        {"type": "Container", "max": {"cpu": "1"}},
        pod(),
        ["maximum cpu usage per Container is 1.  No limit is specified"],
    ),
    "limit": (
        {"type": "Container", "max": {"cpu": "1"}},
        pod({"cpu": "1"}, {"cpu": "2"}),
        ["maximum cpu usage per Container is 1, but limit is 2"],
    ),
    "no request": (
        {"type": "Container", "min": {"cpu": "1"}},
        pod(),
        ["minimum cpu usage per Container is 1.  No request is specified"],
    ),
    "request": (
        {"type": "Container", "min": {"cpu": "1"}},
        pod({"cpu": "500m"}, {"cpu": "2"}),
        ["minimum cpu usage per Container is 1, but request is 500m"],
    ),
    "ratio": (
        {"type": "Container", "maxLimitRequestRatio": {"cpu": "1500m"}},
        pod({"cpu": "1"}, {"cpu": "2"}),
        ["cpu max limit to request ratio per Container is 1500m, but provided ratio is 2.000000"],
    ),
    "ratio without limit": (
        {"type": "Container", "maxLimitRequestRatio": {"cpu": "2"}},
        pod({"cpu": "1"}),
        ["cpu max limit to request ratio per Container is 2, but no limit is specified or limit is 0"],
    ),
    "pod": (
        {"type": "Pod", "max": {"cpu": "1"}},
        pod({"cpu": "800m"}, {"cpu": "800m"}, overhead={"cpu": "1"}),
        [],
    ),
    "pod with init container": (
        {"type": "Pod", "max": {"cpu": "1"}},
        pod({"cpu": "1"}, {"cpu": "1"}, initContainers=[{"name": "i", "resources": {"limits": {"cpu": "3"}}}]),
        ["maximum cpu usage per Pod is 1, but limit is 3"],
    ),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_problems_of_pods(name: str) -> None:
    item, given, expected = PROBLEMS[name]
    assert pod_problems(given, limit_range(item)) == expected


def test_problems_of_claims() -> None:
    item = limit_range({"type": "PersistentVolumeClaim", "min": {"storage": "1Gi"}, "max": {"storage": "2Gi"}})

    def claim(size: str) -> Document:
        return {"spec": {"resources": {"requests": {"storage": size}}}}

    assert claim_problems(claim("1Gi"), item) == []
    assert claim_problems(claim("3Gi"), item) == [
        "maximum storage usage per PersistentVolumeClaim is 2Gi, but request is 3Gi"
    ]
    assert claim_problems(claim("1Mi"), item) == [
        "minimum storage usage per PersistentVolumeClaim is 1Gi, but request is 1Mi"
    ]
