"""The cgroup of a Pod, which limits its containers together; for both versions of cgroups."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from dray.node.runtimes.runtime import PERIOD_MICROSECONDS, Limits, RuntimeFailure

CGROUPS: Final = Path("/sys/fs/cgroup")
# The folder of all Pods.
PARENT: Final = "dray"
# The ranges of cpu.shares of version 1, and of cpu.weight of version 2.
_SHARES: Final = (2, 262_144)
_WEIGHTS: Final = (1, 10_000)


class GroupFile(NamedTuple):
    """A file of a cgroup and its content."""

    controller: str
    name: str
    content: str


def pod_group(uid: str) -> str:
    """Return the path of a Pod's cgroup, below that of each controller."""
    return f"{PARENT}/pod{uid}"


def group_files(limits: Limits, *, unified: bool) -> Iterator[GroupFile]:
    """Yield the files that set the limits; `unified` is version 2 of cgroups."""
    if unified:
        yield from _unified_files(limits)
        return
    if limits.cpu_shares:
        yield GroupFile("cpu", "cpu.shares", str(limits.cpu_shares))
    if limits.cpu_quota_microseconds:
        yield GroupFile("cpu", "cpu.cfs_period_us", str(PERIOD_MICROSECONDS))
        yield GroupFile("cpu", "cpu.cfs_quota_us", str(limits.cpu_quota_microseconds))
    if limits.memory_bytes:
        yield GroupFile("memory", "memory.limit_in_bytes", str(limits.memory_bytes))
    for size, amount in limits.huge_pages:
        yield GroupFile("hugetlb", f"hugetlb.{size}.limit_in_bytes", str(amount))


def _unified_files(limits: Limits) -> Iterator[GroupFile]:
    if limits.cpu_shares:
        yield GroupFile("cpu", "cpu.weight", str(cpu_weight(limits.cpu_shares)))
    if limits.cpu_quota_microseconds:
        yield GroupFile("cpu", "cpu.max", f"{limits.cpu_quota_microseconds} {PERIOD_MICROSECONDS}")
    if limits.memory_bytes:
        yield GroupFile("memory", "memory.max", str(limits.memory_bytes))
    for size, amount in limits.huge_pages:
        yield GroupFile("hugetlb", f"hugetlb.{size}.max", str(amount))


def cpu_weight(shares: int) -> int:
    """Return the weight of version 2 for shares of version 1, as runc converts them."""
    least, most = _SHARES
    return 1 + (min(max(shares, least), most) - least) * (_WEIGHTS[1] - _WEIGHTS[0]) // (most - least)


def write_group(uid: str, limits: Limits, root: Path = CGROUPS) -> None:
    """Create the cgroup of a Pod and set its limits; raises `RuntimeFailure`.

    A controller that the machine does not have is left out.
    """
    unified = (root / "cgroup.controllers").exists()
    for file in group_files(limits, unified=unified):
        base = root if unified else root / file.controller
        try:
            if unified and not _enable(root, file.controller):
                continue
            if not base.is_dir():
                continue
            folder = base / pod_group(uid)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / file.name).write_text(file.content, encoding="ascii")
        except OSError as error:
            raise RuntimeFailure(f"cgroup of the Pod: {file.name}: {error}") from error


def _enable(root: Path, controller: str) -> bool:
    """Enable a controller for the cgroups of Pods; return whether the machine has it."""
    if controller not in (root / "cgroup.controllers").read_text(encoding="ascii").split():
        return False
    parent = root / PARENT
    parent.mkdir(exist_ok=True)
    for folder in (root, parent):
        control = folder / "cgroup.subtree_control"
        if controller not in control.read_text(encoding="ascii").split():
            control.write_text(f"+{controller}", encoding="ascii")
    return True


def remove_group(uid: str, root: Path = CGROUPS) -> None:
    """Remove the cgroup of a Pod from all controllers."""
    for base in (root, *root.iterdir()) if root.is_dir() else ():
        with contextlib.suppress(OSError):
            (base / pod_group(uid)).rmdir()
