"""What the scheduler computes from a Pod is the same whether it is found out again or kept."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from dray.framework.pod_info import PodInfo
from tests.unit.scheduler.builders import container, pod

STATUS = {"name": "c", "allocatedResources": {"cpu": "3"}}
SERVED = {"resourceClaimName": "x", "requestMappings": [{"containerName": "c", "resourceName": "a/b"}]}
PODS: dict[str, dict[str, Any]] = {
    "plain": {"requests": {"cpu": "1", "a/b": "1"}},
    "labelled": {"requests": {"cpu": "1", "a/b": "1"}, "labels": {"a": "b"}},
    "more": {"requests": {"cpu": "2"}},
    "important": {"requests": {"cpu": "1"}, "priority": 7},
    "ports": {"containers": [container(ports=[{"containerPort": 1, "hostPort": 80}])]},
    "resized": {"requests": {"cpu": "1", "a/b": "1"}, "status": {"containerStatuses": [STATUS]}},
    "sidecar resized": {"requests": {"cpu": "1", "a/b": "1"}, "status": {"initContainerStatuses": [STATUS]}},
    "placed": {"requests": {"cpu": "1", "a/b": "1"}, "node": "n"},
    "served": {"requests": {"cpu": "1", "a/b": "1"}, "node": "n", "status": {"extendedResourceClaimStatus": SERVED}},
}


def summary(info: PodInfo) -> dict[str, Any]:
    return {name: getattr(info, name) for name in PodInfo.__slots__}


@pytest.mark.parametrize(("before", "after"), list(product(PODS, PODS)))
def test_an_updated_pod_is_as_a_new_one(before: str, after: str) -> None:
    new = pod(**PODS[after])
    assert summary(PodInfo(pod(**PODS[before])).updated(new)) == summary(PodInfo(new))


def test_what_nothing_depends_on_has_nothing_computed_again() -> None:
    info = PodInfo(pod(**PODS["plain"]))
    assert info.updated(pod(**PODS["labelled"])).requests is info.requests
