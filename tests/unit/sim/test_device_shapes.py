"""Simulated devices: what `--devices` means, and that the API accepts the slices of every shape."""

from __future__ import annotations

from typing import Any

import pytest

from dray.api.validation.resource_slice import validate_slice
from dray.cmd.simulated_devices import read_catalogue
from dray.sim.device_shapes import ShapeError, Wanted, class_documents, parse_devices, read_shapes, slice_documents
from dray.sim.physical_devices import physical_devices
from dray.sim.snapshot import Snapshot

CATALOGUE = read_catalogue()


def parse(*texts: str) -> tuple[Wanted, ...]:
    return parse_devices(texts, CATALOGUE, lambda path: read_shapes({path: CARD}, path))


CARD: dict[str, Any] = {"driver": "card.example.com", "device": "card", "attributes": {"speed": 3}}


def test_a_class_a_number_a_shape_and_options() -> None:
    gpu, nic = parse("gpu:8xh100", "mig", "nic:cx7")
    assert (gpu.name, gpu.count, gpu.model, gpu.options) == ("gpu", 8, "H100", ("mig",))
    assert (nic.name, nic.count, nic.model, nic.options) == ("nic", 1, "cx7", ())


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["gpu:8xH1OO"], 'there is no shape "H1OO" (did you mean "H100"?)'),
        (["gpu8xH100"], '"gpu8xH100" is not CLASS:COUNTxSHAPE, as in gpu:8xH100'),
        (["gpu:0xH100"], '"gpu:0xH100": a node can have 1 to 256 devices of a shape'),
        (["gpu:2xL4", "mig"], 'L4 has no option "mig"; it has none'),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_reason(texts: list[str], message: str) -> None:
    with pytest.raises(ShapeError) as error:
        parse(*texts)
    assert str(error.value).startswith(message)


def every_shape() -> list[list[str]]:
    return [[f"c:8x{name}", *shape.options] for name, shape in CATALOGUE.items()] + [["c:256xL4"], ["c:20xA100", "mig"]]


@pytest.mark.parametrize("texts", every_shape(), ids=lambda texts: texts[0])
def test_the_api_accepts_the_slices_and_they_are_complete(texts: list[str]) -> None:
    slices = slice_documents(parse(*texts), "node-1")
    for item in slices:
        assert validate_slice(item) == []
        assert item["spec"]["pool"]["resourceSliceCount"] == len(slices)
    assert len({item["metadata"]["name"] for item in slices}) == len(slices)


def snapshot(*texts: str) -> Snapshot:
    wanted = parse(*texts)
    return Snapshot.of([*class_documents(wanted), *slice_documents(wanted, "node-1")])


def test_a_card_with_partitions_is_one_physical_device_of_both_classes() -> None:
    found = physical_devices(snapshot("gpu:2xH100", "mig", "slow:1xL4"))
    assert [(item.name, sorted(item.classes)) for item in found] == [
        ("gpu-0", ["gpu", "mig"]),
        ("gpu-1", ["gpu", "mig"]),
        ("gpu-2", ["slow"]),
    ]


def test_devices_are_spread_over_the_machine_so_that_a_card_and_a_nic_can_be_close() -> None:
    slices = slice_documents(parse("gpu:8xH100", "nic:2xcx7"), "node-1")
    roots = {
        item["spec"]["driver"]: [
            device["attributes"]["resource.kubernetes.io/pcieRoot"]["string"] for device in item["spec"]["devices"]
        ]
        for item in slices
    }
    assert roots["gpu.nvidia.com"] == [f"pci0000:0{number // 2}" for number in range(8)]
    assert roots["nic.example.com"] == ["pci0000:00", "pci0000:02"]


def test_a_shape_of_a_file() -> None:
    (wanted,) = parse("card:2x./card.yaml")
    (published,) = slice_documents((wanted,), "n")
    assert published["spec"]["driver"] == "card.example.com"
    assert published["spec"]["devices"][1]["attributes"]["speed"] == {"int": 3}


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"driver": "d"}, "f: Object missing required field `device`"),
        ({**CARD, "colour": 1}, "f: Object contains unknown field `colour`"),
        (
            {**CARD, "options": {"p": {"partitions": {"half": {"count": 2, "counters": {"memory": "1Gi"}}}}}},
            "f: x: partition 'half' has no counter 'memory'",
        ),
    ],
)
def test_a_shape_that_is_wrong_is_refused_with_its_file(shape: dict[str, Any], message: str) -> None:
    with pytest.raises(ShapeError) as error:
        read_shapes({"x": shape}, "f")
    assert str(error.value).startswith(message)
