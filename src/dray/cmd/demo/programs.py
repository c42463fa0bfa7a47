"""Which programs a demo consists of, and where their files are. Pure, but for looking where the examples are."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import dray
from dray.cmd.demo.processes import Program
from dray.cmd.demo.story import DRIVER, NODES, PLUGIN_PATTERN, RESOURCE, DemoNode
from dray.rpc.sockets import PATH_LENGTH_MAX

# The longest path of a socket below a node's folder.
_LONGEST: Final = f"plugins_registry/{DRIVER}-reg.sock"


class MissingExamplesError(Exception):
    """The examples are neither in the package nor beside it."""


@dataclass(frozen=True, slots=True)
class Places:
    """The folders of a demo."""

    data: Path
    nodes: Path
    examples: Path

    @property
    def kubeconfig(self) -> Path:
        """An administrator's."""
        return self.data / "kubeconfig"

    def node(self, name: str) -> Path:
        """A node's root folder, which is /var/lib/kubelet elsewhere."""
        return self.nodes / name


def places(data_dir: str) -> Places:
    """The folders for a data directory; makes one for the nodes where paths would be too long for sockets."""
    data = Path(data_dir).resolve()
    nodes = data / "nodes"
    if not fits_sockets(nodes):
        nodes = Path(tempfile.mkdtemp(prefix="dray-demo-"))
    return Places(data, nodes, examples_folder())


def fits_sockets(nodes: Path) -> bool:
    """Whether all sockets of the nodes have paths that the kernel can take."""
    longest = max(len(str(nodes / node.name / _LONGEST)) for node in NODES)
    return longest <= PATH_LENGTH_MAX


def examples_folder() -> Path:
    """In an installed package, or in the repository."""
    package = Path(dray.__file__).resolve().parent
    for folder in (package / "examples", package.parents[1] / "examples"):
        if (folder / "demo").is_dir():
            return folder
    raise MissingExamplesError(
        f"the examples are missing from {package}; install dray again, or run it in its repository"
    )


def _dray(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "dray", *arguments)


def server(at: Places, port: int) -> Program:
    """API server, controllers and scheduler."""
    return Program("server", _dray("up", f"--data-dir={at.data}", f"--port={port}"))


def agent(at: Places, node: DemoNode) -> Program:
    """A node; its containers are processes, so that nobody has to be root."""
    root = at.node(node.name)
    return Program(
        f"agent-{node.name}",
        _dray(
            "node",
            f"--data-dir={at.data}",
            f"--root-dir={root}",
            f"--cdi-spec-dirs={root / 'cdi'}",
            f"--hostname-override={node.name}",
            "--runtime=process",
            "--address=127.0.0.1",
            "--node-ip=127.0.0.1",
            "--port=0",
        ),
    )


def providers(at: Places, node: DemoNode) -> tuple[Program, ...]:
    """What offers the node's devices: examples, started as their authors would."""
    first = _driver(at, node) if node.model else _device_plugin(at, node)
    return (first, _classic_plugin(at, node)) if node.classic else (first,)


def _driver(at: Places, node: DemoNode) -> Program:
    root = at.node(node.name)
    arguments = (
        sys.executable,
        str(at.examples / "gpu-driver" / "driver.py"),
        f"--node-name={node.name}",
        f"--kubeconfig={at.kubeconfig}",
        f"--root-dir={root}",
        f"--cdi-dir={root / 'cdi'}",
    )
    return Program(f"driver-{node.name}", arguments, {"GPUS": str(node.cards), "GPU_MODELS": node.model})


def _device_plugin(at: Places, node: DemoNode) -> Program:
    arguments = (
        sys.executable,
        str(at.examples / "device-plugin" / "host_devices.py"),
        f"--resource={RESOURCE}",
        f"--pattern={PLUGIN_PATTERN}",
        f"--folder={at.node(node.name) / 'device-plugins'}",
    )
    return Program(f"plugin-{node.name}", arguments)


def classic_controller(at: Places) -> Program:
    """The part of the classic driver that allocates; one for the cluster."""
    arguments = (
        sys.executable,
        str(at.examples / "classic" / "acme-gpu" / "driver.py"),
        "controller",
        f"--kubeconfig={at.kubeconfig}",
        "--leader-elect=false",
    )
    return Program("classic-controller", arguments)


def _classic_plugin(at: Places, node: DemoNode) -> Program:
    root = at.node(node.name)
    arguments = (
        sys.executable,
        str(at.examples / "classic" / "acme-gpu" / "driver.py"),
        "node",
        f"--node-name={node.name}",
        f"--kubeconfig={at.kubeconfig}",
        f"--root-dir={root}",
        f"--cdi-dir={root / 'cdi'}",
    )
    return Program(f"classic-{node.name}", arguments)


def dashboard(at: Places) -> Program:
    """The pages, on a port of this machine."""
    return Program("dashboard", _dray("ui", f"--kubeconfig={at.kubeconfig}", "--port=0"))
