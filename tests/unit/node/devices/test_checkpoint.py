"""The checkpoint's form, and what a damaged one means."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import orjson
import pytest

from dray.node.checkpoint_file import Loaded
from dray.node.devices.assignments import Assignment, AssignmentKey
from dray.node.devices.checkpoint import Checkpoint, CheckpointError, decode, encode
from dray.node.devices.files import load_checkpoint
from tests.unit.node.devices.builders import BAR, FOO

STATE = Checkpoint(
    (
        (AssignmentKey("u1", "main", FOO), Assignment({-1: ("d1",), 0: ("d2", "d10")}, b"\n\x04\n\x01A")),
        (AssignmentKey("u2", "x", BAR), Assignment({1: ("e",)}, b"")),
    ),
    {FOO: ("d1", "d2", "d10"), BAR: ()},
)


@pytest.mark.behaviour("DP-44")
def test_form() -> None:
    content = json.loads(encode(STATE))
    assert content["Data"] == {
        "PodDeviceEntries": [
            {
                "PodUID": "u1",
                "ContainerName": "main",
                "ResourceName": "vendor.com/foo",
                "DeviceIDs": {"-1": ["d1"], "0": ["d2", "d10"]},
                "AllocResp": "CgQKAUE=",
            },
            {
                "PodUID": "u2",
                "ContainerName": "x",
                "ResourceName": "vendor.com/bar",
                "DeviceIDs": {"1": ["e"]},
                "AllocResp": "",
            },
        ],
        "RegisteredDevices": {"vendor.com/bar": [], "vendor.com/foo": ["d1", "d2", "d10"]},
    }
    assert isinstance(content["Checksum"], int)


@pytest.mark.behaviour("DP-44")
def test_round_trip() -> None:
    assert decode(encode(STATE)) == STATE


ENTRY = {
    "PodUID": "p",
    "ContainerName": "c",
    "ResourceName": "example.com/a",
    "DeviceIDs": {"-": ["d1"]},
    "AllocResp": "",
}


def whole(data: Any) -> bytes:
    """A file whose checksum is right."""
    return orjson.dumps({"Data": data, "Checksum": zlib.crc32(orjson.dumps(data, option=orjson.OPT_SORT_KEYS))})


BROKEN = {
    "empty": b"",
    "no JSON": b"{",
    "another form": b"[]",
    "no checksum": b'{"Data": {}}',
    "changed": encode(STATE).replace(b"d10", b"d11"),
    "cut": encode(STATE)[:-20],
    "a node without a number": whole(
        {"PodDeviceEntries": [{**ENTRY, "DeviceIDs": {"-": ["d1"]}}], "RegisteredDevices": {}}
    ),
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_damage_is_seen(content: bytes) -> None:
    with pytest.raises(CheckpointError, match="corrupted"):
        decode(content)


@pytest.mark.behaviour("DP-46")
@pytest.mark.parametrize("content", [None, *BROKEN.values()], ids=["missing", *BROKEN])
def test_without_a_good_file_the_beginning_is_empty(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "kubelet_internal_checkpoint"
    if content is not None:
        path.write_bytes(content)
    assert load_checkpoint(str(path)).state is None


def test_it_is_read_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "kubelet_internal_checkpoint"
    path.write_bytes(encode(STATE))
    assert load_checkpoint(str(path)) == Loaded(STATE)
