"""Pods by a real containerd: sandboxes, logs, restarts, and CDI for a runtime that does not know it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from dataclasses import replace
from pathlib import Path

import pytest

from dray.api.document import Document, GroupVersion
from dray.client.interface import unstructured
from dray.cmd.runtime_choice import choose_runtime
from dray.cmd.settings import NodeSettings
from dray.lib.clock import Clock
from dray.node.agent.logs.reader import last_output, read_lines
from dray.node.cdi.cache import CdiCache
from dray.node.resource_manager import HostDevice
from dray.node.runtimes.cri.runtime import CriRuntime, CriSettings
from dray.node.runtimes.cri.translate import container_config
from dray.node.runtimes.runtime import BindMount, ContainerRecord, ContainerSpec, RuntimeFailure, Sandbox
from dray.rpc.pb.cri.v1 import api_pb2 as pb
from dray.runtime.system import SystemClock
from dray.runtime.tasks import ChildTasks
from tests.containerd import BUSYBOX, PAUSE, Containerd, needs_containerd
from tests.e2e.kubectl.tool import Kubectl
from tests.e2e.node.devices import until
from tests.e2e.node.harness import (
    POD_SECONDS_MAX,
    Agent,
    Cluster,
    container_status,
    is_running,
    is_waiting,
    shell,
    terminated,
)
from tests.e2e.node.test_streams import KubectlProcess, fetch, forwarded, listening, reads, terminal
from tests.servers import Server

RUNTIMES = ("cri",)
pytestmark = needs_containerd
CONFIG_MAPS = unstructured(GroupVersion("", "v1"), "configmaps", "ConfigMap")
SECRETS = unstructured(GroupVersion("", "v1"), "secrets", "Secret")


@pytest.fixture(scope="module")
def flags() -> tuple[str, ...]:
    # Pods have the networks that containerd is configured for: none.
    return ("--pod-network=auto",)


def direct(
    containerd: Containerd, name: str, folder: Path, clock: Clock | None = None, cdi: Path | None = None
) -> CriRuntime:
    """The runtime alone, as an agent of this name would have it."""
    settings = CriSettings(containerd.endpoint, name, folder / "node")
    return CriRuntime(settings, clock or SystemClock(), CdiCache([str(cdi)] if cdi else []))


async def test_a_pod_runs_and_its_volumes_are_shared(cluster: Cluster, kubectl: Kubectl) -> None:
    mount = [{"name": "d", "mountPath": "/d"}]
    await cluster.run(
        "p",
        shell("a", "cat /d/x; exit 3", volumeMounts=mount),
        initContainers=[shell("i", "echo shared > /d/x", volumeMounts=mount)],
        volumes=[{"name": "d", "emptyDir": {}}],
        hostNetwork=True,
    )
    pod = await cluster.phase("p", "Failed")
    assert terminated(pod)["exitCode"] == 3
    assert container_status(pod)["containerID"].startswith("containerd://")
    assert kubectl("logs", "p", "-c", "a") == "shared\n"


async def test_restarts_grace_and_adoption(cluster: Cluster, agent: Agent) -> None:
    script = 'trap "exit 0" TERM; while true; do sleep 0.1; done'
    await cluster.run("stays", shell("a", script), hostNetwork=True)
    await cluster.run("fails", shell("a", "exit 1"), hostNetwork=True, restartPolicy="OnFailure")
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
    await cluster.run("p", shell("a", "sleep 60", readinessProbe=probe), hostNetwork=True)
    await cluster.wait("p", lambda pod: container_status(pod).get("ready"))
    await cluster.delete("p", 0)


async def test_without_a_network_plugin_a_pod_of_its_own_network_says_why(cluster: Cluster, agent: Agent) -> None:
    assert "use --pod-network=host or --pod-network=routed" in agent.log.read_text()
    await cluster.run("p", shell("a", "true"))
    message = (await cluster.event("p", "FailedCreatePodSandBox"))["message"]
    assert "cni" in message.lower()
    await cluster.delete("p", 0)


async def test_cdi_is_translated_and_hooks_are_refused(agent: Agent, containerd: Containerd, tmp_path: Path) -> None:
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
    runtime = direct(containerd, f"{agent.name}-direct", tmp_path, cdi=tmp_path)
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


async def test_long_logs_take_turns_and_cpus_can_change(agent: Agent, containerd: Containerd, tmp_path: Path) -> None:
    runtime = direct(containerd, f"{agent.name}-logs", tmp_path, Hurried())
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


async def test_a_container_that_was_made_and_never_ran_is_not_a_run(
    agent: Agent, containerd: Containerd, tmp_path: Path
) -> None:
    name = f"{agent.name}-made"
    first = direct(containerd, name, tmp_path)
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
    second = direct(containerd, name, tmp_path)
    assert await second.start(lambda _record: None, ChildTasks("test")) == []
    # Its number is free.
    device = HostDevice("/dev/foo", "/dev/null", "rw")
    record = (await second.run(replace(spec, env=(("FOO", "d0,d1"),), devices=(device,)))).record
    assert record.exit is None
    third = direct(containerd, name, tmp_path)
    (adopted,) = await third.start(lambda _record: None, ChildTasks("test"))
    assert adopted.environment["FOO"] == "d0,d1"
    assert adopted.device_names == ("/dev/null",)
    await third.stop()
    await second.stop_container(record.id, 0)
    await second.remove_container(record.id)
    await second.remove_sandbox(sandbox.uid)
    await second.stop()


async def test_a_container_that_someone_else_removed_has_ended(cluster: Cluster, containerd: Containerd) -> None:
    await cluster.run("p", shell("a", "sleep 60"), hostNetwork=True)
    pod = await cluster.wait("p", is_running())
    name = container_status(pod)["containerID"].rpartition("/")[2]
    for arguments in (("task", "delete", "--force", name), ("container", "delete", name)):
        containerd.ctr(*arguments, check=False)
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
    await cluster.run("p", shell("a", script, stdin=True), hostNetwork=True)
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
    await cluster.run("p", shell("a", script), hostNetwork=True)
    await cluster.wait("p", is_running())
    await cluster.until(lambda: fetch(port, "index.html"))
    with tool.piped("port-forward", "p", f":{port}") as process:
        assert process.stdout is not None
        assert fetch(forwarded(process.stdout), "index.html") == b"hello\n"
        process.kill()


async def test_a_runtime_that_answers_is_chosen(containerd: Containerd, caplog: pytest.LogCaptureFixture) -> None:
    settings = NodeSettings(runtime="auto", container_runtime_endpoint=containerd.endpoint)
    with caplog.at_level(logging.INFO):
        found = await choose_runtime(settings)
    assert (found.runtime, found.container_runtime_endpoint) == ("cri", containerd.endpoint)
    assert "containers run by the CRI runtime" in caplog.text


@pytest.mark.parametrize("mount", [{"subPath": "s"}, {"subPathExpr": "$(PART)"}, {"subPath": "s/made"}])
async def test_a_subpath_replaced_by_a_link_to_the_host_is_not_mounted(
    cluster: Cluster, agent: Agent, mount: Document
) -> None:
    host = agent.root / "precious"
    host.mkdir(exist_ok=True)
    volume = {"name": "v", "mountPath": "/v"}
    await cluster.run(
        "p",
        shell(
            "a",
            "touch /s/planted",
            env=[{"name": "PART", "value": "s"}],
            volumeMounts=[{"name": "v", "mountPath": "/s", **mount}],
        ),
        initContainers=[
            # The folder is created for the first, which leaves a link for the second.
            shell("first", "true", volumeMounts=[{"name": "v", "mountPath": "/s", "subPath": "s"}]),
            shell("attack", f"busybox rmdir /v/s; busybox ln -s {host} /v/s", volumeMounts=[volume]),
        ],
        volumes=[{"name": "v", "emptyDir": {}}],
        hostNetwork=True,
    )
    pod = await cluster.wait("p", is_waiting("CreateContainerConfigError"))
    message = container_status(pod)["state"]["waiting"]["message"]
    assert message == 'failed to prepare subPath for volumeMount "v" of container "a"'
    assert list(host.iterdir()) == []
    await cluster.delete("p")
    await cluster.gone("p")


async def test_folders_and_files_of_volumes_are_mounted_by_subpath(
    cluster: Cluster, kubectl: Kubectl, agent: Agent
) -> None:
    await cluster.client.create(CONFIG_MAPS, {"metadata": {"name": "cm"}, "data": {"k": "key"}}, cluster.namespace)
    mounts = [
        {"name": "v", "mountPath": "/real", "subPath": "real"},
        {"name": "v", "mountPath": "/linked", "subPath": "link"},
        {"name": "cm", "mountPath": "/etc/key", "subPath": "k"},
    ]
    script = "echo folder > /real/x; cat /linked/x /etc/key; touch /etc/key 2>&1 || echo; echo ro"
    pod = await cluster.run(
        "p",
        shell("a", script, volumeMounts=mounts),
        initContainers=[shell("i", "busybox ln -s real /v/link", volumeMounts=[{"name": "v", "mountPath": "/v"}])],
        volumes=[{"name": "v", "emptyDir": {}}, {"name": "cm", "configMap": {"name": "cm"}}],
        hostNetwork=True,
    )
    await cluster.phase("p", "Succeeded", "Failed")
    log = kubectl("logs", "p")
    assert log.startswith("folder\nkey")
    assert "Read-only file system" in log
    uid = pod["metadata"]["uid"]
    assert f"{agent.root}/subpaths/{uid}/a/" in mounts_here()
    await cluster.delete("p")
    await cluster.gone("p")
    # Nothing is left of a deleted Pod.
    await cluster.until(lambda: not _left_of(agent, uid))
    assert f"{agent.root}/subpaths/{uid}" not in mounts_here()


def mounts_here() -> str:
    return Path("/proc/self/mountinfo").read_text()


def _left_of(agent: Agent, uid: str) -> list[Path]:
    folders = [(agent.root / "logs" / "pods").glob(f"*{uid}"), (agent.root / "pods").glob(uid)]
    return [path for found in (*folders, (agent.root / "subpaths").glob(uid)) for path in found] + [
        *Path("/sys/fs/cgroup").glob(f"*/dray/pod{uid}")
    ]


async def test_a_subpath_that_a_container_redirects_meanwhile_is_refused(
    agent: Agent, containerd: Containerd, tmp_path: Path
) -> None:
    volume, host = tmp_path / "volume", tmp_path / "host"
    for folder in (volume, host):
        folder.mkdir()
    runtime = direct(containerd, f"{agent.name}-redirected", tmp_path)
    await runtime.start(lambda _record: None, ChildTasks("test"))
    sandbox = Sandbox("redirected-uid", "ns", "p", "p", str(tmp_path / "logs"), host_network=True)
    # As it was when the agent looked; a container of the Pod has replaced it since.
    (volume / "s").symlink_to(host)
    mount = BindMount(f"{volume}/s", "/s", volume="v", root=str(volume))
    spec = ContainerSpec(sandbox, "a", 0, "busybox", command=("touch", "/s/planted"), mounts=(mount,))
    with pytest.raises(RuntimeFailure, match="failed to prepare subPath"):
        await runtime.run(spec)
    assert list(host.iterdir()) == []
    await runtime.remove_sandbox(sandbox.uid)
    await runtime.stop()


async def test_users_groups_roots_and_masks(cluster: Cluster, kubectl: Kubectl) -> None:
    context = {"runAsUser": 1000, "runAsGroup": 1001, "readOnlyRootFilesystem": True}
    status = "/proc/self/status"
    looks = f"touch /x 2>/dev/null || echo refused; grep CapEff {status}; wc -c < /proc/keys; grep Seccomp: {status}"
    await cluster.run(
        "p",
        shell("a", f"id -u; id -g; {looks}", securityContext=context),
        shell("b", looks, securityContext={"privileged": True}),
        shell("c", looks, securityContext={"capabilities": {"drop": ["ALL"]}}),
        securityContext={"supplementalGroups": [1002], "seccompProfile": {"type": "RuntimeDefault"}},
        hostNetwork=True,
    )
    await cluster.run("root", shell("a", "true"), securityContext={"runAsNonRoot": True}, hostNetwork=True)
    await cluster.phase("p", "Succeeded")
    log = kubectl("logs", "p", "-c", "a")
    assert log.split()[:2] == ["1000", "1001"]
    assert "refused" in log
    assert "CapEff:\t0000000000000000" in log
    # Keys of the kernel are masked, and system calls filtered.
    assert log.splitlines()[-2:] == ["0", "Seccomp:\t2"]
    privileged = kubectl("logs", "p", "-c", "b").splitlines()
    assert int(privileged[0].split()[-1], 16) >> 21 & 1
    assert privileged[-1] == "Seccomp:\t0"
    assert "CapEff:\t0000000000000000" in kubectl("logs", "p", "-c", "c")
    pod = await cluster.wait("root", is_waiting("CreateContainerError"))
    assert "runAsNonRoot" in container_status(pod)["state"]["waiting"]["message"]


async def test_running_out_of_memory(cluster: Cluster) -> None:
    script = "dd if=/dev/zero of=/dev/null bs=200M count=1"
    await cluster.run("p", shell("a", script, resources={"limits": {"memory": "20Mi"}}), hostNetwork=True)
    pod = await cluster.phase("p", "Failed")
    assert terminated(pod)["reason"] in ("OOMKilled", "Error")
    if terminated(pod)["exitCode"] == 137:
        assert terminated(pod)["reason"] == "OOMKilled"


async def test_volumes_made_of_objects_are_read_only(cluster: Cluster, kubectl: Kubectl) -> None:
    await cluster.client.create(CONFIG_MAPS, {"metadata": {"name": "cm"}, "data": {"k": "v"}}, cluster.namespace)
    await cluster.client.create(SECRETS, {"metadata": {"name": "s"}, "stringData": {"k": "v"}}, cluster.namespace)
    downward = {"items": [{"path": "k", "fieldRef": {"fieldPath": "metadata.name"}}]}
    volumes = [
        {"name": "cm", "configMap": {"name": "cm"}},
        {"name": "s", "secret": {"secretName": "s"}},
        {"name": "d", "downwardAPI": downward},
        {"name": "p", "projected": {"sources": [{"configMap": {"name": "cm"}}]}},
    ]
    mounts = [{"name": volume["name"], "mountPath": f"/{volume['name']}", "readOnly": False} for volume in volumes]
    attack = "for v in cm s d p; do cat /$v/k >/dev/null && touch /$v/planted; done"
    await cluster.run("p", shell("a", attack, volumeMounts=mounts), volumes=volumes, hostNetwork=True)
    await cluster.phase("p", "Failed")
    assert kubectl("logs", "p").count("Read-only file system") == 4


async def test_unused_images_go_when_the_disk_is_nearly_full(
    agent: Agent, containerd: Containerd, images: Path, tmp_path: Path
) -> None:
    containerd.load(images, "localhost/unused:1", {"Cmd": ["/bin/sh"], "Labels": {"of": "this test"}})
    runtime = direct(containerd, f"{agent.name}-images", tmp_path)
    await runtime.start(lambda _record: None, ChildTasks("test"))
    sandbox = Sandbox("images-uid", "ns", "p", "p", str(tmp_path / "logs"), host_network=True)
    await runtime.ensure_sandbox(sandbox)
    record = (await runtime.run(ContainerSpec(sandbox, "a", 0, "busybox", command=("sleep", "600")))).record
    assert {"localhost/unused:1", BUSYBOX} <= {name for image in await runtime.images() for name in image.names}
    # Other tests use the same containerd.
    kept = {BUSYBOX, PAUSE} | await runtime._images_in_use()
    runtime._images._disk = lambda _path: (100, 1)
    warnings: list[str] = []
    await runtime._images.collect(kept, lambda reason, _message: warnings.append(reason))
    runtime._images._last_used = {key: value - 300 for key, value in runtime._images._last_used.items()}
    await runtime._images.collect(kept, lambda reason, _message: warnings.append(reason))
    names = containerd.ctr("image", "list", "--quiet").split()
    assert "localhost/unused:1" not in names
    assert {PAUSE, BUSYBOX} <= set(names)
    await runtime.stop_container(record.id, 0)
    await runtime.remove_container(record.id)
    await runtime.remove_sandbox(sandbox.uid)
    await runtime.stop()
