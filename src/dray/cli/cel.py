"""`dray cel EXPRESSION`: shows which devices a CEL selector matches, and why it rejects the others."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TextIO

from dray.cel.devices import DeviceView
from dray.cel.environments import CompiledSelector, compile_device_selector, device_view
from dray.cel.errors import CELError, CELRuntimeError
from dray.cel.explain import Explanation, Reference, explain_match
from dray.cli.command import cluster_parser, exit_on_read_error, print_hidden, read_snapshot
from dray.sim.snapshot import Snapshot

EXIT_NO_MATCH: Final = 1
EXIT_USAGE: Final = 2
PROG: Final = "dray cel"
KINDS: Final = ("ResourceSlice",)


@dataclass(frozen=True, slots=True)
class Match:
    """The result of the selector for one device."""

    name: str
    matches: bool
    error: str = ""


def main(argv: Sequence[str]) -> int:
    """Run the command; return 0 if a device matches, 1 if none does, 2 on errors."""
    arguments = _parse(argv)
    try:
        selector = compile_device_selector(arguments.expression)
    except CELError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_USAGE
    with exit_on_read_error(PROG, EXIT_USAGE):
        snapshot = read_snapshot(arguments, KINDS)
        print_hidden(PROG, snapshot)
    devices = list(_devices(snapshot))
    matches = [_evaluate(selector, name, view) for name, view in devices]
    explanation = explain_match(selector, [view for _, view in devices])
    if arguments.output == "json":
        _write_json(sys.stdout, selector, matches, explanation)
    else:
        _write_text(sys.stdout, selector, matches, explanation)
    return 0 if explanation.matching else EXIT_NO_MATCH


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = cluster_parser(
        PROG,
        "Show which devices of a cluster a CEL selector matches, and why it rejects the others.",
        formats=("text", "json"),
    )
    parser.add_argument("expression", metavar="EXPRESSION", help="the selector, as in a DeviceClass or a claim")
    # As the flag was called when there were only files.
    parser.add_argument("--slices", dest="filename", action="append", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def _devices(snapshot: Snapshot) -> Iterator[tuple[str, DeviceView]]:
    for document in snapshot.documents.get("ResourceSlice", ()):
        spec = document["spec"]
        for device in spec.get("devices") or ():
            yield f"{spec['driver']}/{spec['pool']['name']}/{device['name']}", device_view(spec["driver"], device)


def _evaluate(selector: CompiledSelector, name: str, view: DeviceView) -> Match:
    try:
        return Match(name, selector.evaluate(view))
    except CELRuntimeError as error:
        return Match(name, matches=False, error=str(error))


def _write_text(stream: TextIO, selector: CompiledSelector, matches: Sequence[Match], explanation: Explanation) -> None:
    stream.write(
        f"{explanation.matching} of {explanation.devices} devices match (estimated cost {selector.estimated_cost})\n"
    )
    width = max((len(item.name) for item in matches), default=0)
    for item in matches:
        outcome = "matches" if item.matches else f"error: {item.error}" if item.error else "does not match"
        stream.write(f"  {item.name:<{width}}  {outcome}\n")
    if len(explanation.conditions) > 1:
        stream.write("conditions:\n")
        for condition in explanation.conditions:
            note = f" (error on others: {condition.error})" if condition.error else ""
            stream.write(f"  {condition.matching} of {explanation.devices}: {condition.expression}{note}\n")
    for reference in explanation.references:
        if hint := _hint(reference, explanation.devices):
            stream.write(f"{hint}\n")


def _hint(reference: Reference, devices: int) -> str:
    if reference.present:
        return ""
    suggestion = f"; did you mean `{reference.nearest}`?" if reference.nearest else ""
    return f"`{reference.name}` exists on 0 of {devices} devices{suggestion}"


def _write_json(stream: TextIO, selector: CompiledSelector, matches: Sequence[Match], explanation: Explanation) -> None:
    document = {
        "expression": selector.expression,
        "estimatedCost": selector.estimated_cost,
        "devices": [
            {"name": item.name, "matches": item.matches, **({"error": item.error} if item.error else {})}
            for item in matches
        ],
        "conditions": [
            {"expression": item.expression, "matching": item.matching, "error": item.error}
            for item in explanation.conditions
        ],
        "missing": [
            {"name": item.name, "nearest": item.nearest} for item in explanation.references if not item.present
        ],
    }
    json.dump(document, stream, indent=2)
    stream.write("\n")
