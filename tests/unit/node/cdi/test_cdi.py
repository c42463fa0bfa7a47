"""CDI specs read from directories, resolved by priority and applied to OCI configurations."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from dray.api.cdi import CdiError, ContainerEdits
from dray.node.cdi.cache import CdiCache

CONFIG: dict[str, Any] = {
    "process": {"env": ["PATH=/bin", "A=old"], "user": {"uid": 0, "gid": 0}},
    "mounts": [{"destination": "/proc", "source": "proc", "type": "proc"}],
    "linux": {"devices": []},
}


def spec(
    kind: str = "example.com/gpu", edits: dict[str, Any] | None = None, **devices: dict[str, Any]
) -> dict[str, Any]:
    return {
        "cdiVersion": "0.8.0",
        "kind": kind,
        "containerEdits": edits or {},
        "devices": [{"name": name, "containerEdits": content} for name, content in devices.items()],
    }


def edits(**content: Any) -> ContainerEdits:
    return msgspec.convert(content, ContainerEdits)


def write(folder: Path, name: str, content: dict[str, Any] | str) -> None:
    folder.mkdir(exist_ok=True)
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / name).write_text(text)


def env(value: str) -> dict[str, Any]:
    return {"env": [f"X={value}"]}


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "etc", tmp_path / "run"


def cache(folders: tuple[Path, Path]) -> CdiCache:
    return CdiCache([str(folder) for folder in folders])


def test_the_later_directory_wins(folders: tuple[Path, Path]) -> None:
    write(folders[0], "a.json", spec(g=env("low")))
    write(folders[1], "a.json", spec(g=env("high")))
    assert cache(folders).edits(["example.com/gpu=g"]).env == ("X=high",)


def test_equal_priorities_make_a_device_unusable_and_both_files_say_so(folders: tuple[Path, Path]) -> None:
    write(folders[1], "a.json", spec(g=env("1"), other=env("2")))
    write(folders[1], "b.json", spec(g=env("3")))
    subject = cache(folders)
    with pytest.raises(CdiError, match=r"unresolvable CDI devices example\.com/gpu=g"):
        subject.edits(["example.com/gpu=g"])
    assert subject.edits(["example.com/gpu=other"]).env == ("X=2",)
    assert len(subject.registry().conflicts) == 2
    assert not subject.registry().unreadable
    assert 'conflicting device "example.com/gpu=g"' in next(iter(subject.registry().conflicts.values()))[0]


def test_a_conflict_below_does_not_hurt_a_device_above(folders: tuple[Path, Path]) -> None:
    write(folders[0], "a.json", spec(g=env("1")))
    write(folders[0], "b.json", spec(g=env("2")))
    write(folders[1], "c.json", spec(g=env("high")))
    assert cache(folders).edits(["example.com/gpu=g"]).env == ("X=high",)


@pytest.mark.parametrize(
    "content",
    ["{", "[]", json.dumps(spec()), json.dumps({**spec(g=env("1")), "cdiVersion": "9.9.9"}), '{"kind": 1}'],
    ids=["torn", "not an object", "no devices", "unknown version", "wrong type"],
)
def test_a_bad_file_is_reported_and_skipped(folders: tuple[Path, Path], content: str) -> None:
    write(folders[1], "bad.json", content)
    write(folders[1], "good.json", spec(g=env("1")))
    subject = cache(folders)
    assert subject.edits(["example.com/gpu=g"]).env == ("X=1",)
    assert [Path(path).name for path in subject.registry().unreadable] == ["bad.json"]


def test_changes_are_seen_and_other_files_are_not(folders: tuple[Path, Path]) -> None:
    subject = cache(folders)
    assert subject.registry().devices == {}
    write(folders[1], "a.yaml", yaml.safe_dump(spec(g=env("1"))))
    write(folders[1], "a.txt", json.dumps(spec(h=env("1"))))
    assert list(subject.registry().devices) == ["example.com/gpu=g"]
    write(folders[1], "a.yaml", yaml.safe_dump(spec(g=env("1"), longer=env("2"))))
    assert sorted(subject.registry().devices) == ["example.com/gpu=g", "example.com/gpu=longer"]
    (folders[1] / "a.yaml").unlink()
    assert subject.registry().devices == {}


def test_the_edits_of_a_spec_come_once_and_before_those_of_its_devices(folders: tuple[Path, Path]) -> None:
    shared = {"env": ["S=1"]}
    write(folders[1], "a.json", spec(edits=shared, g={"env": ["G=1"]}, h={"env": ["H=1"]}))
    names = ["example.com/gpu=g", "example.com/gpu=h", "example.com/gpu=g"]
    assert cache(folders).edits(names).env == ("S=1", "G=1", "H=1")


def test_device_numbers_come_from_the_host(folders: tuple[Path, Path]) -> None:
    node = {"deviceNodes": [{"path": "/dev/my-null", "hostPath": "/dev/null"}]}
    write(folders[1], "a.json", spec(g=node))
    found = cache(folders).edits(["example.com/gpu=g"]).device_nodes[0]
    info = Path("/dev/null").stat()
    assert (found.type, found.major, found.minor) == ("c", os.major(info.st_rdev), os.minor(info.st_rdev))


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({"path": "/dev/none-such"}, "No such file"),
        ({"path": "/dev/null", "type": "b"}, "host type mismatch"),
        ({"path": "/etc"}, "not a device node"),
    ],
)
def test_a_device_that_the_host_does_not_have(folders: tuple[Path, Path], node: dict[str, Any], message: str) -> None:
    write(folders[1], "a.json", spec(g={"deviceNodes": [node]}))
    with pytest.raises(CdiError, match=message):
        cache(folders).edits(["example.com/gpu=g"])


# --- Editing a configuration. ---
