"""The root directory of the node agent of `dray up`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

# Charts of drivers mount paths below it.
STANDARD: Final = Path("/var/lib/kubelet")
# Names the data directory of the cluster that uses the standard directory.
OWNER_FILE: Final = ".dray-cluster"


def node_root(given: str, data_dir: Path, *, is_root: bool, standard: Path = STANDARD) -> Path:
    """Return the root directory: the given one, the one of an earlier start, or the standard one.

    Only root takes the standard directory, and only if it is empty or this cluster has used it before.
    """
    own = data_dir.resolve() / "node"
    if given:
        return Path(given).resolve()
    if own.exists() or not is_root or not _take(standard, str(data_dir.resolve())):
        return own
    return standard


def root_notice(root: Path, *, given: str, is_root: bool, standard: Path = STANDARD) -> str:
    """Return what the user should know about the root directory; empty if nothing."""
    if given:
        return ""
    if root == standard:
        return f"the node uses {root}, where charts of drivers expect it"
    reason = f"{standard} is in use" if is_root else f"only root can use {standard}"
    return f"the node uses {root}, as {reason}: drivers must register in {root}/plugins_registry"


def _take(standard: Path, cluster: str) -> bool:
    mark = standard / OWNER_FILE
    try:
        standard.mkdir(mode=0o755, parents=True, exist_ok=True)
        if mark.is_file() and not mark.is_symlink():
            return mark.read_text() == cluster
        if any(standard.iterdir()):
            return False
        with os.fdopen(os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "w") as file:
            file.write(cluster)
    except OSError:
        # Another cluster was faster, or the file system is read-only.
        return False
    return True
