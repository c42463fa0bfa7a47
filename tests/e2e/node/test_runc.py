"""What only real containers have: isolation, limits, users, devices by CDI, images."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from dray.api.document import Document, GroupVersion
from dray.client.interface import unstructured
from dray.node.cdi.cache import CdiCache
from dray.node.runtimes.images.puller import ImagePuller
from dray.node.runtimes.images.store import ImageStore
from dray.node.runtimes.runc.runtime import RuncRuntime
from dray.node.runtimes.runtime import ContainerRecord, ContainerSpec, Sandbox
from dray.runtime.system import SystemClock
from dray.runtime.tasks import ChildTasks
from tests.e2e.kubectl.tool import Kubectl
from tests.e2e.node.harness import (
    Agent,
    Cluster,
    container_status,
    is_running,
    is_waiting,
    needs_runc,
    shell,
    terminated,
)
from tests.mounts import mounting_folder

pytestmark = needs_runc
CONFIG_MAPS = unstructured(GroupVersion("", "v1"), "configmaps", "ConfigMap")
SECRETS = unstructured(GroupVersion("", "v1"), "secrets", "Secret")
# Every edit of CDI 0.8 that can be seen from inside; the hook writes into the container's root from outside.
DEVICE: Document = {
    "env": ["CDI=1", "PATH=/bin"],
    "deviceNodes": [{"path": "/dev/my-zero", "hostPath": "/dev/zero", "permissions": "r"}],
    "mounts": [{"hostPath": "/etc/hostname", "containerPath": "/srv/hostname", "options": ["ro", "bind"]}],
    "additionalGids": [4242],
}
SCRIPT = (
    "echo $CDI; head -c 2 /dev/my-zero | tr '\\0' z; echo; cat /srv/hostname; touch /srv/hostname || echo ro; id -G"
)


@pytest.fixture(scope="module")
def runtime() -> str:
    return "runc"


def write_spec(folder: Path, version: str = "0.8.0", **devices: Document) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "cdiVersion": version,
        "kind": "example.com/test",
        "devices": [{"name": name, "containerEdits": edits} for name, edits in devices.items()],
    }
    (folder / "example.com-test.json").write_text(json.dumps(content))


async def test_a_container_is_alone(cluster: Cluster, kubectl: Kubectl) -> None:
    await cluster.run(
        "p", shell("a", "hostname; sh -c 'echo $PPID'; set -- /proc/[0-9]*; echo $#; id -u; cat /etc/hostname")
    )
    await cluster.phase("p", "Succeeded")
    assert kubectl("logs", "p").split() == ["p", "1", "1", "0", "p"]


async def test_users_groups_and_a_read_only_root(cluster: Cluster, kubectl: Kubectl) -> None:
    context = {"runAsUser": 1000, "runAsGroup": 1001, "readOnlyRootFilesystem": True}
    await cluster.run(
        "p",
        shell("a", "id -u; id -g; touch /x || echo refused; grep CapEff /proc/self/status", securityContext=context),
        securityContext={"supplementalGroups": [1002]},
    )
    await cluster.phase("p", "Succeeded")
    log = kubectl("logs", "p")
    assert log.split()[:2] == ["1000", "1001"]
    assert "refused" in log
    assert "CapEff:\t0000000000000000" in log


async def test_root_is_refused_where_it_must_not_be(cluster: Cluster) -> None:
    await cluster.run("p", shell("a", "true"), securityContext={"runAsNonRoot": True})
    pod = await cluster.wait("p", is_waiting("CreateContainerError"))
    assert "runAsNonRoot" in container_status(pod)["state"]["waiting"]["message"]


async def test_running_out_of_memory(cluster: Cluster) -> None:
    script = "dd if=/dev/zero of=/dev/null bs=200M count=1"
    await cluster.run("p", shell("a", script, resources={"limits": {"memory": "20Mi"}}))
    pod = await cluster.phase("p", "Failed")
    assert terminated(pod)["reason"] in ("OOMKilled", "Error")
    if terminated(pod)["exitCode"] == 137:
        assert terminated(pod)["reason"] == "OOMKilled"


async def test_capabilities_and_privilege(cluster: Cluster, kubectl: Kubectl) -> None:
    await cluster.run(
        "p",
        shell(
            "a",
            "ls /dev/vda /dev/kmsg 2>/dev/null; grep CapEff /proc/self/status",
            securityContext={"privileged": True},
        ),
        shell("b", "grep CapEff /proc/self/status", securityContext={"capabilities": {"drop": ["ALL"]}}),
    )
    await cluster.phase("p", "Succeeded")
    mask = int(kubectl("logs", "p", "-c", "a").split()[-1], 16)
    assert mask >> 21 & 1
    assert kubectl("logs", "p", "-c", "b").split()[-1] == "0" * 16


async def test_images_that_are_not_there(cluster: Cluster) -> None:
    await cluster.run("never", {**shell("a", "true"), "image": "none", "imagePullPolicy": "Never"})
    # Nobody listens there.
    await cluster.run("pull", {**shell("a", "true"), "image": "127.0.0.1:1/none"})
    pod = await cluster.wait("never", is_waiting("ErrImageNeverPull"))
    text = container_status(pod)["state"]["waiting"]["message"]
    assert text == 'Container image "none" is not present with pull policy of Never'
    await cluster.wait("pull", is_waiting("ImagePullBackOff"))
    message = (await cluster.event("pull", "Failed"))["message"]
    assert re.search(r"dray image --root-dir=\S+ load 127\.0\.0\.1:1/none", message), message


async def test_a_present_image_is_used_under_every_policy(cluster: Cluster) -> None:
    for policy in ("Always", "IfNotPresent", "Never"):
        name = policy.lower()
        await cluster.run(name, {**shell("a", "true"), "imagePullPolicy": policy})
        await cluster.phase(name, "Succeeded")
    assert "already present on machine" in (await cluster.event("never", "Pulled"))["message"]


async def test_nothing_is_left_of_a_deleted_pod(cluster: Cluster, agent: Agent) -> None:
    pod = await cluster.run("p", shell("a", "true"))
    await cluster.phase("p", "Succeeded")
    uid = pod["metadata"]["uid"]
    assert (agent.root / "pods" / uid).exists()
    await cluster.delete("p")
    await cluster.gone("p")
    deadline = time.monotonic() + 10
    while _left_of(agent, uid):
        assert time.monotonic() < deadline, _left_of(agent, uid)


def _left_of(agent: Agent, uid: str) -> list[Path]:
    logs = list((agent.root / "logs" / "pods").glob(f"*{uid}"))
    return [*logs, *(agent.root / "pods").glob(uid), *Path("/sys/fs/cgroup").glob(f"*/dray/pod{uid}")]


# --- Volumes that a container attacks. ---


@pytest.mark.parametrize("mount", [{"subPath": "s"}, {"subPathExpr": "$(PART)"}, {"subPath": "s/made"}])
async def test_a_subpath_replaced_by_a_link_to_the_host_is_not_mounted(
    cluster: Cluster, agent: Agent, mount: Document
) -> None:
    host = agent.root / "precious"
    host.mkdir(exist_ok=True)
    attack = f"busybox rmdir /v/s; busybox ln -s {host} /v/s"
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
            shell("attack", attack, volumeMounts=[{"name": "v", "mountPath": "/v"}]),
        ],
        volumes=[{"name": "v", "emptyDir": {}}],
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
    pod = await cluster.run(
        "p",
        shell(
            "a",
            "echo folder > /real/x; cat /linked/x /etc/key; touch /etc/key 2>&1 || echo; echo ro",
            volumeMounts=mounts,
        ),
        initContainers=[shell("i", "busybox ln -s real /v/link", volumeMounts=[{"name": "v", "mountPath": "/v"}])],
        volumes=[{"name": "v", "emptyDir": {}}, {"name": "cm", "configMap": {"name": "cm"}}],
    )
    await cluster.phase("p", "Succeeded", "Failed")
    log = kubectl("logs", "p")
    assert log.startswith("folder\nkey")
    assert "Read-only file system" in log
    # The mounts are in the container's namespace alone, so that removing its folder cannot reach the volume.
    assert pod["metadata"]["uid"] not in _mounts_of(agent)


def _mounts_of(agent: Agent) -> str:
    assert agent.process is not None
    return Path(f"/proc/{agent.process.pid}/mountinfo").read_text()


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
    await cluster.run("p", shell("a", attack, volumeMounts=mounts), volumes=volumes)
    await cluster.phase("p", "Failed")
    assert kubectl("logs", "p").count("Read-only file system") == 4


async def test_the_configuration_of_a_container_is_private(cluster: Cluster, agent: Agent) -> None:
    pod = await cluster.run("p", shell("a", "sleep 60", env=[{"name": "PASSWORD", "value": "secret"}]))
    pod = await cluster.wait("p", is_running())
    folder = agent.root / "containers/runc" / container_status(pod)["containerID"].removeprefix("runc://")
    assert b"secret" in (folder / "config.json").read_bytes()
    found = {path.name: path.stat().st_mode & 0o777 for path in (folder.parent, folder, *folder.glob("*.json"))}
    assert found == {
        "runc": 0o700,
        folder.name: 0o700,
        **dict.fromkeys(("config.json", "job.json", "record.json"), 0o600),
    }
    await cluster.delete("p", 0)
    await cluster.gone("p")


# --- CDI, by a container that asks through a device plugin's or a driver's options: here, the runtime itself. ---


def _take_log(path: Path) -> str:
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    path.unlink(missing_ok=True)
    return "".join(line.split(" ", 3)[3] for line in lines)


def run_with(agent: Agent, images: Path, *names: str, script: str = SCRIPT) -> tuple[int, str]:
    """Run a container with CDI devices by the same runtime, without the cluster."""
    folder = agent.root / "direct"

    async def body() -> tuple[int, str]:
        store = ImageStore(folder / "images")
        store.import_path(images, "busybox")
        runtime = RuncRuntime(
            folder / "containers", SystemClock(), CdiCache([str(folder / "cdi")]), ImagePuller(store, SystemClock())
        )
        ended: asyncio.Future[ContainerRecord] = asyncio.get_running_loop().create_future()
        await runtime.start(lambda record: ended.set_result(record) if not ended.done() else None, ChildTasks("test"))
        sandbox = Sandbox("direct", "ns", "p", "p", str(folder / "logs"))
        spec = ContainerSpec(sandbox, "a", 0, "busybox", command=("sh", "-c", script), cdi_devices=names)
        started = await runtime.run(spec)
        record = started.record if started.record.exit is not None else await asyncio.wait_for(ended, 10)
        assert record.exit is not None
        text = _take_log(Path(spec.log_path))
        await runtime.remove_container(record.id)
        await runtime.stop()
        return record.exit.code, text + record.exit.message

    return asyncio.run(body())


def test_cdi_edits_take_effect(agent: Agent, images: Path) -> None:
    write_spec(agent.root / "direct/cdi", g=DEVICE)
    code, text = run_with(agent, images, "example.com/test=g")
    assert code == 0, text
    hostname = Path("/etc/hostname").read_text().strip()
    lines = text.splitlines()
    assert lines[:3] == ["1", "zz", hostname]
    assert "ro" in lines
    assert any("4242" in line.split() for line in lines)


def test_cdi_hooks_are_run(agent: Agent, images: Path) -> None:
    marker = agent.root / "hooked"
    hook = {"hookName": "createRuntime", "path": "/bin/sh", "args": ["sh", "-c", f"cat > {marker}"]}
    write_spec(agent.root / "direct/cdi", h={"hooks": [hook]})
    assert run_with(agent, images, "example.com/test=h", script="true") == (0, "")
    assert json.loads(marker.read_text())["status"]


def test_a_device_is_read_only_when_its_spec_says_so(agent: Agent, images: Path) -> None:
    # Not one of the devices that every container may use.
    node = {"path": "/dev/mine", "hostPath": "/dev/loop-control", "permissions": "r"}
    if not Path("/dev/loop-control").exists():
        pytest.skip("needs /dev/loop-control")
    write_spec(agent.root / "direct/cdi", g={"deviceNodes": [node]})
    code, text = run_with(agent, images, "example.com/test=g", script="echo x > /dev/mine")
    assert code != 0
    assert "ermission" in text or "ermitted" in text


def _remove_spec(path: Path, *, keep_folder: bool) -> None:
    path.unlink()
    if not keep_folder:
        path.parent.rmdir()


@pytest.mark.skipif(not shutil.which("podman"), reason="needs podman, to compare with its CDI")
def test_podman_does_the_same_with_the_same_spec(agent: Agent, images: Path) -> None:
    system = Path("/etc/cdi")
    mine = system / "example.com-test.json"
    had = system.exists()
    # podman 4 knows CDI 0.5, which has no groups.
    write_spec(
        agent.root / "direct/cdi",
        "0.5.0",
        g={name: value for name, value in DEVICE.items() if name != "additionalGids"},
    )
    system.mkdir(exist_ok=True)
    shutil.copy(agent.root / "direct/cdi/example.com-test.json", mine)
    script = SCRIPT.rpartition(";")[0]
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(mounting_folder("dray-podman-"))
        stack.callback(_remove_spec, mine, keep_folder=had)
        arguments = ["podman", "--root", f"{folder}/root", "--runroot", f"{folder}/run"]
        arguments += [
            "--cgroup-manager=cgroupfs",
            "--runtime=runc",
            "run",
            "--rm",
            "--network=host",
            "--ulimit=nofile=1024:1024",
            "--ulimit=nproc=1024:1024",
        ]
        arguments += ["--device=example.com/test=g", "--rootfs", f"{images}:O", "/bin/sh", "-c", script]
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode == 125:
            pytest.skip(f"podman does not work here: {done.stderr.strip()[-200:]}")
    code, text = run_with(agent, images, "example.com/test=g", script=script)
    assert (code, sorted(text.splitlines())) == (done.returncode, sorted((done.stdout + done.stderr).splitlines()))
