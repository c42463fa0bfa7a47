"""Timeouts with a shared timer behave like `asyncio.timeout`."""

from __future__ import annotations

import asyncio

import pytest

from dray.runtime.timeouts import SharedTimeout
from dray.sim.replica.virtual_time import run_virtually


async def sleep(shared: SharedTimeout, seconds: float, *, after: float = 0.0) -> tuple[str, float]:
    """Sleep in a block; return how and when it ended."""
    loop = asyncio.get_running_loop()
    await asyncio.sleep(after)
    try:
        with shared.block():
            await asyncio.sleep(seconds)
    except TimeoutError:
        return "timeout", loop.time()
    return "done", loop.time()


@pytest.mark.parametrize("keep_timer", [True, False])
def test_each_block_has_its_own_deadline(keep_timer: bool) -> None:
    async def main() -> list[tuple[str, float]]:
        timeout = SharedTimeout(10, keep_timer=keep_timer)
        results = await asyncio.gather(
            sleep(timeout, 3),
            sleep(timeout, 20, after=1),
            sleep(timeout, 9, after=2),
            sleep(timeout, 20, after=4),
            # When no other block is left.
            sleep(timeout, 20, after=50),
        )
        return list(results)

    assert run_virtually(main()) == [("done", 3), ("timeout", 11), ("done", 11), ("timeout", 14), ("timeout", 60)]


def test_blocks_one_after_the_other_share_one_timer() -> None:
    async def main() -> tuple[str, float]:
        timeout = SharedTimeout(10)
        for _ in range(30):
            assert (await sleep(timeout, 1))[0] == "done"
        return await sleep(timeout, 20)

    assert run_virtually(main()) == ("timeout", 40)


def test_the_timer_is_cancelled_with_the_last_block_unless_it_is_kept() -> None:
    async def main(keep_timer: bool) -> int:
        await sleep(SharedTimeout(10, keep_timer=keep_timer), 1)
        return sum(not timer.cancelled() for timer in asyncio.get_running_loop()._scheduled)  # type: ignore[attr-defined]

    assert [run_virtually(main(keep_timer)) for keep_timer in (True, False)] == [1, 0]


def test_a_cancellation_by_others_stays_one() -> None:
    async def main() -> None:
        task = asyncio.ensure_future(sleep(SharedTimeout(10), 20))
        await asyncio.sleep(5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run_virtually(main())


def test_a_cancellation_at_the_deadline_stays_one() -> None:
    async def main() -> None:
        task = asyncio.ensure_future(sleep(SharedTimeout(10), 20))
        asyncio.get_running_loop().call_later(10, task.cancel)
        with pytest.raises(asyncio.CancelledError):
            await task

    run_virtually(main())


def test_a_task_that_timed_out_goes_on() -> None:
    async def main() -> int:
        assert (await sleep(SharedTimeout(1), 2))[0] == "timeout"
        await asyncio.sleep(5)
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    assert run_virtually(main()) == 0


def test_other_errors_pass() -> None:
    async def main() -> None:
        with SharedTimeout(1).block():
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        run_virtually(main())
