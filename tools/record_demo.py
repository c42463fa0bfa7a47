"""Records a run of `dray demo` as an animated SVG: `python tools/record_demo.py docs/images/demo.svg`.

The output is that of a real run. Pauses longer than a second are shortened, and lines that are
longer than the picture is wide are cut off. Readers who prefer no motion see the last screen.
"""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from html import escape
from pathlib import Path

COLUMNS = 104
ROWS = 26
PAUSE_SECONDS_MAX = 1.0
# The last screen stays so long before the recording starts over.
REST_SECONDS = 6.0
RUN_SECONDS_MAX = 300.0
LINE_HEIGHT = 18
CHARACTER_WIDTH = 7.8
MARGIN = 16
# What follows is about the machine that the demo ran on.
END = "All processes were stopped"
STYLES = {"result": "g", "answer": "g", "hint": "y", "evicted": "y", "request": "u"}
STYLE = """
svg{background:#12181f;border-radius:10px}
text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:#dbe3ea;white-space:pre}
.b{font-weight:700;fill:#fff}.d{fill:#8b98a5}.g{fill:#7fd6a0}.y{fill:#f0c674}.u{fill:#82bbf0}
"""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the output, and when it was complete."""

    seconds: float
    text: str


def run(command: list[str]) -> list[Line]:
    """Run a command in a terminal and return its lines."""
    primary, secondary = pty.openpty()
    lines: list[Line] = []
    rest = b""
    with tempfile.TemporaryDirectory() as folder:
        # Without cursor movements: the lines are in the order in which they were written.
        environment = {**os.environ, "COLUMNS": str(COLUMNS), "TERM": "dumb"}
        process = subprocess.Popen(
            command, stdout=secondary, stderr=secondary, stdin=subprocess.DEVNULL, cwd=folder, env=environment
        )
        os.close(secondary)
        started = time.monotonic()
        while time.monotonic() - started < RUN_SECONDS_MAX:
            if not select.select([primary], [], [], RUN_SECONDS_MAX)[0]:
                break
            try:
                chunk = os.read(primary, 65536)
            except OSError:
                # The terminal is closed when the command has ended.
                break
            *complete, rest = (rest + chunk).split(b"\n")
            now = time.monotonic() - started
            lines += [Line(now, item.decode(errors="replace").rstrip("\r")) for item in complete]
        if process.wait(RUN_SECONDS_MAX):
            raise SystemExit(f"{' '.join(command)} failed:\n" + "\n".join(line.text for line in lines[-20:]))
    os.close(primary)
    return lines


def shortened(lines: list[Line]) -> list[Line]:
    """Return the lines of the demo, without long pauses and without what is about this machine."""
    found: list[Line] = []
    at = before = 0.0
    for line in lines:
        if END in line.text:
            break
        at += min(line.seconds - before, PAUSE_SECONDS_MAX)
        before = line.seconds
        found.append(Line(at, line.text))
    return found


def spans(text: str) -> str:
    """Return a line as elements, cut off at the width of the picture: headings and the first words stand out."""
    shown = text if len(text) <= COLUMNS else text[: COLUMNS - 1] + "…"
    heading = re.match(r"\d+  ", shown)
    if heading:
        return f'<tspan class="b">{escape(shown)}</tspan>'
    label = re.match(r"   [a-z0-9-]+(?=  )", shown)
    if not label:
        return escape(shown)
    style = STYLES.get(label[0].strip(), "d")
    return f'<tspan class="{style}">{escape(label[0])}</tspan>{escape(shown[label.end() :])}'


def drawn(lines: list[Line], title: str) -> str:
    """Return the recording as an SVG: lines appear when they were written, and the screen scrolls."""
    total = lines[-1].seconds + REST_SECONDS
    width, height = round(COLUMNS * CHARACTER_WIDTH + 2 * MARGIN), ROWS * LINE_HEIGHT + 2 * MARGIN
    style, body = [STYLE], []
    steps = []
    for number, line in enumerate(lines):
        begin = 100 * line.seconds / total
        steps.append((begin, -max(0, number + 1 - ROWS) * LINE_HEIGHT))
        style.append(f"@keyframes l{number}{{0%,{begin:.2f}%{{opacity:0}}{begin + 0.01:.2f}%,100%{{opacity:1}}}}")
        style.append(f"#l{number}{{animation:l{number} {total:.1f}s steps(1,end) infinite}}")
        place = MARGIN + (number + 1) * LINE_HEIGHT - 4
        body.append(f'<text id="l{number}" x="{MARGIN}" y="{place}">{spans(line.text)}</text>')
    frames = "".join(f"{begin:.2f}%{{transform:translateY({offset}px)}}" for begin, offset in steps)
    last = steps[-1][1]
    style.append(f"@keyframes s{{0%{{transform:none}}{frames}100%{{transform:translateY({last}px)}}}}")
    style.append(f"#s{{transform:translateY({last}px);animation:s {total:.1f}s steps(1,end) infinite}}")
    style.append("@media(prefers-reduced-motion:reduce){text,#s{animation:none!important;opacity:1}}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img"><title>{escape(title)}</title><style>{"".join(style)}</style>'
        f'<g id="s">{"".join(body)}</g></svg>\n'
    )


def main() -> None:
    """Record the demo."""
    target = Path(sys.argv[1])
    lines = shortened(run([sys.executable, "-m", "dray", "demo"]))
    target.write_text(drawn(lines, "A recording of dray demo"), encoding="utf-8")


if __name__ == "__main__":
    main()
