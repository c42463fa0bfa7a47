"""When device taints drive Pods out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from dray.allocator.taints import TaintRule
from dray.api.document import NamespacedName
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import DeviceTaint, DeviceToleration, ResourceClaim, ResourceSlice
from dray.controllers.device_taint_eviction import plan
from dray.controllers.device_taint_eviction.plan import DeviceId, Eviction, Rule

START = datetime(2026, 1, 1, tzinfo=UTC)
STAMP = "2026-01-01T00:00:00Z"
KEY = NamespacedName("team", "claim")
GPU = DeviceId("gpu", "pool", "d0")


def taint(key: str = "sick", effect: str = "NoExecute", *, at: str = STAMP, value: str = "") -> dict[str, Any]:
    return {"key": key, "value": value, "effect": effect, "timeAdded": at}


def make_slice(
    name: str = "s", generation: int = 1, pool: str = "pool", **devices: list[dict[str, Any]]
) -> ResourceSlice:
    spec = {
        "driver": "gpu",
        "pool": {"name": pool, "generation": generation, "resourceSliceCount": 1},
        "devices": [{"name": device, "taints": taints} for device, taints in devices.items()],
    }
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, ResourceSlice, strict=False)


def claim(
    *devices: str, tolerations: tuple[dict[str, Any], ...] = (), users: tuple[str, ...] = ("pod",)
) -> ResourceClaim:
    """Devices as `driver/pool/device`."""
    results = [
        {**dict(zip(("driver", "pool", "device"), text.split("/"), strict=True)), "tolerations": list(tolerations)}
        for text in devices
    ]
    status = {
        "allocation": {"devices": {"results": results}},
        "reservedFor": [{"resource": "pods", "name": name, "uid": name} for name in users],
    }
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "pod", "uid": "pod", "controller": True}
    metadata = {"namespace": "team", "name": "claim", "ownerReferences": [owner]}
    return msgspec.convert({"metadata": metadata, "status": status}, ResourceClaim, strict=False)


def pod(name: str = "pod", *, node: str = "n", entries: Any = None, **status: Any) -> Pod:
    entries = [{"name": "gpu", "resourceClaimName": "claim"}] if entries is None else entries
    return msgspec.convert(
        {
            "metadata": {"namespace": "team", "name": name, "uid": name},
            "spec": {"nodeName": node, "resourceClaims": entries},
            "status": status,
        },
        Pod,
    )


def rule(name: str = "r", *, seconds: int = 0, **selector: str) -> Rule:
    made = DeviceTaint(key="rule", effect="NoExecute")
    return Rule(TaintRule(name, made, **selector), f"uid-{name}", START + timedelta(seconds=seconds))


def later(seconds: int) -> datetime:
    return START + timedelta(seconds=seconds)


ALL = {"operator": "Exists"}
TIMES = {
    "not tolerated": ([], later(0)),
    "tolerated for ever": ([{**ALL, "effect": "NoExecute"}], None),
    "an open effect is every effect": ([ALL], None),
    "another effect": ([{**ALL, "effect": "NoSchedule"}], later(0)),
    "another key": ([{**ALL, "key": "other"}], later(0)),
    "for a while": ([{**ALL, "tolerationSeconds": 60}], later(60)),
    "the shortest": ([{**ALL, "tolerationSeconds": 60}, {**ALL, "tolerationSeconds": 30}], later(30)),
    "for ever beats for a while": ([{**ALL, "tolerationSeconds": 60}, ALL], None),
    "less than zero": ([{**ALL, "tolerationSeconds": -60}], later(0)),
    "longer than time": ([{**ALL, "tolerationSeconds": 2**62}], None),
    "the value": ([{"key": "sick", "operator": "Equal", "value": "v"}], None),
    "another value": ([{"key": "sick", "operator": "Equal", "value": "w"}], later(0)),
}


@pytest.mark.parametrize("row", TIMES.values(), ids=TIMES.keys())
@pytest.mark.behaviour("SP-145")
def test_eviction_time(row: tuple[list[dict[str, Any]], datetime | None]) -> None:
    tolerations = [msgspec.convert(item, DeviceToleration) for item in row[0]]
    found = plan.eviction_time(DeviceTaint(key="sick", value="v", effect="NoExecute"), START, tolerations)
    assert found == row[1]


class TestPools:
    def test_a_taint_comes_changes_and_goes(self) -> None:
        pools = plan.Pools()
        clean, sick, sicker = (
            make_slice(d0=[], d1=[]),
            make_slice(d0=[taint()], d1=[]),
            make_slice(d0=[taint("x")], d1=[]),
        )
        assert pools.change(None, clean) == []
        assert pools.change(clean, sick) == [GPU]
        assert pools.change(sick, sick) == []
        assert pools.change(sick, sicker) == [GPU]
        assert [item.key for item in pools.taints(GPU)] == ["x"]
        assert pools.change(sicker, None) == [GPU]
        assert pools.taints(GPU) == ()

    def test_other_effects_do_not_count(self) -> None:
        pools = plan.Pools()
        assert pools.change(None, make_slice(d0=[taint(effect="NoSchedule"), taint(effect="None")])) == []

    def test_the_newest_generation_counts(self) -> None:
        pools = plan.Pools()
        old, new = make_slice("old", 1, d0=[taint()]), make_slice("new", 2, d1=[taint()])
        pools.change(None, old)
        assert pools.change(None, new) == [GPU, DeviceId("gpu", "pool", "d1")]
        assert pools.taints(GPU) == ()
        assert pools.change(None, make_slice("late", 1, d5=[taint()])) == []
        pools.change(new, None)
        assert pools.taints(GPU) != ()

    def test_a_slice_that_moves_to_another_pool(self) -> None:
        pools = plan.Pools()
        here, there = make_slice(d0=[taint()]), make_slice(pool="other", d0=[taint()])
        pools.change(None, here)
        assert pools.change(here, there) == [GPU, DeviceId("gpu", "other", "d0")]

    def test_counting(self) -> None:
        pools = plan.Pools()
        pools.change(None, make_slice("a", d0=[], d1=[]))
        pools.change(None, make_slice("b", pool="q", d0=[]))
        counted = [
            pools.count_selected(TaintRule("r", DeviceTaint(), **selector))
            for selector in ({}, {"driver": "gpu"}, {"pool": "pool"}, {"device": "d0"}, {"driver": "other"})
        ]
        assert counted == [3, 3, 2, 2, 0]


class TestClaims:
    def test_found_by_what_they_hold(self) -> None:
        claims = plan.Claims()
        other = NamespacedName("team", "other")
        claims.put(KEY, claim("gpu/pool/d0", "gpu/pool/d1"))
        claims.put(other, claim("gpu/q/d0"))
        assert claims.holding(GPU) == (KEY,)
        rows: list[tuple[dict[str, str], set[NamespacedName]]] = [
            ({}, {KEY, other}),
            ({"driver": "gpu"}, {KEY, other}),
            ({"driver": "gpu", "pool": "q"}, {other}),
            ({"driver": "gpu", "pool": "pool", "device": "d1"}, {KEY}),
            ({"device": "d0"}, {KEY, other}),
            ({"driver": "gpu", "device": "d1"}, {KEY}),
            ({"driver": "nic"}, set()),
        ]
        for selector, expected in rows:
            assert set(claims.selected(TaintRule("r", DeviceTaint(), **selector))) == expected

    def test_what_is_let_go_is_forgotten(self) -> None:
        claims = plan.Claims()
        claims.put(KEY, claim("gpu/pool/d0"))
        claims.put(KEY, msgspec.structs.replace(claim("gpu/pool/d0"), status=type(claim().status)()))
        assert claims.holding(GPU) == ()
        assert claims.get(KEY) is None
        claims.put(KEY, claim("gpu/pool/d1"))
        claims.put(KEY, None)
        assert claims._holders == {}


def book(
    *claims: ResourceClaim, rules: tuple[Rule, ...] = (), taints: list[dict[str, Any]] | None = None
) -> plan.DeviceTaints:
    made = plan.DeviceTaints()
    made.pools.change(None, make_slice(d0=taints or [], d1=[]))
    for item in claims:
        made.claims.put(KEY, item)
    made.rules = {item.selector.name: item for item in rules}
    return made


HELD = claim("gpu/pool/d0")
WAITS = claim("gpu/pool/d0", tolerations=({**ALL, "tolerationSeconds": 60},))
EVICTIONS = {
    "no taint": (book(HELD), pod(), None),
    "a taint of the slice": (book(HELD, taints=[taint()]), pod(), Eviction(START, ())),
    "a rule": (book(HELD, rules=(rule(driver="gpu"),)), pod(), Eviction(START, ("uid-r",))),
    "a rule for another": (book(HELD, rules=(rule(driver="nic"),)), pod(), None),
    "a rule for a device that is published no longer": (
        book(claim("gpu/pool/d9"), rules=(rule(device="d9"),)),
        pod(),
        Eviction(START, ("uid-r",)),
    ),
    "the earliest, and all rules": (
        book(HELD, rules=(rule("b", seconds=5, driver="gpu"), rule("a", seconds=9)), taints=[taint()]),
        pod(),
        Eviction(START, ("uid-a", "uid-b")),
    ),
    "later": (book(WAITS, taints=[taint()]), pod(), Eviction(later(60), ())),
    "no node yet": (book(HELD, taints=[taint()]), pod(node=""), None),
    "done": (book(HELD, taints=[taint()]), pod(phase="Failed"), None),
    "not a user": (book(claim("gpu/pool/d0", users=("x",)), taints=[taint()]), pod(), None),
    "another device": (book(claim("gpu/pool/d1"), taints=[taint()]), pod(), None),
    "from a template": (
        book(HELD, taints=[taint()]),
        pod(
            entries=[{"name": "gpu", "resourceClaimTemplateName": "t"}],
            resourceClaimStatuses=[{"name": "gpu", "resourceClaimName": "claim"}],
        ),
        Eviction(START, ()),
    ),
    "a template's claim that is not there yet": (
        book(HELD, taints=[taint()]),
        pod(entries=[{"name": "gpu", "resourceClaimTemplateName": "t"}]),
        None,
    ),
    "extended resources": (
        book(HELD, taints=[taint()]),
        pod(entries=[], extendedResourceClaimStatus={"resourceClaimName": "claim", "requestMappings": []}),
        Eviction(START, ()),
    ),
}


@pytest.mark.parametrize("row", EVICTIONS.values(), ids=EVICTIONS.keys())
@pytest.mark.behaviour("SP-145")
def test_pod_eviction(row: tuple[plan.DeviceTaints, Pod, Eviction | None]) -> None:
    given, asked, expected = row
    assert given.pod_eviction(asked) == expected


def test_a_pretended_rule_counts_alone() -> None:
    made = book(WAITS, taints=[taint()], rules=(rule("real", driver="gpu"),))
    assert made.pod_eviction(pod(), rule("p", driver="gpu")) == Eviction(later(60), ("uid-p",))
    assert made.pod_eviction(pod(), rule("p", driver="nic")) is None


def test_nobody_waits_longer_than_tolerated_whatever_the_clock_says() -> None:
    at_once = book(HELD, taints=[taint()]).pod_eviction(pod())
    later_on = book(WAITS, taints=[taint()]).pod_eviction(pod())
    assert at_once is not None
    assert later_on is not None
    hours_behind = later(-36_000)
    assert (at_once.wait_seconds(hours_behind), later_on.wait_seconds(hours_behind)) == (0.0, 60.0)
    assert (later_on.wait_seconds(later(20)), later_on.wait_seconds(later(90))) == (40.0, 0.0)
