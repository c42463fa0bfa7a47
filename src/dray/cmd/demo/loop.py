"""Runs the demo: sets up, tells the story, says what to try next, and ends what it started."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import shutil
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from dray.api.errors import APIError
from dray.client.credentials import load_access
from dray.cmd.demo import programs
from dray.cmd.demo.cluster import Cluster
from dray.cmd.demo.processes import ProcessError, Processes, end_processes, read_record
from dray.cmd.demo.programs import Places
from dray.cmd.demo.rendering import Line, board_lines
from dray.cmd.demo.scene import Fact
from dray.cmd.demo.screen import Screen, screen_for
from dray.cmd.demo.telling import Story, StoryError, Teller
from dray.cmd.settings import DemoSettings


class DemoError(Exception):
    """The demo cannot go on; the text says what to do next."""


async def run(settings: DemoSettings, stop: asyncio.Event) -> None:
    """Tell the story, or end one that was left running."""
    # Log lines would go right through the view; libraries complain of connections that end when the demo does.
    logging.getLogger().setLevel(logging.CRITICAL)
    logging.getLogger("dray").setLevel(logging.WARNING)
    data = _resolved(settings.data_dir)
    if settings.stop:
        await _end_earlier(data, required=True)
        return
    await _end_earlier(data)
    _make_folder(data)
    screen = screen_for(sys.stdout, os.environ)
    try:
        await _run(settings, stop, screen, programs.places(settings.data_dir))
    finally:
        screen.close()


async def _run(settings: DemoSettings, stop: asyncio.Event, screen: Screen, at: Places) -> None:
    processes = Processes(at.data, at.nodes)
    started = time.monotonic()
    keep, url, teller = False, "", Teller(screen)
    try:
        url = await _until_stopped(_tell(settings, teller, at, processes), stop)
        keep = settings.keep
    except (StoryError, ProcessError, APIError) as error:
        raise DemoError(f"{error}\nThe logs are in {at.data}; {_dray()} demo tries again from the start.") from error
    finally:
        told_seconds = time.monotonic() - started
        if not keep:
            await processes.end()
    if not keep:
        _remove(at)
    screen.say([*board_lines(teller.rows, screen.style), (), *_farewell(at, url, told_seconds, keep=keep)])


def _resolved(folder: str) -> Path:
    return Path(folder).resolve()


async def _until_stopped(telling: Coroutine[Any, Any, str], stop: asyncio.Event) -> str:
    """The story's result, unless somebody loses patience."""
    told = asyncio.ensure_future(telling)
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait({told, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not told.done():
        told.cancel()
        await asyncio.gather(told, return_exceptions=True)
        raise DemoError("interrupted; everything it had started is ended")
    return told.result()


async def _tell(settings: DemoSettings, teller: Teller, at: Places, processes: Processes) -> str:
    """The whole story; returns the dashboard's address, if it is kept."""
    url = ""
    async with teller.chapter("A cluster of four nodes on this machine, without root", "dray up, dray node"):
        teller.doing("API server, controllers and scheduler start")
        began = time.monotonic()
        line = await processes.start_ready(programs.server(at, settings.port))
        server = line.split()[0]
        teller.facts([Fact("server", f"{server} is ready after {time.monotonic() - began:.1f} s, with SQLite")])
        cluster = Cluster(load_access({}, path=str(at.kubeconfig)), at.nodes)
        try:
            story = Story(teller, at, processes, cluster)
            await story.start_nodes()
            if settings.keep:
                url = await processes.start_ready(programs.dashboard(at))
                teller.facts([Fact("watch", url, "cyan")])
        except BaseException:
            await cluster.close()
            raise
    try:
        await story.tell()
    finally:
        await cluster.close()
    return url


def _farewell(at: Places, url: str, seconds: float, *, keep: bool) -> list[Line]:
    told: Line = ((f"All of it in {seconds:.1f} s.", "bold"),)
    if not keep:
        return [
            told,
            (("Everything that was started is ended again. To keep it, with its dashboard, and go on:", ""),),
            (),
            ((f"  {_dray()} demo --keep", "cyan"),),
            (("  its manifests are in ", ""), (str(at.examples / "demo"), "cyan")),
        ]
    commands = [
        (f"{_dray()} explain pod latecomer", "why it waits, node by node"),
        (f"{_dray()} top", "who has how much of which class"),
        ("kubectl delete pod trainer", "and the latecomer gets its card: kubectl get pods -o wide"),
    ]
    if shutil.which("kubectl") is None:
        commands[2] = (f"{_dray()} claims --watch", "every claim, again whenever one changes")
    width = max(len(command) for command, _ in commands)
    return [
        told,
        (("The cluster goes on running. Its dashboard:", ""),),
        (),
        ((f"  {url}", "cyan"),),
        (),
        (("Three things to try:", ""),),
        (),
        ((f"  export KUBECONFIG={shlex.quote(str(at.kubeconfig))}", "cyan"),),
        *(((f"  {command.ljust(width)}", "cyan"), (f"   # {why}", "dim")) for command, why in commands),
        (),
        (("To stop it: ", ""), (f"{_dray()} demo --stop{_data_dir_flag(at.data)}", "cyan")),
    ]


def _dray() -> str:
    """How the reader can run dray."""
    if shutil.which("dray"):
        return "dray"
    beside = Path(sys.executable).with_name("dray")
    if not beside.exists():
        return f"{sys.executable} -m dray"
    return os.path.relpath(beside) if beside.is_relative_to(Path.cwd()) else str(beside)


def _data_dir_flag(data: Path) -> str:
    default = Path(DemoSettings().data_dir).resolve()
    return "" if data == default else f" --data-dir={shlex.quote(str(data))}"


async def _end_earlier(data: Path, *, required: bool = False) -> None:
    """End what an earlier demo left in this folder, and remove its state."""
    record = read_record(data)
    if record is None:
        if required:
            raise DemoError(f"no demo runs in {data}; name its --data-dir")
        return
    known, nodes = record
    living = sum(item.lives for item in known)
    await end_processes(known, nodes)
    _remove(Places(data, nodes, Path()))
    if living:
        sys.stdout.write(f"ended the {living} processes of the demo in {data}\n")
        sys.stdout.flush()


def _make_folder(data: Path) -> None:
    """A new folder, or an empty one: nobody else's files are to be in the way, or removed at the end."""
    try:
        data.mkdir(parents=True, exist_ok=True, mode=0o700)
        strangers = sorted(item.name for item in data.iterdir())
    except OSError as error:
        raise DemoError(f"{data}: {error.strerror}; name another --data-dir") from error
    if strangers:
        raise DemoError(f"{data} is not empty ({strangers[0]}); remove it, or name another --data-dir")


def _remove(at: Places) -> None:
    """All that the demo has made; the folder was empty before."""
    shutil.rmtree(at.nodes, ignore_errors=True)
    shutil.rmtree(at.data, ignore_errors=True)
