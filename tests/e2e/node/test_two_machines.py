"""A second machine: `dray join` from another network, and kubectl from the first to Pods of the second."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dray.apiserver.kubelet_client import FINGERPRINT_ANNOTATION
from tests.e2e.kubectl.tool import kubectl_path, needs_kubectl
from tests.namespaces import needs_namespaces

SECONDS_MAX = 120.0
POD = """
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: a, image: i, command: [sh, -c, "echo hello; exec sleep 1000"]}]
"""


class Machine:
    """A network of its own, and the commands that run in it."""

    def __init__(self, name: str, address: str) -> None:
        self.name, self.address = name, address

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["ip", "netns", "exec", self.name, *command],
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS_MAX,
            env={**os.environ, **environment},
        )

    @contextmanager
    def running(self, log: Path, *arguments: str) -> Iterator[None]:
        """A `dray` process for the time of a block, which begins when it is ready."""
        command = ["ip", "netns", "exec", self.name, sys.executable, "-m", "dray", *arguments]
        with log.open("w") as errors:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            wait_ready(process, log)
            yield
        finally:
            process.terminate()
            process.communicate(timeout=SECONDS_MAX)


def wait_ready(process: subprocess.Popen[str], log: Path) -> None:
    assert process.stdout is not None
    deadline = time.monotonic() + SECONDS_MAX
    while time.monotonic() < deadline and process.poll() is None:
        readable, _, _ = select.select([process.stdout], [], [], 0.1)
        if readable and process.stdout.readline().startswith("ready"):
            return
    raise AssertionError(log.read_text())


@pytest.fixture
def machines() -> Iterator[tuple[Machine, Machine]]:
    """Two networks with a cable between them, and no way out."""
    mark = f"{os.getpid() % 100_000}"
    first, second = Machine(f"dray-{mark}-1", "10.99.0.1"), Machine(f"dray-{mark}-2", "10.99.0.2")
    try:
        for machine in (first, second):
            subprocess.run(["ip", "netns", "add", machine.name], check=True)
        cable = f"link add cable netns {first.name} type veth peer name cable netns {second.name}"
        subprocess.run(["ip", *cable.split()], check=True)
        for machine in (first, second):
            for command in (f"addr add {machine.address}/24 dev cable", "link set lo up", "link set cable up"):
                subprocess.run(["ip", "-n", machine.name, *command.split()], check=True)
        yield first, second
    finally:
        for machine in (first, second):
            subprocess.run(["ip", "netns", "delete", machine.name], check=False)


@needs_namespaces
@needs_kubectl(25)
@pytest.mark.behaviour("CS-04", "CS-07", "CS-08", "EX-05")
def test_a_machine_joins_and_its_pods_are_reached(machines: tuple[Machine, Machine], tmp_path: Path) -> None:
    first, second = machines
    data_dir, manifest = tmp_path / "cluster", tmp_path / "pod.yaml"
    manifest.write_text(POD)
    up = ("up", f"--data-dir={data_dir}", "--bind-address=0.0.0.0", "--port=0")
    environment = {"KUBECONFIG": str(data_dir / "kubeconfig"), "HOME": str(tmp_path)}

    def kubectl(*arguments: str) -> subprocess.CompletedProcess[str]:
        return first.run(kubectl_path(), *arguments, **environment)

    with first.running(tmp_path / "up.log", *up):
        created = first.run(sys.executable, "-m", "dray", "token", "create", "--print-join-command", **environment)
        words = created.stdout.split()[1:]
        # The address that other machines reach, not the loopback one of the administrator's kubeconfig.
        assert words[1].startswith(f"https://{first.address}:"), created
        own = (f"--root-dir={tmp_path / 'second'}", "--hostname-override=second", "--runtime=process")
        deadline = time.monotonic() + SECONDS_MAX
        with second.running(tmp_path / "join.log", *words, *own, "--healthz-port=0"):
            assert kubectl("apply", "-f", str(manifest)).returncode == 0
            waited = kubectl("wait", "--for=condition=Ready", "pod/p", "--timeout=30s")
            assert waited.returncode == 0, waited
            assert kubectl("get", "pod", "p", "-o", "jsonpath={.status.hostIP}").stdout == second.address
            # Approved for the address that the machine connects from; nothing else allows it.
            while FINGERPRINT_ANNOTATION in kubectl("get", "node", "second", "-o", "jsonpath={.metadata}").stdout:
                assert time.monotonic() < deadline
            assert kubectl("logs", "p").stdout == "hello\n"
            done = kubectl("exec", "p", "--", "sh", "-c", "echo there; exit 3")
            assert (done.stdout, done.returncode) == ("there\n", 3)
            assert kubectl("delete", "pod", "p").returncode == 0
