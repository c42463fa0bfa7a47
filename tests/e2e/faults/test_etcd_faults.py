"""An etcd without space, and a watch of etcd that is interrupted: writes are refused precisely, and readiness fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dray.store.etcd import EtcdStore
from dray.store.interface import StoreFullError, StoreUnavailableError
from tests.conformance.store.conftest import EtcdProcess

KEY = "/registry/core/configmaps/default/{}"
TIMEOUT_SECONDS = 10.0
QUOTA_BYTES = 16 * 1024 * 1024


@asynccontextmanager
async def connected(folder: Path, *options: str) -> AsyncIterator[EtcdStore]:
    etcd = EtcdProcess(folder / "etcd", options=options)
    await asyncio.to_thread(etcd.start)
    try:
        store = await EtcdStore.connect([etcd.endpoint])
        try:
            yield store
        finally:
            await store.close()
    finally:
        etcd.stop()


async def fill(store: EtcdStore) -> None:
    """Write more than the quota, several times: etcd learns its size only from time to time."""
    for number in range(20 * QUOTA_BYTES // 1_000_000):
        await store.create(KEY.format(number), b"x" * 1_000_000)


async def test_an_etcd_without_space_refuses_writes_and_is_not_ready(tmp_path: Path) -> None:
    async with connected(tmp_path, f"--quota-backend-bytes={QUOTA_BYTES}") as store:
        await store.check_ready(TIMEOUT_SECONDS)
        kept = await store.create(KEY.format("kept"), b"1")
        with pytest.raises(StoreFullError, match="etcd: etcdserver: mvcc: database space exceeded"):
            await fill(store)
        assert await store.get(kept.key) == kept
        await store.check_health(TIMEOUT_SECONDS)
        with pytest.raises(StoreUnavailableError, match=r"etcd reports .*NOSPACE"):
            await store.check_ready(TIMEOUT_SECONDS)


@pytest.mark.parametrize("applied", [True, False])
async def test_a_write_that_etcd_applies_in_spite_of_its_quota_is_not_reported_as_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, applied: bool
) -> None:
    """Etcd checks its quota again when it applies a write; it reports that there is no space, and applies it."""
    async with connected(tmp_path) as store:
        call = store._endpoints.call
        entry = await store.create(KEY.format("known"), b"1")

        async def exceeded(method: str, request: Any) -> Any:
            if method == "Txn" and not applied:
                raise StoreFullError("no space")
            response = await call(method, request)
            if method == "Txn":
                raise StoreFullError("no space")
            return response

        monkeypatch.setattr(store._endpoints, "call", exceeded)
        for write in (
            store.create(KEY.format("new"), b"1"),
            store.update(entry.key, b"2", expected_revision=entry.revision),
        ):
            with pytest.raises(StoreUnavailableError, match="no space") as failure:
                await write
            assert isinstance(failure.value, StoreFullError) is not applied


async def test_a_watch_that_is_interrupted_fails_readiness_until_it_runs_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(tmp_path) as store:
        running = store._endpoints.watch

        async def broken(_create: Any) -> AsyncGenerator[Any, None]:
            raise StoreUnavailableError("the member has no leader")
            yield

        with monkeypatch.context() as patch:
            patch.setattr(store._endpoints, "watch", broken)
            feed = next(iter(store._tasks._tasks))
            feed.cancel()
            store._tasks.spawn(store._feed(), "etcd watch")
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while store._feed_failure is None:  # noqa: ASYNC110 - what is waited for has no event
                    await asyncio.sleep(0.01)
            await store.check_health(TIMEOUT_SECONDS)
            with pytest.raises(
                StoreUnavailableError, match="the watch of etcd is interrupted: the member has no leader"
            ):
                await store.check_ready(TIMEOUT_SECONDS)
        assert store._endpoints.watch == running
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while store._feed_failure is not None:  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0.01)
        await store.check_ready(TIMEOUT_SECONDS)
