"""Standard attributes from a sysfs made for the test."""

from __future__ import annotations

from pathlib import Path

import pytest

from dray.driver.attributes import DeviceAttributeError, numa_node, pci_attributes


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    device = tmp_path / "devices" / "pci0000:3a" / "0000:3a:00.0" / "0000:3b:00.1"
    device.mkdir(parents=True)
    (device / "numa_node").write_text("1\n")
    virtual = tmp_path / "devices" / "virtual" / "0000:ff:00.0"
    virtual.mkdir(parents=True)
    (virtual / "numa_node").write_text("-1\n")
    links = tmp_path / "bus" / "pci" / "devices"
    links.mkdir(parents=True)
    for path in (device, virtual):
        (links / path.name).symlink_to(path)
    return tmp_path


@pytest.mark.behaviour("SP-141")
def test_the_root_complex_and_the_bus_id(sysfs: Path) -> None:
    assert pci_attributes("0000:3B:00.1", str(sysfs)) == {
        "resource.kubernetes.io/pciBusID": "0000:3b:00.1",
        "resource.kubernetes.io/pcieRoot": "pci0000:3a",
    }


def test_the_numa_node(sysfs: Path) -> None:
    assert numa_node("0000:3b:00.1", str(sysfs)) == 1
    assert numa_node("0000:ff:00.0", str(sysfs)) is None


@pytest.mark.behaviour("SP-141")
@pytest.mark.parametrize("bus_id", ["", "3b:00.1", "0000:3b:00.9", "0000:3b:00.1/..", "0000:00:00.0", "0000:ff:00.0"])
def test_what_is_no_pci_device(sysfs: Path, bus_id: str) -> None:
    with pytest.raises(DeviceAttributeError):
        pci_attributes(bus_id, str(sysfs))
