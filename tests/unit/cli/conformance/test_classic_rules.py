"""What `dray conformance --classic` finds in the claims that a driver writes."""

from __future__ import annotations

from typing import Any

import pytest

from dray.api.codec import from_document
from dray.api.types.cdi_v1alpha1 import ResourceClaim
from dray.api.types.core_v1 import Node
from dray.api.types.meta_v1 import ObjectMeta
from dray.cli.conformance.rules import classic as rules
from dray.cli.conformance.rules.registration import Info

DRIVER = "x.example.com"
NODE = Node(metadata=ObjectMeta(name="n1"))


def claim(finalizers: tuple[str, ...] = (f"{DRIVER}/f",), version: str = "1", **status: Any) -> ResourceClaim:
    metadata = {"name": "c", "finalizers": list(finalizers), "resourceVersion": version}
    return from_document(ResourceClaim, {"metadata": metadata, "status": status})


def only_on(name: str) -> dict[str, Any]:
    field = {"key": "metadata.name", "operator": "In", "values": [name]}
    return {"driver": {"availableOnNodes": {"nodeSelectorTerms": [{"matchFields": [field]}]}}}


@pytest.mark.behaviour("CL-09")
@pytest.mark.parametrize(
    ("item", "problems"),
    [
        (claim(phase="Allocated", driverName=DRIVER, userLimit=-1, scheduling=only_on("n1")), []),
        (claim(phase="Allocated", driverName=DRIVER), []),
        (claim(phase="Allocated", driverName="other", userLimit=0), ['driverName is "other"', "userLimit is 0"]),
        (claim(("other/f",), phase="Pending", driverName=DRIVER), ['phase is "Pending"', "finalizers are [other/f]"]),
        (
            claim(
                phase="Allocated",
                driverName=DRIVER,
                scheduling={
                    "scheduler": {"selectedNode": "n1", "potentialNodes": ["n1", "n2"]},
                    "driver": {"unsuitableNodes": ["n2"]},
                },
            ),
            ["selectedNode is n1", "potentialNodes are n1, n2", "unsuitableNodes are n2"],
        ),
    ],
)
def test_allocated_claims(item: ResourceClaim, problems: list[str]) -> None:
    assert list(rules.allocated_problems(item, DRIVER)) == problems


def test_unsuitable_nodes_are_among_the_potential_ones() -> None:
    assert list(rules.unsuitable_problems(claim(scheduling={"driver": {"unsuitableNodes": ["n1"]}}), "n1")) == []
    others = claim(scheduling={"driver": {"unsuitableNodes": ["n1", "n9"]}})
    assert list(rules.unsuitable_problems(others, "n1")) == [
        "unsuitableNodes has n9, which the scheduler did not ask about"
    ]


def test_an_allocation_is_available_on_the_selected_node() -> None:
    assert list(rules.place_problems(claim(), NODE)) == []
    assert list(rules.place_problems(claim(scheduling=only_on("n1")), NODE)) == []
    assert list(rules.place_problems(claim(scheduling=only_on("n2")), NODE)) == [
        "availableOnNodes does not match node n1, which was selected"
    ]


def test_a_refused_node_is_unsuitable() -> None:
    assert list(rules.refusal_problems(claim(scheduling={"driver": {"unsuitableNodes": ["n1"]}}), "n1")) == []
    assert list(rules.refusal_problems(claim(), "n1")) == [
        "selectedNode was cleared, but unsuitableNodes does not have n1"
    ]


def test_a_deallocated_claim_has_nothing_left() -> None:
    assert list(rules.pending_problems(claim(phase="Pending"))) == []
    left = claim(phase="Reallocate", attributes={"card": "1"}, scheduling=only_on("n1"))
    assert list(rules.pending_problems(left)) == [
        'phase is "Reallocate"',
        "attributes are {'card': '1'}",
        "availableOnNodes is set",
    ]


def test_claims_of_other_drivers() -> None:
    assert list(rules.untouched_problems(claim(), claim())) == []
    assert list(rules.untouched_problems(claim(), claim(version="2"))) == ["the claim was changed"]
    assert list(rules.untouched_problems(claim(), None)) == ["the claim is gone"]


def test_registration() -> None:
    assert list(rules.info_problems(Info("ResourcePlugin", DRIVER, "/s", ("v1alpha1",)))) == []
    assert list(rules.info_problems(Info("DRAPlugin", DRIVER, "/s", ("v1",)))) == [
        'type is "DRAPlugin"',
        "supported_versions is [v1]",
    ]
