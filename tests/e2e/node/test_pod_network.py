"""Pods with networks of their own, and the way to Services: a whole cluster inside a network namespace of the test."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dray.node.network.commands import missing_tools
from tests.containerd import PLUGINS, Containerd, needs_containerd, running_containerd
from tests.e2e.node.harness import busybox_root

_NUMBERS = itertools.count(1)
needs_plugins = pytest.mark.skipif(not (PLUGINS / "ptp").exists(), reason="needs the CNI plugins")
# Other tests may use the machine at the same time.
SECONDS_MAX = 120.0
HELLO = "mkdir /www; hostname > /www/index.html; httpd -f -p 8080 -h /www"


def run(*argv: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False, **options)


@dataclass
class Space:
    """A network namespace with nothing but loopback."""

    name: str

    def __call__(self, *argv: str, check: bool = True) -> str:
        done = run("nsenter", f"--net=/run/netns/{self.name}", *argv)
        assert not check or done.returncode == 0, f"{argv}: {done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def space() -> Iterator[Space]:
    if missing := missing_tools():
        pytest.skip(f"needs {', '.join(missing)}")
    name = f"drayt{os.getpid()}n{next(_NUMBERS)}"
    made = run("ip", "netns", "add", name)
    if made.returncode != 0:
        pytest.skip(f"network namespaces cannot be made here: {made.stderr.strip()}")
    found = Space(name)
    try:
        found("ip", "link", "set", "lo", "up")
        bridge = run("nsenter", f"--net=/run/netns/{name}", "ip", "link", "add", "probe", "type", "bridge")
        rules = run("nsenter", f"--net=/run/netns/{name}", "iptables", "-t", "nat", "-N", "PROBE")
        if bridge.returncode or rules.returncode:
            pytest.skip(f"no bridges or rules here: {bridge.stderr or rules.stderr}")
        yield found
    finally:
        run("ip", "netns", "delete", name)


@dataclass
class Cluster:
    """`dray up --node` with containerd, in the namespace."""

    space: Space
    folder: Path
    containerd: Containerd
    process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        root = f"--node-root-dir={self.folder}/data/node"
        flags = ("--node", "--node-runtime=cri", root, "--node-pod-network=routed", "--port=7443")
        own = (
            f"--node-container-runtime-endpoint={self.containerd.endpoint}",
            f"--node-cni-conf-dir={self.containerd.networks}",
        )
        argv = (sys.executable, "-m", "dray", "up", f"--data-dir={self.folder}/data", *flags, *own)
        with (self.folder / "log").open("a") as log:
            self.process = subprocess.Popen(
                ("nsenter", f"--net=/run/netns/{self.space.name}", *argv), stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], SECONDS_MAX)
        assert readable, (self.folder / "log").read_text()
        assert self.process.stdout.readline().startswith("ready"), (self.folder / "log").read_text()

    def end(self, *, kill: bool = False) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        (self.process.kill if kill else self.process.terminate)()
        self.process.wait(20)
        self.process.stdout.close()

    def clean_up(self) -> None:
        flags = (f"--root-dir={self.folder}/data/node", f"--cni-conf-dir={self.containerd.networks}")
        self.space(sys.executable, "-m", "dray", "node", "--cleanup", *flags)

    def kubectl(self, *argv: str, check: bool = True) -> str:
        return self.space("kubectl", f"--kubeconfig={self.folder}/data/kubeconfig", *argv, check=check)

    def get(self, what: str, path: str) -> str:
        return self.kubectl("get", what, "-o", f"jsonpath={{{path}}}")

    def apply(self, *documents: dict[str, Any]) -> None:
        file = self.folder / "objects.json"
        file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(documents)}))
        self.kubectl("apply", "-f", str(file))

    def wait_ready(self, *pods: str) -> None:
        self.kubectl("wait", "--for=condition=Ready", f"--timeout={SECONDS_MAX:.0f}s", *(f"pod/{pod}" for pod in pods))

    def inside(self, pod: str, script: str, *, check: bool = True) -> str:
        return self.kubectl("exec", pod, "--", "sh", "-c", script, check=check).strip()


def eventually(check: Callable[[], object], expected: object) -> None:
    """Wait until a check gives what is expected."""
    deadline = time.monotonic() + SECONDS_MAX
    found = check()
    while found != expected and time.monotonic() < deadline:
        time.sleep(0.1)
        found = check()
    assert found == expected


@pytest.fixture(scope="module")
def cluster(space: Space, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl")
    folder = tmp_path_factory.mktemp("b")
    inside = ("nsenter", f"--net=/run/netns/{space.name}")
    with running_containerd(busybox_root(tmp_path_factory.getbasetemp()), inside) as containerd:
        running = Cluster(space, folder, containerd)
        running.start()
        try:
            yield running
            running.kubectl("delete", "pods", "--all", "--now", check=False)
        finally:
            with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
                running.end()
            running.clean_up()


def pod(name: str, script: str = HELLO, *, labels: dict[str, str] | None = None, **container: Any) -> dict[str, Any]:
    probe = {"tcpSocket": {"port": 8080}, "periodSeconds": 1}
    own = {
        "name": "a",
        "image": "busybox",
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", script],
        "readinessProbe": probe,
        **container,
    }
    spec = {"containers": [own], "terminationGracePeriodSeconds": 0}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels or {"app": name}},
        "spec": spec,
    }


def service(name: str, **spec: Any) -> dict[str, Any]:
    ports = [{"name": "http", "port": 80, "targetPort": 8080}]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": ports, **spec},
    }


def fetch(address: str) -> str:
    return f"printf 'GET /index.html HTTP/1.0\\r\\n\\r\\n' | nc -w 5 {address} 80 | tail -n 1"


@needs_containerd
@needs_plugins
@pytest.mark.behaviour(
    "SV-21", "SV-30", "SV-31", "SV-40", "SV-41", "SV-42", "SV-43", "SV-50", "SV-51", "SV-53", "EX-45"
)
def test_pods_have_networks_of_their_own_and_reach_services(cluster: Cluster) -> None:
    node_port = [{"name": "http", "port": 80, "targetPort": 8080, "nodePort": 30080}]
    cluster.apply(
        pod("web", ports=[{"containerPort": 8080, "hostPort": 9090}]),
        pod("other", ports=[{"containerPort": 8080}]),
        service("web", type="NodePort", ports=node_port),
        service("nobody"),
        service("named", clusterIP="None", selector={"app": "other"}),
    )
    cluster.wait_ready("web", "other")
    # The same port in both, and an address each, of the node's range.
    assert cluster.get("nodes", ".items[0].spec.podCIDR") == "10.244.0.0/24"
    addresses = cluster.get("pods", ".items[*].status.podIP").split()
    assert len(set(addresses)) == 2
    assert all(address.startswith("10.244.0.") for address in addresses)
    assert cluster.inside("web", "hostname; grep -c lo: /proc/net/dev; grep -c eth0: /proc/net/dev").split() == [
        "web",
        "1",
        "1",
    ]
    cluster_ip = cluster.get("service/web", ".spec.clusterIP")
    # From another Pod, from the Pod behind it, and from the node.
    eventually(lambda: cluster.inside("other", fetch(cluster_ip), check=False), "web")
    assert cluster.inside("web", fetch(cluster_ip)) == "web"
    curl = ("curl", "-s", "-m", "5")
    assert cluster.space(*curl, f"http://{cluster_ip}/index.html").strip() == "web"
    # By name: a static busybox has no other client of DNS.
    other = cluster.get("pod/other", ".status.podIP")
    assert cluster_ip in cluster.inside("other", "nslookup -type=a web.default.svc.cluster.local")
    assert other in cluster.inside("web", "nslookup -type=a named.default.svc.cluster.local")
    assert "NXDOMAIN" in cluster.inside("web", "nslookup -type=a nothing.default.svc.cluster.local", check=False)
    # Node port and host port, on the node's address.
    assert cluster.space(*curl, "http://10.244.0.1:30080/index.html").strip() == "web"
    assert cluster.space(*curl, "http://10.244.0.1:9090/index.html").strip() == "web"
    # No endpoints: refused at once.
    empty = cluster.get("service/nobody", ".spec.clusterIP")
    eventually(
        lambda: (
            run("nsenter", f"--net=/run/netns/{cluster.space.name}", *curl, "-m", "1", f"http://{empty}/").returncode
        ),
        7,
    )
    # The API server, which only listens on loopback, is reached by its Service.
    assert cluster.inside("other", "echo $KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT") == "10.96.0.1:443"
    script = "nc -w 5 $KUBERNETES_SERVICE_HOST $KUBERNETES_SERVICE_PORT </dev/null && echo connected"
    assert cluster.inside("other", script) == "connected"
    assert cluster.inside("other", "grep nameserver /etc/resolv.conf") == "nameserver 10.96.0.10"
    assert cluster.inside("other", "tail -n 1 /etc/hosts").split() == [other, "other"]
    # The API server passes requests on to them.
    raw = "/api/v1/namespaces/default"
    eventually(
        lambda: cluster.kubectl("get", "--raw", f"{raw}/pods/web:8080/proxy/index.html", check=False).strip(), "web"
    )
    assert cluster.kubectl("get", "--raw", f"{raw}/services/web:http/proxy/index.html").strip() == "web"
    node = cluster.get("nodes", ".items[0].metadata.name")
    assert "PodList" in cluster.kubectl("get", "--raw", f"/api/v1/nodes/{node}/proxy/pods")
    gone = run(
        *("nsenter", f"--net=/run/netns/{cluster.space.name}", "kubectl", "get", "--raw"),
        *(f"{raw}/services/nobody/proxy/", f"--kubeconfig={cluster.folder}/data/kubeconfig"),
    )
    assert 'no endpoints available for service "nobody"' in gone.stderr
    condition = '.items[0].status.conditions[?(@.type=="dray.dev/ServiceNetwork")].status'
    eventually(lambda: cluster.get("nodes", condition), "True")


@needs_containerd
@needs_plugins
@pytest.mark.behaviour("SV-44", "SV-51", "SV-53")
def test_networks_outlive_the_agent_and_end_with_their_pods(cluster: Cluster) -> None:
    cluster.apply(pod("stays"), pod("goes"))
    cluster.wait_ready("stays", "goes")
    before = cluster.get("pod/stays", ".status.podIP .status.containerStatuses[0].containerID")
    address = cluster.get("pod/stays", ".status.podIP")
    cluster.end(kill=True)
    # The rules and the Pod stay.
    fetched = cluster.space("curl", "-s", "-m", "5", f"http://{address}:8080/index.html")
    assert fetched.strip() == "stays"
    cluster.start()
    assert cluster.get("pod/stays", ".status.podIP .status.containerStatuses[0].containerID") == before
    goes = cluster.get("pod/goes", ".status.podIP")
    used = cluster.folder / "data" / "node" / "network" / "addresses"
    eventually(lambda: {address, goes} <= {path.name for path in used.glob("*/*")}, True)
    cluster.kubectl("delete", "pod", "goes", "--now")
    eventually(lambda: goes in {path.name for path in used.glob("*/*")}, False)
    assert address in {path.name for path in used.glob("*/*")}
    cluster.kubectl("delete", "pods", "--all", "--now")
    eventually(lambda: "veth" in cluster.space("ip", "-o", "link"), False)
    cluster.end(kill=True)
    assert "DRAY-" in cluster.space("iptables-save")
    assert list(cluster.containerd.networks.iterdir())
    cluster.clean_up()
    assert "DRAY-" not in cluster.space("iptables-save")
    assert "dray" not in cluster.space("ip", "-o", "link")
    assert list(cluster.containerd.networks.iterdir()) == []
