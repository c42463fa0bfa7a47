"""The devices that are in use, alone or shared, are those of the claims that are left, with an overlay and without."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.allocator import AllocationOverlay, Allocations, Inventory
from dray.allocator.allocations import AllocatedDevices
from dray.allocator.gates import Gates
from dray.api.features import FeatureGates
from dray.api.types import resource_v1 as r
from tests.conformance.allocator.builders import DRIVER_A, device, holding, node, slice_of

pytestmark = pytest.mark.api_allocator

DEVICES = 5
# Half of the devices can be shared; a device that could be may still have shares.
SHAREABLE = (0, 1)

# Each claim has one device, alone or a share of it.
CLAIMS = st.lists(st.tuples(st.integers(0, DEVICES - 1), st.booleans()), max_size=8)


def made(number: int, index: int, *, share: bool) -> r.ResourceClaim:
    key = f"{DRIVER_A}/pool-1/d{index}"
    return holding(key, name=f"c{number}", share_id=f"share-{number}" if share else None)


def applied(claims: list[r.ResourceClaim]) -> Allocations:
    allocations = Allocations()
    for item in claims:
        allocations.apply_claim(item)
    return allocations


def plain(held: list[tuple[int, bool]]) -> tuple[int, int]:
    """The devices that are blocked, and those of which some is consumed."""
    alone = {index for index, share in held if not share}
    shared = {index for index, share in held if share} - alone
    blocked = alone | {index for index in shared if index not in SHAREABLE}
    return _mask(blocked), _mask(shared - blocked)


def _mask(indices: set[int]) -> int:
    return sum(1 << index for index in indices)


@given(CLAIMS, st.lists(st.integers(0, 7), max_size=8), st.lists(st.integers(0, 7), max_size=4), st.booleans())
def test_devices_in_use(held: list[tuple[int, bool]], out: list[int], back: list[int], together: bool) -> None:
    members = [device(f"d{index}", allow_multiple_allocations=index in SHAREABLE) for index in range(DEVICES)]
    inventory = Inventory()
    inventory.apply_slice(slice_of(*members))
    view = inventory.node_view(node(), Gates.of(FeatureGates()))

    def found(state: AllocatedDevices) -> tuple[int, int]:
        return view.blocked(state), view.partly_consumed(state)

    claims = [made(number, index, share=share) for number, (index, share) in enumerate(held)]
    allocations = applied(claims)
    assert found(allocations) == plain(held)
    overlay = AllocationOverlay(allocations)
    for change, numbers in ((overlay.take_out, out), (overlay.put_back, back)):
        uids = [f"uid-c{number}" for number in numbers]
        if together:
            change(*uids)
        else:
            for uid in uids:
                change(uid)
    left = set(out) - set(back)
    assert found(overlay) == plain([item for number, item in enumerate(held) if number not in left])
    assert found(allocations) == plain(held)
