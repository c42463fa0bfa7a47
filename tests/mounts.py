"""Folders in which programs leave mounts behind."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def mounting_folder(prefix: str) -> Iterator[Path]:
    """A folder for programs that leave mounts behind, which would keep it from being removed."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        yield folder
    finally:
        unmount_below(folder)
        shutil.rmtree(folder, ignore_errors=True)


def unmount_below(folder: Path) -> None:
    """Unmount whatever is mounted below a folder."""
    mounts = [line.split()[1] for line in Path("/proc/thread-self/mounts").read_text().splitlines()]
    for mount in sorted((item for item in mounts if item.startswith(f"{folder}/")), reverse=True):
        subprocess.run(["umount", "--lazy", mount], check=False)


@contextlib.contextmanager
def shared_folder(prefix: str) -> Iterator[Path]:
    """A folder whose mounts are shared, as systemd makes all of a machine: containers may propagate theirs."""
    with mounting_folder(prefix) as folder:
        subprocess.run(["mount", "--bind", str(folder), str(folder)], check=True)
        subprocess.run(["mount", "--make-rshared", str(folder)], check=True)
        try:
            yield folder
        finally:
            # What containers have left in it goes with it.
            subprocess.run(["umount", "--lazy", str(folder)], check=False)


@contextlib.contextmanager
def shared_mounts() -> Iterator[None]:
    """All mounts of the namespace of this thread are shared, as systemd makes them; to be used in one of its own."""
    subprocess.run(["mount", "--make-rshared", "/"], check=True)
    yield
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
