"""The folders of volumes that were provisioned on this node: created when first mounted, removed after their release.

A folder is renamed before its files are removed, and the volume is deleted after them: whatever is interrupted is
continued by the next look. Nothing is removed without a volume that says so.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final, NoReturn

from dray.api.document import Document
from dray.api.errors import APIError
from dray.api.persistent_volumes import PROVISIONED_ON, is_removable
from dray.client.errors import ignore_not_found
from dray.client.informer import Selection
from dray.client.interface import Client, DeleteOptions
from dray.client.resources import PERSISTENT_VOLUMES
from dray.client.shared_informers import SharedInformerFactory
from dray.lib.clock import Clock
from dray.runtime.logs import fields
from dray.runtime.tasks import TaskGroup, pause

_log = logging.getLogger(__name__)

# Containers may write as any user; the folder above it is the agent's alone.
FOLDER_MODE: Final = 0o777
# Between attempts to remove a volume.
RETRY_SECONDS: Final = 10.0
# Between looks at a released volume whose Pod is being removed.
USED_SECONDS: Final = 1.0
_REMOVED_PREFIX: Final = ".removed-"


def make_folder(path: Path) -> None:
    """Create the folder of a volume, unless it exists."""
    if not path.is_dir():
        path.mkdir(parents=True, exist_ok=True)
        # The process's mask does not apply.
        path.chmod(FOLDER_MODE)


def remove_folder(root: Path, name: str) -> None:
    """Remove the folder of a volume with everything in it; may be repeated."""
    folder, removed = root / name, root / f"{_REMOVED_PREFIX}{name}"
    if folder.is_dir() and not removed.exists():
        folder.rename(removed)
    if removed.exists():
        shutil.rmtree(removed)


class LocalVolumes:
    """Removes the released volumes of a node that were provisioned on it."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        informers: SharedInformerFactory,
        node_name: str,
        root: Path,
        used: Callable[[], Collection[str]],
    ) -> None:
        self._client = client
        self._clock = clock
        self._informers = informers
        self._root = root
        # The names of the volumes that Pods of this node have.
        self._used = used
        selection = Selection(label_selector=f"{PROVISIONED_ON}={node_name}")
        self._volumes = informers.informer(PERSISTENT_VOLUMES, selection)
        self._changed = asyncio.Event()
        self._volumes.add_handler(lambda _old, _new: self._changed.set())

    async def run(self) -> NoReturn:
        """Remove volumes as they are released, until cancelled."""
        async with TaskGroup("local volumes") as group:
            group.spawn(self._informers.run(), "informers")
            wait = None
            while True:
                await pause(self._clock, self._changed, wait)
                self._changed.clear()
                wait = await self.remove_released()

    async def remove_released(self) -> float | None:
        """Remove the released volumes; return after how many seconds to look again, None if none is left."""
        waits: list[float] = []
        used = self._used()
        for volume in self._volumes.lister.list():
            if not is_removable(volume):
                continue
            if volume["metadata"]["name"] in used:
                waits.append(USED_SECONDS)
            elif not await self._remove(volume):
                waits.append(RETRY_SECONDS)
        return min(waits, default=None)

    async def _remove(self, volume: Document) -> bool:
        metadata = volume["metadata"]
        # The name of an object is a valid name of a file, and never `..`.
        name = metadata["name"]
        try:
            await asyncio.to_thread(remove_folder, self._root, name)
            await ignore_not_found(
                self._client.delete(PERSISTENT_VOLUMES, name, "", DeleteOptions(uid=metadata.get("uid") or ""))
            )
        except (OSError, APIError) as error:
            _log.warning("a released volume cannot be removed", extra=fields(volume=name, error=str(error)))
            return False
        return True
