"""A store that is down or frozen fails /livez and /readyz within seconds; a server that stops fails /readyz first."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dray.cmd import apiserver
from dray.cmd.settings import APIServerSettings
from dray.store.sqlite import SQLiteStore
from tests.conformance.store.conftest import EtcdProcess
from tests.e2e.apiserver.calls import Answer, Caller, calling
from tests.servers import running_server

# The deadline of the checks is at most 2 s; a busy machine adds to it.
FAIL_SECONDS_MAX = 10.0
RECOVER_SECONDS_MAX = 120.0


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdProcess]:
    process = EtcdProcess(tmp_path / "etcd")
    process.start()
    yield process
    process.stop()


def poll(ask: Callable[[], Answer], status: int, seconds_max: float) -> Answer:
    deadline = time.monotonic() + seconds_max
    while (answer := ask()).status != status:
        assert time.monotonic() < deadline, answer.body.decode()
    return answer


def lines(answer: Answer) -> list[str]:
    return answer.body.decode().splitlines()


def check_frozen(admin: Caller, anonymous: Caller) -> None:
    started = time.monotonic()
    live = poll(lambda: anonymous.get("/livez"), 500, FAIL_SECONDS_MAX)
    assert time.monotonic() - started < FAIL_SECONDS_MAX
    assert "[-]etcd failed: reason withheld" in lines(live)
    assert lines(live)[-1] == "livez check failed"
    # An answer of the store is used again for a quarter of a second.
    poll(lambda: admin.get("/readyz/etcd-readiness"), 500, FAIL_SECONDS_MAX)
    ready = anonymous.get("/readyz")
    assert ready.status == 500
    assert {"[+]ping ok", "[-]etcd failed: reason withheld", "[-]etcd-readiness failed: reason withheld"} < {
        *lines(ready)
    }
    one = admin.get("/readyz/etcd")
    assert (one.status, one.body[:22]) == (500, b"internal server error:")
    assert anonymous.get("/readyz/etcd").status == 403
    assert anonymous.get("/livez?exclude=etcd").status == 200


def test_a_frozen_etcd_and_one_that_is_down_fail_the_probes(etcd: EtcdProcess, tmp_path: Path) -> None:
    timeouts = ("--etcd-healthcheck-timeout=500ms", "--etcd-readycheck-timeout=500ms")
    flags = ("--store=etcd", f"--etcd-servers=http://{etcd.endpoint}", *timeouts)
    with (
        running_server(tmp_path / "server", *flags, command="apiserver") as server,
        calling(server) as admin,
        calling(server, "anonymous") as anonymous,
    ):
        assert poll(lambda: anonymous.get("/readyz"), 200, RECOVER_SECONDS_MAX).body == b"ok"
        etcd.freeze()
        check_frozen(admin, anonymous)
        etcd.thaw()
        poll(lambda: anonymous.get("/livez"), 200, RECOVER_SECONDS_MAX)
        poll(lambda: anonymous.get("/readyz"), 200, RECOVER_SECONDS_MAX)
        etcd.stop()
        check_frozen(admin, anonymous)
        etcd.start()
        poll(lambda: anonymous.get("/readyz"), 200, RECOVER_SECONDS_MAX)


async def test_a_blocked_writer_of_sqlite_fails_the_probes(tmp_path: Path) -> None:
    settings = APIServerSettings(data_dir=str(tmp_path), port=0, etcd_healthcheck_timeout=0.5)
    async with apiserver.running(settings) as running:
        store, health = running.store, running.server.health
        assert isinstance(store, SQLiteStore)
        assert (await health.report("livez", {})).status == 200
        disk = threading.Event()
        blocked = asyncio.ensure_future(store._writer.run(lambda _: disk.wait()))
        try:
            async with asyncio.timeout(FAIL_SECONDS_MAX):
                while (result := await health.report("livez", {})).status == 200:
                    pass
                assert b"[-]etcd failed: reason withheld\n" in result.body
                one = await health.report_one("livez", "etcd")
                assert one is not None
                assert one.body == b"internal server error: the store did not answer within 0.5s\n"
            # However often it is asked, one question waits for the writer.
            assert store._writer._inbox.qsize() == 1
        finally:
            disk.set()
        await blocked
        async with asyncio.timeout(FAIL_SECONDS_MAX):
            while (await health.report("readyz", {})).status != 200:
                pass


def test_a_stopping_server_keeps_serving_and_is_not_ready(tmp_path: Path) -> None:
    flags = ("--store=memory", "--shutdown-delay-duration=1s")
    with (
        running_server(tmp_path / "server", *flags, command="apiserver") as server,
        calling(server) as admin,
    ):
        server.process.send_signal(signal.SIGTERM)
        ready = poll(lambda: admin.get("/readyz"), 500, FAIL_SECONDS_MAX)
        assert lines(ready)[-2:] == ["[-]shutdown failed: reason withheld", "readyz check failed"]
        assert admin.get("/livez").status == 200
        assert admin.get("/api/v1/namespaces").status == 200
        assert server.process.wait(FAIL_SECONDS_MAX) == 0
