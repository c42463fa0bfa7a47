"""The section "Where a change goes" names every file that such a change touches.

Each entry has a marker: names that an earlier change of this kind has left wherever it went. A file in which one occurs
must be named, or be in a directory that is; and what is named must exist.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src/dray"
PAGE = (ROOT / "docs/development.md").read_text()
# Generated from what the entries name.
GENERATED = ("api/types", "api/schema/data", "rpc/pb")


class Marker(NamedTuple):
    """What an earlier change has left, and where the same words mean something else."""

    pattern: str
    otherwise: tuple[str, ...] = ()


MARKERS = {
    "A field of DeviceRequest": Marker(
        r"allocation_mode|allocationMode",
        # The classic API has a field of this name.
        (
            "api/classic_claims.py",
            "api/defaults/other_groups.py",
            "api/validation/cdi_v1alpha1.py",
            "apiserver/registry/cdi.py",
            "cli/conformance/classic_harness.py",
            "cli/conformance/requirements.py",
            "api/shorthands.py",
            "sim/kept_fields.py",
        ),
    ),
    "A device constraint": Marker("distinctAttribute|distinct_attribute|DistinctAttribute"),
    "An extension point of the scheduler": Marker("PreBindPreFlight|pre_bind_pre_flight"),
    "A streaming subresource": Marker("portforward|portForward|port_forward|PortForward"),
    "An admission plugin that waits": Marker("NodeDeclaredFeatureValidator"),
    "A controller": Marker("DeploymentController|deployment-controller"),
    "A store": Marker('SQLiteStore|"sqlite"'),
    "A gRPC version of the driver API": Marker(r"v1beta1\.DRAPlugin|DRA_SERVICES"),
}


def entry(title: str) -> str:
    """Return the text of an entry, without its tests."""
    section = PAGE.split("## Where a change goes", 1)[1]
    found = re.search(rf"^### {re.escape(title)}\n(.*?)(?=^Tests:|^##|\Z)", section, re.DOTALL | re.MULTILINE)
    assert found is not None, f"no entry {title}"
    return found[1]


def named(title: str) -> set[Path]:
    """Return the files and directories that an entry names."""
    paths: set[Path] = set()
    for word in re.findall(r"`([\w./-]+)`", entry(title)):
        places = [place for place in (SOURCE / word, ROOT / word, SOURCE / f"{word}.py") if place.exists()]
        if "/" in word:
            assert places, f"{title}: {word} does not exist"
        paths.update(places)
    return paths


def touched(marker: Marker) -> list[Path]:
    """Return the files of the package in which a marker occurs."""
    left_out = {SOURCE / name for name in (*GENERATED, *marker.otherwise)}
    return [
        path
        for path in sorted(SOURCE.rglob("*.py"))
        if not left_out & {path, *path.parents} and re.search(marker.pattern, path.read_text())
    ]


def test_every_entry_has_a_marker() -> None:
    section = PAGE.split("## Where a change goes", 1)[1]
    assert set(re.findall(r"^### (.*)$", section, re.MULTILINE)) == set(MARKERS)


@pytest.mark.parametrize("title", MARKERS)
def test_an_entry_names_every_file_that_an_earlier_change_touched(title: str) -> None:
    places, files = named(title), touched(MARKERS[title])
    missing = [str(path.relative_to(SOURCE)) for path in files if not places & {path, *path.parents}]
    assert not missing, f"docs/development.md, {title}: name these files"


@pytest.mark.parametrize("title", MARKERS)
def test_a_marker_occurs(title: str) -> None:
    assert len(touched(MARKERS[title])) > 1
