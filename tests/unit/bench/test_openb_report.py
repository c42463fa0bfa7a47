"""The command of the trace benchmark: seeds, profiles, fragmentation in the end, and the picture."""

from __future__ import annotations

import argparse
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

import bench.openb
from bench.openb import __main__ as command
from bench.openb.fragmentation import unusable_percent
from bench.openb.objects import Share
from bench.openb.plot import draw, mean_curve
from bench.openb.trace import TraceNode, TracePod

SAMPLE = Path(bench.openb.__file__).parent / "sample"
SVG = "{http://www.w3.org/2000/svg}"


def test_seeds_are_numbers_and_ranges() -> None:
    assert command._seeds("42..44,7") == [42, 43, 44, 7]


def test_an_unknown_profile_is_named() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="'fast' is none of best-fit, fragmentation, pack, spread"):
        command._profiles("pack,fast")


def test_mean_of_runs_at_every_percent() -> None:
    curve = mean_curve([[(0, 0.0), (100, 80.0), (130, 90.0)], [(50, 40.0), (130, 100.0)]])
    assert curve[0] == (0, 20.0)
    assert curve[100] == (100, 90.0)
    assert curve[130] == (130, 95.0)


def test_the_picture_has_a_line_for_each_policy_and_dotted_ones_for_the_published() -> None:
    picture = draw("a & b", {"pack": [(60, 60.0), (130, 95.0)]}, {"FGD": {100: 95.2, 130: 95.4}})
    root = ET.fromstring(picture)
    lines = root.findall(f"{SVG}polyline")
    assert [line.get("stroke-dasharray") for line in lines] == [None, "2 3"]
    texts = [text.text for text in root.findall(f"{SVG}text")]
    assert "a & b" in texts
    assert "pack 95.0" in texts
    assert "FGD (published) 95.4" in texts


def test_free_gpus_that_no_typical_pod_can_use() -> None:
    nodes = [TraceNode("a", 4000, 4000, 2, "T4"), TraceNode("b", 1000, 1000, 2, "T4")]
    half, large = TracePod(1000, 1000, 1, 500), TracePod(1000, 1000, 1, 600)
    placements: list[tuple[TracePod, str | None]] = [(half, "a"), (large, "b"), (half, None), (large, None)]
    # Half of the Pods cannot use the half that is left on a; nobody can use b, which has no CPU left.
    shares = [Share("a", 0, 500), Share("b", 0, 600)]
    assert unusable_percent(nodes, placements, shares) == pytest.approx(100 * (0.5 * 500 + 1400) / 4000)


def test_the_command_prints_each_profile_and_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENB", str(SAMPLE))
    picture = tmp_path / "sample.svg"
    given = ["bench.openb", "sample", "--seeds", "3", "--profile", "pack,spread", "--plot", str(picture)]
    monkeypatch.setattr(sys, "argv", given)
    assert command.main() == 0
    printed = capsys.readouterr().out
    assert "sample, pack, 130 % arrived:" in printed
    assert "sample, spread: " in printed
    assert "% of the GPUs free but unusable" in printed
    assert len(ET.parse(picture).getroot().findall(f"{SVG}polyline")) == 2


def test_a_kept_run_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENB", str(SAMPLE))
    given = ["bench.openb", "sample", "--seeds", "3", "--profile", "pack", "--keep", str(tmp_path / "kept")]
    monkeypatch.setattr(sys, "argv", given)
    assert command.main() == 0
    first = capsys.readouterr().out
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["sample-pack-core-3.json"]

    def fail(*_args: object, **_given: object) -> None:
        raise AssertionError("the run is kept")

    monkeypatch.setattr(command, "run", fail)
    assert command.main() == 0
    assert capsys.readouterr().out == first
    monkeypatch.setattr(sys, "argv", [*given[:3], "4", *given[4:]])
    with pytest.raises(AssertionError, match="the run is kept"):
        command.main()


def test_the_bound_of_a_list_is_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("highspy")
    monkeypatch.setenv("OPENB", str(SAMPLE))
    monkeypatch.setattr(sys, "argv", ["bench.openb", "sample", "--seeds", "3", "--bound"])
    assert command.main() == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("sample, seed 3, 100 % arrived: at most ")
    at_100, at_130 = (float(line.rsplit(" ", 2)[1]) for line in (first, second))
    assert 50 < at_100 <= at_130 <= 100, "more Pods to choose from can only raise it"
