"""`dray reduce KIND NAME`: prints the fewest objects for which `dray explain` says the same."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from typing import Final

from dray.cli.command import current_namespace, exit_on_read_error, print_hidden, read_snapshot
from dray.cli.explain import answer_of, explain_parser, resolve_subject
from dray.cli.output import ProgressLine
from dray.cli.snapshot import add_kept_fields, field_filter, items_of, write_list
from dray.runtime.system import SystemClock
from dray.sim.holdings import header_of
from dray.sim.reduction import reduced, shape_of
from dray.sim.snapshot import PATH_KINDS, Snapshot, SnapshotError

PROG: Final = "dray reduce"


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    parser = explain_parser(
        PROG,
        "Print the fewest objects of a cluster or a dump for which `dray explain` says the same about a Pod, claim or "
        "workload, with other numbers: what to read, and what to attach to a report. Each object was left out once to "
        "see that it is needed.",
        formats=("json", "yaml"),
    )
    add_kept_fields(parser)
    arguments = parser.parse_args(argv)
    resolve_subject(parser, arguments)
    arguments.node = ""
    with exit_on_read_error(PROG):
        arguments.namespace = arguments.namespace or current_namespace(arguments)
        snapshot = read_snapshot(arguments, PATH_KINDS)
        print_hidden(PROG, snapshot)
        now = SystemClock().now()
        verdict = answer_of(snapshot, arguments, now).verdict
        assert verdict is not None, "every answer has a verdict"
        wanted = shape_of(verdict)

        def says_the_same(smaller: Snapshot) -> bool:
            try:
                found = answer_of(smaller, arguments, now).verdict
            except SnapshotError:
                # The subject itself was left out.
                return False
            return found is not None and shape_of(found) == wanted

        total = sum(len(items) for items in snapshot.documents.values())
        with closing(ProgressLine()) as line:
            smallest = reduced(snapshot, says_the_same, lambda left: line(total - left, total, "objects left out"))
    items = items_of(smallest, field_filter(arguments))
    sys.stderr.write(f"{PROG}: {len(items)} of {total} objects: {answer_of(smallest, arguments, now).sentence}\n")
    # Kinds of which nothing is left are known to have nothing.
    write_list(items, header_of(snapshot), arguments.output)
    return 0
