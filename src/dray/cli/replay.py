"""`dray replay`: runs the scheduler again on a recording of `dray record`, or writes the state at a moment of it."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dray.api.timestamps import TimeFormatError, parse_duration, parse_time
from dray.cli.command import Parser, add_feature_gates, add_output, exit_on_read_error
from dray.cli.output import Column, ProgressLine, render, write_answer
from dray.sim.recording import Recording, read_recording
from dray.sim.snapshot import SnapshotError

if TYPE_CHECKING:
    from dray.sim.replay import PodTimes, ReplayedPod, ReplayResult

PROG: Final = "dray replay"
PROFILES: Final = ("spread", "pack", "best-fit", "fragmentation")
_SHOWN_MAX: Final = 20


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    arguments = _parse(argv)
    with exit_on_read_error(PROG):
        recording = _read(arguments.file)
        if arguments.at:
            return _write_snapshot(recording, _seconds(recording, arguments.at))
        result = _replay(recording, arguments)
    write_answer("ReplayedPodList", result.pods, arguments.output, partial(_lines, result, everything=arguments.all))
    return 0


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser(
        PROG,
        "Run the scheduler and the claim controller again on a recording, in virtual time, and compare where Pods were "
        "placed. The same recording and flags give the same result, on any machine. With --at, write the objects of "
        "that moment instead, for the other commands with -f.",
    )
    parser.add_argument("file", metavar="FILE", help="what `dray record` wrote; - is standard input")
    parser.add_argument(
        "--at",
        default="",
        metavar="TIME",
        help="write a snapshot: a time after the start, as in 90s, a time of day in RFC 3339, or end",
    )
    parser.add_argument(
        "--scheduler-profile", choices=PROFILES, default=PROFILES[0], help="how the scheduler chooses nodes"
    )
    parser.add_argument("--scheduler-config", default="", metavar="FILE", help="a KubeSchedulerConfiguration")
    parser.add_argument("--all", action="store_true", help="also list Pods with the same node")
    add_output(parser, ("text", "json", "yaml"))
    add_feature_gates(parser)
    return parser.parse_args(argv)


def _read(path: str) -> Recording:
    try:
        if path == "-":
            return read_recording(sys.stdin)
        with Path(path).open(encoding="utf-8") as lines:
            return read_recording(lines)
    except (OSError, UnicodeDecodeError) as error:
        raise SnapshotError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    except SnapshotError as error:
        raise SnapshotError(f"{path}: {error}") from error


def _seconds(recording: Recording, text: str) -> float:
    """Return the seconds after the start that --at means."""
    if text == "end":
        return recording.seconds
    try:
        return parse_duration(text).total_seconds()
    except ValueError:
        pass
    try:
        return (parse_time(text) - recording.start).total_seconds()
    except TimeFormatError as error:
        raise SnapshotError(f"--at: {text!r} is no duration, as in 90s, and no time in RFC 3339") from error


def _write_snapshot(recording: Recording, seconds: float) -> int:
    document = {"apiVersion": "v1", "kind": "List", "items": recording.documents_at(seconds)}
    json.dump(document, sys.stdout, indent=1)
    sys.stdout.write("\n")
    return 0


def _replay(recording: Recording, arguments: argparse.Namespace) -> ReplayResult:
    # Imported after parsing: it pulls in the API server and the scheduler.
    from dray.scheduler.config import ConfigError
    from dray.scheduler.config_loader import read_config
    from dray.sim.replay import replay

    # Conflicts between components are retried; their log lines would only confuse here.
    logging.getLogger("dray").addHandler(logging.NullHandler())
    logging.getLogger("dray").propagate = False
    try:
        config = read_config(arguments.scheduler_config, arguments.scheduler_profile)
    except ConfigError as error:
        raise SnapshotError(str(error)) from error
    with closing(ProgressLine()) as progress:
        return replay(recording, config, arguments.feature_gates, progress)


# --- Text. ---


def _lines(result: ReplayResult, *, everything: bool, colour: bool) -> Iterator[str]:
    from dray.sim.replay import differing, mean_wait

    changed = differing(result.pods)
    placed = [sum(bool(times(pod).node) for pod in result.pods) for times in (_recorded, _replayed)]
    same = len(result.pods) - len(changed)
    yield (
        f"{len(result.pods)} Pods: {placed[0]} placed in the recording, {placed[1]} in the replay; "
        f"{same} on the same node, {len(changed)} not"
    )
    waits = [mean_wait([times(pod) for pod in result.pods]) for times in (_recorded, _replayed)]
    yield f"mean time until placed: {_wait_text(waits[0])} recorded, {_wait_text(waits[1])} replayed"
    shown = list(result.pods) if everything else changed[:_SHOWN_MAX]
    if shown:
        yield ""
        yield from render(shown, _COLUMNS, colour=colour).splitlines()
    if len(changed) > len(shown):
        yield f"and {len(changed) - len(shown)} more; see --all"
    if result.refused:
        yield ""
        yield f"{len(result.refused)} changes were refused, for example:"
        yield from (f"  - {text}" for text in result.refused[:3])


def _recorded(pod: ReplayedPod) -> PodTimes:
    return pod.recorded


def _replayed(pod: ReplayedPod) -> PodTimes:
    return pod.replayed


def _wait_text(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.2f} s"


_COLUMNS: Final[Sequence[Column[ReplayedPod]]] = (
    Column("CREATED", lambda pod: f"{pod.created:.1f}s"),
    Column("NAMESPACE", lambda pod: pod.namespace),
    Column("POD", lambda pod: pod.name),
    Column("RECORDED", lambda pod: pod.recorded.node),
    Column("WAITED", lambda pod: _wait_text(pod.recorded.wait_seconds)),
    Column("REPLAYED", lambda pod: pod.replayed.node),
    Column("WAITED", lambda pod: _wait_text(pod.replayed.wait_seconds)),
)
