"""Every colour that carries text keeps WCAG's AA contrast of 4.5 to 1, in both themes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import dray.dashboard

STYLE = (Path(dray.dashboard.__file__).parent / "static" / "style.css").read_text()
STATES = ("free", "used", "partly", "tainted", "unhealthy", "unusable")
PAIRS = [
    *((f"{state}-ink", state) for state in STATES),
    *((text, ground) for text in ("ink", "soft", "accent", "bad", "warn") for ground in ("ground", "card", "hover")),
    # The button, and messages.
    ("card", "accent"),
    ("card", "ink"),
]


def palette(dark: bool) -> dict[str, str]:
    light_block, dark_block = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)
    names = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", light_block))
    return names | dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", dark_block)) if dark else names


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def test_the_measure_is_right() -> None:
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize(("text", "ground"), PAIRS)
def test_text_can_be_read(text: str, ground: str, dark: bool) -> None:
    colours = palette(dark)
    assert contrast(colours[text], colours[ground]) >= 4.5
