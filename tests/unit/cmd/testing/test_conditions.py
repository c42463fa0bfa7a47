"""Conditions of waits."""

from __future__ import annotations

from typing import Any

import pytest

from dray.cmd.testing.conditions import describe, impossible_reason, is_met

RUNNING = {
    "kind": "Pod",
    "status": {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"}, {"type": "X", "status": "False"}],
    },
}
ENDED = {"kind": "Pod", "status": {"phase": "Succeeded"}}


@pytest.mark.parametrize(
    ("obj", "condition", "expected"),
    [
        (RUNNING, "Running", True),
        (RUNNING, "Ready", True),
        (RUNNING, "X", False),
        (RUNNING, "Succeeded", False),
        (RUNNING, "exists", True),
        (RUNNING, "deleted", False),
        (None, "exists", False),
        (None, "deleted", True),
        (None, lambda obj: True, False),
        (RUNNING, lambda obj: obj["status"]["phase"] == "Running", True),
        ({}, "allocated", False),
        ({"status": {"allocation": {"devices": {}}}}, "allocated", True),
        ({"status": {"reservedFor": []}}, "reserved", False),
        ({"status": {"reservedFor": [{}]}}, "reserved", True),
    ],
)
def test_is_met(obj: Any, condition: Any, expected: bool) -> None:
    assert is_met(obj, condition) is expected


@pytest.mark.parametrize(
    ("obj", "condition", "expected"),
    [
        (ENDED, "Running", "it is already Succeeded"),
        (ENDED, "Ready", "it is already Succeeded"),
        (ENDED, "Succeeded", ""),
        (ENDED, "deleted", ""),
        (ENDED, lambda obj: False, ""),
        (RUNNING, "Failed", ""),
        (None, "Running", ""),
        ({"kind": "Job", "status": {"phase": "Failed"}}, "Running", ""),
    ],
)
def test_impossible_conditions(obj: Any, condition: Any, expected: str) -> None:
    assert impossible_reason(obj, condition) == expected


def test_describe() -> None:
    def lit(obj: object) -> bool:
        return True

    assert [describe(item) for item in ("Running", "deleted", "allocated", lit)] == [
        "become Running",
        "get deleted",
        "get allocated",
        "satisfy lit",
    ]
