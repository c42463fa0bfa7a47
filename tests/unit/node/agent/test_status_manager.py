"""Whether a Pod's status must be written again, and what is sent then."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dray.api.types.core_v1 import Pod
from dray.node.agent.status_manager import is_overwritten, status_patch


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


def addresses(address: str) -> dict[str, Any]:
    return {"hostIP": address, "hostIPs": [{"ip": address}]}


REPLACED = addresses("10.0.0.2") | {"hostIPs": [{"ip": "10.0.0.2"}, {"$patch": "replace"}]}
PATCHES: dict[str, tuple[dict[str, Any], dict[str, Any] | None, dict[str, Any]]] = {
    "first status": ({}, None, addresses("10.0.0.2")),
    "changed while the agent was away": (addresses("10.0.0.1"), None, REPLACED),
    "same as before the agent started": (addresses("10.0.0.2"), None, addresses("10.0.0.2")),
    "changed since the last write": ({}, addresses("10.0.0.1"), REPLACED),
    "an outdated Pod": (addresses("10.0.0.1"), addresses("10.0.0.2"), addresses("10.0.0.2")),
}


@pytest.mark.behaviour("SV-51")
@pytest.mark.parametrize("row", PATCHES.values(), ids=PATCHES.keys())
def test_changed_addresses_replace_the_earlier_ones(
    row: tuple[dict[str, Any], dict[str, Any] | None, dict[str, Any]],
) -> None:
    stored, reported, expected = row
    given = msgspec.convert({"metadata": {}, "status": stored}, Pod)
    assert status_patch(given, addresses("10.0.0.2"), reported) == expected
