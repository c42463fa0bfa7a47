"""The cgroup of a Pod, in a folder that looks like the kernel's."""

from __future__ import annotations

from pathlib import Path

import pytest

from dray.node.runtimes.cri.translate import sandbox_config
from dray.node.runtimes.pod_cgroup import cpu_weight, remove_group, write_group
from dray.node.runtimes.runtime import Limits, RuntimeFailure, Sandbox

LIMITS = Limits(cpu_shares=2048, cpu_quota_microseconds=250_000, memory_bytes=1 << 20, huge_pages=(("2MB", 4 << 20),))


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}


@pytest.mark.behaviour("N-47")
def test_controllers_of_version_1(tmp_path: Path) -> None:
    for name in ("cpu", "memory"):
        (tmp_path / name).mkdir()
    write_group("u", LIMITS, tmp_path)
    assert contents(tmp_path / "cpu/dray/podu") == {
        "cpu.shares": "2048",
        "cpu.cfs_period_us": "100000",
        "cpu.cfs_quota_us": "250000",
    }
    assert contents(tmp_path / "memory/dray/podu") == {"memory.limit_in_bytes": "1048576"}
    # This machine has no controller for huge pages.
    assert not (tmp_path / "hugetlb").exists()


@pytest.mark.behaviour("N-47")
def test_controllers_of_version_2(tmp_path: Path) -> None:
    (tmp_path / "dray").mkdir()
    for folder in (tmp_path, tmp_path / "dray"):
        (folder / "cgroup.subtree_control").write_text("")
    (tmp_path / "cgroup.controllers").write_text("cpu hugetlb\n")
    write_group("u", LIMITS, tmp_path)
    assert contents(tmp_path / "dray/podu") == {
        "cpu.weight": str(cpu_weight(2048)),
        "cpu.max": "250000 100000",
        "hugetlb.2MB.max": "4194304",
    }
    assert (tmp_path / "dray/cgroup.subtree_control").read_text() == "+hugetlb"


def test_a_file_that_cannot_be_written_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "cpu/dray/podu/cpu.shares").mkdir(parents=True)
    with pytest.raises(RuntimeFailure, match=r"cgroup of the Pod: cpu\.shares: "):
        write_group("u", LIMITS, tmp_path)


def test_the_cgroup_is_removed(tmp_path: Path) -> None:
    (tmp_path / "cpu/dray/podu").mkdir(parents=True)
    remove_group("u", tmp_path)
    assert not (tmp_path / "cpu/dray/podu").exists()
    remove_group("u", tmp_path)


@pytest.mark.parametrize(("shares", "weight"), [(2, 1), (1024, 39), (262_144, 10_000), (1, 1)])
def test_weights(shares: int, weight: int) -> None:
    assert cpu_weight(shares) == weight


@pytest.mark.behaviour("N-47")
def test_a_cri_runtime_gets_the_limits_with_the_sandbox() -> None:
    resources = sandbox_config(Sandbox("u", "ns", "p", "p", "/log", limits=LIMITS), "n").linux.resources
    assert (resources.cpu_shares, resources.cpu_quota, resources.memory_limit_in_bytes) == (2048, 250_000, 1 << 20)
    assert [(item.page_size, item.limit) for item in resources.hugepage_limits] == [("2MB", 4 << 20)]
