"""Which devices the cache records for claims, whether this server or another one has written them."""

from __future__ import annotations

from dray.api.document import Document
from dray.apiserver.device_ledger import uses_of
from dray.apiserver.object_cache import CLAIMS, ObjectCache


def claim(*devices: str) -> Document:
    results = [{"request": "r", "driver": "d", "pool": "p", "device": device} for device in devices]
    status: Document = {"allocation": {"devices": {"results": results}}} if results else {}
    return {"metadata": {"namespace": "ns", "name": "a"}, "status": status}


def is_free(cache: ObjectCache, device: str) -> bool:
    return cache.devices.check("ns/b", (), uses_of(claim(device))) is None


def test_the_event_of_a_write_that_was_recorded_changes_nothing() -> None:
    cache = ObjectCache()
    reservation = cache.devices.reserve("ns/a", uses_of(claim("gpu-0")), base=1)
    cache.devices.confirm(reservation, 2)
    cache.apply(CLAIMS, claim("gpu-0"), deleted=False, revision=2)
    assert not is_free(cache, "gpu-0")
    cache.apply(CLAIMS, claim(), deleted=False, revision=3)
    assert is_free(cache, "gpu-0")


def test_the_event_of_a_write_by_others_is_recorded() -> None:
    cache = ObjectCache()
    cache.apply(CLAIMS, claim("gpu-0"), deleted=False, revision=2)
    assert not is_free(cache, "gpu-0")
    cache.apply(CLAIMS, claim("gpu-1"), deleted=False, revision=3)
    assert is_free(cache, "gpu-0")
    assert not is_free(cache, "gpu-1")


def test_the_event_of_a_deletion_frees_the_devices_at_any_revision() -> None:
    cache = ObjectCache()
    cache.apply(CLAIMS, claim("gpu-0"), deleted=False, revision=2)
    # Recorded by the write itself, before the event.
    cache.devices.observe("ns/a", (), 3)
    assert is_free(cache, "gpu-0")
    cache.apply(CLAIMS, claim("gpu-0"), deleted=True, revision=3)
    assert is_free(cache, "gpu-0")
    assert not cache.devices.is_observed("ns/a", 3)
