"""Writes the life of a classic claim, as `dray.api.classic_claims` has it, into docs/classic-claims.md.

`python tools/generate_classic_claims.py` rewrites the part between the marks; `--check` says whether it is current.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dray.api.classic_claims import LIFE, TURN, State

PAGE = Path(__file__).parent.parent / "docs" / "classic-claims.md"
BEGIN = "<!-- generated from dray.api.classic_claims by tools/generate_classic_claims.py -->"
END = "<!-- end of what is generated -->"


def diagram() -> str:
    """The states and moves as a Mermaid state diagram."""
    lines = ["```mermaid", "stateDiagram-v2"]
    for move in LIFE:
        before = "[*]" if move.before is State.START else move.before
        after = "[*]" if move.after is State.GONE else move.after
        what = move.what.replace(";", ",").replace(":", " -")
        lines.append(f"    {before} --> {after}: {' or '.join(move.actors)} - {what}")
    return "\n".join([*lines, "```"])


def table() -> str:
    """The same as a table, with whom a claim waits for."""
    lines = ["| from | to | who | does what |", "|---|---|---|---|"]
    lines += [f"| {move.before} | {move.after} | {', '.join(move.actors)} | {move.what} |" for move in LIFE]
    waits = ", ".join(f"`{state}` for the {actor}" for state, actor in TURN.items())
    return "\n".join([*lines, "", f"Whom a claim waits for: {waits}."])


def rewritten(page: str) -> str:
    """The page with its generated part brought up to date."""
    head, _, rest = page.partition(BEGIN)
    _, found, tail = rest.partition(END)
    if not found:
        raise SystemExit(f"{PAGE.name} lacks its marks")
    return f"{head}{BEGIN}\n\n{diagram()}\n\n{table()}\n\n{END}{tail}"


def main() -> int:
    """Rewrite or check the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    page = PAGE.read_text()
    wanted = rewritten(page)
    if parser.parse_args().check:
        return int(page != wanted)
    PAGE.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
