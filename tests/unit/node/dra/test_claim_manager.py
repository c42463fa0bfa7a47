"""Calls for several claims that are made at once."""

from __future__ import annotations

from typing import NoReturn

import pytest

from dray.node.dra.claim_manager import _gather
from dray.node.dra.claims import ClaimError


async def test_a_bug_in_one_call_is_raised_rather_than_the_failures_of_others() -> None:
    ended: list[str] = []

    async def fails() -> NoReturn:
        raise ClaimError("the driver refuses")

    async def breaks() -> NoReturn:
        raise ZeroDivisionError

    async def works() -> None:
        ended.append("works")

    with pytest.raises(ZeroDivisionError):
        await _gather([fails(), breaks(), works()])
    assert ended == ["works"]
    with pytest.raises(ClaimError, match="refuses"):
        await _gather([works(), fails()])
    await _gather([works()])
