"""Reads what `dray up` needs of files: the shapes of simulated devices, and the snapshot to start from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

import yaml

from dray.api.document import Document
from dray.cli.manifests import read_snapshot
from dray.runtime.settings import SettingsError
from dray.sim.device_shapes import Shape, ShapeError, Wanted, parse_devices, read_shapes
from dray.sim.replica.contents import contents
from dray.sim.snapshot import Snapshot, SnapshotError


def read_devices(texts: Sequence[str]) -> tuple[Wanted, ...]:
    """Return the devices that `--devices` asks for."""
    try:
        return parse_devices(texts, read_catalogue(), _read_file)
    except ShapeError as error:
        raise SettingsError(f"--devices: {error}") from error


def read_catalogue() -> Mapping[str, Shape]:
    """Return the shapes that Dray has, by name."""
    text = files("dray.sim").joinpath("data", "device_shapes.yaml").read_text(encoding="utf-8")
    return read_shapes(yaml.safe_load(text), "the catalogue")


def _read_file(path: str) -> Mapping[str, Shape]:
    try:
        return read_shapes(yaml.safe_load(Path(path).read_text(encoding="utf-8")), path)
    except OSError as error:
        raise ShapeError(f"cannot read {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ShapeError(f"{path}: not valid YAML: {error}") from error


def read_start(path: str, data_dir: Path) -> list[Document]:
    """Return the objects of a snapshot to start with; the data directory must have no cluster yet."""
    if (data_dir / "state.db").exists():
        raise SettingsError(f"--from: there is a cluster in {data_dir}; specify another --data-dir, or remove it")
    try:
        snapshot: Snapshot = read_snapshot([path])
    except SnapshotError as error:
        raise SettingsError(f"--from: {error}") from error
    if not snapshot.documents.get("Node"):
        raise SettingsError(f"--from: {path} has no nodes; is it what `dray snapshot` wrote?")
    return list(contents(snapshot))
