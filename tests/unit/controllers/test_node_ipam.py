"""Ranges of addresses for the Pods of Nodes."""

from __future__ import annotations

import pytest

from dray.controllers.node_ipam import NodeRanges


@pytest.mark.behaviour("SV-51")
def test_the_lowest_free_range_is_given() -> None:
    ranges = NodeRanges("10.244.0.0/22", 24)
    assert ranges.free([]) == "10.244.0.0/24"
    assert ranges.free(["10.244.0.0/24", "10.244.2.0/24", "fd00::/64"]) == "10.244.1.0/24"
    # Somebody has given a Node a range by hand.
    assert ranges.free(["10.244.0.0/23"]) == "10.244.2.0/24"
    assert ranges.free([f"10.244.{number}.0/24" for number in range(4)]) is None
    assert NodeRanges("10.244.0.0/26", 24).free([]) == "10.244.0.0/26"
