"""Clusters of `dray up` on this machine: where they are, which process runs them, and how to stop all of it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from dray.cmd.containers import GRACE_SECONDS, end_containers

# In the data directory while the cluster runs, and after a crash.
RECORD: Final = "up.json"
STOP_SECONDS_MAX: Final = 60.0
_POLL_SECONDS: Final = 0.05
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,48}[a-z0-9])?")
DEFAULT_DIRECTORY: Final = ".dray"


class LocalClusterError(ValueError):
    """A cluster that does not exist, or cannot be stopped."""


@dataclass(frozen=True, slots=True)
class LocalCluster:
    """A cluster that was started on this machine."""

    # Empty if it was started without one.
    name: str
    data_dir: str
    pid: int
    # When the process began, in clock ticks since the machine started: a pid alone can be that of another process.
    start_ticks: int
    server: str
    kubeconfig: str
    # The kubeconfig with a context for it; empty if there is none.
    merged: str = ""
    nodes: int = 0
    # The root directory of the node agent.
    node_root: str = ""

    @property
    def is_running(self) -> bool:
        """Whether its process is alive."""
        return start_ticks(self.pid) == self.start_ticks

    @property
    def context(self) -> str:
        """The name of its kubeconfig context."""
        return context_name(self.name)


def context_name(name: str) -> str:
    """Return the kubeconfig context of a cluster, as kind names its own."""
    return f"dray-{name}" if name else "dray"


def check_name(name: str) -> None:
    """Raise `LocalClusterError` unless the name can be that of a folder and of a context."""
    if not _NAME.fullmatch(name):
        raise LocalClusterError(
            f'"{name}" is not a valid cluster name: use lower case letters, digits and -, at most 50'
        )


def clusters_root() -> Path:
    """Return the folder of named clusters."""
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "dray" / "clusters"


def start_ticks(pid: int) -> int:
    """Return when a process began; 0 if there is none, or it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    # The second field is the command in parentheses, which may contain anything.
    fields = text.rpartition(")")[2].split()
    return 0 if fields[0] in "ZX" else int(fields[19])


def write_record(cluster: LocalCluster) -> None:
    """Note the process of a cluster in its data directory."""
    path = Path(cluster.data_dir) / RECORD
    path.write_text(json.dumps(asdict(cluster), indent=1) + "\n")


def read_record(data_dir: Path) -> LocalCluster | None:
    """Return the cluster of a data directory; None if none was started there."""
    try:
        document = json.loads((data_dir / RECORD).read_text())
        return LocalCluster(**document)
    except (OSError, ValueError, TypeError):
        return None


def find_clusters(data_dir: str = DEFAULT_DIRECTORY) -> list[LocalCluster]:
    """Return the named clusters, and the one in the data directory."""
    root = clusters_root()
    folders = [Path(data_dir), *(sorted(root.iterdir()) if root.is_dir() else ())]
    found = [cluster for folder in folders if (cluster := read_record(folder)) is not None]
    return list({cluster.data_dir: cluster for cluster in found}.values())


def find_cluster(name: str, data_dir: str = DEFAULT_DIRECTORY) -> LocalCluster:
    """Return the cluster of a name or, without one, of the data directory."""
    folder = clusters_root() / name if name else Path(data_dir)
    if name:
        check_name(name)
    found = read_record(folder)
    if found is None:
        known = [cluster.name for cluster in find_clusters(data_dir) if cluster.name]
        others = f"; there are {', '.join(known)}" if known else ""
        raise LocalClusterError(f"there is no cluster in {folder}{others}")
    return found


def stop_cluster(cluster: LocalCluster) -> bool:
    """Stop the process and the containers of its node; return whether it was running."""
    was_running = cluster.is_running
    if was_running:
        os.kill(cluster.pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS_MAX
        while cluster.is_running:
            if time.monotonic() > deadline:
                raise LocalClusterError(f"process {cluster.pid} did not end in {STOP_SECONDS_MAX:.0f} seconds")
            time.sleep(_POLL_SECONDS)
    asyncio.run(end_containers(Path(cluster.node_root or f"{cluster.data_dir}/node"), GRACE_SECONDS))
    return was_running


def remove_cluster(cluster: LocalCluster) -> None:
    """Remove the data directory of a cluster that was stopped."""
    folder = Path(cluster.data_dir)
    if not (folder / RECORD).exists() or not (folder / "pki").is_dir():
        raise LocalClusterError(f"{folder} is no data directory of a cluster; it is not removed")
    shutil.rmtree(folder)
