"""Metadata files of prepared claims: written, mounted by CDI, updated, read and removed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from dray.api.codec import from_document
from dray.api.document import UID, NamespacedName
from dray.api.types.resource_v1 import NetworkDeviceData, ResourceClaim
from dray.driver.claims import AllocatedDevice, Claim, PreparedClaim, PreparedDevice
from dray.driver.metadata import DeviceMetadataError, read_all, read_claim, read_file, read_template_claim
from dray.driver.metadata.reader import FOLDER_VARIABLE
from dray.driver.metadata.writer import MetadataWriter
from dray.driver.prepared.cdi import claim_spec
from dray.driver.prepared.checkpoint import AnsweredDevice

DRIVER = "nic.example.com"
UID_A = UID("1d6c3f0e-0000-4000-8000-000000000000")
DEVICES = (
    AllocatedDevice("vf/fast", "p", "vf-0"),
    AllocatedDevice("vf/fast", "p", "vf-1"),
    AllocatedDevice("gpu", "p", "g"),
)


def claim(uid: UID = UID_A, *, entry: str = "") -> Claim:
    annotations = {"resource.kubernetes.io/pod-claim-name": entry} if entry else {}
    metadata = {"name": "c", "namespace": "default", "uid": uid, "annotations": annotations}
    return Claim(uid, NamespacedName("default", "c"), DEVICES, from_document(ResourceClaim, {"metadata": metadata}))


def prepared_claim(uid: UID = UID_A) -> PreparedClaim:
    return PreparedClaim(uid, NamespacedName("default", "c"), DEVICES)


def prepared() -> list[PreparedDevice]:
    return [item.prepared(attributes={"index": number}) for number, item in enumerate(DEVICES)]


@pytest.fixture
def writer(tmp_path: Path) -> MetadataWriter:
    (tmp_path / "plugin").mkdir(mode=0o750)
    return MetadataWriter(DRIVER, str(tmp_path / "plugin"), str(tmp_path / "cdi"), ("v1beta1", "v1alpha1"))


def add(writer: MetadataWriter, claim: Claim) -> tuple[AnsweredDevice, ...]:
    items = prepared()
    return writer.add(claim, items, claim_spec(DRIVER, claim.uid, items)[1])


def host_file(tmp_path: Path, request: str = "vf") -> Path:
    return tmp_path / f"plugin/dra-device-metadata/default_c/{request}/metadata.json"


@pytest.mark.behaviour("N-24", "N-27", "N-28", "N-29")
def test_one_file_and_one_cdi_device_per_request(writer: MetadataWriter, tmp_path: Path) -> None:
    answer = add(writer, claim())
    names = [f"{DRIVER}/metadata={UID_A}_{request}" for request in ("vf", "gpu")]
    assert [item.cdi_device_ids for item in answer] == [(names[0],), (), (names[1],)]
    path = host_file(tmp_path)
    assert path.stat().st_mode & 0o777 == 0o644
    assert {
        folder.stat().st_mode & 0o777 for folder in (path.parent, path.parent.parent, path.parent.parent.parent)
    } == {0o755}
    spec = orjson.loads((tmp_path / f"cdi/{DRIVER}_metadata_{UID_A}_vf.json").read_bytes())
    assert spec == {
        "cdiVersion": "0.5.0",
        "kind": f"{DRIVER}/metadata",
        "devices": [
            {
                "name": f"{UID_A}_vf",
                "containerEdits": {
                    "mounts": [
                        {
                            "hostPath": str(path),
                            "containerPath": "/var/run/kubernetes.io/dra-device-attributes/resourceclaims/c/vf/"
                            f"{DRIVER}-metadata.json",
                            "options": ["ro", "bind"],
                        }
                    ]
                },
            }
        ],
    }
    found = read_file(path)
    assert (found.metadata.name, found.metadata.uid, found.metadata.generation) == ("c", UID_A, 1)
    assert [(request.name, [item.name for item in request.devices]) for request in found.requests] == [
        ("vf/fast", ["vf-0", "vf-1"])
    ]
    assert found.devices[1].attributes["index"].int_ == 1


@pytest.mark.behaviour("N-26")
def test_a_claim_from_a_template_has_the_name_of_the_pods_entry(writer: MetadataWriter, tmp_path: Path) -> None:
    add(writer, claim(entry="net"))
    assert read_file(host_file(tmp_path)).pod_claim_name == "net"
    spec = (tmp_path / f"cdi/{DRIVER}_metadata_{UID_A}_vf.json").read_text()
    assert f"/resourceclaimtemplates/net/vf/{DRIVER}-metadata.json" in spec


@pytest.mark.behaviour("N-32")
def test_a_claim_is_prepared_without_metadata_that_cannot_be_written(writer: MetadataWriter, tmp_path: Path) -> None:
    items = [DEVICES[0].prepared(attributes={"a": "x" * 100}), DEVICES[2].prepared()]
    answer = claim_spec(DRIVER, UID_A, items)[1]
    assert [len(item.cdi_device_ids) for item in writer.add(claim(), items, answer)] == [0, 1]
    # A folder where a file should be.
    (tmp_path / f"cdi/{DRIVER}_metadata_{UID_A}_gpu.json").unlink()
    (tmp_path / f"cdi/{DRIVER}_metadata_{UID_A}_gpu.json/x").mkdir(parents=True)
    assert writer.add(claim(), items, answer) == answer


@pytest.mark.behaviour("N-33")
def test_a_request_is_updated(writer: MetadataWriter, tmp_path: Path) -> None:
    add(writer, claim(entry="net"))
    network = NetworkDeviceData(interface_name="net1", ips=("10.0.0.2/24",))
    before = host_file(tmp_path).stat().st_ino
    writer.update(prepared_claim(), "vf", [DEVICES[0].prepared(network=network)])
    found = read_file(host_file(tmp_path))
    assert (found.metadata.generation, found.pod_claim_name, found.devices[0].network_data) == (2, "net", network)
    assert host_file(tmp_path).stat().st_ino != before
    for request, uid, devices in (
        ("none", UID_A, DEVICES[:1]),
        ("vf", UID("other"), DEVICES[:1]),
        ("vf", UID_A, DEVICES[2:]),
    ):
        with pytest.raises(DeviceMetadataError, match="claim default/c: "):
            writer.update(prepared_claim(uid), request, [item.prepared() for item in devices])
    assert read_file(host_file(tmp_path)) == found


@pytest.mark.behaviour("N-34")
def test_files_are_removed_with_the_claim(writer: MetadataWriter, tmp_path: Path) -> None:
    writer.remove(prepared_claim())
    answer = add(writer, claim())
    assert writer.is_intact(answer)
    (tmp_path / "cdi" / "other.json").write_text("{}")
    # A claim of the same name that was prepared before the first was unprepared.
    add(writer, claim(UID("b")))
    writer.remove(prepared_claim())
    assert not writer.is_intact(answer)
    assert read_file(host_file(tmp_path)).metadata.uid == "b"
    writer.remove(prepared_claim(UID("b")))
    assert not host_file(tmp_path).parent.parent.exists()
    assert [path.name for path in (tmp_path / "cdi").iterdir()] == ["other.json"]


@pytest.mark.behaviour("N-35")
def test_a_container_reads_the_files_of_all_drivers(
    writer: MetadataWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(writer, claim())
    content = host_file(tmp_path).read_bytes()
    root = tmp_path / "container"
    for kind, name in (("resourceclaims", "c"), ("resourceclaimtemplates", "net")):
        folder = root / kind / name / "vf"
        folder.mkdir(parents=True)
        for driver in (DRIVER, "gpu.example.com"):
            (folder / f"{driver}-metadata.json").write_bytes(content.replace(DRIVER.encode(), driver.encode()))
    assert read_all(root=str(tmp_path / "none")) == ()
    monkeypatch.setenv(FOLDER_VARIABLE, str(root))
    assert {item.driver for item in read_claim("c", "vf/fast").devices} == {DRIVER, "gpu.example.com"}
    assert read_template_claim("net", "vf") == read_claim("c", "vf")
    assert len(read_all()) == 2
    with pytest.raises(DeviceMetadataError, match="no metadata files"):
        read_claim("c", "none")
    printed = subprocess.run(
        [sys.executable, "-m", "dray.driver.metadata"], capture_output=True, text=True, check=True, timeout=60
    )
    assert [orjson.loads(line)["metadata"]["name"] for line in printed.stdout.splitlines()] == ["c", "c"]
