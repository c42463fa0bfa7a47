"""Pods by a real containerd: sandboxes, logs, restarts, and CDI for a runtime that does not know it."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dray.node.agent.logs.reader import last_output, read_lines
from dray.node.cdi.cache import CdiCache
from dray.node.runtimes.cri.runtime import CriRuntime
from dray.node.runtimes.cri.translate import container_config
from dray.node.runtimes.runtime import ContainerRecord, ContainerSpec, RuntimeFailure, Sandbox
from dray.rpc.pb.cri.v1 import api_pb2 as pb
from dray.runtime.system import SystemClock
from dray.runtime.tasks import ChildTasks
from tests.e2e.kubectl.tool import Kubectl
from tests.e2e.node.devices import until
from tests.e2e.node.harness import (
    POD_SECONDS_MAX,
    Agent,
    Cluster,
    container_status,
    is_running,
    mounting_folder,
    shell,
    terminated,
)
from tests.e2e.node.test_streams import KubectlProcess, fetch, forwarded, listening, reads, terminal
from tests.servers import Server

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("containerd", "ctr", "runc", "busybox"))),
    reason="needs root, containerd, ctr, runc and busybox-static",
)
START_SECONDS_MAX = 120.0
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
"""


@pytest.fixture(scope="module")
def socket(images: Path) -> Iterator[Path]:
    """A containerd of the module's own, with busybox as its only image and as the pause image."""
    with mounting_folder("dray-containerd-") as folder:
        yield from _containerd(folder, images)


def _containerd(folder: Path, images: Path) -> Iterator[Path]:
    (folder / "config.toml").write_text(CONFIG.format(folder=folder))
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(["containerd", "-c", str(folder / "config.toml")], stdout=log, stderr=log)
    try:
        path = folder / "c.sock"
        _wait_for(path, process)
        pause = ["/bin/sh", "-c", 'trap "exit 0" TERM; while true; do sleep 1 & wait; done']
        for name, command in (("localhost/pause:1", pause), ("docker.io/library/busybox:latest", ["/bin/sh"])):
            archive = folder / "image.tar"
            archive.write_bytes(oci_archive(images, name, command))
            arguments = ["ctr", "-a", str(path), "-n", "k8s.io", "image", "import", str(archive)]
            subprocess.run(arguments, check=True, capture_output=True)
        yield path
        _end_all(path)
    finally:
        process.terminate()
        process.wait(10)


def _end_all(path: Path) -> None:
    """containerd's containers outlive it."""
    base = ["ctr", "-a", str(path), "-n", "k8s.io"]
    tasks = subprocess.run([*base, "task", "list", "--quiet"], capture_output=True, text=True, check=True).stdout
    for task in tasks.split():
        subprocess.run([*base, "task", "delete", "--force", task], capture_output=True, check=False)


def _wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while subprocess.run(["ctr", "-a", str(path), "version"], capture_output=True, check=False).returncode:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)


def oci_archive(root: Path, name: str, command: list[str]) -> bytes:
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
    config = {
        "architecture": "amd64" if os.uname().machine == "x86_64" else "arm64",
        "os": "linux",
        "config": {"Cmd": command, "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [layer_entry["digest"]]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob(json.dumps(config).encode(), "config.v1+json"),
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


@pytest.fixture(scope="module")
def runtime() -> str:
    return "cri"


@pytest.fixture(scope="module")
def flags(socket: Path) -> tuple[str, ...]:
    return (f"--container-runtime-endpoint=unix://{socket}",)


def local(name: str, script: str, **fields: object) -> dict[str, object]:
    return shell(name, script, imagePullPolicy="IfNotPresent", **fields)


async def test_a_pod_runs_and_its_volumes_are_shared(cluster: Cluster, kubectl: Kubectl) -> None:
    mount = [{"name": "d", "mountPath": "/d"}]
    await cluster.run(
        "p",
        local("a", "cat /d/x; exit 3", volumeMounts=mount),
        initContainers=[local("i", "echo shared > /d/x", volumeMounts=mount)],
        volumes=[{"name": "d", "emptyDir": {}}],
        hostNetwork=True,
    )
    pod = await cluster.phase("p", "Failed")
    assert terminated(pod)["exitCode"] == 3
    assert container_status(pod)["containerID"].startswith("containerd://")
    assert kubectl("logs", "p", "-c", "a") == "shared\n"


async def test_restarts_grace_and_adoption(cluster: Cluster, agent: Agent) -> None:
    script = 'trap "exit 0" TERM; while true; do sleep 0.1; done'
    await cluster.run("stays", local("a", script), hostNetwork=True)
    await cluster.run("fails", local("a", "exit 1"), hostNetwork=True, restartPolicy="OnFailure")
    before = await cluster.wait("stays", is_running())
    await cluster.wait("fails", lambda pod: container_status(pod).get("restartCount", 0) >= 1)
    agent.kill()
    agent.start()
    after = await cluster.wait("stays", is_running())
    assert container_status(after)["containerID"] == container_status(before)["containerID"]
    for name in ("stays", "fails"):
        await cluster.delete(name)
    for name in ("stays", "fails"):
        await cluster.gone(name)


async def test_a_probe_by_command(cluster: Cluster) -> None:
    probe = {"exec": {"command": ["true"]}, "periodSeconds": 1}
    await cluster.run("p", local("a", "sleep 60", readinessProbe=probe), hostNetwork=True)
    await cluster.wait("p", lambda pod: container_status(pod).get("ready"))
    await cluster.delete("p", 0)


async def test_without_a_network_plugin_a_pod_of_its_own_network_says_why(cluster: Cluster) -> None:
    await cluster.run("p", local("a", "true"))
    message = (await cluster.event("p", "FailedCreatePodSandBox"))["message"]
    assert "cni" in message.lower()
    await cluster.delete("p", 0)


async def test_cdi_is_translated_and_hooks_are_refused(agent: Agent, socket: Path, tmp_path: Path) -> None:
    devices = {
        "g": {
            "env": ["CDI=1"],
            "deviceNodes": [{"path": "/dev/mine", "hostPath": "/dev/null"}],
            "mounts": [{"hostPath": "/etc/hostname", "containerPath": "/srv/h", "options": ["ro", "bind"]}],
        },
        "h": {"hooks": [{"hookName": "createRuntime", "path": "/bin/true"}]},
    }
    spec_file = {
        "cdiVersion": "0.8.0",
        "kind": "example.com/test",
        "devices": [{"name": name, "containerEdits": edits} for name, edits in devices.items()],
    }
    (tmp_path / "cdi.json").write_text(json.dumps(spec_file))
    runtime = CriRuntime(f"unix://{socket}", f"{agent.name}-direct", SystemClock(), CdiCache([str(tmp_path)]))
    ended: asyncio.Future[ContainerRecord] = asyncio.get_running_loop().create_future()
    await runtime.start(ended.set_result, ChildTasks("test"))
    sandbox = Sandbox("direct-uid", "ns", "direct", "direct", str(tmp_path / "logs"), host_network=True)
    await runtime.ensure_sandbox(sandbox)
    script = "echo $CDI; echo x > /dev/mine && cat /srv/h"
    command = ("sh", "-c", script)
    spec = ContainerSpec(sandbox, "a", 0, "busybox", command=command, cdi_devices=("example.com/test=g",))
    await runtime.run(spec)
    record = await asyncio.wait_for(ended, 20)
    assert record.exit is not None
    assert record.exit.code == 0
    log = Path(spec.log_path).read_text()  # noqa: ASYNC240 - small
    assert [line.split(" ", 3)[3] for line in log.splitlines()] == ["1", os.uname().nodename]
    with pytest.raises(RuntimeFailure, match="hooks"):
        await runtime.run(ContainerSpec(sandbox, "b", 0, "busybox", cdi_devices=("example.com/test=h",)))
    await runtime.remove_container(record.id)
    await runtime.remove_sandbox(sandbox.uid)
    await runtime.stop()


class Hurried(SystemClock):
    """What is done now and then is done often."""

    async def sleep(self, seconds: float) -> None:
        await super().sleep(min(seconds, 0.1))


async def test_long_logs_take_turns_and_cpus_can_change(agent: Agent, socket: Path, tmp_path: Path) -> None:
    runtime = CriRuntime(f"unix://{socket}", f"{agent.name}-logs", Hurried(), CdiCache([]))
    ended: asyncio.Queue[ContainerRecord] = asyncio.Queue()
    await runtime.start(ended.put_nowait, ChildTasks("test"))
    sandbox = Sandbox("logs-uid", "ns", "logs", "logs", str(tmp_path / "logs"), host_network=True)
    await runtime.ensure_sandbox(sandbox)
    # Some more than fits into two files, a little at a time; then where it may run, until stopped.
    script = (
        "i=0; while test $i -lt 300; do i=$((i+1)); head -c 75000 /dev/zero | tr '\\0' x; echo; done; "
        'while true; do echo "cpus $(grep Cpus_allowed_list /proc/self/status)"; sleep 0.05; done'
    )
    spec = ContainerSpec(sandbox, "a", 0, "busybox", command=("sh", "-c", script))
    record = (await runtime.run(spec)).record
    log = Path(spec.log_path)
    await until(lambda: "cpus" in last_output(log, 1, 1000))
    older = sorted(log.parent.glob("0.log.*"))
    assert older
    assert all(path.stat().st_size >= 10 * 1024 * 1024 for path in older)
    # Nothing is lost in between.
    assert sum(line.endswith(b"x") for line in read_lines(log)) >= 300
    await runtime.set_cpus(record.id, "0")
    await until(lambda: last_output(log, 1, 1000).split()[-1] == "0")
    await runtime.stop_container(record.id, 0)
    assert (await asyncio.wait_for(ended.get(), 20)).id == record.id
    await runtime.remove_container(record.id)
    await runtime.remove_sandbox(sandbox.uid)
    await runtime.stop()


async def test_a_container_that_was_made_and_never_ran_is_not_a_run(agent: Agent, socket: Path, tmp_path: Path) -> None:
    name = f"{agent.name}-made"
    first = CriRuntime(f"unix://{socket}", name, SystemClock(), CdiCache([]))
    await first.start(lambda _record: None, ChildTasks("test"))
    sandbox = Sandbox("made-uid", "ns", "made", "made", str(tmp_path / "logs"), host_network=True)
    await first.ensure_sandbox(sandbox)
    spec = ContainerSpec(sandbox, "a", 0, "busybox", command=("sleep", "60"))
    config = container_config(spec, name, "docker.io/library/busybox:latest", None)
    await first._runtime.CreateContainer(
        pb.CreateContainerRequest(
            pod_sandbox_id=first._sandboxes[sandbox.uid], config=config, sandbox_config=first._configs[sandbox.uid]
        )
    )
    await first.stop()
    second = CriRuntime(f"unix://{socket}", name, SystemClock(), CdiCache([]))
    assert await second.start(lambda _record: None, ChildTasks("test")) == []
    # Its number is free.
    record = (await second.run(spec)).record
    assert record.exit is None
    await second.stop_container(record.id, 0)
    await second.remove_container(record.id)
    await second.remove_sandbox(sandbox.uid)
    await second.stop()


def _ctr(socket: Path, *arguments: str) -> None:
    subprocess.run(["ctr", "-a", str(socket), "-n", "k8s.io", *arguments], check=False, capture_output=True)


async def test_a_container_that_someone_else_removed_has_ended(cluster: Cluster, socket: Path) -> None:
    await cluster.run("p", local("a", "sleep 60"), hostNetwork=True)
    pod = await cluster.wait("p", is_running())
    name = container_status(pod)["containerID"].rpartition("/")[2]
    for arguments in (("task", "delete", "--force", name), ("container", "delete", name)):
        _ctr(socket, *arguments)
    pod = await cluster.phase("p", "Failed")
    assert terminated(pod)["exitCode"] in (137, 255)


@pytest.fixture(params=["websocket", "spdy"])
def tool(
    request: pytest.FixtureRequest, server: Server, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> KubectlProcess:
    value = "true" if request.param == "websocket" else "false"
    monkeypatch.setenv("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", value)
    monkeypatch.setenv("KUBECTL_PORT_FORWARD_WEBSOCKETS", value)
    return KubectlProcess(server, cluster.namespace)


@pytest.mark.behaviour("EX-33")
async def test_commands_and_attached_clients(cluster: Cluster, tool: KubectlProcess) -> None:
    script = "while read line; do echo got $line; done; sleep 1000"
    await cluster.run("p", local("a", script, stdin=True), hostNetwork=True)
    await cluster.wait("p", is_running())
    done = tool.run("exec", "-i", "p", "--", "sh", "-c", "cat; echo oops >&2; exit 42", stdin=b"given\n")
    assert (done.stdout, done.returncode) == (b"given\n", 42)
    assert done.stderr.startswith(b"oops\n")
    assert b"no-such-program" in tool.run("exec", "p", "--", "no-such-program").stderr
    with terminal(tool, "exec", "-it", "p", "--", "sh", "-c", "until stty size | grep 40; do :; done; exit 3") as term:
        term.until("40 100")
        assert term.process.wait(POD_SECONDS_MAX) == 3
    with tool.piped("attach", "-i", "p") as process:
        assert process.stdin is not None
        process.stdin.write(b"word\n")
        process.stdin.flush()
        reads(process, b"got word\n")
        await cluster.delete("p", 0)
        process.wait(POD_SECONDS_MAX)


@pytest.mark.behaviour("EX-33")
async def test_ports_are_forwarded_by_the_runtime(cluster: Cluster, tool: KubectlProcess) -> None:
    with listening() as free:
        port = free.getsockname()[1]
    script = f"echo hello > /tmp/index.html; exec httpd -f -p {port} -h /tmp"
    await cluster.run("p", local("a", script), hostNetwork=True)
    await cluster.wait("p", is_running())
    await cluster.until(lambda: fetch(port, "index.html"))
    with tool.piped("port-forward", "p", f":{port}") as process:
        assert process.stdout is not None
        assert fetch(forwarded(process.stdout), "index.html") == b"hello\n"
        process.kill()
