"""Whether a Pod's status must be written again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dray.api.types.core_v1 import Pod
from dray.node.agent.status_manager import is_overwritten


def pod(version: str, *ready: str) -> Pod:
    conditions = [{"type": "Ready", "status": status} for status in ready]
    return msgspec.convert({"metadata": {"resourceVersion": version}, "status": {"conditions": conditions}}, Pod)


def sent(status: str) -> dict[str, Any]:
    return {"conditions": [{"type": "Initialized", "status": "True"}, {"type": "Ready", "status": status}]}


ROWS = {
    "a controller says otherwise": (pod("8", "False"), sent("True"), "7", True),
    "our own words": (pod("8", "True"), sent("True"), "7", False),
    "older version": (pod("6", "False"), sent("True"), "7", False),
    "the version of the last write": (pod("7", "False"), sent("True"), "7", False),
    "nothing written yet": (pod("8", "False"), None, "", False),
    "not answered yet": (pod("8", "False"), sent("True"), "", False),
    "no condition on either side": (pod("8"), sent("True"), "7", False),
    "versions that cannot be compared": (pod("b", "False"), sent("True"), "a", False),
    "ready though we say it is not": (pod("10", "True"), sent("False"), "9", True),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_overwritten(row: tuple[Pod, dict[str, Any] | None, str, bool]) -> None:
    given, words, version, expected = row
    assert is_overwritten(given, words, version) is expected
