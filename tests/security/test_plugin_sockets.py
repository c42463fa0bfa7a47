"""A device plugin that registers with the path of somebody else's socket."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dray.node.devices.servicer import RegistrationError, check_request, endpoint_path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of plugins, with links that lead out of it."""
    found = tmp_path / "device-plugins"
    (found / "sub").mkdir(parents=True)
    (tmp_path / "containerd.sock").touch()
    (found / "link").symlink_to(tmp_path)
    (found / "file").symlink_to(tmp_path / "containerd.sock")
    (found / "loop").symlink_to(found / "loop")
    return found


@pytest.mark.parametrize(
    "endpoint",
    [
        "",
        ".",
        "..",
        "/",
        "/run/containerd/containerd.sock",
        "../containerd.sock",
        "sub/../../containerd.sock",
        "./sub/../..//containerd.sock",
        "link/containerd.sock",
        "file",
        "../device-plugins-of-others/a.sock",
        "a.sock\0",
        "\0",
    ],
)
def test_a_plugin_registers_no_socket_outside_the_folder(folder: Path, endpoint: str) -> None:
    (folder.parent / "device-plugins-of-others").mkdir()
    with pytest.raises(RegistrationError, match="is not a socket in"):
        endpoint_path(str(folder), endpoint)


@pytest.mark.parametrize("endpoint", ["a.sock", "sub/a.sock", "sub/../a.sock", "loop", "a" * 5000, "..a", "\udcff"])
def test_other_paths_are_below_the_folder(folder: Path, endpoint: str) -> None:
    assert endpoint_path(str(folder), endpoint) == os.path.join(folder, endpoint)


def test_the_folder_itself_may_be_a_link(folder: Path) -> None:
    (folder.parent / "plugins").symlink_to(folder)
    assert endpoint_path(str(folder.parent / "plugins"), "a.sock").endswith("/plugins/a.sock")


@pytest.mark.parametrize(
    "name", ["", "gpu", "a/b/c", "example.com/", "/gpu", "kubernetes.io/gpu", "example.com/\n", "cpu"]
)
def test_a_plugin_cannot_serve_what_is_no_extended_resource(name: str) -> None:
    with pytest.raises(RegistrationError, match="is invalid"):
        check_request("v1beta1", name)
