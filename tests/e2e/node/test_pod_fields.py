"""Fields of Pods that drivers' charts use, in real containers; what a runtime ignores is in an event."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dray.api.document import Document, GroupVersion
from dray.client.interface import unstructured
from tests.containerd import needs_containerd
from tests.e2e.kubectl.tool import Kubectl
from tests.e2e.node.harness import (
    Agent,
    Cluster,
    container_status,
    is_running,
    is_waiting,
    shell,
)
from tests.mounts import shared_folder

RUNTIMES = ("cri",)
pytestmark = needs_containerd
CONFIG_MAPS = unstructured(GroupVersion("", "v1"), "configmaps", "ConfigMap")


def host_path(name: str, path: Path, kind: str = "") -> Document:
    return {"name": name, "hostPath": {"path": str(path), **({"type": kind} if kind else {})}}


def is_mounted(path: Path) -> bool:
    return f" {path} " in Path("/proc/self/mounts").read_text()


@pytest.mark.behaviour("ST-70")
async def test_a_missing_host_path_is_created(cluster: Cluster, tmp_path: Path) -> None:
    missing = tmp_path / "a" / "b"
    mount = {"name": "h", "mountPath": "/h"}
    container = shell("a", "echo yes > /h/made", volumeMounts=[mount])
    await cluster.run("p", container, volumes=[host_path("h", missing)])
    await cluster.phase("p", "Succeeded")
    assert (missing / "made").read_text() == "yes\n"
    assert missing.stat().st_mode & 0o777 == 0o755
    assert missing.parent.stat().st_mode & 0o777 == 0o755


@pytest.mark.behaviour("ST-73")
async def test_a_volume_is_mounted_inside_a_config_map(cluster: Cluster, kubectl: Kubectl, tmp_path: Path) -> None:
    body = {"metadata": {"name": "cm"}, "data": {"conf": "key\n"}}
    await cluster.client.create(CONFIG_MAPS, body, cluster.namespace)
    mounts = [
        {"name": "cm", "mountPath": "/etc/app"},
        {"name": "h", "mountPath": "/etc/app/features.d"},
        {"name": "e", "mountPath": "/etc/app/features.d/deep"},
    ]
    script = (
        "cat /etc/app/conf; echo x > /etc/app/features.d/deep/x; ls /etc/app/features.d;"
        " touch /etc/app/y 2>/dev/null || echo ro"
    )
    volumes = [
        {"name": "cm", "configMap": {"name": "cm"}},
        host_path("h", tmp_path / "features"),
        {"name": "e", "emptyDir": {}},
    ]
    await cluster.run("p", shell("a", script, volumeMounts=mounts), volumes=volumes)
    await cluster.phase("p", "Succeeded")
    assert kubectl("logs", "p").splitlines()[:2] == ["key", "deep"]
    assert kubectl("logs", "p").splitlines()[-1] == "ro"


@pytest.mark.behaviour("ST-71")
async def test_mounts_propagate_in_both_directions(cluster: Cluster, kubectl: Kubectl) -> None:
    with shared_folder("dray-propagation-") as folder:
        path = folder / "shared"
        volumes = [host_path("h", path)]
        reads = {"name": "h", "mountPath": "/r", "mountPropagation": "HostToContainer"}
        await cluster.run(
            "r", shell("a", "until test -e /r/m/x; do sleep 0.05; done", volumeMounts=[reads]), volumes=volumes
        )
        await cluster.wait("r", is_running())
        writes = {"name": "h", "mountPath": "/w", "mountPropagation": "Bidirectional"}
        waits = "until test -e /w/stop; do sleep 0.05; done"
        script = f"mkdir /w/m; mount -t tmpfs none /w/m; touch /w/m/x; {waits}; umount /w/m"
        container = shell("a", script, volumeMounts=[writes], securityContext={"privileged": True})
        await cluster.run("w", container, volumes=volumes)
        await cluster.phase("r", "Succeeded")
        assert is_mounted(path / "m")
        (path / "stop").touch()
        await cluster.phase("w", "Succeeded")
        assert not is_mounted(path / "m")


@pytest.mark.behaviour("ST-72")
async def test_containers_share_their_processes(cluster: Cluster, kubectl: Kubectl) -> None:
    # The orphan of a container is a child of the pause process, which reaps it. The shell itself has the lowest number
    # among its forks, and is ready for the signal when it catches it: SigCgt ends with an odd digit.
    target = shell("a", "trap 'exit 7' HUP; (sleep 0.01 &); while true; do sleep 0.05; done")
    script = (
        "until PID=$(grep -sl '[e]xit 7' /proc/[0-9]*/cmdline | tr -dc '0-9\\n' | sort -n | head -n 1)"
        ' && test -n "$PID"'
        " && grep -q '^SigCgt:.*[13579bdf]$' /proc/$PID/status; do sleep 0.05; done;"
        " tr '\\0' ' ' < /proc/1/cmdline; kill -HUP $PID"
    )
    await cluster.run("p", target, shell("b", script), shareProcessNamespace=True)
    pod = await cluster.phase("p", "Failed")
    codes = {item["name"]: item["state"]["terminated"]["exitCode"] for item in pod["status"]["containerStatuses"]}
    assert codes == {"a": 7, "b": 0}
    # What the pause image of the tests runs.
    assert 'trap "exit 0" TERM' in kubectl("logs", "p", "-c", "b")
    await cluster.delete("p")
    await cluster.gone("p")


@pytest.mark.behaviour("ST-74")
async def test_an_empty_dir_in_memory_has_a_size(cluster: Cluster, kubectl: Kubectl) -> None:
    mounts = [{"name": "m", "mountPath": "/m"}]
    script = "grep ' /m ' /proc/mounts; dd if=/dev/zero of=/m/x bs=1024 count=2000 2>/dev/null || echo full"
    volumes = [{"name": "m", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}]
    pod = await cluster.run("p", shell("a", script, volumeMounts=mounts), volumes=volumes)
    await cluster.phase("p", "Succeeded")
    first, *_, last = kubectl("logs", "p").splitlines()
    assert first.startswith("tmpfs /m tmpfs")
    assert "size=1024k" in first
    assert last == "full"
    await cluster.delete("p")
    await cluster.gone("p")
    uid = pod["metadata"]["uid"]
    await cluster.until(lambda: uid not in Path("/proc/self/mounts").read_text())


@pytest.mark.behaviour("ST-76")
async def test_names_in_etc_files(cluster: Cluster, kubectl: Kubectl) -> None:
    await cluster.run(
        "p",
        shell("a", "cat /etc/hosts; echo ---; cat /etc/resolv.conf"),
        hostAliases=[{"ip": "192.0.2.1", "hostnames": ["one", "two"]}],
        dnsPolicy="None",
        dnsConfig={
            "nameservers": ["192.0.2.53"],
            "searches": ["example.com"],
            "options": [{"name": "ndots", "value": "2"}, {"name": "rotate"}],
        },
        hostname="h",
        subdomain="sub",
        setHostnameAsFQDN=True,
    )
    await cluster.phase("p", "Succeeded")
    hosts, _, rest = kubectl("logs", "p").partition("---\n")
    domain = f"h.sub.{cluster.namespace}.svc.cluster.local"
    assert hosts.startswith("# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n")
    assert f"\t{domain}\th\n" in hosts
    assert hosts.endswith("\n# Entries added by HostAliases.\n192.0.2.1\tone\ttwo\n")
    assert sorted(rest.splitlines()) == ["nameserver 192.0.2.53", "options ndots:2 rotate", "search example.com"]


@pytest.mark.behaviour("ST-76")
async def test_ignored_fields_are_named_in_an_event(cluster: Cluster) -> None:
    context = {"sysctls": [{"name": "kernel.shm_rmid_forced", "value": "1"}]}
    await cluster.run("p", shell("a", "true"), hostUsers=False, securityContext=context)
    message = (await cluster.event("p", "RuntimeLimitation"))["message"]
    assert message == "the cri runtime ignores hostUsers"


@pytest.mark.behaviour("ST-75")
async def test_seccomp_profiles(cluster: Cluster, kubectl: Kubectl, agent: Agent) -> None:
    profiles = agent.root / "seccomp"
    profiles.mkdir()
    rule = {"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO"}
    (profiles / "own.json").write_text(json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [rule]}))
    # Capabilities alone would allow it.
    script = "grep Seccomp: /proc/self/status; mkdir /tmp/x && echo made; unshare -m true && echo unshared"

    def container(name: str, profile: Document | None, **context: Any) -> Document:
        return shell(name, script, securityContext={**context, **({"seccompProfile": profile} if profile else {})})

    default = {"type": "RuntimeDefault"}
    await cluster.run(
        "p",
        container("none", None),
        container("default", default),
        container("admin", default, capabilities={"add": ["SYS_ADMIN"]}),
        container("local", {"type": "Localhost", "localhostProfile": "own.json"}),
        container("privileged", default, privileged=True),
    )
    await cluster.run("q", container("a", {"type": "Localhost", "localhostProfile": "missing.json"}))
    await cluster.phase("p", "Succeeded", "Failed")
    logs = {name: kubectl("logs", "p", "-c", name) for name in ("none", "default", "admin", "local", "privileged")}
    modes = {name: re.search(r"Seccomp:\s*(\d)", log) for name, log in logs.items()}
    assert {name: mode and mode[1] for name, mode in modes.items()} == {
        "none": "0",
        "default": "2",
        "admin": "2",
        "local": "2",
        "privileged": "0",
    }
    assert {name for name, log in logs.items() if "made" in log} == {"none", "default", "admin", "privileged"}
    assert {name for name, log in logs.items() if "unshared" in log} == {"admin", "privileged"}
    pod = await cluster.wait("q", is_waiting("CreateContainerError"))
    assert "missing.json" in container_status(pod)["state"]["waiting"]["message"]


@pytest.mark.behaviour("ST-75")
@pytest.mark.skipif(Path("/sys/module/apparmor/parameters/enabled").exists(), reason="needs a kernel without AppArmor")
async def test_app_armor_is_refused_where_it_is_absent(cluster: Cluster) -> None:
    await cluster.run("p", shell("a", "true", securityContext={"appArmorProfile": {"type": "RuntimeDefault"}}))
    pod = await cluster.wait("p", is_waiting("CreateContainerError"))
    assert "apparmor is not supported" in container_status(pod)["state"]["waiting"]["message"]
