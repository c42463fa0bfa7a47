"""The order in which Events expire, and when a stored Event was last written."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dray.apiserver.expiry_queue import ExpiryQueue, Written, last_written

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_keys_expire_in_the_order_of_their_last_writes() -> None:
    queue = ExpiryQueue(10.0)
    queue.put("a", 2, 0.0)
    queue.put("b", 3, 1.0)
    queue.put("c", 4, 2.0)
    queue.put("a", 5, 3.0)
    queue.remove("c")
    assert queue.due(10.9, limit=9) == []
    assert queue.due(11.0, limit=9) == [("b", 3)]
    assert queue.due(12.9, limit=9) == []
    assert queue.due(13.0, limit=9) == [("a", 5)]
    assert len(queue) == 0


def test_a_batch_is_bounded() -> None:
    queue = ExpiryQueue(1.0)
    for number in range(5):
        queue.put(str(number), number, 0.0)
    assert [len(queue.due(9.0, limit=2)) for _ in range(4)] == [2, 2, 1, 0]


def test_updates_of_one_key_take_no_memory() -> None:
    queue = ExpiryQueue(1.0)
    for number in range(100):
        queue.put("a", number, float(number))
    assert len(queue) == 1


def test_what_could_not_be_deleted_is_due_again_unless_it_was_written() -> None:
    queue = ExpiryQueue(10.0)
    for key in "abc":
        queue.put(key, 1, 0.0)
    expired = queue.due(10.0, limit=2)
    queue.put("b", 2, 10.0)
    queue.put_back(expired, 10.0)
    assert queue.due(10.0, limit=9) == [("a", 1), ("c", 1)]
    assert queue.due(20.0, limit=9) == [("b", 2)]


def test_a_list_keeps_the_times_of_known_writes() -> None:
    queue = ExpiryQueue(10.0)
    queue.put("kept", 2, 5.0)
    queue.put("updated", 3, 5.0)
    queue.put("vanished", 4, 5.0)
    queue.replace([("kept", Written(2, 99.0)), ("updated", Written(7, 8.0)), ("older", Written(1, -50.0))])
    assert queue.due(15.0, limit=9) == [("older", 1), ("kept", 2)]
    assert queue.due(18.0, limit=9) == [("updated", 7)]
    assert len(queue) == 0


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ({"metadata": {"creationTimestamp": "2026-01-01T11:00:00Z"}}, NOW - timedelta(hours=1)),
        (
            {"metadata": {"creationTimestamp": "2026-01-01T10:00:00Z"}, "lastTimestamp": "2026-01-01T11:30:00Z"},
            NOW - timedelta(minutes=30),
        ),
        (
            {
                "metadata": {
                    "creationTimestamp": "2026-01-01T10:00:00Z",
                    "managedFields": [{"time": "2026-01-01T11:50:00Z"}, {}],
                },
                "eventTime": "2026-01-01T10:00:00.000000Z",
            },
            NOW - timedelta(minutes=10),
        ),
        (
            {"eventTime": "2026-01-01T10:00:00.000000Z", "series": {"lastObservedTime": "2026-01-01T11:59:59.500000Z"}},
            NOW - timedelta(seconds=0.5),
        ),
        # A reporter's clock that is ahead does not keep an Event for ever.
        ({"lastTimestamp": "2099-01-01T00:00:00Z"}, NOW),
        ({"lastTimestamp": None, "metadata": {"managedFields": None, "creationTimestamp": "yesterday"}}, NOW),
        ({"metadata": "text", "series": ["x"], "eventTime": {"a": 1}}, NOW),
        ({}, NOW),
    ],
)
def test_when_an_event_was_last_written(event: dict[str, Any], expected: datetime) -> None:
    assert last_written(event, NOW) == expected
