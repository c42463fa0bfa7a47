"""The checkpoint file: Kubernetes' own form, and refusing what is damaged."""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from dray.api.document import UID, NamespacedName
from dray.node.checkpoint_file import Loaded
from dray.node.dra.checkpoint import CheckpointError, Encoded, decode, encode
from dray.node.dra.claim_manager import load_checkpoint
from dray.node.dra.claims import AllocatedDevice, ClaimInfo, Device

CLAIM = ClaimInfo(
    UID("claim-uid"),
    NamespacedName("default", "gpu"),
    {
        "gpu.example.com": (
            Device("pool", "gpu-0", None, ("req",), ("example.com/gpu=0",)),
            Device("pool", "gpu-1", "share"),
        )
    },
    frozenset({UID("pod-b"), UID("pod-a")}),
)

# As kubelet writes it: the text of Data, and its CRC-32.
DATA = (
    '{"kind":"DRACheckpoint","apiVersion":"checkpoint.dra.kubelet.k8s.io/v1","ClaimInfoStateList":['
    '{"ClaimUID":"claim-uid","ClaimName":"gpu","Namespace":"default","PodUIDs":{"pod-a":{},"pod-b":{}},'
    '"DriverState":{"gpu.example.com":{"Devices":['
    '{"PoolName":"pool","DeviceName":"gpu-0","ShareID":null,"RequestNames":["req"],"CDIDeviceIDs":["example.com/gpu=0"]},'
    '{"PoolName":"pool","DeviceName":"gpu-1","ShareID":"share","RequestNames":[],"CDIDeviceIDs":[]}]}}}]}'
)


def wrapped(data: str, checksum: int | None = None) -> bytes:
    return orjson.dumps({"Data": data, "Checksum": zlib.crc32(data.encode()) if checksum is None else checksum})


@pytest.mark.behaviour("SP-119")
def test_the_form_is_kubelets() -> None:
    assert orjson.loads(encode([CLAIM])) == {"Data": DATA, "Checksum": zlib.crc32(DATA.encode())}
    assert decode(wrapped(DATA)) == (CLAIM,)


@pytest.mark.behaviour("PR-11")
def test_the_class_is_kept_beside_what_kubelet_keeps() -> None:
    claim = replace(CLAIM, class_name="gpu,nic")
    assert decode(encode([claim])) == (claim,)
    assert '"ClassName":"gpu,nic"' in orjson.loads(encode([claim]))["Data"]


@pytest.mark.behaviour("SP-147")
def test_the_allocated_devices_are_kept_beside_what_kubelet_keeps() -> None:
    claim = replace(CLAIM, allocated=frozenset({AllocatedDevice("gpu.example.com", "pool", "gpu-0")}))
    assert decode(encode([claim])) == (claim,)
    data = orjson.loads(encode([claim]))["Data"]
    for damaged in ('[["a","b"]]', "[7]", "[[[],[],[]]]"):
        with pytest.raises(CheckpointError):
            decode(wrapped(data.replace('[["gpu.example.com","pool","gpu-0"]]', damaged)))


def test_what_was_written_before_changes_nothing_in_the_file() -> None:
    written: Encoded = {}
    other = replace(CLAIM, uid=UID("other"), key=NamespacedName("default", 'a "quoted" name \u00e9'))
    for claims in ([], [CLAIM], [CLAIM, other], [replace(CLAIM, class_name="gpu"), other], [other], []):
        assert encode(claims, written) == encode(claims)
        assert decode(encode(claims, written)) == tuple(claims)
        assert written.keys() == {claim.uid for claim in claims}


@pytest.mark.behaviour("SP-119")
def test_go_writes_null_for_empty_lists() -> None:
    data = DATA.replace('"RequestNames":[],"CDIDeviceIDs":[]', '"RequestNames":null,"CDIDeviceIDs":null')
    assert decode(wrapped(data)) == (CLAIM,)
    empty = '{"kind":"DRACheckpoint","apiVersion":"checkpoint.dra.kubelet.k8s.io/v1","ClaimInfoStateList":null}'
    assert decode(wrapped(empty)) == ()


@pytest.mark.behaviour("SP-119")
@pytest.mark.parametrize(
    "content",
    {
        "a changed byte": wrapped(DATA, 1),
        "cut off": wrapped(DATA)[:-20],
        "empty": b"",
        "not an object": b"[]",
        "no checksum": orjson.dumps({"Data": DATA}),
        "data is no text": orjson.dumps({"Data": {}, "Checksum": 0}),
        "data is no JSON": wrapped("{"),
        "claim without a name": wrapped(DATA.replace('"ClaimName":"gpu",', "")),
    }.items(),
    ids=lambda item: item[0],
)
def test_a_damaged_file_is_not_used(content: tuple[str, bytes], tmp_path: Path) -> None:
    path = tmp_path / "dra_manager_state"
    path.write_bytes(content[1])
    loaded = load_checkpoint(str(path))
    assert loaded.state is None
    assert f"{path}: checkpoint is corrupted" in loaded.damage


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"unknown kind: DRACheckpoint checkpoint.dra.kubelet.k8s.io/v9"):
        decode(wrapped(DATA.replace("k8s.io/v1", "k8s.io/v9")))


def test_it_is_read_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "dra_manager_state"
    assert load_checkpoint(str(path)) == Loaded(None)
    path.write_bytes(encode([CLAIM]))
    assert load_checkpoint(str(path)) == Loaded((CLAIM,))
