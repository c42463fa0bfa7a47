"""The diagram of docs/concepts.md, from the code: the claim lifecycle."""

from __future__ import annotations

from dray.sim.claim_life import TRANSITIONS
from dray.sim.claims import ClaimState

_MARK = "<!-- generated: claim life -->"
_END = "<!-- end -->"


def claim_life() -> str:
    """Return a diagram of the states of a claim and the transitions by component."""
    lines = ["```mermaid", "stateDiagram-v2"]
    for move in TRANSITIONS:
        before, after = (_state(state) for state in (move.before, move.after))
        what = move.what.replace(";", ",").replace(":", " -")
        lines.append(f"    {before} --> {after}: {' or '.join(move.actors)} - {what}")
    return "\n".join([*lines, "```"])


def _state(state: ClaimState | None) -> str:
    return "[*]" if state is None else state


def rewritten(text: str) -> str:
    """Return the page with a current diagram."""
    head, mark, rest = text.partition(_MARK)
    _, end, tail = rest.partition(_END)
    assert mark, "no place for the claim lifecycle"
    assert end, "no end of the claim lifecycle"
    return f"{head}{mark}\n\n{claim_life()}\n\n{end}{tail}"
