"""Kill -9 of the plugin and of the node's side at each step; both are processes of their own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.node_devices.harness import WAIT_SECONDS
from tests.fork_server import ForkedPopen

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
FOO = "vendor.com/foo"


def wait(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not in {WAIT_SECONDS} s: {what}"
        time.sleep(0.02)


def start(name: str, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE if name.startswith("node") else None
    command = [sys.executable, str(HERE / name), *arguments]
    return ForkedPopen(command, env=environment, cwd=ROOT, stdin=pipe, stdout=pipe)


class NodeAndPlugin:
    """The two processes and their folders."""

    def __init__(self, folder: str) -> None:
        self.sockets = os.path.join(folder, "dp")
        os.mkdir(self.sockets)
        self.control = Path(folder, "control")
        self.control.mkdir()
        self.node: subprocess.Popen[str] | None = None
        self.plugin: subprocess.Popen[str] | None = None

    def start_node(self) -> None:
        self.node = start("node_process.py", self.sockets)
        assert self.answer() == {"rejected": []}

    def start_plugin(self) -> None:
        self.plugin = start("plugin_process.py", self.sockets, str(self.control), "a,b,c")

    def both(self) -> None:
        self.start_node()
        self.start_plugin()
        self.until_allocatable(3)

    def kill_node(self) -> None:
        kill(self.node)
        self.node = None

    def kill_plugin(self) -> None:
        kill(self.plugin)
        self.plugin = None

    def send(self, **command: Any) -> None:
        assert self.node is not None
        assert self.node.stdin is not None
        self.node.stdin.write(json.dumps(command) + "\n")
        self.node.stdin.flush()

    def answer(self) -> Any:
        assert self.node is not None
        assert self.node.stdout is not None
        return json.loads(self.node.stdout.readline())

    def do(self, **command: Any) -> Any:
        self.send(**command)
        return self.answer()

    def until_allocatable(self, amount: int) -> None:
        wait(lambda: self.do(do="state")["allocatable"].get(FOO) == str(amount), f"{amount} allocatable")

    def held(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = self.do(do="state")["held"]
        used = [name for names in found.values() for name in names]
        assert len(used) == len(set(used)), f"a device is given twice: {found}"
        return found

    @contextlib.contextmanager
    def held_up(self, where: str) -> Iterator[None]:
        """The plugin has been called and does not answer."""
        (self.control / "hold").touch()
        yield
        wait((self.control / where).exists, where)

    def go_on(self) -> None:
        (self.control / "hold").unlink()

    def check_nothing_lost(self) -> None:
        """All Pods go; every device can be had."""
        for uid in self.held():
            self.do(do="remove", uid=uid)
        self.until_allocatable(3)
        assert self.do(do="admit", uid="all", amount=3) is None
        assert self.held() == {"all": ["a", "b", "c"]}

    def close(self) -> None:
        self.kill_node()
        self.kill_plugin()


def kill(process: subprocess.Popen[str] | None) -> None:
    if process is None:
        return
    process.send_signal(signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


@pytest.fixture
def processes(folder: str) -> Iterator[NodeAndPlugin]:
    result = NodeAndPlugin(folder)
    try:
        yield result
    finally:
        result.close()


@pytest.mark.behaviour("DP-11", "DP-13", "DP-36")
def test_plugin_killed_while_a_pod_runs(processes: NodeAndPlugin) -> None:
    processes.both()
    assert processes.do(do="admit", uid="u1", amount=2) is None
    processes.kill_plugin()
    processes.until_allocatable(0)
    assert processes.held() == {"u1": ["a", "b"]}
    assert "no healthy devices present" in processes.do(do="admit", uid="u2", amount=1)
    assert "has been stopped" in processes.do(do="start", uid="u1")
    processes.start_plugin()
    processes.until_allocatable(3)
    assert processes.do(do="start", uid="u1") == {"FOO": "a,b"}
    assert processes.do(do="admit", uid="u2", amount=1) is None
    assert processes.held() == {"u1": ["a", "b"], "u2": ["c"]}
    processes.check_nothing_lost()


@pytest.mark.behaviour("DP-31")
def test_plugin_killed_in_allocate(processes: NodeAndPlugin) -> None:
    processes.both()
    with processes.held_up("in-allocate"):
        processes.send(do="admit", uid="u1", amount=2)
    processes.kill_plugin()
    assert "Allocate failed due to rpc error: code = Unavailable" in processes.answer()
    processes.go_on()
    processes.start_plugin()
    processes.until_allocatable(3)
    processes.check_nothing_lost()


@pytest.mark.behaviour("DP-33")
def test_plugin_killed_in_pre_start(processes: NodeAndPlugin) -> None:
    processes.both()
    assert processes.do(do="admit", uid="u1", amount=1) is None
    with processes.held_up("in-pre-start"):
        processes.send(do="start", uid="u1")
    processes.kill_plugin()
    assert processes.answer().startswith(
        "device plugin PreStartContainer rpc failed with err: rpc error: code = Unavailable"
    )
    processes.go_on()
    processes.start_plugin()
    processes.until_allocatable(3)
    assert processes.do(do="start", uid="u1") == {"FOO": "a"}


def test_plugin_killed_before_the_node_is_there(processes: NodeAndPlugin) -> None:
    processes.start_plugin()
    wait(lambda: os.path.exists(os.path.join(processes.sockets, "vendor.com_foo.sock")), "socket")
    processes.kill_plugin()
    processes.both()
    processes.check_nothing_lost()


@pytest.mark.behaviour("DP-01", "DP-45")
def test_node_killed_after_registration(processes: NodeAndPlugin) -> None:
    processes.both()
    processes.kill_node()
    processes.start_node()
    processes.until_allocatable(3)
    processes.check_nothing_lost()


@pytest.mark.behaviour("DP-31", "DP-44")
def test_node_killed_in_allocate(processes: NodeAndPlugin) -> None:
    processes.both()
    assert processes.do(do="admit", uid="u1", amount=1) is None
    with processes.held_up("in-allocate"):
        (processes.control / "in-allocate").unlink()
        processes.send(do="admit", uid="u2", amount=2)
    processes.kill_node()
    processes.go_on()
    processes.start_node()
    # The Pod was never admitted: it has nothing, and everything but the first one's is free.
    assert processes.held() == {"u1": ["a"]}
    processes.until_allocatable(3)
    assert processes.do(do="admit", uid="u3", amount=2) is None
    assert processes.held() == {"u1": ["a"], "u3": ["b", "c"]}
    processes.check_nothing_lost()


@pytest.mark.behaviour("DP-44", "DP-45", "DP-47")
def test_node_killed_while_pods_run(processes: NodeAndPlugin) -> None:
    processes.both()
    assert processes.do(do="admit", uid="u1", amount=1) is None
    assert processes.do(do="admit", uid="u2", amount=1) is None
    processes.kill_node()
    processes.kill_plugin()
    processes.start_node()
    assert processes.held() == {"u1": ["a"], "u2": ["b"]}
    assert processes.do(do="state")["allocatable"] == {FOO: "0"}
    processes.start_plugin()
    processes.until_allocatable(3)
    assert "Requested: 2, Available: 1" in processes.do(do="admit", uid="u3", amount=2)
    assert processes.do(do="start", uid="u2") == {"FOO": "b"}
    processes.check_nothing_lost()


@pytest.mark.behaviour("DP-49")
def test_node_killed_after_a_pod_was_removed(processes: NodeAndPlugin) -> None:
    processes.both()
    assert processes.do(do="admit", uid="u1", amount=3) is None
    processes.kill_node()
    # The Pod is deleted while the agent is down.
    Path(processes.sockets).with_suffix(".pods").write_text("{}")
    processes.start_node()
    processes.until_allocatable(3)
    assert processes.do(do="admit", uid="u2", amount=3) is None
    assert processes.held() == {"u2": ["a", "b", "c"]}
