"""Whether a Pod fits the node."""

from __future__ import annotations

from typing import Any

import pytest

from dray.framework.resources import amounts_of
from dray.node.agent.admission import check_fit, check_node_selector, own_requests
from tests.unit.node.agent.builders import container, pod


def asking(**requests: str) -> Any:
    return pod(container(resources={"requests": requests}))


ROOM = amounts_of({"cpu": "2", "memory": "1Gi", "pods": "2", "example.com/gpu": "1"})


@pytest.mark.parametrize(
    ("asked", "others", "reason"),
    [
        ({"cpu": "2"}, [], None),
        ({"cpu": "1500m"}, [{"cpu": "1"}], "OutOfcpu"),
        ({"memory": "2Gi"}, [], "OutOfmemory"),
        ({}, [{}, {}], "OutOfpods"),
        ({"example.com/gpu": "1"}, [{"example.com/gpu": "1"}], "OutOfexample.com/gpu"),
        ({"unknown.com/x": "5"}, [], None),
    ],
)
def test_room(asked: dict[str, str], others: list[dict[str, str]], reason: str | None) -> None:
    found = check_fit(own_requests(asking(**asked)), [own_requests(asking(**other)) for other in others], ROOM)
    assert (found.reason if found else None) == reason


def test_the_message_of_a_full_node() -> None:
    found = check_fit(own_requests(asking(cpu="1500m")), [own_requests(asking(cpu="1"))], ROOM)
    assert found is not None
    assert found.message == "Node didn't have enough resource: cpu, requested: 1500, used: 1000, capacity: 2000"


@pytest.mark.behaviour("XR-32")
def test_what_a_claim_stands_for_is_not_asked_of_the_node() -> None:
    gpu = {"requests": {"example.com/gpu": "1", "cpu": "1"}, "limits": {"example.com/gpu": "1"}}
    mapping = {"containerName": "a", "resourceName": "example.com/gpu", "requestName": "r"}
    granted = {"name": "a", "allocatedResources": gpu["requests"], "resources": gpu}
    subject = pod(
        container("a", resources=gpu),
        container("b", resources=gpu),
        status={
            "extendedResourceClaimStatus": {"resourceClaimName": "c", "requestMappings": [mapping]},
            "containerStatuses": [granted],
        },
    )
    assert own_requests(subject) == {"cpu": 2000, "example.com/gpu": 1}
    assert own_requests(pod(container("a", resources=gpu)))["example.com/gpu"] == 1


def test_a_pod_that_selects_another_node_is_rejected() -> None:
    found = check_node_selector(pod(nodeSelector={"zone": "a"}), {"zone": "b"})
    assert found is not None
    assert found.reason == "NodeAffinity"
    assert check_node_selector(pod(nodeSelector={"zone": "a"}), {"zone": "a"}) is None
