"""Which alternatives of a prioritized list are tried, and which one a claim got."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dray.api.prioritized_lists import alternatives_to_try, choices
from dray.api.types.resource_v1 import ResourceClaim


def claim(*results: str) -> ResourceClaim:
    alternatives = [{"name": name, "deviceClassName": f"class-{name}"} for name in ("big", "mid", "small")]
    requests: list[Any] = [
        {"name": "gpu", "firstAvailable": alternatives},
        {"name": "nic", "exactly": {"deviceClassName": "nic"}},
    ]
    found = [{"request": name, "driver": "d", "pool": "p", "device": str(i)} for i, name in enumerate(results)]
    status = {"allocation": {"devices": {"results": found}}} if results else {}
    return msgspec.convert(
        {"metadata": {}, "spec": {"devices": {"requests": requests}}, "status": status}, ResourceClaim
    )


@pytest.mark.behaviour("PL-37")
@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ((), []),
        (("nic",), []),
        (("gpu/big", "gpu/big", "nic"), ["gpu/big (1 of 3)"]),
        (("nic", "gpu/small"), ["gpu/small (3 of 3)"]),
    ],
)
def test_choices(results: tuple[str, ...], expected: list[str]) -> None:
    obj = claim(*results)
    found = list(choices(obj, obj.status.allocation))
    assert [str(choice) for choice in found] == expected
    assert [choice.is_fallback for choice in found] == ["1 of" not in text for text in expected]


@pytest.mark.behaviour("PL-36")
@pytest.mark.parametrize(
    ("known", "skip", "tried"),
    [
        ("class-mid class-small", True, ["mid", "small"]),
        ("class-mid class-small", False, ["big", "mid", "small"]),
        ("nic", True, ["big", "mid", "small"]),
    ],
)
def test_alternatives_to_try(known: str, *, skip: bool, tried: list[str]) -> None:
    request = claim().spec.devices.requests[0]
    found = alternatives_to_try(request, known.split().__contains__, skip_unknown=skip)
    assert [item.name for item in found] == tried
