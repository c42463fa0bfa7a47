"""The diagrams of docs/concepts.md, from the code: layers, the claim lifecycle, extension points."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

from tools.reference.markdown import table
from tools.reference.source import parse

from dray.framework.plugins import EXTENSION_POINTS
from dray.sim.claim_life import TRANSITIONS
from dray.sim.claims import ClaimState

ROOT = Path(__file__).parents[2]
_MARK = "<!-- generated: {} -->"
_END = "<!-- end -->"
# The cycle of each extension point.
CYCLES = {
    "Queue": ("preEnqueue", "queueSort"),
    "Scheduling cycle, one Pod at a time": (
        *("preFilter", "filter", "postFilter", "preScore", "score", "reserve", "permit"),
    ),
    "Binding cycle, concurrent": ("preBind", "bind", "postBind"),
}


def layers() -> str:
    """Return a diagram of the packages, from the import contract."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contract = next(item for item in project["tool"]["importlinter"]["contracts"] if item["type"] == "layers")
    rows = [[name.strip() for name in layer.split("|")] for layer in contract["layers"]]
    lines = ["```mermaid", "flowchart TB"]
    for number, row in enumerate(rows):
        lines.append(f'    subgraph L{number}[" "]')
        lines += ["        direction LR", *(f"        {name}" for name in row), "    end"]
    lines += [f"    L{number} --> L{number + 1}" for number in range(len(rows) - 1)]
    return "\n".join([*lines, "```"])


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


def extension_points() -> str:
    """Return a diagram of the extension points in order, and a table of their methods."""
    lines = ["```mermaid", "flowchart LR"]
    for number, (cycle, points) in enumerate(CYCLES.items()):
        lines += [
            f'    subgraph C{number}["{cycle}"]',
            "        direction LR",
            f"        {' --> '.join(points)}",
            "    end",
        ]
    lines += ["    C0 --> C1 --> C2", "```"]
    texts = _protocols()
    rows = [(f"`{name}`", f"`{point.method}`", *texts[point.method]) for name, point in EXTENSION_POINTS.items()]
    return "\n".join([*lines, "", table(("extension point", "method", "purpose", "result"), rows)])


def _protocols() -> dict[str, tuple[str, str]]:
    """Return by method the first docstring lines of the plugin protocol and of the method."""
    tree = parse(ROOT / "src/dray/framework/plugins.py")
    found: dict[str, tuple[str, str]] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            for item in node.body:
                if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
                    found.setdefault(item.name, (_first(node), _first(item)))
    return found


def _first(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    return (ast.get_docstring(node) or "").partition("\n")[0]


PICTURES = {"layers": layers, "claim life": claim_life, "extension points": extension_points}


def rewritten(text: str) -> str:
    """Return a page with current diagrams; the page must have the marks of all of them."""
    for name, make in PICTURES.items():
        head, mark, rest = text.partition(_MARK.format(name))
        _, end, tail = rest.partition(_END)
        assert mark, f"no place for {name}"
        assert end, f"no end of {name}"
        text = f"{head}{mark}\n\n{make()}\n\n{end}{tail}"
    return text
