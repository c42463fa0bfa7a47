"""Check that the project names one version everywhere, and that the tag of a release is that version.

Usage: python tools/check_version.py [TAG]
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
_PLACES = {
    "pyproject.toml": re.compile(r'^version = "(.+)"$', re.MULTILINE),
    "src/dray/__init__.py": re.compile(r'^__version__ = "(.+)"$', re.MULTILINE),
    "CHANGELOG.md": re.compile(r"^## (\d\S*)", re.MULTILINE),
}


def main(arguments: list[str]) -> int:
    """Print the version, or the places that differ."""
    versions = {place: _version_in(place) for place in _PLACES}
    if arguments:
        versions["the tag"] = arguments[0].removeprefix("v")
    if len(set(versions.values())) > 1:
        print("the versions differ: " + ", ".join(f"{place} has {version}" for place, version in versions.items()))
        return 1
    print(versions["pyproject.toml"])
    return 0


def _version_in(place: str) -> str:
    found = _PLACES[place].search((ROOT / place).read_text(encoding="utf-8"))
    return found[1] if found else "none"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
