"""`dray record`: writes the objects of a cluster and every change of them to a file, for `dray replay`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from dray.api.document import Document, GroupVersion
from dray.api.errors import ForbiddenError
from dray.api.timestamps import parse_duration
from dray.cli.command import EXIT_FAILURE, EXIT_USAGE, Parser, add_source, exit_on_read_error
from dray.cli.snapshot import add_kept_fields, field_filter, open_private, restrict_standard_output
from dray.sim.kept_fields import FieldFilter
from dray.sim.recording import ADDED, DELETED, INITIAL, MODIFIED, change_line, header_line
from dray.sim.snapshot import PATH_KINDS, SnapshotError

if TYPE_CHECKING:
    from dray.client.interface import Client, Resource

PROG: Final = "dray record"
# Events are about what the components did, which a replay does again.
KINDS: Final = tuple(kind for kind in PATH_KINDS if kind != "Event")
_MEGABYTE: Final = 1024 * 1024
_DEFAULT_MEGABYTES: Final = 1024


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    parser = Parser(
        PROG,
        "Write the objects of a cluster, and every change of them with its time, to a file until interrupted. "
        "`dray replay` runs the scheduler on it again. It contains the fields that the commands of Dray read: "
        "no Secrets and ConfigMaps, no commands, probes and hooks. The file has the mode 0600.",
    )
    add_source(parser)
    parser.add_argument("file", metavar="FILE", help="the file to write; - is standard output")
    parser.add_argument(
        "--for", dest="duration", default="", metavar="DURATION", help="stop after this time, as in 10m"
    )
    parser.add_argument(
        "--max-megabytes",
        type=int,
        default=_DEFAULT_MEGABYTES,
        metavar="N",
        help=f"stop when the file has this size; default: {_DEFAULT_MEGABYTES}",
    )
    add_kept_fields(parser)
    arguments = parser.parse_args(argv)
    try:
        arguments.seconds = parse_duration(arguments.duration).total_seconds() if arguments.duration else None
    except ValueError as error:
        parser.error(f"--for: {error}")
    if arguments.max_megabytes < 1:
        parser.error("--max-megabytes is at least 1")
    with exit_on_read_error(PROG):
        try:
            return _record(arguments)
        except KeyboardInterrupt:
            # While the objects were being listed; later it ends the recording.
            return EXIT_FAILURE
        except OSError as error:
            sys.stderr.write(f"{PROG}: {arguments.file}: {error.strerror or error}\n")
            return EXIT_USAGE


def _record(arguments: argparse.Namespace) -> int:
    with contextlib.ExitStack() as stack:
        if arguments.file == "-":
            restrict_standard_output()
            stream: TextIO = sys.stdout
        else:
            stream = stack.enter_context(open_private(Path(arguments.file)))
        writer = _Writer(stream, arguments.max_megabytes * _MEGABYTE, field_filter(arguments))
        seconds = asyncio.run(_watch(arguments, writer))
    sys.stderr.write(f"{PROG}: {writer.initial} objects and {writer.changes} changes in {seconds:.1f} s\n")
    return 0


class _Writer:
    """Writes the lines of a recording; `full` is set when the file has its largest size."""

    def __init__(self, stream: TextIO, bytes_max: int, kept: FieldFilter) -> None:
        self._stream = stream
        self._bytes_max = bytes_max
        self._bytes = 0
        self._kept = kept
        self.initial = self.changes = 0
        self.full = asyncio.Event()
        # Whether all kinds were listed: what is added from then on is new.
        self.is_started = False

    def header(self, start: datetime) -> None:
        """Write the first line."""
        self._write(header_line(start))

    def change(self, seconds: float, change_type: str, document: Document) -> None:
        """Write the line of a change."""
        if self.full.is_set():
            return
        self.initial += change_type == INITIAL
        self.changes += change_type != INITIAL
        self._write(change_line(seconds, change_type, self._kept.reduced(document)))

    def _write(self, line: str) -> None:
        self._stream.write(line)
        # A recording that is interrupted is complete up to then.
        self._stream.flush()
        self._bytes += len(line.encode())
        if self._bytes >= self._bytes_max:
            self.full.set()


async def _watch(arguments: argparse.Namespace, writer: _Writer) -> float:
    """Write all objects, then every change, until a signal, the end of the time, or a full file; return the seconds."""
    # Imported on use, as in `dray.cli.command`.
    import random

    from dray.cli.cluster import connect
    from dray.client.shared_informers import SharedInformerFactory
    from dray.runtime.system import SystemClock
    from dray.runtime.tasks import TaskGroup, on_signals
    from dray.sim.cluster_reader import best_resources

    clock = SystemClock()
    async with connect(arguments.kubeconfig, arguments.context) as client, TaskGroup("record") as group:
        served = await _readable(client, best_resources(await client.resources()))
        informers = SharedInformerFactory(client, clock, random.SystemRandom())
        started = clock.monotonic()
        writer.header(clock.now())
        for kind in (kind for kind in KINDS if kind in served):
            resource = served[kind]
            api_version = GroupVersion(resource.group, resource.version).api_version
            on_change = _handler(writer, (api_version, resource.kind), lambda: clock.monotonic() - started)
            informers.informer(resource).add_handler(on_change)
        group.spawn(informers.run(), "informers")
        await informers.wait_for_sync()
        writer.is_started = True
        on_signals(lambda _number: writer.full.set())
        if not writer.initial:
            raise SnapshotError("there is nothing to record")
        sys.stderr.write(f"{PROG}: recording {writer.initial} objects; interrupt with Ctrl-C\n")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(arguments.seconds):
                await writer.full.wait()
        seconds = clock.monotonic() - started
        await group.cancel()
    return seconds


async def _readable(client: Client, served: Mapping[str, Resource[Document]]) -> dict[str, Resource[Document]]:
    """Return the kinds that the user may list, with a note on the others; raises `ForbiddenError` if there are none."""
    from dray.sim.cluster_reader import check_permission

    found, failures = {}, []
    for kind in (kind for kind in KINDS if kind in served):
        try:
            await check_permission(client, served[kind])
        except ForbiddenError as error:
            failures.append(error)
            sys.stderr.write(f"{PROG}: note: {kind} objects are not recorded: you may not list them\n")
        else:
            found[kind] = served[kind]
    if failures and not found:
        raise failures[0]
    return found


def _handler(
    writer: _Writer, kind: tuple[str, str], elapsed: Callable[[], float]
) -> Callable[[Document | None, Document | None], None]:
    """Return a handler that writes the changes of a kind."""

    def on_change(old: Document | None, new: Document | None) -> None:
        document = new if new is not None else old
        assert document is not None, "a change has an object"
        if new is None:
            change_type = DELETED
        elif old is not None:
            change_type = MODIFIED
        else:
            change_type = ADDED if writer.is_started else INITIAL
        seconds = 0.0 if change_type == INITIAL else elapsed()
        writer.change(seconds, change_type, {"apiVersion": kind[0], "kind": kind[1], **document})

    return on_change
