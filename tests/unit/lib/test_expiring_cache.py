"""Values are kept until a time, and no more than a number of them."""

from __future__ import annotations

from dray.lib.expiring_cache import ExpiringCache


def test_values_expire_and_the_oldest_is_evicted() -> None:
    cache: ExpiringCache[str, int] = ExpiringCache(2)
    cache.put("a", 1, expires=10.0)
    assert cache.get("a", 9.9) == 1
    assert cache.get("a", 10.0) is None
    assert len(cache) == 0
    for name in ("a", "b", "a", "c"):
        cache.put(name, 2, expires=10.0)
    assert [name for name in "abc" if cache.get(name, 0.0)] == ["a", "c"]
