"""Opens, reads and removes files below folders that containers write to, without ever leaving them through a link.

Every step is relative to an open descriptor, so that nothing a container renames or replaces meanwhile can redirect it.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

# The kernel's limit of links in one path.
LINKS_MAX: Final = 40
# Each folder of a path is one open descriptor.
DEPTH_MAX: Final = 128

_PATH: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class OutsideError(OSError):
    """The path leaves its root."""

    def __init__(self, path: str) -> None:
        super().__init__(errno.EXDEV, "leads out of its volume", path)


@contextlib.contextmanager
def opened(path: str | Path, flags: int = FOLDER, dir_fd: int | None = None) -> Iterator[int]:
    """Open a file, by default a folder, and close it at the end."""
    descriptor = os.open(path, flags, dir_fd=dir_fd)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def make_folder(name: str, mode: int, dir_fd: int) -> int:
    """Create a folder unless it exists, whatever the umask; return it open."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, mode, dir_fd=dir_fd)
        with opened(name, dir_fd=dir_fd) as made:
            os.fchmod(made, mode)
    return os.open(name, FOLDER, dir_fd=dir_fd)


def real_path_below(root: str, path: str) -> str:
    """Return a path relative to the root, without links, and create its folders that are missing.

    A link may point to another place below the root, as the files of a ConfigMap do; raises `OutsideError` for one that
    leads out, as every absolute link does.
    """
    walk = _Walk(root, path)
    try:
        walk.run()
        return "/".join(walk.names)
    finally:
        walk.close()


class _Walk:
    """Follows a path from folder to folder; `..` goes back to a folder that it came through, never to a parent."""

    def __init__(self, root: str, path: str) -> None:
        self._path = path
        self._left = path.split("/")[::-1]
        self._links = 0
        self.names: list[str] = []
        self._open = [os.open(root, os.O_PATH | os.O_CLOEXEC)]
        # The mode of the folders it creates, as in kubelet.
        self._mode = stat.S_IMODE(os.fstat(self._open[0]).st_mode) & 0o777

    def run(self) -> None:
        while self._left:
            name = self._left.pop()
            if name == "..":
                self._back()
            elif name not in ("", "."):
                self._enter(name)

    def close(self) -> None:
        for descriptor in self._open:
            os.close(descriptor)

    def _back(self) -> None:
        if not self.names:
            raise OutsideError(self._path)
        self.names.pop()
        os.close(self._open.pop())

    def _enter(self, name: str) -> None:
        if len(self._open) > DEPTH_MAX:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), self._path)
        here = self._open[-1]
        try:
            found = os.open(name, _PATH, dir_fd=here)
        except FileNotFoundError:
            found = make_folder(name, self._mode, here)
        if not stat.S_ISLNK(os.fstat(found).st_mode):
            self.names.append(name)
            self._open.append(found)
            return
        try:
            target = os.readlink("", dir_fd=found)
        finally:
            os.close(found)
        self._links += 1
        if target.startswith("/"):
            raise OutsideError(self._path)
        if self._links > LINKS_MAX:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), self._path)
        self._left += target.split("/")[::-1]


def open_below(root: str, path: str) -> int:
    """Open a path below a folder without following any link."""
    current = os.open(root, os.O_PATH | os.O_CLOEXEC)
    for name in path.split("/"):
        try:
            # The descriptor of a link is no folder, so that the next step fails.
            following = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=current)
        finally:
            os.close(current)
        current = following
    if stat.S_ISLNK(os.fstat(current).st_mode):
        os.close(current)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    return current


def open_regular(path: str | Path, dir_fd: int | None = None) -> BinaryIO:
    """Open a file for reading; raises `OSError` for a link, a FIFO or a device."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=dir_fd)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def read_file(path: str | Path, size_max: int, dir_fd: int | None = None) -> bytes:
    """Return the beginning of a regular file; raises `OSError`."""
    with open_regular(path, dir_fd) as file:
        return file.read(size_max)


def write_private(path: Path, content: bytes) -> None:
    """Replace a file atomically by one that only its owner can read."""
    temporary = path.with_suffix(".new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    temporary.rename(path)


def remove_tree(path: str | Path, dir_fd: int | None = None) -> None:
    """Remove a file, link or folder with all it contains; what cannot be removed is left.

    Neither memory nor descriptors grow with the depth of the tree: deeper folders are first moved to the top.
    """
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        mode = os.stat(path, dir_fd=dir_fd, follow_symlinks=False).st_mode
        with contextlib.suppress(OSError):
            if not stat.S_ISDIR(mode):
                os.unlink(path, dir_fd=dir_fd)
                return
            with opened(path, dir_fd=dir_fd) as top:
                _empty(top)
            os.rmdir(path, dir_fd=dir_fd)


def _empty(top: int) -> None:
    numbers = itertools.count()
    stuck: set[str] = set()
    while folders := [name for name in _unlink_files(top) if name not in stuck]:
        for name in folders:
            try:
                with opened(name, dir_fd=top) as folder:
                    for child in _unlink_files(folder):
                        os.rename(child, _free_name(top, numbers), src_dir_fd=folder, dst_dir_fd=top)
                os.rmdir(name, dir_fd=top)
            except OSError:
                # A mount, an immutable file, or a folder of another user.
                stuck.add(name)


def _unlink_files(folder: int) -> list[str]:
    """Remove all but folders; return their names."""
    folders = []
    with os.scandir(folder) as entries:
        for entry in list(entries):
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
                continue
            with contextlib.suppress(OSError):
                os.unlink(entry.name, dir_fd=folder)
    return folders


def _free_name(top: int, numbers: Iterator[int]) -> str:
    """Return a name that nothing has: a rename would replace an empty folder, and fail on another."""
    while True:
        name = f".removed-{next(numbers)}"
        try:
            os.stat(name, dir_fd=top, follow_symlinks=False)
        except FileNotFoundError:
            return name
