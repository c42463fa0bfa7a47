"""Draws how costs grow with the number of nodes as SVG: a panel for each cost, all with the same scales. Pure.

Both axes are logarithmic, and each panel covers two decades, so that equal slopes mean equal growth: a cost that does
not depend on the number of nodes is a horizontal line, and one that is proportional to it is parallel to the dashes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape

# Pairs of the number of nodes and the cost.
Line = Sequence[tuple[float, float]]

_COLUMNS: Final = 3
_WIDTH, _HEIGHT = 250, 190
# Inside of a panel, around its axes.
_LEFT, _TOP, _RIGHT, _BOTTOM = 50, 34, 12, 34
_MARGIN_TOP: Final = 34
_DECADES: Final = 2
_STEPS: Final = (1, 2, 5)
_COLOURS: Final = ("#0072b2", "#d55e00", "#009e73")
_LINE_HEIGHT: Final = 14


@dataclass(frozen=True, slots=True)
class Panel:
    """One cost, with a line for each part that has it."""

    title: str
    lines: Mapping[str, Line]


def axis_start(lowest: float) -> float:
    """Return the largest 1, 2 or 5 times a power of ten that is not above the value."""
    power = 10.0 ** math.floor(math.log10(lowest))
    return max(step * power for step in _STEPS if step * power <= lowest)


def ticks(start: float) -> list[float]:
    """Return the values that an axis of two decades names: those that begin with the same digit."""
    return [start * 10.0**decade for decade in range(_DECADES + 1)]


def draw(title: str, nodes: Sequence[int], panels: Sequence[Panel]) -> str:
    """Return the picture."""
    width, rows = _COLUMNS * _WIDTH, -(-len(panels) // _COLUMNS)
    height = _MARGIN_TOP + rows * _HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="12" y="22" font-size="15">{escape(title)}</text>',
    ]
    for place, panel in enumerate(panels):
        row, column = divmod(place, _COLUMNS)
        parts.append(f'<g transform="translate({column * _WIDTH} {_MARGIN_TOP + row * _HEIGHT})">')
        parts += [*_Drawing(nodes, panel).parts(), "</g>"]
    return "\n".join([*parts, "</svg>"]) + "\n"


class _Drawing:
    """One panel, at the origin."""

    def __init__(self, nodes: Sequence[int], panel: Panel) -> None:
        self._nodes = nodes
        self._panel = panel
        self._start = axis_start(min(value for line in panel.lines.values() for _, value in line))

    def parts(self) -> Iterable[str]:
        """Yield the elements."""
        yield f'<text x="{_LEFT}" y="20" font-size="12" font-weight="bold">{escape(self._panel.title)}</text>'
        yield from self._axes()
        first, last = self._nodes[0], self._nodes[-1]
        proportional = ((first, self._start), (last, self._start * last / first))
        yield self._polyline(proportional, 'stroke="#999" stroke-dasharray="2 3"')
        for place, (colour, (name, line)) in enumerate(zip(_COLOURS, self._panel.lines.items(), strict=False)):
            yield self._polyline(line, f'stroke="{colour}" stroke-width="2"')
            for nodes, value in line:
                yield f'<circle cx="{self._x(nodes):.1f}" cy="{self._y(value):.1f}" r="2.5" fill="{colour}"/>'
            yield f'<text x="{_LEFT + 6}" y="{_TOP + 12 + place * _LINE_HEIGHT}" fill="{colour}">{escape(name)}</text>'

    def _axes(self) -> Iterable[str]:
        bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
        for nodes in self._nodes:
            x = self._x(nodes)
            yield f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{bottom}" stroke="#eee"/>'
            yield f'<text x="{x:.1f}" y="{bottom + 14}" text-anchor="middle">{nodes:,}</text>'
        for value in ticks(self._start):
            y = self._y(value)
            yield f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#eee"/>'
            yield f'<text x="{_LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{value:,.10g}</text>'
        yield f'<text x="{(_LEFT + right) / 2:.0f}" y="{bottom + 28}" text-anchor="middle" fill="#555">nodes</text>'

    def _x(self, nodes: float) -> float:
        first, last = self._nodes[0], self._nodes[-1]
        inset = 14
        width = _WIDTH - _LEFT - _RIGHT - 2 * inset
        return _LEFT + inset + width * math.log(nodes / first) / math.log(last / first)

    def _y(self, value: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * math.log10(value / self._start) / _DECADES

    def _polyline(self, line: Line, style: str) -> str:
        points = " ".join(f"{self._x(nodes):.1f},{self._y(value):.1f}" for nodes, value in line)
        return f'<polyline fill="none" {style} points="{points}"/>'
