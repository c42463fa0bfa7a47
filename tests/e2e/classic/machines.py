"""Machines with agents and classic drivers beside them, all real processes."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from dray.api.document import Document
from tests.e2e.kubectl.tool import Kubectl
from tests.e2e.node.conftest import end_shims
from tests.e2e.node.harness import Agent
from tests.fork_server import ForkedPopen
from tests.servers import Server

TOP = Path(__file__).parents[3]
EXAMPLES = TOP / "examples" / "classic"
SECONDS_MAX = 120.0
_NUMBERS = itertools.count(1)


def until(what: str, look: Callable[[], object]) -> Any:
    """What `look` gives as soon as it gives anything."""
    deadline = time.monotonic() + SECONDS_MAX
    while not (found := look()):
        assert time.monotonic() < deadline, f"not within {SECONDS_MAX:.0f} s: {what}"
        time.sleep(0.1)
    return found


class Program:
    """A driver's process."""

    def __init__(self, log: Path, *arguments: str, **environment: str) -> None:
        with log.open("a") as output:
            self.process = ForkedPopen(
                [sys.executable, *arguments],
                stdout=output,
                stderr=output,
                env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(TOP), "GRPC_VERBOSITY": "NONE", **environment},
            )

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)


class Machine:
    """An agent with plugins beside it."""

    def __init__(self, server: Server, root: Path, *flags: str) -> None:
        self.server, self.root = server, root
        self.name = f"machine-{next(_NUMBERS)}"
        own = ("--runtime=process", "--node-lease-duration-seconds=4", *flags)
        self.agent = Agent(server, root, self.name, own)
        self.agent.start()
        self.programs: list[Program] = []

    def plugin(self, script: Path, *arguments: str, **environment: str) -> Program:
        """A driver's node part on this machine."""
        self.programs.append(
            Program(
                self.root / "plugin.log",
                str(script),
                *arguments,
                f"--node-name={self.name}",
                f"--kubeconfig={self.server.kubeconfig}",
                f"--root-dir={self.root}",
                f"--cdi-dir={self.root}/cdi",
                **environment,
            )
        )
        return self.programs[-1]

    def example(self, name: str, **environment: str) -> Program:
        """An example's node part."""
        return self.plugin(EXAMPLES / name / "driver.py", "node", **environment)

    def power_cut(self) -> None:
        """Nothing of the machine says good-bye."""
        for program in self.programs:
            program.kill()
        process = self.agent.process
        if process is not None and process.poll() is None:
            self.agent.kill()
        end_shims(self.agent)


def controller(server: Server, name: str) -> Program:
    """An example's controller."""
    return Program(
        server.data_dir / f"{name}.log",
        str(EXAMPLES / name / "driver.py"),
        "controller",
        f"--kubeconfig={server.kubeconfig}",
        "--leader-elect=false",
    )


def manifests(name: str, file: str) -> list[Document]:
    """What an example says."""
    return list(yaml.safe_load_all((EXAMPLES / name / file).read_text()))


def on(pod: Document, node: str) -> Document:
    """The Pod, for that node."""
    return {**pod, "spec": {**pod["spec"], "nodeSelector": {"kubernetes.io/hostname": node}}}


def named(pod: Document, name: str) -> Document:
    """The Pod by another name."""
    return {**pod, "metadata": {**pod["metadata"], "name": name}}


def phase(kubectl: Kubectl, name: str) -> str:
    return kubectl.field(f"pod/{name}", "status.phase")


def runs(kubectl: Kubectl, name: str) -> None:
    until(f"{name} runs", lambda: phase(kubectl, name) == "Running")


def log(kubectl: Kubectl, name: str, container: str = "") -> str:
    """The first line that a container has written."""
    chosen = [f"--container={container}"] if container else []
    return str(until(f"{name} speaks", lambda: kubectl.run("logs", name, *chosen).out)).splitlines()[0]


def is_gone(kubectl: Kubectl, resource: str) -> bool:
    return "(NotFound)" in kubectl.run("get", resource).err


def claim(kubectl: Kubectl, name: str) -> Document:
    return kubectl.get(f"resourceclaims.cdi.k8s.io/{name}")


def claim_users(kubectl: Kubectl, name: str) -> list[str]:
    return [user["name"] for user in claim(kubectl, name).get("status", {}).get("reservedFor", ())]


def events(kubectl: Kubectl, reason: str) -> str:
    return kubectl("get", "events", f"--field-selector=reason={reason}", "--output=jsonpath={.items[*].message}")
