"""What `dray doctor --node-root-dir` finds on the node that it runs on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from dray.node.cdi.cache import DEFAULT_DIRECTORIES
from dray.node.checkpoint_file import read_checkpoint
from dray.node.classic.claim_manager import FILE_NAME as CLASSIC_FILE_NAME
from dray.node.devices import checkpoint as device_checkpoint
from dray.node.dra import checkpoint as claim_checkpoint
from dray.node.plugins.plugin_manager import find_plugins
from dray.rpc.dra_services import DRA_PLUGIN
from dray.sim.doctor.checkpoints import check_cdi_files, check_claims, check_devices
from dray.sim.doctor.drivers import check_drivers
from dray.sim.doctor.findings import Finding, Severity
from dray.sim.snapshot import Snapshot, SnapshotError

# The time that a plugin on a node has to answer.
_PLUGIN_SECONDS: Final = 2.0
# CDI files of a folder that are looked at.
_CDI_FILES_MAX: Final = 10_000
# Where node agents store checkpoints, below their root directory.
_CHECKPOINT_DIRECTORIES: Final = (".", "plugins", "device-plugins")


def node_findings(root: Path, name: str, snapshot: Snapshot) -> Iterator[Finding]:
    """Yield how the node agent's files and drivers differ from the cluster."""
    in_use: set[str] = set()
    for path, content in (
        *_checkpoints(root, claim_checkpoint.FILE_NAME),
        *_checkpoints(root, CLASSIC_FILE_NAME),
    ):
        try:
            prepared = claim_checkpoint.decode(content)
        except claim_checkpoint.CheckpointError as error:
            advice = "restart the node agent: it reads the claims in use from the containers that run"
            yield _damaged(name, path, error, advice)
        else:
            in_use.update(info.uid for info in prepared)
            if path.name == claim_checkpoint.FILE_NAME:
                yield from check_claims(name, prepared, snapshot)
    yield from check_cdi_files(name, _cdi_files(root), in_use, snapshot)
    for path, content in _checkpoints(root, device_checkpoint.FILE_NAME):
        try:
            allocated = device_checkpoint.decode(content)
        except device_checkpoint.CheckpointError as error:
            advice = "restart the node agent: it reads who has which devices from the containers that run"
            yield _damaged(name, path, error, advice)
        else:
            yield from check_devices(name, allocated, snapshot)
    yield from check_drivers(name, running_drivers(root), snapshot)


def running_drivers(root: Path) -> list[str]:
    """Return the DRA drivers that answer on their registration sockets."""
    plugins = asyncio.run(find_plugins(str(root / "plugins_registry"), _PLUGIN_SECONDS))
    return [plugin.name for plugin in plugins if plugin.type == DRA_PLUGIN]


def _cdi_files(root: Path) -> list[str]:
    folders = [root / "cdi", *map(Path, DEFAULT_DIRECTORIES)]
    return [str(path) for folder in folders if folder.is_dir() for path in islice(folder.iterdir(), _CDI_FILES_MAX)]


def _checkpoints(root: Path, name: str) -> Iterator[tuple[Path, bytes]]:
    if not root.is_dir():
        raise SnapshotError(f"{root}: no such directory")
    for path in (root / directory / name for directory in _CHECKPOINT_DIRECTORIES):
        content = read_checkpoint(str(path))
        if content is not None:
            yield path, content


def _damaged(node: str, path: Path, error: ValueError, advice: str) -> Finding:
    return Finding(Severity.ERROR, "damaged-checkpoint", f"node {node}", f"{path}: {error}", advice)
