"""Standard attributes from a sysfs made for the test."""

from __future__ import annotations

from pathlib import Path

import pytest

from dray.driver.attributes import (
    DeviceAttributeError,
    near_numa_nodes,
    numa_attributes,
    numa_node,
    numa_node_of_cpu,
    numa_node_of_pci,
    pci_attributes,
)


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


@pytest.mark.behaviour("SP-141", "N-55")
def test_the_root_complex_and_the_bus_id(sysfs: Path) -> None:
    assert pci_attributes("0000:3B:00.1", str(sysfs)) == {
        "resource.kubernetes.io/pciBusID": "0000:3b:00.1",
        "resource.kubernetes.io/pcieRoot": "pci0000:3a",
        "resource.kubernetes.io/numaNode": 1,
    }


def test_the_numa_node(sysfs: Path) -> None:
    assert numa_node("0000:3b:00.1", str(sysfs)) == 1
    assert numa_node("0000:ff:00.0", str(sysfs)) is None


@pytest.mark.behaviour("SP-141")
@pytest.mark.parametrize("bus_id", ["", "3b:00.1", "0000:3b:00.9", "0000:3b:00.1/..", "0000:00:00.0", "0000:ff:00.0"])
def test_what_is_no_pci_device(sysfs: Path, bus_id: str) -> None:
    with pytest.raises(DeviceAttributeError):
        pci_attributes(bus_id, str(sysfs))


@pytest.mark.behaviour("N-56")
def test_a_numa_node_that_is_not_known_is_an_error_and_not_published(sysfs: Path) -> None:
    assert numa_node_of_pci("0000:3b:00.1", str(sysfs)) == 1
    device = sysfs / "devices/pci0000:3a/0000:3a:00.0/0000:3b:00.1/numa_node"
    for content in ("-1\n", "x", "1024"):
        device.write_text(content)
        with pytest.raises(DeviceAttributeError):
            numa_node_of_pci("0000:3b:00.1", str(sysfs))
        assert "resource.kubernetes.io/numaNode" not in pci_attributes("0000:3b:00.1", str(sysfs))
    for bus_id in ("none", "0000:00:00.0"):
        with pytest.raises(DeviceAttributeError):
            numa_node_of_pci(bus_id, str(sysfs))


@pytest.mark.behaviour("N-56")
def test_numa_nodes_by_number_and_by_cpu(tmp_path: Path) -> None:
    assert numa_attributes(1023) == {"resource.kubernetes.io/numaNode": 1023}
    for number in (-1, 1024):
        with pytest.raises(DeviceAttributeError):
            numa_attributes(number)
    folder = tmp_path / "devices/system/cpu/cpu3"
    (folder / "node1").mkdir(parents=True)
    (folder / "topology").mkdir()
    assert numa_node_of_cpu(3, str(tmp_path)) == 1
    (folder / "node2").mkdir()
    for cpu in (3, 4):
        with pytest.raises(DeviceAttributeError):
            numa_node_of_cpu(cpu, str(tmp_path))


def machine(root: Path, distances: dict[int, str], packages: dict[int, str]) -> str:
    """A sysfs with one CPU per node, of the same number."""
    for node, row in distances.items():
        folder = root / f"devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "distance").write_text(f"{row}\n")
        (folder / "cpulist").write_text(f"{node}-{node}\n" if node in packages else "\n")
    for cpu, package in packages.items():
        topology = root / f"devices/system/cpu/cpu{cpu}/topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text(f"{package}\n")
    return str(root)


FOUR = {0: "10 12 20 20", 1: "12 10 20 20", 2: "20 20 10 12", 3: "20 20 12 10"}


@pytest.mark.behaviour("N-55", "N-57")
@pytest.mark.parametrize(
    ("distances", "packages", "node", "expected"),
    [
        pytest.param({}, {}, 3, (3,), id="no table"),
        pytest.param({0: "10"}, {0: "0"}, 0, (0,), id="one node"),
        pytest.param(FOUR, {0: "0", 1: "0", 2: "1", 3: "1"}, 2, (2, 3), id="same socket"),
        pytest.param({0: "10 21", 1: "21 10"}, {0: "0", 1: "1"}, 0, (0,), id="other socket"),
        pytest.param({0: "10 21", 1: "21 10"}, {0: "0"}, 0, (0, 1), id="socket not known"),
        pytest.param({0: "10 12 12", 1: "12 10 12", 2: "12 12 10"}, {}, 1, (1, 0, 2), id="own first, others sorted"),
        pytest.param({0: "10 12", 5: "12 10"}, {}, 5, (5, 0), id="nodes with gaps"),
        pytest.param({0: "10 12 13", 1: "12 10"}, {}, 0, (0,), id="rows of another length"),
        pytest.param({0: "10 x", 1: "12 10"}, {}, 0, (0,), id="no numbers"),
    ],
)
def test_a_list_has_the_nearest_nodes_of_the_socket(
    tmp_path: Path, distances: dict[int, str], packages: dict[int, str], node: int, expected: tuple[int, ...]
) -> None:
    sysfs = machine(tmp_path, distances, packages)
    assert near_numa_nodes(node, sysfs) == expected
    assert numa_attributes(node, sysfs, numa_list=True) == {"resource.kubernetes.io/numaNode": expected}
