"""The programs of a demo and their directories."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import dray
from dray.cmd.demo.processes import Program
from dray.cmd.demo.scenario import DRIVER, NODES, PLUGIN_PATTERN, RESOURCE, DemoNode
from dray.rpc.sockets import PATH_LENGTH_MAX

# The longest path of a socket in a node's root directory.
_LONGEST: Final = f"plugins_registry/{DRIVER}-reg.sock"


class MissingExamplesError(Exception):
    """The examples are neither in the package nor next to it."""


@dataclass(frozen=True, slots=True)
class Directories:
    """The directories of a demo."""

    data: Path
    nodes: Path
    examples: Path

    @property
    def kubeconfig(self) -> Path:
        """Return the path of the administrator's kubeconfig."""
        return self.data / "kubeconfig"

    def node(self, name: str) -> Path:
        """Return a node's root directory, which is /var/lib/kubelet on a real node."""
        return self.nodes / name


def make_directories(data_dir: str) -> Directories:
    """Return the directories for a data directory; nodes get a temporary one if socket paths would be too long."""
    data = Path(data_dir).resolve()
    nodes = data / "nodes"
    if not fits_sockets(nodes):
        nodes = Path(tempfile.mkdtemp(prefix="dray-demo-"))
    return Directories(data, nodes, examples_directory())


def fits_sockets(nodes: Path) -> bool:
    """Return whether the paths of all sockets are within the kernel's limit."""
    longest = max(len(str(nodes / node.name / _LONGEST)) for node in NODES)
    return longest <= PATH_LENGTH_MAX


def examples_directory() -> Path:
    """Return the examples of the installed package, or of the repository."""
    package = Path(dray.__file__).resolve().parent
    for directory in (package / "examples", package.parents[1] / "examples"):
        if (directory / "demo").is_dir():
            return directory
    raise MissingExamplesError(f"the examples are missing from {package}; reinstall dray, or run it in its repository")


def _dray(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "dray", *arguments)


def server(directories: Directories, port: int) -> Program:
    """Return the API server with controllers and scheduler."""
    return Program("server", _dray("up", f"--data-dir={directories.data}", f"--port={port}"))


def agent(directories: Directories, node: DemoNode) -> Program:
    """Return a node agent; its containers are processes, which needs no root."""
    root = directories.node(node.name)
    return Program(
        f"agent-{node.name}",
        _dray(
            "node",
            f"--data-dir={directories.data}",
            f"--root-dir={root}",
            f"--cdi-spec-dirs={root / 'cdi'}",
            f"--hostname-override={node.name}",
            "--runtime=process",
            "--address=127.0.0.1",
            "--node-ip=127.0.0.1",
            "--port=0",
        ),
    )


def providers(directories: Directories, node: DemoNode) -> tuple[Program, ...]:
    """Return the example drivers and device plugins of a node."""
    first = _driver(directories, node) if node.model else _device_plugin(directories, node)
    return (first, _classic_plugin(directories, node)) if node.classic else (first,)


def _driver(directories: Directories, node: DemoNode) -> Program:
    root = directories.node(node.name)
    arguments = (
        sys.executable,
        str(directories.examples / "gpu-driver" / "driver.py"),
        f"--node-name={node.name}",
        f"--kubeconfig={directories.kubeconfig}",
        f"--root-dir={root}",
        f"--cdi-dir={root / 'cdi'}",
    )
    return Program(f"driver-{node.name}", arguments, {"GPUS": str(node.cards), "GPU_MODELS": node.model})


def _device_plugin(directories: Directories, node: DemoNode) -> Program:
    arguments = (
        sys.executable,
        str(directories.examples / "device-plugin" / "host_devices.py"),
        f"--resource={RESOURCE}",
        f"--pattern={PLUGIN_PATTERN}",
        f"--folder={directories.node(node.name) / 'device-plugins'}",
    )
    return Program(f"plugin-{node.name}", arguments)


def classic_controller(directories: Directories) -> Program:
    """Return the controller of the classic driver."""
    arguments = (
        sys.executable,
        str(directories.examples / "classic" / "acme-gpu" / "driver.py"),
        "controller",
        f"--kubeconfig={directories.kubeconfig}",
        "--leader-elect=false",
    )
    return Program("classic-controller", arguments)


def _classic_plugin(directories: Directories, node: DemoNode) -> Program:
    root = directories.node(node.name)
    arguments = (
        sys.executable,
        str(directories.examples / "classic" / "acme-gpu" / "driver.py"),
        "node",
        f"--node-name={node.name}",
        f"--kubeconfig={directories.kubeconfig}",
        f"--root-dir={root}",
        f"--cdi-dir={root / 'cdi'}",
    )
    return Program(f"classic-{node.name}", arguments)


def dashboard(directories: Directories) -> Program:
    """Return the dashboard."""
    return Program("dashboard", _dray("ui", f"--kubeconfig={directories.kubeconfig}", "--port=0"))
