"""Calls for several claims that are made at once, and what is said of calls that take long."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest

from dray.api.document import UID, NamespacedName
from dray.api.types.core_v1 import Pod
from dray.api.types.meta_v1 import ObjectMeta
from dray.node.dra.claim_info_cache import Action
from dray.node.dra.claim_manager import ClaimManager, _gather
from dray.node.dra.claims import PREPARE, ClaimError, ClaimInfo
from dray.node.dra.metrics import DriverMetrics
from dray.runtime.metrics import Metrics
from tests.unit.node.agent.fakes import Clock


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


class SlowDriver(ClaimManager):  # type: ignore[type-arg]
    """A manager whose driver takes four seconds."""

    name, driver_kind, method, annotation = "claims", "DRA driver", PREPARE, "x"

    async def _perform(self, actions: Sequence[Action]) -> None:
        await self._clock.sleep(4)
        self.said = self.waits_for(POD)


POD = Pod(metadata=ObjectMeta(uid="pod-1"))


@pytest.mark.behaviour("TT-13")
async def test_a_wait_names_the_call_the_driver_and_how_long_it_has_been(tmp_path: Path) -> None:
    manager = SlowDriver(str(tmp_path / "state"), cast("Any", Clock()), DriverMetrics(Metrics()))
    info = ClaimInfo(UID("claim-1"), NamespacedName("team", "c"), {"lamp.example.com": ()})
    await manager._prepare(POD, (info,))
    assert manager.said == "NodePrepareResources of lamp.example.com is running for 4 s"
    assert manager.waits_for(POD) == ""
