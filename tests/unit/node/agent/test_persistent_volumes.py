"""Claims as volumes: when they can be mounted, which folders they have, and the group of their files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dray.api.document import Document
from dray.api.persistent_volumes import claim_name
from dray.api.types.core_v1 import Volume
from dray.node.agent.persistent_volumes import ON_ROOT_MISMATCH, claim_problem, folder_of, set_group
from dray.node.agent.pod.environment import ConfigError
from tests.unit.node.agent.builders import UID, pod

pytestmark = pytest.mark.behaviour("ST-46")
CLAIM = msgspec.convert({"name": "v", "persistentVolumeClaim": {"claimName": "c"}}, Volume)
EPHEMERAL = msgspec.convert({"name": "v", "ephemeral": {}}, Volume)
NOT_OWNER = "PVC ns/c was not created for pod ns/p (pod is not owner)"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def claim(phase: str = "Bound", volume: str = "pv", **metadata: Any) -> Document:
    return {
        "metadata": {"name": "c", "namespace": "ns", "uid": "1", **metadata},
        "spec": {"volumeName": volume},
        "status": {"phase": phase},
    }


def persistent(**spec: Any) -> Document:
    return {"metadata": {"name": "pv"}, "spec": spec}


def test_names_of_claims() -> None:
    assert claim_name(pod(), CLAIM) == "c"
    assert claim_name(pod(), EPHEMERAL) == "p-v"
    assert claim_name(pod(), Volume(name="v")) == ""


@pytest.mark.parametrize(
    ("volume", "subject", "problem"),
    [
        (CLAIM, claim(), ""),
        (CLAIM, claim("Pending"), "PVC is not bound"),
        (CLAIM, claim("Lost"), "PVC is not bound"),
        (CLAIM, claim(volume=""), "PVC is not bound"),
        (CLAIM, claim(deletionTimestamp="2026-01-01T00:00:00Z"), "PVC is being deleted"),
        (EPHEMERAL, claim(ownerReferences=[{"uid": UID, "controller": True}]), ""),
        (EPHEMERAL, claim(), NOT_OWNER),
        (
            EPHEMERAL,
            claim(ownerReferences=[{"uid": "x", "controller": True}]),
            NOT_OWNER,
        ),
    ],
)
def test_claims_that_can_be_mounted(volume: Volume, subject: Document, problem: str) -> None:
    assert claim_problem(pod(), volume, subject) == problem


def test_folders(tmp_path: Path) -> None:
    found = folder_of(persistent(local={"path": str(tmp_path)}), read_only=True)
    assert (found.volume, found.path, found.read_only, found.has_group) == ("pv", str(tmp_path), True, True)
    made = tmp_path / "made"
    found = folder_of(persistent(hostPath={"path": str(made), "type": "DirectoryOrCreate"}), read_only=False)
    assert (found.path, found.has_group) == (str(made), False)
    assert made.is_dir()
    found = folder_of(persistent(local={"path": str(tmp_path)}, mountOptions=["ro"]), read_only=False)
    assert found.limitation == 'volume "pv": mountOptions are not applied'


@pytest.mark.behaviour("ST-47")
def test_volumes_that_a_node_does_not_have(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for spec, text in (
        ({"nfs": {"server": "s", "path": "/"}}, 'volume "pv": this kind of volume is not offered by this node'),
        ({"csi": {"driver": "d", "volumeHandle": "h"}}, 'volume "pv": this kind of volume is not offered by this node'),
        ({"local": {"path": "/none"}}, 'path "/none" does not exist'),
        ({"local": {"path": str(tmp_path / "file")}}, "is not a directory"),
        ({"local": {"path": "/"}, "volumeMode": "Block"}, "has volumeMode Block"),
        ({"hostPath": {"path": "/none", "type": "Directory"}}, "hostPath type check failed: /none is not a directory"),
    ):
        with pytest.raises(ConfigError, match=text):
            folder_of(persistent(**spec), read_only=False)


@needs_root
def test_a_group_owns_all_files(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("")
    outside.chmod(0o600)
    volume = tmp_path / "volume"
    (volume / "a/b").mkdir(parents=True)
    (volume / "a/file").write_text("")
    (volume / "a/file").chmod(0o600)
    (volume / "link").symlink_to(outside)
    (volume / "links").symlink_to(tmp_path)
    os.mkfifo(volume / "fifo")
    set_group(volume, 4242, "Always", read_only=False)
    for path in (volume, volume / "a", volume / "a/b"):
        assert (path.stat().st_gid, path.stat().st_mode & 0o2070) == (4242, 0o2070)
    assert ((volume / "a/file").stat().st_gid, (volume / "a/file").stat().st_mode & 0o777) == (4242, 0o660)
    assert (volume / "link").lstat().st_gid == (volume / "fifo").lstat().st_gid == 4242
    # Nothing outside is changed.
    assert (outside.stat().st_gid, outside.stat().st_mode & 0o777) == (0, 0o600)
    assert tmp_path.stat().st_gid != 4242


@needs_root
def test_a_volume_that_has_the_group_is_left_alone_if_the_pod_asks_for_it(tmp_path: Path) -> None:
    set_group(tmp_path, 4242, ON_ROOT_MISMATCH, read_only=False)
    (tmp_path / "new").write_text("")
    os.chown(tmp_path / "new", 0, 0)
    set_group(tmp_path, 4242, ON_ROOT_MISMATCH, read_only=False)
    assert (tmp_path / "new").stat().st_gid == 0
    set_group(tmp_path, 4242, "", read_only=False)
    assert (tmp_path / "new").stat().st_gid == 4242
