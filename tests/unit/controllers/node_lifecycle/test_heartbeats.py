"""Which nodes are silent, as signs of life come and stay away."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec

from dray.api.types.core_v1 import Node
from dray.controllers.node_lifecycle.heartbeats import NodeHeartbeats

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def node(
    name: str = "n", heartbeat: float | None = None, *, created: float = 0.0, reason: str = "KubeletReady"
) -> Node:
    conditions = []
    if heartbeat is not None:
        stamp = at(heartbeat).isoformat().replace("+00:00", "Z")
        conditions = [{"type": "Ready", "status": "True", "reason": reason, "lastHeartbeatTime": stamp}]
    created_at = at(created).isoformat().replace("+00:00", "Z")
    return msgspec.convert(
        {"metadata": {"name": name, "creationTimestamp": created_at}, "status": {"conditions": conditions}},
        Node,
        strict=False,
    )


class Seen:
    """A heartbeats and a clock."""

    def __init__(self) -> None:
        self.heartbeats = NodeHeartbeats(grace_seconds=50, startup_grace_seconds=60)

    def node(self, seen: float, *arguments: object, **more: object) -> None:
        self.heartbeats.observe_node(node(*arguments, **more), seen, at(seen))  # type: ignore[arg-type]

    def lease(self, seen: float, renewed: float, name: str = "n") -> bool:
        return self.heartbeats.observe_lease(name, at(renewed), seen)

    def silent(self, now: float) -> list[str]:
        return self.heartbeats.newly_missed(now)


def test_a_node_is_unreachable_after_its_grace_period_and_reported_once() -> None:
    seen = Seen()
    seen.node(0, "n", 0)
    assert seen.silent(50) == []
    assert seen.silent(50.1) == ["n"]
    assert seen.silent(51) == []
    assert seen.heartbeats.is_missed("n")


def test_a_lease_alone_keeps_it() -> None:
    seen = Seen()
    seen.node(0, "n", 0)
    for second in range(10, 200, 10):
        assert not seen.lease(second, second)
        assert seen.silent(second + 9) == []
    assert seen.silent(240.1) == ["n"]


def test_the_status_alone_keeps_it() -> None:
    seen = Seen()
    for second in range(0, 200, 40):
        seen.node(second, "n", second)
        assert seen.silent(second + 39) == []


def test_the_same_news_again_is_no_sign() -> None:
    seen = Seen()
    seen.node(0, "n", 0)
    seen.lease(1, 1)
    seen.node(40, "n", 0)
    assert not seen.lease(40, 1)
    assert not seen.lease(40, -5)
    assert seen.silent(51.1) == ["n"]


def test_only_the_controllers_own_clock_counts() -> None:
    seen = Seen()
    seen.node(0, "n", 99_999)
    seen.lease(10, -99_999)
    assert seen.silent(60) == []
    assert seen.silent(60.1) == ["n"]


def test_it_speaks_again() -> None:
    seen = Seen()
    seen.node(0, "n", 0)
    assert seen.silent(60) == ["n"]
    assert seen.lease(70, 70)
    assert not seen.heartbeats.is_missed("n")
    assert seen.silent(120) == []
    assert seen.silent(120.1) == ["n"]


def test_what_the_controller_wrote_is_no_sign() -> None:
    seen = Seen()
    seen.node(0, "n")
    assert seen.silent(61) == ["n"]
    seen.node(62, "n", 0, reason="NodeStatusNeverUpdated")
    assert seen.heartbeats.is_missed("n")
    seen.node(63, "n", 63)
    assert not seen.heartbeats.is_missed("n")


def test_a_new_node_has_longer_counted_from_its_creation() -> None:
    seen = Seen()
    seen.node(100, "old", created=0)
    seen.node(100, "new", created=90)
    assert seen.silent(100) == ["old"]
    assert seen.silent(150) == []
    assert seen.silent(150.1) == ["new"]


def test_the_longer_time_ends_with_the_first_word() -> None:
    seen = Seen()
    seen.node(0, "n")
    seen.node(1, "n", 1)
    assert seen.silent(51) == []
    assert seen.silent(51.1) == ["n"]
    assert seen.silent(100) == []


def test_gone_and_back_under_the_same_name() -> None:
    seen = Seen()
    seen.node(0, "n", 0)
    seen.heartbeats.forget("n")
    seen.node(49, "n", 49)
    assert seen.silent(60) == []
    assert seen.silent(99.1) == ["n"]
    assert not seen.lease(1, 1, "unknown")


def test_all_are_excused() -> None:
    seen = Seen()
    seen.node(0, "a", 0)
    seen.node(0, "b", 0)
    assert seen.silent(60) == ["a", "b"]
    seen.heartbeats.reset_all(60)
    assert seen.silent(110) == []
    assert seen.silent(110.1) == ["a", "b"]


def test_heartbeats_leave_one_entry_each() -> None:
    seen = Seen()
    seen.node(0, "n", 0)
    for second in range(1, 5000):
        seen.lease(second, second)
        seen.silent(second)
    assert len(seen.heartbeats._due) == 1
