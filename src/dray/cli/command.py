"""Shared code of commands that read a cluster: flags, snapshots, watching, and errors."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, NoReturn, Protocol

from dray.api.errors import APIError, UnauthorizedError
from dray.api.features import FeatureGateError, FeatureGates
from dray.cli.examples import EXAMPLES_TITLE, examples_text
from dray.cli.jsonpath import JSONPathError
from dray.cli.tables import ROW_FORMATS, output_format
from dray.client.kubeconfig import KubeconfigError
from dray.runtime.logs import wants_colour
from dray.runtime.system import SystemClock
from dray.sim.explain.similar_names import did_you_mean
from dray.sim.snapshot import Snapshot, SnapshotError

EXIT_FAILURE: Final = 1
EXIT_USAGE: Final = 2
# As argparse writes it.
_INVALID_CHOICE: Final = re.compile(r"invalid choice: '([^']*)' \(choose from (.*)\)$")
_CLEAR: Final = "\033[H\033[2J\033[3J"


class Render(Protocol):
    """Renders a snapshot as text."""

    def __call__(self, snapshot: Snapshot, now: datetime, *, colour: bool) -> str:
        """Return the text, in colour or not."""


# --- Flags. ---


class _HelpFormatter(argparse.HelpFormatter):
    """Keeps the lines of examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith(EXAMPLES_TITLE) else super()._fill_text(text, width, indent)


class Parser(argparse.ArgumentParser):
    """A parser that knows what a misspelt flag or value was meant to be."""

    def __init__(self, prog: str, description: str = "", **options: Any) -> None:
        # Subcommands are parsers of the same class, with options of argparse.
        # `dray migrate plan` is the only one of its command.
        examples = examples_text(prog.removeprefix("dray ").removesuffix(" plan"))
        options["epilog"] = "\n\n".join(filter(None, (examples, options.get("epilog"))))
        options.setdefault("formatter_class", _HelpFormatter)
        super().__init__(prog=prog, description=description, allow_abbrev=False, **options)

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Parse the arguments; exit with a suggestion if one is unknown."""
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            flag = unknown[0].partition("=")[0]
            known = [name for name in self.flags() if name.startswith("--")]
            similar = did_you_mean(flag, known) if flag.startswith("-") else ""
            what = "unknown flag" if flag.startswith("-") else "unexpected argument"
            self.error(f"{what}: {flag}{similar}")
        return found

    def flags(self) -> Iterator[str]:
        """Yield the flags of the command and of its subcommands."""
        for action in self._actions:
            yield from action.option_strings
            # Subcommands are choices too.
            parsers = action.choices.values() if isinstance(action.choices, dict) else ()
            yield from (flag for parser in parsers if isinstance(parser, Parser) for flag in parser.flags())

    def error(self, message: str) -> NoReturn:
        """Exit with what is wrong, what was probably meant, and where the flags are."""
        if choice := _INVALID_CHOICE.search(message):
            name, known = choice.groups()
            message = f"{message}{did_you_mean(name, known.replace(chr(39), '').split(', '))}"
        self.exit(EXIT_USAGE, f"{self.prog}: {message}\nRun {self.prog} --help for its flags.\n")


def cluster_parser(prog: str, description: str, *, formats: Sequence[str] = ()) -> Parser:
    """Return a parser with the flags for the source and the output format; without formats, it prints rows."""
    parser = Parser(prog, description)
    add_source(parser).add_argument(
        "-f",
        "--filename",
        action="append",
        default=[],
        metavar="FILE",
        help="read files or directories with the output of `kubectl get … -o yaml` instead of a cluster; - is stdin",
    )
    add_output(parser, formats)
    return parser


def add_source(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add the flags that name a cluster; return their group."""
    source = parser.add_argument_group("source")
    source.add_argument("--kubeconfig", default="", metavar="FILE", help="default: $KUBECONFIG, then ~/.kube/config")
    source.add_argument("--context", default="", help="the kubeconfig context to use")
    return source


def add_output(parser: argparse.ArgumentParser, formats: Sequence[str] = ()) -> None:
    """Add --output with the formats; without formats, those of rows."""
    if formats:
        parser.add_argument("-o", "--output", choices=formats, default=formats[0], help="output format")
        return
    parser.add_argument(
        "-o",
        "--output",
        type=output_format,
        default=ROW_FORMATS[0],
        metavar="FORMAT",
        help=f"output format: {', '.join(ROW_FORMATS)}",
    )


def add_namespace(parser: argparse.ArgumentParser) -> None:
    """Add --namespace; the default is all namespaces."""
    parser.add_argument("-n", "--namespace", default="", help="only this namespace; default: all")
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="all namespaces, which is the default")


def add_watch(parser: argparse.ArgumentParser) -> None:
    """Add --watch."""
    parser.add_argument("-w", "--watch", action="store_true", help="print the table again after every change")


def add_scheduler_config(parser: argparse._ActionsContainer) -> None:
    """Add --scheduler-config."""
    parser.add_argument(
        "--scheduler-config",
        default="",
        metavar="FILE",
        help="the KubeSchedulerConfiguration of the cluster's scheduler; a note says what of it is not evaluated",
    )


def add_feature_gates(parser: argparse.ArgumentParser) -> None:
    """Add --feature-gates."""
    parser.add_argument(
        "--feature-gates",
        type=_feature_gates,
        default=FeatureGates(),
        metavar="A=true,B=false",
        help="the feature gates of the cluster's scheduler",
    )


def _feature_gates(text: str) -> FeatureGates:
    try:
        return FeatureGates.parse(text)
    except FeatureGateError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


# --- Reading and printing. ---


def run_table(prog: str, arguments: argparse.Namespace, kinds: Sequence[str], render: Render) -> int:
    """Print a table once, or after every change with --watch; return the exit code."""
    if arguments.watch and arguments.filename:
        sys.stderr.write(f"{prog}: --watch needs a cluster; files do not change\n")
        return EXIT_USAGE
    with exit_on_read_error(prog):
        try:
            if arguments.watch:
                _watch(arguments, kinds, render)
            else:
                snapshot = read_snapshot(arguments, kinds)
                print_hidden(prog, snapshot)
                _print(render, snapshot)
        except KeyboardInterrupt:
            return 0
    return 0


@contextmanager
def exit_on_read_error(prog: str, code: int = EXIT_FAILURE) -> Iterator[None]:
    """Exit with one line on stderr if the cluster or a file cannot be read."""
    try:
        yield
    except (SnapshotError, KubeconfigError, APIError, JSONPathError) as error:
        text = str(error)
        if isinstance(error, UnauthorizedError) and text == error.reason:
            text = "you must be logged in to the server (Unauthorized): check the credentials in your kubeconfig"
        sys.stderr.write(f"{prog}: {text}\n")
        raise SystemExit(code) from error


def current_namespace(arguments: argparse.Namespace) -> str:
    """Return the namespace of the kubeconfig context; for files, default."""
    if arguments.filename:
        return "default"
    # Imported on use, as in `read_snapshot`.
    from dray.cli.cluster import load_user_access

    return load_user_access(arguments.kubeconfig, arguments.context).namespace


def read_snapshot(arguments: argparse.Namespace, kinds: Sequence[str]) -> Snapshot:
    """Read the files or the cluster that the arguments name."""
    # Imported on use: files need no event loop and no client, a cluster needs no YAML.
    config = getattr(arguments, "scheduler_config", "")
    if arguments.filename:
        from dray.cli import manifests
        from dray.cli.output import ProgressLine
        from dray.sim.holdings import missing_notes

        with closing(ProgressLine()) as progress:
            found = manifests.read_snapshot([*arguments.filename, *([config] if config else ())], progress)
        return replace(found, hidden=(*found.hidden, *missing_notes(found, kinds)))
    import asyncio

    from dray.cli.cluster import read_once

    namespace = getattr(arguments, "namespace", "")
    snapshot = asyncio.run(read_once(arguments.kubeconfig, arguments.context, kinds, namespace))
    return _with_scheduler_config(snapshot, config) if config else snapshot


def check_nodes(snapshot: Snapshot) -> None:
    """Raise `SnapshotError` if the nodes were not read, without which nothing can be placed."""
    if reason := snapshot.unread("Node"):
        advice = next(iter(snapshot.hidden[-1:]), "") if "Node" in snapshot.absent else "dray explain works without"
        raise SnapshotError(f"{reason}, without which no Pod can be placed; {advice}".removesuffix("; "))


def _with_scheduler_config(snapshot: Snapshot, path: str) -> Snapshot:
    from dray.cli import manifests

    given = manifests.read_snapshot([path])
    return replace(snapshot, documents={**given.documents, **snapshot.documents})


def print_hidden(prog: str, snapshot: Snapshot) -> None:
    """Note on stderr what the user may not read."""
    for note in snapshot.hidden:
        sys.stderr.write(f"{prog}: note: {note}\n")


def _print(render: Render, snapshot: Snapshot, *, clear: bool = False) -> None:
    text = render(snapshot, SystemClock().now(), colour=wants_colour(sys.stdout, os.environ))
    sys.stdout.write(_CLEAR + text if clear else text)
    sys.stdout.flush()


def _watch(arguments: argparse.Namespace, kinds: Sequence[str], render: Render) -> None:
    # Imported on use, as in `read_snapshot`.
    import asyncio

    from dray.cli.cluster import watch

    clear = sys.stdout.isatty()

    def on_change(snapshot: Snapshot) -> None:
        _print(render, snapshot, clear=clear)
        if not clear:
            sys.stdout.write("\n")
            sys.stdout.flush()

    asyncio.run(watch(arguments.kubeconfig, arguments.context, kinds, on_change))
