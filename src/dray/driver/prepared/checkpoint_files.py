"""Files of a driver: the checkpoint, CDI specs, and locks between instances."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

from dray.api import cdi
from dray.api.cdi import Spec
from dray.api.document import UID
from dray.driver.prepared import checkpoint
from dray.driver.prepared.checkpoint import CheckpointError, Entry
from dray.runtime.files import remove_file, replace_file

RECORD_FILE: Final = "prepared.json"
RECORD_LOCK: Final = "prepared.lock"
SERIALIZE_LOCK: Final = "serialize.lock"
BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
# Readable by container runtimes of any user.
_CDI_MODE: Final = 0o644
# Poll interval of a lock that another instance holds; prepare calls take longer.
_LOCK_POLL_SECONDS: Final = 0.02


class PreparedClaims:
    """The checkpoint in a folder; instances may share it, since each change is a read-modify-write under a lock."""

    def __init__(self, folder: str, cdi_folder: str) -> None:
        self._path = str(Path(folder) / RECORD_FILE)
        self._lock = str(Path(folder) / RECORD_LOCK)
        self._cdi_folder = cdi_folder
        self.boot_id = _boot_id()

    def get(self, uid: UID) -> Entry | None:
        """Return the claim's entry."""
        return self._load().get(uid)

    def all(self) -> tuple[Entry, ...]:
        """Return every entry, by UID."""
        return tuple(entry for _, entry in sorted(self._load().items()))

    def put(self, entry: Entry) -> None:
        """Write an entry, durably."""
        with _locked(self._lock):
            entries = self._load()
            entries[entry.claim.uid] = entry
            replace_file(self._path, checkpoint.encode(entries))

    def remove(self, uid: UID) -> None:
        """Remove an entry, durably."""
        with _locked(self._lock):
            entries = self._load()
            if entries.pop(uid, None) is not None:
                replace_file(self._path, checkpoint.encode(entries))

    def write_spec(self, name: str, spec: Spec) -> str:
        """Write a CDI file; return its path."""
        os.makedirs(self._cdi_folder, exist_ok=True)
        path = str(Path(self._cdi_folder) / name)
        replace_file(path, cdi.render(spec), _CDI_MODE)
        return path

    def remove_spec(self, name: str) -> None:
        """Remove a CDI file if it exists."""
        if Path(self._cdi_folder).is_dir():
            remove_file(str(Path(self._cdi_folder) / name))

    def intact(self, entry: Entry) -> bool:
        """Return whether a prepared claim still is: no reboot since, and its CDI file exists."""
        return entry.boot_id == self.boot_id and (not entry.cdi_file or Path(entry.cdi_file).is_file())

    def _load(self) -> dict[UID, Entry]:
        try:
            content = Path(self._path).read_bytes()
        except FileNotFoundError:
            return {}
        try:
            return checkpoint.decode(content)
        except CheckpointError as error:
            raise CheckpointError(
                f"{self._path}: {error}; to recover, drain the node, undo by hand what the driver prepared, "
                "and remove the file"
            ) from error


def _boot_id() -> str:
    try:
        return Path(BOOT_ID).read_text(encoding="ascii").strip()
    except OSError:
        # Not Linux: reboots are not detected, missing CDI files are.
        return ""


@contextmanager
def _locked(path: str) -> Iterator[None]:
    with open(path, "a", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@asynccontextmanager
async def serialized(folder: str) -> AsyncIterator[None]:
    """Hold the lock that serializes the calls of all instances of a driver; a crash releases it."""
    with open(Path(folder) / SERIALIZE_LOCK, "a", encoding="ascii") as file:  # noqa: ASYNC230 - a local file
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(_LOCK_POLL_SECONDS)
        yield
