"""Write the lifecycle of a classic claim, from `dray.api.classic_claims`, to docs/classic-claims.md.

`python tools/generate_classic_claims.py` rewrites the part between the markers; `--check` checks it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dray.api.classic_claims import TRANSITIONS, WAITS_FOR, State

PAGE = Path(__file__).parent.parent / "docs" / "classic-claims.md"
BEGIN = "<!-- generated from dray.api.classic_claims by tools/generate_classic_claims.py -->"
END = "<!-- end of what is generated -->"


def diagram() -> str:
    """Return the transitions as a Mermaid state diagram."""
    lines = ["```mermaid", "stateDiagram-v2"]
    for move in TRANSITIONS:
        before = "[*]" if move.before is State.START else move.before
        after = "[*]" if move.after is State.GONE else move.after
        action = move.action.replace(";", ",").replace(":", " -")
        lines.append(f"    {before} --> {after}: {' or '.join(move.actors)} - {action}")
    return "\n".join([*lines, "```"])


def waits() -> str:
    """Return the component that a claim in each state waits for."""
    return "A claim waits: " + ", ".join(f"`{state}` for the {actor}" for state, actor in WAITS_FOR.items()) + "."


def rewritten(page: str) -> str:
    """Return the page with its generated part updated."""
    head, _, rest = page.partition(BEGIN)
    _, found, tail = rest.partition(END)
    if not found:
        raise SystemExit(f"{PAGE.name} has no markers")
    return f"{head}{BEGIN}\n\n{diagram()}\n\n{waits()}\n\n{END}{tail}"


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
