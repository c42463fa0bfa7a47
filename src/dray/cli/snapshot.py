"""`dray snapshot > FILE`: writes what the tools read of a cluster to one file, which they take with -f."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import secrets
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from dray.api.document import Document
from dray.cli.command import cluster_parser, exit_on_read_error, print_hidden, read_snapshot
from dray.sim.holdings import HEADER, header_of, kubectl_line
from dray.sim.kept_fields import FieldFilter, Options
from dray.sim.snapshot import PATH_KINDS, Snapshot, SnapshotError

if TYPE_CHECKING:
    from dray.sim.name_table import NameTable

PROG: Final = "dray snapshot"
_PRIVATE: Final = 0o600
_KEY_BYTES: Final = 32


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    parser = cluster_parser(
        PROG,
        "Write the nodes, Pods, workloads, claims, devices, quotas and Events of a cluster to standard output, for "
        "explain, simulate, top and the others with -f. It contains the fields that these commands read: no Secrets "
        "and ConfigMaps, no commands, probes and hooks. A file that it is redirected to gets the mode 0600. With "
        "--anonymize, it contains no name of yours either, and the commands answer as before, about other names.",
        formats=("json", "yaml"),
    )
    parser.add_argument(
        "--print-command",
        action="store_true",
        help="print the kubectl command that dumps what the tools read, for where this one cannot run, and exit",
    )
    add_kept_fields(parser)
    parser.add_argument(
        "--anonymize",
        default="",
        metavar="TABLE",
        help="rename everything, and keep the names in this private file for `dray translate`; if it exists, the names "
        "in it are used again",
    )
    arguments = parser.parse_args(argv)
    if arguments.print_command:
        sys.stdout.write(f"{kubectl_line()}\n")
        return 0
    with exit_on_read_error(PROG):
        snapshot = read_snapshot(arguments, PATH_KINDS)
        print_hidden(PROG, snapshot)
        items = items_of(snapshot, field_filter(arguments))
        header = header_of(snapshot)
        if arguments.anonymize:
            items, header = _anonymized(items, header, Path(arguments.anonymize))
    write_list(items, header, arguments.output)
    return 0


def write_list(items: Sequence[Document], header: Mapping[str, str | None], output: str) -> None:
    """Write objects to standard output, with a note on which kinds were read."""
    document = {"apiVersion": "v1", "kind": "List", "metadata": {HEADER: header}, "items": items}
    restrict_standard_output()
    if output == "yaml":
        # Imported on use: slow to import, and JSON is the default.
        import yaml

        yaml.safe_dump(document, sys.stdout, sort_keys=False, allow_unicode=True)
    else:
        json.dump(document, sys.stdout, indent=1)
        sys.stdout.write("\n")


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


def _anonymized(
    items: list[Document], header: dict[str, str | None], path: Path
) -> tuple[list[Document], dict[str, str | None]]:
    """Return the objects and the namespaces that were read with other names; the table is kept in the file."""
    # Imported on use: most snapshots stay where they are.
    from dray.sim.anonymize import anonymized, anonymized_name
    from dray.sim.name_table import NameTable

    table = read_table(path) if path.exists() else NameTable(secrets.token_bytes(_KEY_BYTES), random.SystemRandom())
    items = anonymized(items, table)
    header = {kind: anonymized_name(scope, table) if scope else scope for kind, scope in header.items()}
    # Before the snapshot: without it, nobody could use the answers. As a whole: earlier snapshots need the old one.
    new = path.with_name(f".{path.name}.new")
    with open_private(new) as file:
        json.dump(table.to_document(), file, indent=1)
    new.replace(path)
    return items, header


def read_table(path: Path) -> NameTable:
    """Return the table of names in a file; raises `SnapshotError`."""
    # Imported on use, as above.
    from dray.sim.name_table import NameTable, TableError

    try:
        return NameTable.from_document(json.loads(path.read_text(encoding="utf-8")), random.SystemRandom())
    except (OSError, ValueError, TableError) as error:
        raise SnapshotError(f"{path}: {error}") from error


def open_private(path: Path) -> TextIO:
    """Open a new file that only the user can read; it replaces a file of that name, which others may have open."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        # A pipe or device, which is not made anew.
        return path.open("w", encoding="utf-8")
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8")


def restrict_standard_output() -> None:
    """Let only the user read the file that standard output is redirected to."""
    # A file of another user has the mode that its owner gave it; what has no descriptor is no file. Windows has no such
    # modes: there the folder's access list decides.
    with contextlib.suppress(OSError, AttributeError):
        descriptor = sys.stdout.fileno()
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.fchmod(descriptor, _PRIVATE)
