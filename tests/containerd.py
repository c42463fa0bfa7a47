"""A containerd of a test's own, with images of folders; everything of it is in a temporary folder."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.mounts import mounting_folder

needs_containerd = pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("containerd", "ctr", "runc", "busybox"))),
    reason="needs root, containerd, ctr, runc and busybox-static",
)
START_SECONDS_MAX = 120.0
# Where Debian has the CNI plugins.
PLUGINS = Path("/usr/lib/cni")
PAUSE = "localhost/pause:1"
BUSYBOX = "docker.io/library/busybox:latest"
CONFIG = """
version = 2
root = "{folder}/root"
state = "{folder}/state"
[grpc]
  address = "{folder}/c.sock"
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
  sandbox_image = "localhost/pause:1"
  disable_tcp_service = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{folder}/net.d"
"""


class Containerd:
    """A running containerd."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "c.sock"

    @property
    def endpoint(self) -> str:
        """As an agent's flag has it."""
        return f"unix://{self.socket}"

    @property
    def networks(self) -> Path:
        """The folder of its CNI configurations."""
        return self.folder / "net.d"

    def ctr(self, *arguments: str, check: bool = True) -> str:
        """Run containerd's own client."""
        command = ["ctr", "-a", str(self.socket), "-n", "k8s.io", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert not check or done.returncode == 0, done.stderr
        return done.stdout

    def load(self, root: Path, name: str, config: Mapping[str, object]) -> None:
        """Import a folder as an image of one layer."""
        archive = self.folder / "image.tar"
        archive.write_bytes(oci_archive(root, name, config))
        self.ctr("image", "import", str(archive))
        archive.unlink()

    def kill_containers(self, node: str) -> None:
        """End all processes of the containers of a node at once, as a power cut would."""
        for name in self.ctr("container", "list", "--quiet", f'labels."dray.dev/node"=={node}').split():
            self.ctr("task", "kill", "--signal=SIGKILL", "--all", name, check=False)

    def end_containers(self) -> None:
        """End all containers: they outlive containerd."""
        for task in self.ctr("task", "list", "--quiet", check=False).split():
            self.ctr("task", "delete", "--force", task, check=False)

    def end_shims(self) -> None:
        """End the shims that containerd has not told to end before its own end."""
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            # It may end by itself meanwhile.
            with suppress(OSError):
                words = path.read_bytes().split(b"\0")
                if b"containerd-shim" in words[0] and str(self.socket).encode() in words:
                    os.kill(int(path.parent.name), signal.SIGKILL)


@contextmanager
def running_containerd(busybox: Path, inside: Sequence[str] = ()) -> Iterator[Containerd]:
    """Run containerd for the time of the block, with busybox as an image and as the pause image.

    `inside` is a command that enters other namespaces first.
    """
    with mounting_folder("dray-containerd-") as folder:
        found = Containerd(folder)
        (folder / "config.toml").write_text(CONFIG.format(folder=folder, plugins=PLUGINS))
        found.networks.mkdir()
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(
                [*inside, "containerd", "-c", str(folder / "config.toml")], stdout=log, stderr=log
            )
        try:
            _wait_for(found, process)
            pause = ["/bin/sh", "-c", 'trap "exit 0" TERM; while true; do sleep 3600 & wait; done']
            for name, command in ((PAUSE, pause), (BUSYBOX, ["/bin/sh"])):
                found.load(busybox, name, {"Cmd": command, "Env": ["PATH=/bin"]})
            yield found
        finally:
            found.end_containers()
            process.terminate()
            process.wait(30)
            found.end_shims()


def _wait_for(containerd: Containerd, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while not containerd.ctr("version", check=False):
        assert process.poll() is None, (containerd.folder / "log").read_text()
        assert time.monotonic() < deadline, (containerd.folder / "log").read_text()
        time.sleep(0.05)


def oci_archive(root: Path, name: str, config: Mapping[str, object]) -> bytes:
    """One layer, one image."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        archive.add(root, arcname=".")
    blobs = {}

    def blob(content: bytes, kind: str) -> dict[str, object]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[digest] = content
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(content)}

    layer_entry = blob(layer.getvalue(), "layer.v1.tar")
    document = {
        "architecture": "amd64" if os.uname().machine == "x86_64" else "arm64",
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [layer_entry["digest"]]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob(json.dumps(document).encode(), "config.v1+json"),
        "layers": [layer_entry],
    }
    entry = blob(json.dumps(manifest).encode(), "manifest.v1+json")
    entry["annotations"] = {"io.containerd.image.name": name}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        files = {f"blobs/sha256/{digest}": content for digest, content in blobs.items()}
        files["index.json"] = json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode()
        files["oci-layout"] = b'{"imageLayoutVersion": "1.0.0"}'
        for path, content in files.items():
            info = tarfile.TarInfo(path)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()
