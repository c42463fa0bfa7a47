"""Reads a snapshot for a command, once or again whenever something changes, and prints what the command makes of it."""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

from dray.api.document import Document, GroupVersion
from dray.api.errors import APIError
from dray.cli.source.files import read_snapshot
from dray.cli.source.http import connected
from dray.client.interface import Client
from dray.client.kubeconfig import KubeconfigError
from dray.client.loop import InformerLoop, Informers
from dray.runtime.clock import SystemClock
from dray.runtime.logs import wants_colour
from dray.runtime.tasks import TaskGroup
from dray.sim.snapshot import Snapshot, SnapshotError
from dray.sim.source.loop import read_cluster
from dray.sim.source.resources import best_resources

EXIT_FAILURE: Final = 1
EXIT_USAGE: Final = 2
# Changes come in bursts; a table more often than this is only flicker.
PAUSE_SECONDS: Final = 0.2
_CLEAR: Final = "\033[H\033[2J\033[3J"

# The text for a snapshot as it is now, in colours or not.
Show = Callable[[Snapshot, datetime, bool], str]


def run(prog: str, arguments: argparse.Namespace, kinds: Sequence[str], show: Show) -> int:
    """Read and print; the exit code."""
    try:
        if getattr(arguments, "watch", False):
            if arguments.filename:
                sys.stderr.write(f"{prog}: --watch needs a cluster; files do not change\n")
                return EXIT_USAGE
            asyncio.run(_watch(arguments, kinds, show))
        else:
            _print(show, read(arguments, kinds))
    except (SnapshotError, KubeconfigError, APIError) as error:
        sys.stderr.write(f"{prog}: {error}\n")
        return EXIT_FAILURE
    except KeyboardInterrupt:
        return 0
    return 0


def read(arguments: argparse.Namespace, kinds: Sequence[str]) -> Snapshot:
    """The snapshot that the arguments ask for."""
    if arguments.filename:
        return read_snapshot(arguments.filename)
    return asyncio.run(_read_cluster(arguments, kinds))


async def _read_cluster(arguments: argparse.Namespace, kinds: Sequence[str]) -> Snapshot:
    async with connected(arguments.kubeconfig, arguments.context) as client:
        return await read_cluster(client, kinds)


def _print(show: Show, snapshot: Snapshot, *, clear: bool = False) -> None:
    text = show(snapshot, SystemClock().now(), wants_colour(sys.stdout, os.environ))
    sys.stdout.write(_CLEAR + text if clear else text)
    sys.stdout.flush()


async def _watch(arguments: argparse.Namespace, kinds: Sequence[str], show: Show) -> None:
    clear = sys.stdout.isatty()
    async with connected(arguments.kubeconfig, arguments.context) as client, TaskGroup("watch") as group:
        followed = _Followed(client)
        await followed.start(group, kinds)
        try:
            while True:
                await followed.changed.wait()
                followed.changed.clear()
                _print(show, followed.snapshot(), clear=clear)
                if not clear:
                    sys.stdout.write("\n")
                    sys.stdout.flush()
                await asyncio.sleep(PAUSE_SECONDS)
        finally:
            await group.cancel()


class _Followed:
    """The kinds of a snapshot, kept current by watches."""

    def __init__(self, client: Client) -> None:
        self._client = client
        rng = random.Random()  # noqa: S311 - spreads load, guards nothing
        self._informers = Informers(client, SystemClock(), rng)
        self._loops: dict[str, tuple[str, InformerLoop[Document]]] = {}
        self.changed = asyncio.Event()

    async def start(self, group: TaskGroup, kinds: Sequence[str]) -> None:
        served = best_resources(await self._client.resources())
        for kind in kinds:
            if kind in served:
                resource = served[kind]
                api_version = GroupVersion(resource.group, resource.version).api_version
                self._loops[kind] = api_version, self._informers.informer(resource)
        group.spawn(self._informers.run(), "informers")
        for _, loop in self._loops.values():
            await loop.wait_for_sync()
            loop.add_handler(self._note)
        self.changed.set()

    def _note(self, _old: Any, _new: Any) -> None:
        self.changed.set()

    def snapshot(self) -> Snapshot:
        return Snapshot.of(
            {"apiVersion": api_version, "kind": kind, **item}
            for kind, (api_version, loop) in self._loops.items()
            for item in loop.lister.list()
        )
