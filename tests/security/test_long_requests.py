"""Legal requests that take long: their parts are short, and others are served between them.

Judged by the processor time of the event loop's thread, in proportion to the speed of the machine.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from statistics import median

import orjson
import pytest

from bench.long_requests import PART_MILLISECONDS_MAX, REQUESTS, least_parts, measured, prepared, waits_beside
from bench.rows import loop_milliseconds

# Of a million additions, and of parsing the text, where the limit was measured.
LOOP_MILLISECONDS = 20.0
PARSE_MILLISECONDS = 17.0
TEXT = orjson.dumps({f"key-{number}": {"value": str(number)} for number in range(60_000)})


@pytest.fixture(autouse=True)
def without_collections() -> Iterator[None]:
    """Collect no garbage: the heap of all tests of this process takes longer than a server's."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def parse_milliseconds() -> float:
    """The processor time of filling memory, the least of five: beside other programs it grows more than a loop's."""

    def parsed() -> float:
        started = time.thread_time()
        orjson.loads(TEXT)
        return 1000 * (time.thread_time() - started)

    return min(parsed() for _ in range(5))


def seconds_max() -> float:
    """The limit of a part, on a machine that is as fast as this one now."""
    slowdown = max(1.0, loop_milliseconds() / LOOP_MILLISECONDS, parse_milliseconds() / PARSE_MILLISECONDS)
    return PART_MILLISECONDS_MAX / 1000 * slowdown


@pytest.mark.parametrize("name", REQUESTS)
async def test_no_part_of_a_long_request_holds_up_the_others(name: str) -> None:
    parts = await least_parts(REQUESTS[name], attempts=1)
    if parts.longest > seconds_max():
        # Other programs slow down some attempts.
        parts = min(parts, await least_parts(REQUESTS[name], attempts=8), key=lambda found: found.longest)
    assert parts.longest <= seconds_max()
    assert parts.count > 1


@pytest.mark.parametrize("name", ["policy that exhausts its budget", "apply of 45,000 keys", "policy with findAll"])
async def test_others_are_served_beside_connections_of_long_requests(name: str) -> None:
    waits = await waits_beside(REQUESTS[name], connections=2, requests=15)
    assert set(waits) == {"get", "readyz", "lease", "binding"}
    for other, seconds in waits.items():
        assert median(seconds) <= seconds_max(), other


async def test_a_policy_that_takes_too_long_is_answered_with_the_text_of_kubernetes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dray.apiserver.request_limiter.EXPRESSION_SECONDS_MAX", 0.02)
    request = REQUESTS["policy that exhausts its budget"]
    async with prepared(request) as (attacker, limiter):
        answer, _ = await measured(attacker, limiter, request)
    assert answer.code == 422
    assert answer.message == (
        "configmaps \"long\" is forbidden: ValidatingAdmissionPolicy 'long' with binding 'long' denied request: "
        "expression 'object.data == object.data' resulted in error: operation interrupted"
    )
