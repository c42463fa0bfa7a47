"""`dray image load`: where an image comes from, and what to do if it comes from nowhere."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from dray.cmd import image

BUSYBOX = shutil.which("busybox")
STATIC = BUSYBOX is not None and image.is_static(Path(BUSYBOX).read_bytes())


@pytest.fixture(autouse=True)
def no_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH without container engines."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("cp", "rm"):
        found = shutil.which(name)
        assert found is not None
        (folder / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(folder))
    return folder


def load(tmp_path: Path, name: str) -> int:
    return image.main([f"--root-dir={tmp_path}/node", "load", name])


@pytest.mark.skipif(not STATIC, reason="needs a static busybox")
@pytest.mark.parametrize("name", ["busybox", "docker.io/library/busybox:1.37"])
def test_busybox_is_made_of_the_program_of_the_machine(
    name: str, tmp_path: Path, no_engines: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert BUSYBOX is not None
    (no_engines / "busybox").symlink_to(BUSYBOX)
    assert load(tmp_path, name) == 0
    assert "busybox" in capsys.readouterr().out
    (shell,) = tmp_path.glob("node/images/**/bin/sh")
    assert shell.readlink() == Path("busybox")
    assert (shell.parent / "busybox").read_bytes() == Path(BUSYBOX).read_bytes()


def test_a_busybox_with_libraries_would_not_run(
    tmp_path: Path, no_engines: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (no_engines / "busybox").symlink_to(Path(sys.executable).resolve())
    assert load(tmp_path, "busybox") == 1
    assert "install a static busybox (Debian: busybox-static), of which an image is made" in capsys.readouterr().err


def test_another_image_needs_an_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert load(tmp_path, "nginx:1") == 1
    assert capsys.readouterr().err == (
        "dray image: nginx:1: no such file, and none of docker, podman, nerdctl is on the PATH; "
        "containers of --runtime=process (--node-runtime of dray up) need no images\n"
    )
