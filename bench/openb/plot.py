"""Draws allocation over arrival as SVG: a line for each policy run, dotted ones for published results. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Final
from xml.sax.saxutils import escape

Curve = Sequence[tuple[int, float]]

_WIDTH, _HEIGHT = 760, 420
_LEFT, _TOP, _RIGHT, _BOTTOM = 60, 40, 170, 50
_ARRIVED_MAX: Final = 130
# What is below is of no interest: nearly everything fits.
_FROM_PERCENT: Final = 60
_STEP: Final = 10
_COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")


def mean_curve(curves: Sequence[Curve]) -> list[tuple[int, float]]:
    """Return the mean of several runs at every percent of arrival."""
    found: list[tuple[int, float]] = []
    for percent in range(_ARRIVED_MAX + 1):
        values = [next((at for arrived, at in curve if arrived >= percent), curve[-1][1]) for curve in curves]
        found.append((percent, fmean(values)))
    return found


def draw(title: str, curves: Mapping[str, Curve], published: Mapping[str, Mapping[int, float]]) -> str:
    """Return the picture."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="22" font-size="15">{escape(title)}</text>',
        *_axes(),
    ]
    labels: list[tuple[float, str, str]] = []
    for colour, (name, curve) in zip(_COLOURS, curves.items(), strict=False):
        parts.append(_line(curve, f'stroke="{colour}" stroke-width="2"'))
        labels.append((curve[-1][1], name, colour))
    for name, at in published.items():
        parts.append(_line(sorted(at.items()), 'stroke="#777" stroke-dasharray="2 3"'))
        labels.append((at[max(at)], f"{name} (published)", "#555"))
    return "\n".join([*parts, *_labels(labels), "</svg>"]) + "\n"


def _x(arrived: float) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (arrived - _FROM_PERCENT) / (_ARRIVED_MAX - _FROM_PERCENT)


def _y(allocated: float) -> float:
    return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * (allocated - _FROM_PERCENT) / (100 - _FROM_PERCENT)


def _axes() -> Iterable[str]:
    for percent in range(_FROM_PERCENT, _ARRIVED_MAX + 1, _STEP):
        x = _x(percent)
        yield f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{_HEIGHT - _BOTTOM}" stroke="#eee"/>'
        yield f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{percent}</text>'
    for percent in range(_FROM_PERCENT, 101, _STEP):
        y = _y(percent)
        yield f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}" stroke="#eee"/>'
        yield f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{percent}</text>'
    x, y = (_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 12
    yield f'<text x="{x:.1f}" y="{y}" text-anchor="middle">GPUs requested by Pods that arrived, %</text>'
    yield f'<text transform="translate(16 {_HEIGHT / 2:.0f}) rotate(-90)" text-anchor="middle">GPUs allocated, %</text>'


def _line(curve: Curve, style: str) -> str:
    points = " ".join(f"{_x(at):.1f},{_y(value):.1f}" for at, value in curve if at >= _FROM_PERCENT <= value)
    return f'<polyline fill="none" {style} points="{points}"/>'


def _labels(labels: Iterable[tuple[float, str, str]]) -> Iterable[str]:
    """Yield the names at the right, the highest first, moved apart where they would overlap."""
    lowest = 0.0
    for value, name, colour in sorted(labels, reverse=True):
        y = max(_y(value) + 4, lowest + 14)
        lowest = y
        text = escape(f"{name} {value:.1f}")
        yield f'<text x="{_WIDTH - _RIGHT + 8}" y="{y:.1f}" fill="{colour}">{text}</text>'
