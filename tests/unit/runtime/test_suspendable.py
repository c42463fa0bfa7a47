"""Coroutines that are suspended within ordinary functions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import pytest

from dray.runtime.suspendable import run_in_steps, suspend

_TEXT: ContextVar[str] = ContextVar("text", default="none")


class Owner:
    """Counts steps and pauses."""

    def __init__(self) -> None:
        self.log: list[str] = []

    async def run(self, work: Any) -> Any:
        return await run_in_steps(work, lambda: self.log.append("begin"), lambda: self.log.append("end"))


def nested(depth: int) -> str:
    if depth:
        return nested(depth - 1)
    assert suspend(paused) == "paused"
    return _TEXT.get()


async def paused() -> str:
    await asyncio.sleep(0)
    return "paused"


@asynccontextmanager
async def resource(log: list[str]) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await asyncio.sleep(0)
        log.append("closed")


async def test_a_function_is_suspended_within_and_continues_with_its_context() -> None:
    owner = Owner()

    async def work() -> str:
        _TEXT.set("mine")
        await asyncio.sleep(0)
        return nested(50)

    task = asyncio.ensure_future(owner.run(work()))
    assert await task == "mine"
    assert _TEXT.get() == "none"
    assert owner.log == ["begin", "end"] * 3


async def test_many_are_suspended_at_once() -> None:
    async def work(number: int) -> int:
        total = 0
        for _ in range(20):
            await asyncio.sleep(0)
            total += len(list(map(nested, range(number))))
        return total

    owner = Owner()
    results = await asyncio.gather(*(owner.run(work(number)) for number in range(20)))
    assert results == [20 * number for number in range(20)]


@pytest.mark.parametrize("suspended", [True, False])
async def test_a_cancellation_is_raised_where_the_coroutine_is(suspended: bool) -> None:
    owner = Owner()
    log: list[str] = []
    waiting = asyncio.Event()

    async def work() -> None:
        async with resource(log):
            try:
                if suspended:
                    nested(5)
                else:
                    await waiting.wait()
            except asyncio.CancelledError:
                log.append("cancelled")
                raise

    task = asyncio.ensure_future(owner.run(work()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == ["cancelled", "closed"]


async def test_errors_pass_in_both_directions() -> None:
    owner = Owner()

    async def work() -> None:
        with pytest.raises(KeyError):
            await _fail()
        nested(1)
        raise ValueError("own")

    with pytest.raises(ValueError, match="own"):
        await owner.run(work())


async def _fail() -> None:
    await asyncio.sleep(0)
    raise KeyError("awaited")
