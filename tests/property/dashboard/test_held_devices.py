"""The holders of devices count as in-use devices do for the allocator."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from dray.allocator import Allocations
from dray.api.types.meta_v1 import ObjectMeta
from dray.api.types.resource_v1 import (
    AllocationResult,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
    ResourceClaim,
    ResourceClaimStatus,
)
from dray.dashboard.held_devices import HeldDevices
from dray.sim.devices import holders_of

POOLS, DEVICES = ("a", "b"), ("gpu-0", "gpu-1")
KEYS = [f"driver/{pool}/{device}" for pool in POOLS for device in DEVICES]


def result(pool: str, device: str, kind: str) -> DeviceRequestAllocationResult:
    is_share = kind == "share"
    return DeviceRequestAllocationResult(
        driver="driver",
        pool=pool,
        device=device,
        request="gpu",
        admin_access=True if kind == "admin" else None,
        share_id="s" if is_share else None,
        consumed_capacity={"memory": "10Gi"} if is_share else {},
    )


results = st.builds(
    result, st.sampled_from(POOLS), st.sampled_from(DEVICES), st.sampled_from(["whole", "share", "admin"])
)
# The new devices of a claim; None deletes it.
changes = st.lists(
    st.tuples(
        st.sampled_from(["one", "two", "three"]),
        st.none() | st.lists(results, max_size=3, unique_by=lambda item: (item.pool, item.device)),
    ),
    max_size=20,
)


def claim(name: str, found: list[DeviceRequestAllocationResult]) -> ResourceClaim:
    allocation = AllocationResult(devices=DeviceAllocationResult(results=tuple(found))) if found else None
    metadata = ObjectMeta(name=name, namespace="team", uid=name)
    return ResourceClaim(metadata=metadata, status=ResourceClaimStatus(allocation=allocation))


@settings(max_examples=300, deadline=None)
@given(changes)
def test_the_same_devices_are_in_use_as_for_the_allocator(
    steps: list[tuple[str, list[DeviceRequestAllocationResult] | None]],
) -> None:
    held, allocations = HeldDevices(), Allocations()
    known: dict[str, ResourceClaim] = {}
    stamps = dict.fromkeys(POOLS, 0)
    for name, found in steps:
        before = {pool: sorted(held.keys_in_use(f"driver/{pool}")) for pool in POOLS}
        old = known.pop(name, None)
        for key, holder in holders_of(old) if old is not None else ():
            assert held.remove(key, holder) == key.rpartition("/")[0]
        if found is None:
            if old is not None:
                allocations.remove_claim(old)
        else:
            known[name] = claim(name, found)
            allocations.apply_claim(known[name])
            for key, holder in holders_of(known[name]):
                assert held.add(key, holder) == key.rpartition("/")[0]
        for pool in POOLS:
            in_use = sorted(held.keys_in_use(f"driver/{pool}"))
            assert in_use == sorted(allocations.keys_in_use(f"driver/{pool}"))
            assert held.names_in_use(f"driver/{pool}") == {key.rpartition("/")[2] for key in in_use}
            stamp = held.stamp(f"driver/{pool}")
            assert stamp != stamps[pool] or in_use == before[pool]
            stamps[pool] = stamp
        for key in KEYS:
            assert held.consumed(key) == allocations.consumed(key)
            holders = [holder.claim for holder in held.get(key, ()) if not holder.admin_access]
            assert sorted(holders) == sorted(allocations.holders(key))
    assert sorted(held) == sorted({key for each in known.values() for key, _ in holders_of(each)})
    assert len(held) == len(list(held))
