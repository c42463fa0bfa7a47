"""Mounts parts of volumes where a runtime finds them by a path that no container can redirect."""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import replace
from pathlib import Path

from dray.node.mounts import bind, unmount
from dray.node.runtimes.runtime import BindMount, ContainerSpec, RuntimeFailure
from dray.node.untrusted_files import open_below


def bind_subpaths(folder: Path, spec: ContainerSpec) -> tuple[BindMount, ...]:
    """Mount the subPaths of a container below the folder, which is for them alone; return all of its mounts."""
    own = folder / spec.sandbox.uid / spec.name
    # Those of an earlier run, whose container has its own view of them.
    _clear(own)
    return tuple(
        _bind(mount, own / str(number), spec.name) if mount.root else mount for number, mount in enumerate(spec.mounts)
    )


def _bind(mount: BindMount, target: Path, container: str) -> BindMount:
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        source = open_below(mount.root, os.path.relpath(mount.host_path, mount.root))
    except OSError as error:
        text = f'failed to prepare subPath for volumeMount "{mount.volume}" of container "{container}"'
        raise RuntimeFailure(text) from error
    try:
        if stat.S_ISDIR(os.fstat(source).st_mode):
            target.mkdir(mode=0o700)
        else:
            target.touch(mode=0o600)
        bind(f"/proc/self/fd/{source}", target)
    except OSError as error:
        raise RuntimeFailure(f"subPath mount: {error}") from error
    finally:
        os.close(source)
    return replace(mount, host_path=str(target), root="")


def remove_subpaths(folder: Path, pod_uid: str) -> None:
    """Unmount what a Pod has; nothing of its volumes is touched."""
    for container in (folder / pod_uid).glob("*"):
        _clear(container)
    with contextlib.suppress(FileNotFoundError):
        (folder / pod_uid).rmdir()


def _clear(folder: Path) -> None:
    for target in folder.glob("*"):
        unmount(target)
        # What is still mounted is busy, so that this can never remove a volume's own content.
        if target.is_dir():
            target.rmdir()
        else:
            target.unlink()
    with contextlib.suppress(FileNotFoundError):
        folder.rmdir()
