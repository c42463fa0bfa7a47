"""What Pods ask for."""

from __future__ import annotations

from typing import Any

import pytest

from dray.api.types.core_v1 import Pod
from dray.node.devices.assignments import container_request, pod_request
from dray.node.topology.containers import reusable
from tests.unit.node.devices.builders import BAR, FOO, container, part, pod, sidecar


def known(name: str) -> bool:
    return name in (FOO, BAR)


@pytest.mark.behaviour("DP-22")
def test_only_known_resources_count() -> None:
    item = pod(containers=[container("main", {FOO: 2, BAR: 0, "cpu": 1, "other.com/x": 3})])
    assert container_request(item, part(item, "main"), known) == {FOO: 2}


@pytest.mark.behaviour("DP-38", "XR-33")
def test_what_a_claim_serves_is_left_alone() -> None:
    mapping = {"containerName": "one", "resourceName": FOO, "requestName": "r"}
    status = {"extendedResourceClaimStatus": {"resourceClaimName": "c", "requestMappings": [mapping]}}
    both = {FOO: 1, BAR: 1}
    item = pod(containers=[container("one", both), container("two", both)], status=status)
    assert container_request(item, part(item, "one"), known) == {BAR: 1}
    assert container_request(item, part(item, "two"), known) == {BAR: 1, FOO: 1}


TOTALS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, int]]] = {
    "sum": ([], [container("a", {FOO: 1}), container("b", {FOO: 2})], {FOO: 3}),
    "big init": ([container("i", {FOO: 5})], [container("a", {FOO: 1})], {FOO: 5}),
    "inits one after another": ([container("i", {FOO: 2}), container("j", {FOO: 2})], [container("a")], {FOO: 2}),
    "sidecar beside": ([sidecar("s", {FOO: 1})], [container("a", {FOO: 2})], {FOO: 3}),
    "init beside an earlier sidecar": (
        [sidecar("s", {FOO: 1}), container("i", {FOO: 4})],
        [container("a", {FOO: 1})],
        {FOO: 5},
    ),
    "init before a sidecar": ([container("i", {FOO: 4}), sidecar("s", {FOO: 1})], [container("a", {FOO: 1})], {FOO: 4}),
    "each resource for itself": ([container("i", {FOO: 3})], [container("a", {BAR: 1})], {BAR: 1, FOO: 3}),
}


@pytest.mark.behaviour("DP-42")
@pytest.mark.parametrize(("init", "containers", "expected"), TOTALS.values(), ids=TOTALS)
def test_totals(init: list[dict[str, Any]], containers: list[dict[str, Any]], expected: dict[str, int]) -> None:
    assert pod_request(pod(containers=containers, init=init), known) == expected


HELD = {"i": "ab", "s": "b", "j": "cd", "main": "a", "other": ""}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param("i", "", id="nothing before it"),
        pytest.param("s", "b", id="takes over, but not what main has", marks=pytest.mark.behaviour("DP-30")),
        pytest.param("j", "", id="all kept by those that run", marks=pytest.mark.behaviour("DP-30")),
        pytest.param("main", "acd", id="its own and what inits left", marks=pytest.mark.behaviour("DP-29")),
        pytest.param("other", "cd", id="unallocated", marks=pytest.mark.behaviour("DP-29")),
    ],
)
def test_reusable(name: str, expected: str) -> None:
    item: Pod = pod(
        init=[container("i"), sidecar("s"), container("j")], containers=[container("main"), container("other")]
    )
    found = reusable(item, name, lambda one: frozenset(HELD[one]))
    assert found == frozenset(expected)
