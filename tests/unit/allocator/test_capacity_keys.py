"""What decides about shares of a device is known once for all devices with the same capacities."""

from __future__ import annotations

from dray.allocator.content import Content
from dray.api.types.resource_v1 import Device, DeviceAttribute, DeviceCapacity


def content(driver: str = "gpu.example.com", *, number: int = 0, memory: str = "80Gi", shared: bool = True) -> Content:
    device = Device(
        name=f"gpu-{number}",
        attributes={"index": DeviceAttribute(int_=number)},
        capacity={"memory": DeviceCapacity(value=memory)},
        allow_multiple_allocations=shared,
    )
    return Content(driver, device)


def test_devices_that_differ_in_attributes_share_the_key() -> None:
    first, second = content(number=0), content(number=1)
    assert first != second
    assert first.capacity_key is second.capacity_key


def test_other_capacities_and_other_drivers_have_another_key() -> None:
    keys = {content().capacity_key, content(memory="40Gi").capacity_key, content("other.example.com").capacity_key}
    assert len(keys) == 3


def test_a_device_that_is_not_shared_has_no_key() -> None:
    assert content(shared=False).capacity_key is None
