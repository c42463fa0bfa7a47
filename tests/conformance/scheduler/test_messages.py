"""The condition's message when no node fits, in Kubernetes' format."""

from __future__ import annotations

import pytest

from dray.framework.status import unresolvable, unschedulable
from dray.scheduler.diagnosis import Diagnosis

CPU = unschedulable("Insufficient cpu")
BOTH = unschedulable("Insufficient cpu", "Insufficient memory")
AFFINITY = unresolvable("node(s) didn't match Pod's node affinity/selector")
NAMED = unresolvable("node(s) didn't satisfy plugin(s) [NodeAffinity]")


@pytest.mark.parametrize(
    ("diagnosis", "post_filter", "expected"),
    [
        (Diagnosis(0), "", "no nodes available to schedule pods"),
        (
            Diagnosis(5, {"a": CPU, "b": CPU, "c": AFFINITY, "d": AFFINITY, "e": AFFINITY}),
            "",
            "0/5 nodes are available: 2 Insufficient cpu, 3 node(s) didn't match Pod's node affinity/selector.",
        ),
        (Diagnosis(1, {"a": BOTH}), "", "0/1 nodes are available: 1 Insufficient cpu, 1 Insufficient memory."),
        (
            Diagnosis(1, {"a": CPU}),
            "deallocation of ResourceClaim completed",
            "0/1 nodes are available: 1 Insufficient cpu. deallocation of ResourceClaim completed",
        ),
        (
            Diagnosis(46, {"a": unschedulable("Too many pods")}, NAMED),
            "",
            "0/46 nodes are available: 1 Too many pods, 45 node(s) didn't satisfy plugin(s) [NodeAffinity].",
        ),
        (Diagnosis(3, pre_filter_message="no way"), "", "0/3 nodes are available: no way."),
    ],
)
def test_message(diagnosis: Diagnosis, post_filter: str, expected: str) -> None:
    assert diagnosis.message(post_filter) == expected
