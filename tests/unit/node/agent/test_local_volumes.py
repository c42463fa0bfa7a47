"""Folders of volumes: who may write to them, and that nothing is left or lost when their removal is interrupted."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from dray.api.document import Document
from dray.api.errors import ServiceUnavailableError
from dray.api.persistent_volumes import LOCAL_PROVISIONER, PROVISIONED_BY, PROVISIONED_ON
from dray.client.shared_informers import SharedInformerFactory
from dray.node.agent.local_volumes import RETRY_SECONDS, USED_SECONDS, LocalVolumes, make_folder, remove_folder
from dray.runtime.system import SystemClock

pytestmark = pytest.mark.behaviour("ST-44")


def volume(name: str, phase: str = "Released") -> Document:
    return {
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "labels": {PROVISIONED_ON: "n"},
            "annotations": {PROVISIONED_BY: LOCAL_PROVISIONER},
        },
        "spec": {"persistentVolumeReclaimPolicy": "Delete"},
        "status": {"phase": phase},
    }


class FakeClient:
    def __init__(self) -> None:
        self.deleted: list[tuple[str, str]] = []
        self.failure: Exception | None = None

    async def delete(self, _resource: Any, name: str, _namespace: str, options: Any) -> None:
        if self.failure is not None:
            raise self.failure
        self.deleted.append((name, options.uid))


class Lister:
    def __init__(self, items: list[Document]) -> None:
        self.items = items

    def list(self) -> list[Document]:
        return self.items


def volumes_of(root: Path, client: FakeClient, items: list[Document], used: set[str]) -> LocalVolumes:
    clock: Any = SystemClock()
    fake: Any = client
    informers = SharedInformerFactory(fake, clock, random.Random(1))
    found = LocalVolumes(fake, clock, informers, "n", root, lambda: used)
    found._volumes.lister = Lister(items)  # type: ignore[assignment]
    return found


def test_any_user_may_write_to_a_new_folder(tmp_path: Path) -> None:
    folder = tmp_path / "volumes" / "v"
    make_folder(folder)
    assert folder.stat().st_mode & 0o777 == 0o777
    folder.chmod(0o700)
    make_folder(folder)
    assert folder.stat().st_mode & 0o777 == 0o700


def test_the_removal_of_a_folder_can_be_repeated(tmp_path: Path) -> None:
    remove_folder(tmp_path, "v")
    (tmp_path / "v" / "deep").mkdir(parents=True)
    # As it is left by an agent that was killed after the renaming.
    (tmp_path / "v").rename(tmp_path / ".removed-v")
    remove_folder(tmp_path, "v")
    assert list(tmp_path.iterdir()) == []


async def test_released_volumes_are_removed_with_their_data(tmp_path: Path) -> None:
    client = FakeClient()
    names = ("gone", "bound", "used")
    for name in names:
        make_folder(tmp_path / name)
        (tmp_path / name / "file").write_text("data")
    used = {"used"}
    items = [volume("gone"), volume("bound", "Bound"), volume("used"), volume("never-mounted")]
    local = volumes_of(tmp_path, client, items, used)
    assert await local.remove_released() == USED_SECONDS
    assert client.deleted == [("gone", "uid-gone"), ("never-mounted", "uid-never-mounted")]
    assert [name for name in names if (tmp_path / name / "file").is_file()] == ["bound", "used"]
    del items[3], items[0]
    used.clear()
    client.failure = ServiceUnavailableError("no answer")
    assert await local.remove_released() == RETRY_SECONDS
    client.failure = None
    assert await local.remove_released() is None
    assert client.deleted[-1] == ("used", "uid-used")
    assert (tmp_path / "bound" / "file").read_text() == "data"
