"""Stores unpacked layers, `<folder>/<chain id>/diff`, which images share; overlay file systems combine them.

A layer is unpacked in a mount of the layers below it, so that whiteouts become those of the overlay. It is renamed into
place when it is complete and verified. Several processes may use the store: who adds an image holds a shared lock, and
layers that no image names are removed only under an exclusive one.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Final

from dray.node.runtimes.images.model import ImageError

# Overlay file systems of Linux have no more lower folders.
LAYERS_MAX: Final = 128
UNPACKING: Final = ".unpack-"
_DETACH: Final = 2
_RECORD: Final = "layer.json"

# Unpacks a layer over a folder, and returns its uncompressed digest.
Apply = Callable[[IO[bytes], Path], str]


def chain_ids(diff_ids: Sequence[str]) -> tuple[str, ...]:
    """Return the identifiers of layers together with those below them, from the digests of their content."""
    found: list[str] = []
    for diff_id in diff_ids:
        joined = f"{found[-1]} {diff_id}".encode() if found else b""
        found.append(f"sha256:{hashlib.sha256(joined).hexdigest()}" if joined else diff_id)
    return tuple(found)


class LayerStore:
    """The layers of one node."""

    def __init__(self, folder: Path, apply: Apply) -> None:
        self._folder = folder
        self._apply = apply

    def contents(self, chain: Sequence[str]) -> list[Path]:
        """Return the folders of layers, the topmost first, as an overlay takes them."""
        return [self._place(identifier) / "diff" for identifier in reversed(chain)]

    def has(self, identifier: str) -> bool:
        """Return whether a layer is there."""
        return (self._place(identifier) / _RECORD).exists()

    def size(self, chain: Sequence[str]) -> int:
        """Return the bytes of all files of layers."""
        return sum(int(json.loads((self._place(item) / _RECORD).read_text())["size"]) for item in chain)

    def add(self, chain: Sequence[str], layer: Path, diff_id: str) -> None:
        """Unpack the last layer of a chain over the others, which are there; raises `ImageError`."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o711)
        target = Path(tempfile.mkdtemp(prefix=UNPACKING, dir=self._folder))
        try:
            (target / "diff").mkdir(mode=0o755)
            with _mounted(self.contents(chain[:-1]), target) as place, layer.open("rb") as file:
                found = self._apply(file, place)
            if found != diff_id:
                raise ImageError(f"unexpected digest {found} of an unpacked layer, expected {diff_id}")
            (target / _RECORD).write_text(json.dumps({"size": tree_size(target / "diff")}))
            target.chmod(0o711)
            if not self.has(chain[-1]):
                target.rename(self._place(chain[-1]))
        finally:
            shutil.rmtree(target, ignore_errors=True)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep layers that no image names yet, for the time of a `with` block."""
        with self._lock(fcntl.LOCK_SH):
            yield

    def remove_unused(self, used: Collection[str]) -> int:
        """Remove layers that no image names, unless an image is being added; return the bytes that were freed."""
        names, freed = {identifier.partition(":")[2] for identifier in used}, 0
        removed: list[Path] = []
        # The files are removed without the lock, which others wait for.
        with suppress(BlockingIOError), self._lock(fcntl.LOCK_EX | fcntl.LOCK_NB):
            for place in list(self._folder.iterdir()):
                if place.name not in names and (place / _RECORD).exists():
                    freed += int(json.loads((place / _RECORD).read_text())["size"])
                    # Without its record it is not there any more.
                    (place / _RECORD).unlink()
                    removed.append(place.rename(self._folder / f"{UNPACKING}{place.name}"))
        for place in removed:
            shutil.rmtree(place, ignore_errors=True)
        return freed

    def remove_leftovers(self, older_than: float) -> None:
        """Remove what killed processes left behind: layers that were being unpacked or removed."""
        for place in self._folder.iterdir() if self._folder.is_dir() else ():
            if place.is_dir() and not (place / _RECORD).exists() and place.stat().st_mtime < older_than:
                _unmount(place / "merged")
                shutil.rmtree(place, ignore_errors=True)

    def _place(self, identifier: str) -> Path:
        return self._folder / identifier.partition(":")[2]

    @contextmanager
    def _lock(self, operation: int) -> Iterator[None]:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o711)
        with (self._folder / ".lock").open("a") as file:
            fcntl.flock(file, operation)
            yield


@contextmanager
def _mounted(lowers: Sequence[Path], target: Path) -> Iterator[Path]:
    """Mount lower layers with `diff` as the writable one; without any, `diff` itself is the place."""
    if not lowers:
        yield target / "diff"
        return
    for name in ("work", "merged"):
        (target / name).mkdir(mode=0o755)
    try:
        mount_overlay(lowers, str(target / "diff"), str(target / "work"), str(target / "merged"))
        yield target / "merged"
    finally:
        _unmount(target / "merged")


def mount_overlay(lowers: Sequence[Path], upper: str, work: str, target: str) -> None:
    """Mount an overlay; raises `ImageError`."""
    with ExitStack() as stack:
        # By descriptors: many long paths would not fit into the page of a mount's options.
        opened = [os.open(path, os.O_PATH | os.O_DIRECTORY) for path in lowers]
        for descriptor in opened:
            stack.callback(os.close, descriptor)
        lower = ":".join(f"/proc/self/fd/{descriptor}" for descriptor in opened)
        options = f"lowerdir={lower},upperdir={upper},workdir={work}"
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"overlay", target.encode(), b"overlay", 0, options.encode()) != 0:
            raise ImageError(f"overlay mount: {os.strerror(ctypes.get_errno())}")


def _unmount(target: Path) -> None:
    """Unmount a folder; it is no error if nothing is mounted there."""
    ctypes.CDLL(None, use_errno=True).umount2(str(target).encode(), _DETACH)


def tree_size(folder: Path) -> int:
    """Return the bytes of all files."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())
