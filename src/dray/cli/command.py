"""Reads a snapshot for a command, once or again whenever something changes, and prints what the command makes of it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Final

from dray.api.errors import APIError
from dray.api.features import FeatureGateError, FeatureGates
from dray.cli.output import FORMS
from dray.client.kubeconfig import KubeconfigError
from dray.runtime.clock import SystemClock
from dray.runtime.logs import wants_colour
from dray.sim.snapshot import Snapshot, SnapshotError

EXIT_FAILURE: Final = 1
EXIT_USAGE: Final = 2
_CLEAR: Final = "\033[H\033[2J\033[3J"

# The text for a snapshot as it is now, in colours or not.
Show = Callable[[Snapshot, datetime, bool], str]


def run(prog: str, arguments: argparse.Namespace, kinds: Sequence[str], show: Show) -> int:
    """Read and print; the exit code."""
    if getattr(arguments, "watch", False) and arguments.filename:
        sys.stderr.write(f"{prog}: --watch needs a cluster; files do not change\n")
        return EXIT_USAGE
    with failing_in_one_line(prog):
        try:
            if getattr(arguments, "watch", False):
                _watch(arguments, kinds, show)
            else:
                _print(show, read(arguments, kinds))
        except KeyboardInterrupt:
            return 0
    return 0


@contextmanager
def failing_in_one_line(prog: str) -> Iterator[None]:
    """End the command with one line about what reading a cluster or files may run into."""
    try:
        yield
    except (SnapshotError, KubeconfigError, APIError) as error:
        sys.stderr.write(f"{prog}: {error}\n")
        raise SystemExit(EXIT_FAILURE) from error


def read(arguments: argparse.Namespace, kinds: Sequence[str]) -> Snapshot:
    """The snapshot that the arguments ask for."""
    # Each way of reading brings its own: files need no connection and no event loop, a cluster no YAML of ours.
    if arguments.filename:
        from dray.cli.manifests import read_snapshot

        return read_snapshot(arguments.filename)
    import asyncio

    from dray.cli.cluster import read_once

    return asyncio.run(read_once(arguments.kubeconfig, arguments.context, kinds))


def _print(show: Show, snapshot: Snapshot, *, clear: bool = False) -> None:
    text = show(snapshot, SystemClock().now(), wants_colour(sys.stdout, os.environ))
    sys.stdout.write(_CLEAR + text if clear else text)
    sys.stdout.flush()


def _watch(arguments: argparse.Namespace, kinds: Sequence[str], show: Show) -> None:
    # As for reading once: only for a cluster.
    import asyncio

    from dray.cli.cluster import follow

    clear = sys.stdout.isatty()

    def tell(snapshot: Snapshot) -> None:
        _print(show, snapshot, clear=clear)
        if not clear:
            sys.stdout.write("\n")
            sys.stdout.flush()

    asyncio.run(follow(arguments.kubeconfig, arguments.context, kinds, tell))


def reading_parser(prog: str, description: str, *, forms: Sequence[str] = FORMS) -> argparse.ArgumentParser:
    """A parser with what says where to read and how to print."""
    parser = argparse.ArgumentParser(prog=prog, description=description)
    where = parser.add_argument_group("where to read")
    where.add_argument("--kubeconfig", default="", metavar="FILE", help="default: $KUBECONFIG, then ~/.kube/config")
    where.add_argument("--context", default="", help="the kubeconfig's context to use")
    where.add_argument(
        "-f",
        "--filename",
        action="append",
        default=[],
        metavar="FILE",
        help="read files or folders that `kubectl get … -o yaml` wrote instead of a cluster; - is stdin",
    )
    parser.add_argument("-o", "--output", choices=forms, default=forms[0], help="how to print")
    return parser


def add_namespace(parser: argparse.ArgumentParser) -> None:
    """Let the user choose one namespace; all are shown otherwise."""
    parser.add_argument("-n", "--namespace", default="", help="only this namespace; default: all")


def add_watch(parser: argparse.ArgumentParser) -> None:
    """Let the user keep the table on the screen."""
    parser.add_argument("-w", "--watch", action="store_true", help="print again whenever something changes")


def add_feature_gates(parser: argparse.ArgumentParser) -> None:
    """Let the user say what the cluster's scheduler has switched on and off."""
    parser.add_argument(
        "--feature-gates",
        type=_feature_gates,
        default=FeatureGates(),
        metavar="A=true,B=false",
        help="as the cluster's scheduler has",
    )


def _feature_gates(text: str) -> FeatureGates:
    try:
        return FeatureGates.parse(text)
    except FeatureGateError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
