"""`dray cel`: output and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dray.cli.cel import main

SLICES = """
apiVersion: v1
kind: List
items:
- apiVersion: resource.k8s.io/v1
  kind: ResourceSlice
  metadata: {name: a}
  spec:
    driver: gpu.example.com
    pool: {name: a}
    devices:
    - name: gpu-0
      attributes: {model: {string: A100}, index: {int: 0}}
      capacity: {memory: {value: 40Gi}}
    - name: gpu-1
      attributes: {model: {string: T4}}
---
apiVersion: resource.k8s.io/v1beta1
kind: ResourceSlice
metadata: {name: b}
spec:
  driver: gpu.example.com
  pool: {name: b}
  devices:
  - name: gpu-0
    basic: {attributes: {model: {string: A100}}}
"""
MODEL = 'device.attributes["gpu.example.com"].model == "A100"'


@pytest.fixture
def slices(tmp_path: Path) -> str:
    path = tmp_path / "slices.yaml"
    path.write_text(SLICES)
    return str(path)


def test_it_shows_which_devices_match(slices: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([MODEL, "--slices", slices]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("2 of 3 devices match")
    assert [line.split() for line in lines[1:4]] == [
        ["gpu.example.com/a/gpu-0", "matches"],
        ["gpu.example.com/a/gpu-1", "does", "not", "match"],
        ["gpu.example.com/b/gpu-0", "matches"],
    ]


def test_a_typing_mistake_gets_a_hint(slices: str, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = 'device.driver == "gpu.example.com" && device.attributes["gpu.example.com"].modle == "A100"'
    assert main([wrong, "--slices", slices]) == 1
    out = capsys.readouterr().out
    assert "0 of 3 devices match" in out
    assert "exists on 0 of 3 devices; did you mean `" in out
    assert "model`?" in out
    assert '3 of 3: device.driver == "gpu.example.com"' in out


def test_json(slices: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([MODEL, "--slices", slices, "-o", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [item["matches"] for item in answer["devices"]] == [True, False, True]


@pytest.mark.parametrize(
    ("expression", "text"), [("device.foo(", "Syntax error"), ("device.driver", "must evaluate to bool")]
)
def test_a_compile_error_has_its_position(
    slices: str, capsys: pytest.CaptureFixture[str], expression: str, text: str
) -> None:
    assert main([expression, "--slices", slices]) == 2
    assert text in capsys.readouterr().err


def test_a_missing_file(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([MODEL, "-f", "/does/not/exist.yaml"])
    assert end.value.code == 2
    assert "No such file" in capsys.readouterr().err
