"""The content of device metadata files: versions, streams, validation, paths."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from dray.api.device_metadata import (
    FILE_BYTES_MAX,
    ClaimReference,
    DeviceMetadata,
    DeviceMetadataError,
    MetadataDevice,
    MetadataRequest,
    check_versions,
    container_path,
    decode,
    encode,
    merge,
    request_folder,
)
from dray.api.types.resource_v1 import DeviceAttribute, NetworkDeviceData

CLAIM = ClaimReference(name="c", namespace="default", uid="u", generation=3)
NIC = MetadataDevice(
    driver="nic.example.com",
    pool="node-1",
    name="vf-0",
    attributes={
        "vlan": DeviceAttribute(int_=7),
        "resource.kubernetes.io/pciBusID": DeviceAttribute(string="0000:3b:00.1"),
    },
    network_data=NetworkDeviceData(interface_name="net1", ips=("10.0.0.2/24",), hardware_address="02:00:00:00:00:01"),
)
METADATA = DeviceMetadata(
    metadata=CLAIM, pod_claim_name="net", requests=(MetadataRequest(name="vf/fast", devices=(NIC,)),)
)


def document(version: str = "metadata.resource.k8s.io/v1beta1", **changes: Any) -> bytes:
    body = {"apiVersion": version, "kind": "DeviceMetadata", "metadata": {"name": "c", "namespace": "n", "uid": "u"}}
    return orjson.dumps({**body, **changes})


@pytest.mark.behaviour("N-30")
def test_the_same_data_once_per_version_in_the_chosen_order() -> None:
    content = encode(METADATA, ("v1beta1", "v1alpha1"))
    first, second = [orjson.loads(line) for line in content.splitlines()]
    assert first == {
        "apiVersion": "metadata.resource.k8s.io/v1beta1",
        "kind": "DeviceMetadata",
        "metadata": {"name": "c", "namespace": "default", "uid": "u", "generation": 3},
        "podClaimName": "net",
        "requests": [
            {
                "name": "vf/fast",
                "devices": [
                    {
                        "driver": "nic.example.com",
                        "pool": "node-1",
                        "name": "vf-0",
                        "attributes": {
                            "vlan": {"int": 7},
                            "resource.kubernetes.io/pciBusID": {"string": "0000:3b:00.1"},
                        },
                        "networkData": {
                            "interfaceName": "net1",
                            "ips": ["10.0.0.2/24"],
                            "hardwareAddress": "02:00:00:00:00:01",
                        },
                    }
                ],
            }
        ],
    }
    assert second == {**first, "apiVersion": "metadata.resource.k8s.io/v1alpha1"}
    assert decode(content) == METADATA
    assert decode(encode(METADATA, ("v1alpha1", "v1beta1"))) == METADATA


@pytest.mark.behaviour("N-35")
def test_unknown_versions_and_fields_are_skipped() -> None:
    newer = document("metadata.resource.k8s.io/v9", metadata="another form")
    known = document(requests=[{"name": "r", "colour": "red"}], later={})
    assert decode(newer + b"\n \n" + known).requests == (MetadataRequest(name="r"),)
    with pytest.raises(DeviceMetadataError) as refused:
        decode(newer + document("other/v1beta1"))
    assert str(refused.value) == (
        "no compatible metadata version found in stream (unknown versions: "
        "metadata.resource.k8s.io/v9, Kind=DeviceMetadata, other/v1beta1, Kind=DeviceMetadata)"
    )


@pytest.mark.behaviour("N-35")
@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "no compatible metadata version"),
        (b"{", "malformed metadata"),
        (b"[]", "not a JSON object"),
        (b"\xff", "malformed metadata"),
        (b"[" * 100_000, "malformed metadata"),
        (b" " * (FILE_BYTES_MAX + 1), "more than"),
        # An object of an unknown version does not excuse a malformed one after it.
        (document("x/v9") + b"{", "malformed metadata"),
        (document(metadata={}), "malformed metadata"),
        (document(metadata={"name": "", "namespace": "n", "uid": "u"}), "metadata.name: Required value"),
        (document(requests=[{"name": 1}]), "malformed metadata"),
        (document(requests=[{"name": "r", "devices": [{"driver": "D_", "pool": "p", "name": "x"}]}]), "driver"),
        (document(requests=[{"name": "r", "devices": [{"driver": "d", "pool": "P//", "name": "x"}]}]), "pool"),
    ],
)
def test_malformed_files(content: bytes, text: str) -> None:
    with pytest.raises(DeviceMetadataError, match=text):
        decode(content)


@pytest.mark.behaviour("N-35")
@pytest.mark.parametrize(
    "attributes",
    [
        {"a": DeviceAttribute()},
        {"a": DeviceAttribute(int_=1, string="x")},
        {"a": DeviceAttribute(string="x" * 65)},
        {f"a{number}": DeviceAttribute(int_=number) for number in range(33)},
        {"not a name": DeviceAttribute(int_=1)},
    ],
)
def test_attributes_have_the_limits_of_slices(attributes: dict[str, DeviceAttribute]) -> None:
    device = MetadataDevice(driver="d", pool="p", name="x", attributes=attributes)
    with pytest.raises(DeviceMetadataError, match="invalid metadata"):
        encode(DeviceMetadata(metadata=CLAIM, requests=(MetadataRequest(name="r", devices=(device,)),)), ["v1beta1"])


@pytest.mark.behaviour("N-31")
@pytest.mark.parametrize(
    ("versions", "text"),
    [
        ((), "metadata versions must be explicitly selected, none chosen"),
        (("v1beta1", "v9"), "unknown metadata versions: v9"),
        (("v1alpha1",), "metadata version v1beta1 must be selected"),
        (("v1beta1", "v1beta1"), "selected twice"),
    ],
)
def test_versions_that_a_driver_cannot_choose(versions: tuple[str, ...], text: str) -> None:
    with pytest.raises(DeviceMetadataError, match=text):
        check_versions(versions)


@pytest.mark.behaviour("N-25", "N-26")
def test_paths_in_containers() -> None:
    root = "/var/run/kubernetes.io/dra-device-attributes"
    named = DeviceMetadata(metadata=CLAIM)
    assert container_path(named, "vf/fast", "nic.example.com") == (
        f"{root}/resourceclaims/c/vf/nic.example.com-metadata.json"
    )
    assert container_path(METADATA, "vf/fast", "nic.example.com") == (
        f"{root}/resourceclaimtemplates/net/vf/nic.example.com-metadata.json"
    )


@pytest.mark.parametrize("name", ["..", "", ".", "/etc", "a/../b"])
def test_paths_never_leave_their_folder(name: str) -> None:
    with pytest.raises(DeviceMetadataError, match="invalid name"):
        request_folder("/root", name, "", "r")


@pytest.mark.parametrize("request_name", ["..", "", "/etc"])
def test_requests_are_names_too(request_name: str) -> None:
    with pytest.raises(DeviceMetadataError, match="invalid name"):
        request_folder("/root", "c", "", request_name)


def test_files_of_several_drivers_are_merged() -> None:
    other = MetadataDevice(driver="gpu.example.com", pool="p", name="gpu-0")
    merged = merge(
        [
            METADATA,
            DeviceMetadata(metadata=CLAIM, requests=(MetadataRequest(name="vf/fast", devices=(other,)),)),
        ]
    )
    assert merged.devices == (NIC, other)
    assert [request.name for request in merged.requests] == ["vf/fast"]
    with pytest.raises(DeviceMetadataError, match="different claims"):
        merge([METADATA, DeviceMetadata(metadata=ClaimReference(name="c", namespace="default", uid="another"))])
