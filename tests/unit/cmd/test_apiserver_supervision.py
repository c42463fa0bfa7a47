"""The process of an API server ends when a task of its listener or of its store fails."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NoReturn

import pytest

from dray.apiserver.http import Listener
from dray.cmd import apiserver
from dray.cmd.settings import APIServerSettings
from dray.runtime.http.requests import Request
from dray.runtime.http.server import HttpServer, Response


async def unused(_request: Request, _response: Response) -> None:
    """Serve nothing."""


async def fail() -> None:
    raise RuntimeError("a bug")


async def test_a_failed_connection_reaches_the_supervisor_of_the_server() -> None:
    server = HttpServer(unused)
    server.tasks.spawn(fail(), "connection")
    with pytest.raises(RuntimeError, match="a bug"):
        async with asyncio.timeout(10):
            await server.supervise()


async def test_a_failed_connection_ends_the_api_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serving = asyncio.Event()

    async def supervise(_listener: Listener) -> NoReturn:
        await serving.wait()
        raise RuntimeError("a bug")

    monkeypatch.setattr(Listener, "supervise", supervise)
    settings = APIServerSettings(data_dir=str(tmp_path), port=0, store="memory")

    async def run() -> None:
        async with asyncio.timeout(30), apiserver.running(settings):
            serving.set()
            await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="a bug"):
        await run()
