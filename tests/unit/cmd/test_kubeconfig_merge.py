"""The context of a local cluster in the user's kubeconfig."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from dray.cmd import kubeconfig_merge
from dray.cmd.kubeconfig_merge import MergeError, add_context, remove_context

OTHER: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Config",
    "clusters": [{"name": "other", "cluster": {"server": "https://other"}}],
    "users": [{"name": "other", "user": {"token": "t"}}],
    "contexts": [{"name": "other", "context": {"cluster": "other", "user": "other"}}],
    "current-context": "other",
    "preferences": {"colors": True},
}


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own"
    document = {
        "clusters": [{"name": "x", "cluster": {"server": "https://own"}}],
        "users": [{"name": "y", "user": {"client-key-data": "k"}}],
    }
    path.write_text(yaml.safe_dump(document))
    return path


def read(path: Path) -> dict[str, Any]:
    return dict(yaml.safe_load(path.read_text()))


def test_a_context_is_added_beside_others_and_becomes_the_current_one(tmp_path: Path, own: Path) -> None:
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(OTHER))
    add_context(path, "dray-a", own)
    add_context(path, "dray-a", own)
    found = read(path)
    assert [item["name"] for item in found["contexts"]] == ["other", "dray-a"]
    assert found["clusters"][1] == {"name": "dray-a", "cluster": {"server": "https://own"}}
    assert found["users"][1] == {"name": "dray-a", "user": {"client-key-data": "k"}}
    assert (found["current-context"], found["preferences"]) == ("dray-a", {"colors": True})
    assert path.stat().st_mode & 0o777 == 0o600
    assert remove_context(path, "dray-a")
    assert read(path) == {**OTHER, "current-context": ""}
    assert not remove_context(path, "dray-a")


def test_a_file_that_does_not_exist_is_created_with_its_folder(tmp_path: Path, own: Path) -> None:
    path = tmp_path / "new" / "config"
    add_context(path, "dray", own)
    assert read(path)["current-context"] == "dray"
    assert [item.name for item in path.parent.iterdir()] == ["config"]


@pytest.mark.parametrize("text", ["{", "[]", "contexts: 3"])
def test_a_file_that_is_no_kubeconfig_is_left_as_it_is(tmp_path: Path, own: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(MergeError, match=str(path)):
        add_context(path, "dray", own)
    assert path.read_text() == text


def test_a_lock_of_another_program_is_named(tmp_path: Path, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubeconfig_merge, "_LOCK_SECONDS_MAX", 0.0)
    (tmp_path / "config.lock").touch()
    with pytest.raises(MergeError, match="is locked; if no other program changes it, remove"):
        add_context(tmp_path / "config", "dray", own)


def test_the_file_is_that_of_kubectl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", ":/a:/b")
    assert kubeconfig_merge.default_path() == Path("/a")
    monkeypatch.delenv("KUBECONFIG")
    monkeypatch.setenv("HOME", "/h")
    assert kubeconfig_merge.default_path() == Path("/h/.kube/config")
