"""Volumes and logs on a real agent, by processes and by containerd alike."""

from __future__ import annotations

from dray.api.document import GroupVersion
from dray.client.interface import unstructured
from tests.e2e.kubectl.tool import Kubectl
from tests.e2e.node.conftest import BOTH
from tests.e2e.node.harness import Cluster, container_status, is_running, is_waiting, shell, terminated

RUNTIMES = BOTH
CONFIG_MAPS = unstructured(GroupVersion("", "v1"), "configmaps", "ConfigMap")
SECRETS = unstructured(GroupVersion("", "v1"), "secrets", "Secret")


def where(runtime: str, volume: str, path: str) -> str:
    """Where a container finds a volume: the process runtime can only say it in a variable."""
    return f"$DRAY_MOUNT_{volume.upper()}" if runtime == "process" else path


async def test_files_from_objects(cluster: Cluster, kubectl: Kubectl, runtime: str) -> None:
    await cluster.client.create(CONFIG_MAPS, {"metadata": {"name": "cm"}, "data": {"k": "from-cm"}}, cluster.namespace)
    await cluster.client.create(
        SECRETS, {"metadata": {"name": "s"}, "stringData": {"p": "from-secret"}}, cluster.namespace
    )
    downward = {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}
    sources = [
        {"configMap": {"name": "cm", "items": [{"key": "k", "path": "cm/k"}]}},
        {"secret": {"name": "s"}},
        {"downwardAPI": downward},
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 600}},
    ]
    volumes = [
        {"name": "cm", "configMap": {"name": "cm"}},
        {"name": "s", "secret": {"secretName": "s"}},
        {"name": "all", "projected": {"sources": sources}},
    ]
    mounts = [{"name": volume["name"], "mountPath": f"/v/{volume['name']}"} for volume in volumes]
    cm, s, everything = (where(runtime, name, f"/v/{name}") for name in ("cm", "s", "all"))
    script = f"cat {cm}/k {s}/p {everything}/cm/k {everything}/p {everything}/name; echo; head -c 3 {everything}/token"
    await cluster.run("p", shell("a", script, volumeMounts=mounts), volumes=volumes, serviceAccountName="default")
    await cluster.phase("p", "Succeeded", "Failed")
    assert kubectl("logs", "p").rstrip() == "from-cmfrom-secretfrom-cmfrom-secretp\neyJ"


async def test_containers_share_an_empty_dir(cluster: Cluster, kubectl: Kubectl, runtime: str) -> None:
    mount = [{"name": "d", "mountPath": "/d"}]
    path = where(runtime, "d", "/d")
    init = shell("i", f"echo shared > {path}/x", volumeMounts=mount)
    await cluster.run(
        "p",
        shell("a", f"cat {path}/x", volumeMounts=mount),
        initContainers=[init],
        volumes=[{"name": "d", "emptyDir": {}}],
    )
    await cluster.phase("p", "Succeeded", "Failed")
    assert kubectl("logs", "p", "-c", "a") == "shared\n"
    if runtime == "process":
        assert 'volume "d" is not mounted at /d' in (await cluster.event("p", "RuntimeLimitation"))["message"]


async def test_a_missing_config_map_is_waited_for(cluster: Cluster) -> None:
    env = [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "late", "key": "k"}}}]
    await cluster.run("p", shell("a", "test $X = here", env=env))
    pod = await cluster.wait("p", is_waiting("CreateContainerConfigError"))
    assert container_status(pod)["state"]["waiting"]["message"] == 'configmap "late" not found'
    await cluster.client.create(CONFIG_MAPS, {"metadata": {"name": "late"}, "data": {"k": "here"}}, cluster.namespace)
    await cluster.phase("p", "Succeeded")


async def test_a_missing_volume_holds_the_pod(cluster: Cluster) -> None:
    await cluster.run("p", shell("a", "true"), volumes=[{"name": "v", "secret": {"secretName": "none"}}])
    message = (await cluster.event("p", "FailedMount"))["message"]
    assert message == 'MountVolume.SetUp failed for volume "v" : secret "none" not found'


async def test_last_words(cluster: Cluster, runtime: str) -> None:
    path = where(runtime, "termination_log", "/dev/termination-log")
    await cluster.run("p", shell("a", f"echo farewell > {path}; exit 1"))
    assert terminated(await cluster.phase("p", "Failed"))["message"] == "farewell\n"


async def test_the_log_stands_in_for_last_words(cluster: Cluster) -> None:
    policy = {"terminationMessagePolicy": "FallbackToLogsOnError"}
    await cluster.run("p", shell("a", "echo it broke; exit 1", **policy))
    assert terminated(await cluster.phase("p", "Failed"))["message"] == "it broke\n"


async def test_logs(cluster: Cluster, kubectl: Kubectl) -> None:
    await cluster.run("p", shell("a", "echo one; echo two >&2; echo three; printf four"), shell("b", "echo other"))
    await cluster.phase("p", "Succeeded")
    assert sorted(kubectl("logs", "p", "-c", "a").split()) == ["four", "one", "three", "two"]
    assert kubectl("logs", "p", "-c", "a", "--tail=1").rstrip() == "four"
    assert kubectl("logs", "p", "-c", "b", "--limit-bytes=2") == "ot"
    assert kubectl("logs", "p", "-c", "b", "--since=1h") == "other\n"
    stamped = kubectl("logs", "p", "-c", "b", "--timestamps").split()
    assert stamped[0].startswith("20")
    assert stamped[0].endswith("Z")
    assert "previous terminated container" in kubectl.error("logs", "p", "-c", "a", "--previous")
    assert "container nope is not valid for pod p" in kubectl.error("logs", "p", "-c", "nope")


async def test_logs_are_followed_to_the_end(cluster: Cluster, kubectl: Kubectl) -> None:
    script = "for i in 1 2 3 4 5; do echo line $i; sleep 0.1; done"
    await cluster.run("p", shell("a", script))
    await cluster.wait("p", lambda pod: is_running()(pod) or terminated(pod))
    assert kubectl("logs", "p", "--follow") == "".join(f"line {number}\n" for number in range(1, 6))


async def test_a_log_that_cannot_be_yet(cluster: Cluster, kubectl: Kubectl) -> None:
    await cluster.run("p", shell("a", "true"), volumes=[{"name": "v", "secret": {"secretName": "none"}}])
    await cluster.event("p", "FailedMount")
    assert 'container "a" in pod "p" is waiting to start: ContainerCreating' in kubectl.error("logs", "p")


async def test_a_long_line_is_put_together_again(cluster: Cluster, kubectl: Kubectl) -> None:
    await cluster.run("p", shell("a", "head -c 40000 /dev/zero | tr '\\0' x; echo; echo end"))
    pod = await cluster.phase("p", "Succeeded", "Failed")
    if pod["status"]["phase"] == "Succeeded":
        assert [len(line) for line in kubectl("logs", "p").splitlines()] == [40000, 3]
