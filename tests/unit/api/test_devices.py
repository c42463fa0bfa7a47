"""Reads of slices and allocations that all components share."""

from __future__ import annotations

import pytest

from dray.api.devices import newest_generation, results_in, results_of
from dray.api.document import Document
from dray.api.types.resource_v1 import AllocationResult, DeviceAllocationResult, DeviceRequestAllocationResult

RESULT = DeviceRequestAllocationResult(request="r", driver="d", pool="p", device="gpu-0")


@pytest.mark.parametrize(("generations", "newest"), [((), []), ((1,), [1]), ((1, 2, 1, 2), [2, 2]), ((-1, -2), [-1])])
def test_only_the_newest_generation_counts(generations: tuple[int, ...], newest: list[int]) -> None:
    assert newest_generation(generations, lambda item: item) == newest


def test_the_results_are_those_of_the_allocation() -> None:
    assert results_of(None) == ()
    assert results_of(AllocationResult(devices=DeviceAllocationResult(results=(RESULT,)))) == (RESULT,)


@pytest.mark.parametrize(
    "claim", [{}, {"status": None}, {"status": {"allocation": None}}, {"status": {"allocation": {"devices": {}}}}]
)
def test_a_claim_without_an_allocation_has_no_results(claim: Document) -> None:
    assert results_in(claim) == ()


def test_the_results_of_a_document() -> None:
    assert results_in({"status": {"allocation": {"devices": {"results": [{"device": "gpu-0"}]}}}}) == [
        {"device": "gpu-0"}
    ]
