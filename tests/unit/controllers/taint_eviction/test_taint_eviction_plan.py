"""How long Pods toleration on tainted nodes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dray.api.types.core_v1 import Taint, Toleration
from dray.controllers.taint_eviction.plan import (
    EvictionSchedule,
    ScheduledEviction,
    no_execute_taints,
    tolerated_seconds,
)


def taint(key: str, value: str = "", effect: str = "NoExecute") -> Taint:
    return Taint(key=key, value=value, effect=effect)


def toleration(**fields: Any) -> Toleration:
    return msgspec.convert(fields, Toleration)


TOLERATED = {
    "no taint": ((), (), None),
    "not tolerated": ((taint("a"),), (), 0.0),
    "for ever": ((taint("a"),), (toleration(key="a", operator="Exists"),), None),
    "for a while": ((taint("a"),), (toleration(key="a", operator="Exists", tolerationSeconds=300),), 300.0),
    "zero and less are not at all": (
        (taint("a"),),
        (toleration(key="a", operator="Exists", tolerationSeconds=-5),),
        0.0,
    ),
    "another value": ((taint("a", "1"),), (toleration(key="a", value="2"),), 0.0),
    "the value": ((taint("a", "1"),), (toleration(key="a", value="1", effect="NoExecute"),), None),
    "another effect": ((taint("a"),), (toleration(key="a", operator="Exists", effect="NoSchedule"),), 0.0),
    "everything": ((taint("a"), taint("b")), (toleration(operator="Exists"),), None),
    "one of two": ((taint("a"), taint("b")), (toleration(key="a", operator="Exists"),), 0.0),
    "the shorter of two": (
        (taint("a"), taint("b")),
        (
            toleration(key="a", operator="Exists", tolerationSeconds=30),
            toleration(key="b", operator="Exists", tolerationSeconds=10),
        ),
        10.0,
    ),
    "for ever and for a while": (
        (taint("a"), taint("b")),
        (toleration(key="a", operator="Exists"), toleration(key="b", operator="Exists", tolerationSeconds=10)),
        10.0,
    ),
    "the first that matches a taint counts": (
        (taint("a"),),
        (toleration(operator="Exists", tolerationSeconds=60), toleration(key="a", operator="Exists")),
        60.0,
    ),
}


@pytest.mark.parametrize("row", TOLERATED.values(), ids=TOLERATED.keys())
def test_tolerated_seconds(row: tuple[tuple[Taint, ...], tuple[Toleration, ...], float | None]) -> None:
    taints, tolerations, expected = row
    assert tolerated_seconds(taints, tolerations) == expected


def test_only_no_execute_taints_evict() -> None:
    taints = (taint("a"), taint("b", effect="NoSchedule"), taint("c", effect="PreferNoSchedule"))
    assert [item.key for item in no_execute_taints(taints)] == ["a"]


SCHEDULES = {
    "the same toleration is counted from the first time": ([(0, 300), (100, 300)], ScheduledEviction(0, 300)),
    "a shorter toleration counts from now": ([(0, 300), (100, 10)], ScheduledEviction(0, 110)),
    "a shorter toleration that ends later changes nothing": ([(0, 300), (295, 10)], ScheduledEviction(0, 300)),
    "a longer toleration counts from the first time": ([(0, 10), (5, 300)], ScheduledEviction(0, 300)),
    "at once": ([(0, 300), (100, 0)], ScheduledEviction(0, 100)),
}


@pytest.mark.parametrize("row", SCHEDULES.values(), ids=SCHEDULES.keys())
def test_eviction_schedule(row: tuple[list[tuple[float, float]], ScheduledEviction]) -> None:
    steps, expected = row
    evictions: EvictionSchedule[str] = EvictionSchedule()
    for now, seconds in steps:
        found = evictions.schedule("pod", seconds, now)
    assert found == expected
    assert evictions.cancel("pod")
    assert not evictions.cancel("pod")
    assert evictions.schedule("pod", 5, 1000) == ScheduledEviction(1000, 1005)
