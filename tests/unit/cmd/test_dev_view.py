"""The live view of `dray dev`."""

from __future__ import annotations

from datetime import UTC, datetime

from dray.cmd.dev.view import NO_SLICES, screen, tables
from dray.sim.snapshot import Snapshot

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SLICE = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceSlice",
    "metadata": {"name": "s"},
    "spec": {
        "driver": "lamp.example.com",
        "nodeName": "n",
        "pool": {"name": "n", "generation": 3, "resourceSliceCount": 1},
        "devices": [{"name": "red"}, {"name": "blue"}],
    },
}


def test_what_there_is_none_of_is_said() -> None:
    assert tables(Snapshot(), NOW, colour=False) == f"{NO_SLICES}\nNo claims found.\n"


def test_slices_and_devices_are_tables() -> None:
    lines = [line.split() for line in tables(Snapshot.of([SLICE]), NOW, colour=False).splitlines()]
    assert lines[:2] == [
        ["SLICE", "DRIVER", "POOL", "GENERATION", "DEVICES"],
        ["s", "lamp.example.com", "n", "3", "red,blue"],
    ]
    assert sorted(line[2] for line in lines[4:6]) == ["blue", "red"]


def test_the_screen_has_what_the_driver_said_last() -> None:
    assert screen("runs", "TABLE\n", ["a", "b"], 24) == "runs\n\nTABLE\n\ndriver | a\ndriver | b\n"
    assert screen("runs", "", [], 24) == "runs\n"


def test_tables_that_do_not_fit_are_cut_and_the_rest_is_counted() -> None:
    text = screen("runs", "row\n" * 30, ["a"], 24)
    assert text.count("row\n") == 18
    assert "… and 12 more lines: see dray devices and dray claims\n" in text
    assert len(text.splitlines()) < 24
    assert screen("runs", "row\n" * 30, ["a"], 1).count("row\n") == 5
