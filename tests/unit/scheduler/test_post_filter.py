"""The PostFilter chain: who is asked, what becomes of the nomination, and the message."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from dray.api.types.core_v1 import Pod
from dray.framework.cycle_state import CycleState
from dray.framework.plugins import PostFilterResult
from dray.framework.status import SUCCESS, Code, Status, error, unresolvable, unschedulable
from dray.scheduler.post_filter import PostFilterOutcome, run_post_filter
from tests.unit.scheduler.builders import pod_info, state
from tests.unit.scheduler.test_cycle import profile


class Answers:
    def __init__(self, name: str, status: Status, node: str | None = None) -> None:
        self.name = name
        self._status = status
        self._node = node

    async def post_filter(
        self, _state: CycleState, _pod: Pod, _statuses: Mapping[str, Status]
    ) -> tuple[PostFilterResult | None, Status]:
        if self._status.code is Code.WAIT:
            raise RuntimeError("broken")
        return None if self._node is None else PostFilterResult(self._node), self._status


@pytest.mark.behaviour("PE-10", "PE-11", "SC-09")
@pytest.mark.parametrize(
    ("plugins", "expected"),
    [
        pytest.param((), PostFilterOutcome(), id="none"),
        pytest.param(
            (Answers("A", unschedulable("a")), Answers("B", unschedulable("b"))),
            PostFilterOutcome("a, b"),
            id="no result keeps the nomination",
        ),
        pytest.param(
            (Answers("A", unschedulable("a"), ""), Answers("B", unschedulable("b"))),
            PostFilterOutcome("a, b", ""),
            id="a rejection clears",
        ),
        pytest.param(
            (Answers("A", unschedulable("a"), ""), Answers("B", unschedulable("b"), "n")),
            PostFilterOutcome("a, b", "n"),
            id="the last result counts",
        ),
        pytest.param(
            (Answers("A", unschedulable("a"), ""), Answers("B", SUCCESS, "n"), Answers("C", SUCCESS, "x")),
            PostFilterOutcome("", "n"),
            id="success ends",
        ),
        pytest.param(
            (Answers("A", unresolvable("a")), Answers("B", SUCCESS, "n")),
            PostFilterOutcome("a"),
            id="unresolvable ends",
        ),
        pytest.param(
            (Answers("A", unschedulable("a"), "n"), Answers("B", error("b")), Answers("C", SUCCESS, "x")),
            PostFilterOutcome("b", None, is_error=True),
            id="an error fails the attempt",
        ),
        pytest.param(
            (Answers("A", Status(Code.WAIT)), Answers("B", SUCCESS, "n")),
            PostFilterOutcome("RuntimeError: broken", None, is_error=True),
            id="an exception, too",
        ),
    ],
)
def test_chain(plugins: tuple[Answers, ...], expected: PostFilterOutcome) -> None:
    assert asyncio.run(run_post_filter(profile(*plugins), state(pod_info()), {})) == expected
