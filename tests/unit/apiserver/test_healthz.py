"""Health endpoints: which checks count where, how a failure is reported, and the deadline of the store."""

from __future__ import annotations

import asyncio
import logging

import pytest

from dray.apiserver.healthz import PROBE_REUSED_SECONDS, HealthCheck, HealthChecks, PostStartHooks, StoreProbe
from dray.apiserver.routes import parse_query
from dray.sim.replica.virtual_time import LoopClock, run_virtually
from dray.store.interface import StoreUnavailableError

HOOK = "rbac/bootstrap-roles"


def answering(reason: str | None) -> HealthCheck:
    async def check() -> str | None:
        return reason

    return check


def checks(
    *,
    store: str | None = None,
    store_readiness: str | None = None,
    informers: str | None = None,
    hook_finished: bool = True,
) -> HealthChecks:
    hooks = PostStartHooks([HOOK])
    if hook_finished:
        hooks.finish(HOOK)
    return HealthChecks(
        store=answering(store),
        store_readiness=answering(store_readiness),
        out_of_sync=lambda: informers,
        hooks=hooks,
    )


async def report(health: HealthChecks, path: str) -> tuple[int, str]:
    endpoint, _, query = path.partition("?")
    result = await health.report(endpoint, parse_query(query))
    assert result.content_type == "text/plain; charset=utf-8"
    assert result.headers == (("X-Content-Type-Options", "nosniff"),)
    return result.status, result.body.decode()


async def test_all_checks_pass() -> None:
    assert [await report(checks(), path) for path in ("livez", "readyz", "healthz")] == [(200, "ok")] * 3


async def test_verbose_lists_the_checks_in_kube_apiservers_order() -> None:
    assert await report(checks(), "readyz?verbose") == (
        200,
        "[+]ping ok\n[+]etcd ok\n[+]etcd-readiness ok\n[+]informer-sync ok\n"
        "[+]poststarthook/rbac/bootstrap-roles ok\n[+]shutdown ok\nreadyz check passed\n",
    )
    assert await report(checks(), "livez?verbose") == (
        200,
        "[+]ping ok\n[+]etcd ok\n[+]poststarthook/rbac/bootstrap-roles ok\nlivez check passed\n",
    )


async def test_a_failure_lists_the_checks_and_withholds_the_reason() -> None:
    status, text = await report(checks(informers="namespaces: etcd does not answer"), "readyz")
    assert status == 500
    assert text == (
        "[+]ping ok\n[+]etcd ok\n[+]etcd-readiness ok\n[-]informer-sync failed: reason withheld\n"
        "[+]poststarthook/rbac/bootstrap-roles ok\n[+]shutdown ok\nreadyz check failed\n"
    )


@pytest.mark.parametrize(
    ("health", "statuses"),
    [
        (checks(store="etcd does not answer"), (500, 500, 500)),
        (checks(store_readiness="the disk is full"), (200, 500, 200)),
        (checks(informers="pods: stale"), (200, 500, 200)),
        (checks(hook_finished=False), (500, 500, 500)),
    ],
)
async def test_which_endpoints_a_check_counts_for(health: HealthChecks, statuses: tuple[int, ...]) -> None:
    results = [await report(health, path) for path in ("livez", "readyz", "healthz")]
    assert tuple(status for status, _ in results) == statuses


async def test_a_server_that_shuts_down_is_live_and_not_ready() -> None:
    health = checks()
    health.shut_down()
    assert (await report(health, "livez"))[0] == 200
    status, text = await report(health, "readyz")
    assert (status, text.splitlines()[-2]) == (500, "[-]shutdown failed: reason withheld")
    result = await health.report_one("readyz", "shutdown")
    assert result is not None
    assert result.body == b"internal server error: process is shutting down\n"


async def test_checks_can_be_excluded() -> None:
    health = checks(store="down", store_readiness="down")
    status, text = await report(health, "readyz?verbose&exclude=etcd&exclude=etcd-readiness&exclude=nothing&exclude=a")
    assert status == 200
    assert text.splitlines()[1:3] == ["[+]etcd excluded: ok", "[+]etcd-readiness excluded: ok"]
    warning = 'warn: some health checks cannot be excluded: no matches for "a","nothing"'
    assert text.splitlines()[-2:] == [warning, "readyz check passed"]
    assert await report(health, "livez?exclude=etcd") == (200, "ok")


async def test_one_check_can_be_asked_for_and_gives_its_reason() -> None:
    health = checks(store="etcd does not answer", hook_finished=False)
    answers = [
        await health.report_one("livez", "etcd"),
        await health.report_one("livez", f"poststarthook/{HOOK}"),
        await health.report_one("readyz", "informer-sync"),
    ]
    assert [(answer.status, answer.body) for answer in answers if answer is not None] == [
        (500, b"internal server error: etcd does not answer\n"),
        (500, b"internal server error: not finished\n"),
        (200, b"ok"),
    ]
    assert await health.report_one("livez", "informer-sync") is None
    assert await health.report_one("readyz", "unknown") is None


async def test_the_log_has_the_reason_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "dray.apiserver.healthz"):
        health = checks(store="etcd does not answer")
        for _ in range(3):
            await report(health, "readyz")
    assert [record.getMessage() for record in caplog.records] == ["readyz check failed: etcd: etcd does not answer"]


def test_a_frozen_store_fails_within_the_deadline_and_concurrent_probes_share_the_answer() -> None:
    async def body() -> None:
        asked = 0

        async def frozen(_timeout_seconds: float) -> None:
            nonlocal asked
            asked += 1
            await asyncio.Event().wait()

        probe = StoreProbe(frozen, LoopClock(), 2.0)
        loop = asyncio.get_running_loop()
        started = loop.time()
        answers = await asyncio.gather(*(probe() for _ in range(100)))
        assert set(answers) == {"the store did not answer within 2s"}
        assert loop.time() - started == pytest.approx(2.0)
        assert asked == 1
        await asyncio.sleep(PROBE_REUSED_SECONDS)
        await probe()
        assert asked == 2

    run_virtually(body())


async def test_a_store_that_fails_gives_its_reason() -> None:
    async def failing(_timeout_seconds: float) -> None:
        raise StoreUnavailableError("the disk is full")

    assert await StoreProbe(failing, LoopClock(), 2.0)() == "the disk is full"
