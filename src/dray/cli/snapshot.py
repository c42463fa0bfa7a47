"""`dray snapshot > FILE`: writes what the tools read of a cluster to one file, which they take with -f."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import stat
import sys
from collections.abc import Sequence
from typing import Final

from dray.api.document import Document
from dray.cli.command import cluster_parser, exit_on_read_error, print_hidden, read_snapshot
from dray.sim.holdings import HEADER, header_of, kubectl_line
from dray.sim.kept_fields import FieldFilter, Options
from dray.sim.snapshot import PATH_KINDS, Snapshot

PROG: Final = "dray snapshot"
_PRIVATE: Final = 0o600
_KEY_BYTES: Final = 32


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    parser = cluster_parser(
        PROG,
        "Write the nodes, Pods, workloads, claims, devices, quotas and Events of a cluster to standard output, for "
        "explain, simulate, top and the others with -f. It contains the fields that these commands read: no Secrets "
        "and ConfigMaps, no commands, probes and hooks. A file that it is redirected to gets the mode 0600.",
        formats=("json", "yaml"),
    )
    parser.add_argument(
        "--print-command",
        action="store_true",
        help="print the kubectl command that dumps what the tools read, for where this one cannot run, and exit",
    )
    add_kept_fields(parser)
    arguments = parser.parse_args(argv)
    if arguments.print_command:
        sys.stdout.write(f"{kubectl_line()}\n")
        return 0
    with exit_on_read_error(PROG):
        snapshot = read_snapshot(arguments, PATH_KINDS)
        print_hidden(PROG, snapshot)
    items = items_of(snapshot, field_filter(arguments))
    document = {"apiVersion": "v1", "kind": "List", "metadata": {HEADER: header_of(snapshot)}, "items": items}
    restrict_standard_output()
    if arguments.output == "yaml":
        # Imported on use: slow to import, and JSON is the default.
        import yaml

        yaml.safe_dump(document, sys.stdout, sort_keys=False, allow_unicode=True)
    else:
        json.dump(document, sys.stdout, indent=1)
        sys.stdout.write("\n")
    return 0


def items_of(snapshot: Snapshot, kept: FieldFilter) -> list[Document]:
    """Return all objects, without what no tool reads."""
    return [kept.reduced(item) for items in snapshot.documents.values() for item in items]


def add_kept_fields(parser: argparse.ArgumentParser) -> None:
    """Add the flags that keep more than the tools read."""
    parser.add_argument("--environment", action="store_true", help="include the environment variables of containers")
    parser.add_argument(
        "--parameters", action="store_true", help="include the opaque parameters for drivers in classes and claims"
    )


def field_filter(arguments: argparse.Namespace) -> FieldFilter:
    """Return the filter that the flags describe, with a key of its own."""
    options = Options(
        secrets.token_bytes(_KEY_BYTES), environment=arguments.environment, parameters=arguments.parameters
    )
    return FieldFilter(options)


def restrict_standard_output() -> None:
    """Let only the user read the file that standard output is redirected to."""
    # A file of another user has the mode that its owner gave it; what has no descriptor is no file. Windows has no such
    # modes: there the folder's access list decides.
    with contextlib.suppress(OSError, AttributeError):
        descriptor = sys.stdout.fileno()
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.fchmod(descriptor, _PRIVATE)
