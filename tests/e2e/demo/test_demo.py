"""`dray demo` on a terminal, in a pipe, kept, interrupted, and with an invalid directory."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from dray.cmd.demo.scenario import STEPS
from tests.e2e.demo.terminal import run_in_terminal, screen_text
from tests.e2e.node.harness import PODS, client_of
from tests.servers import Server

DEMO = (sys.executable, "-m", "dray", "demo")
SECONDS_MAX = 170.0
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("DRAY_", "NO_COLOR", "KUBE"))}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A data directory with a short name: the paths of sockets must not be long."""
    with tempfile.TemporaryDirectory(prefix="demo") as name:
        yield Path(name) / "d"
    left = processes_of(Path(name))
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


def processes_of(folder: Path) -> list[int]:
    """Everything that runs with the folder in its command line."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"{folder}/".encode() in (entry / "cmdline").read_bytes() + b"/":
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def demo(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Without a terminal."""
    return subprocess.run(
        (*DEMO, f"--data-dir={folder}", *flags),
        env=ENVIRONMENT | {"TERM": "xterm"},
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS_MAX,
    )


def check_nothing_is_left(folder: Path) -> None:
    assert processes_of(folder) == []
    assert not folder.exists()


def check_steps(lines: list[str]) -> None:
    """Every step is shown once, with its allocations and environment variables."""
    text = " ".join(" ".join(lines).split())
    for number, step in enumerate(STEPS, 2):
        assert text.count(f"{number} {step.title}") == 1, (number, text)
    for fact in (
        "3 drivers publish 4 cards and their partitions: 52 devices",
        "the device plugin of plugin-node provides example.com/gpu: 2",
        "notebook has gpu-0-2g-0 of h100-node, by claim notebook-gpu-",
        "notebook: GPU_GPU_0_2G_0=time-slicing",
        "as alternative a100 of request gpu, by claim big-gpu",
        "h100-node: no, gpu/h100: 13 devices: 12 do not match class selector, 1 lack counter gpu-0/memory",
        "of plugin-node, by the node's device plugin",
        "plugin-node has example.com/gpu: 2 from its device plugin, which takes precedence",
        "analyst has card 0, memory 2Gi, node a100-node-2, allocated by driver gpu.acme.com",
        "analyst: ACME_MEMORY=2Gi",
        "veteran/main: example.com/gpu null",
        "trainer/main: claim big-gpu: gpu.example.com/a100-node-",
        "claim default/big-gpu (Pod trainer, for ",
        "it evicts nobody (preemptionPolicy Never): use priority class urgent (-9 or more), which evicts",
        "urgent has gpu-",
    ):
        assert fact in text, fact
    assert len(re.findall(r"renderer-\S+ gave its device of a100-node-\d to urgent", text)) == 1
    assert len(re.findall(r"renderer-\S+ has gpu-\d of a100-node-\d, by a claim created by the scheduler", text)) == 2
    assert len(re.findall(r"renderer-\S+ has (?:null|zero) of plugin-node", text)) == 1
    assert len(re.findall(r"renderer-\S+: GPU_(?:GPU_\d=exclusive|DEVICES=/dev/\w+)", text)) == 3


def test_without_a_terminal_lines_are_written_once_and_processes_stopped(folder: Path) -> None:
    done = demo(folder)
    assert done.returncode == 0, done.stderr
    assert "\033" not in done.stdout
    assert done.stderr == ""
    check_steps(done.stdout.splitlines())
    assert "All processes were stopped." in done.stdout
    check_nothing_is_left(folder)


async def test_on_a_terminal_the_view_is_live_and_the_cluster_can_be_kept(folder: Path) -> None:
    environment = ENVIRONMENT | {"TERM": "xterm-256color", "LANG": "C.UTF-8", "PYTHONUTF8": "1"}
    run = await asyncio.to_thread(
        run_in_terminal, (*DEMO, f"--data-dir={folder}", "--keep"), environment, 100, 40, SECONDS_MAX
    )
    assert run.code == 0, run.written
    # The view was redrawn many times; in the end every line is there once.
    assert run.written.count("\033[J") > len(STEPS)
    assert "\033[32m" in run.written
    lines = screen_text(run.written, 100)
    check_steps(lines)
    assert not any("node agents are starting" in line for line in lines)
    assert f"  export KUBECONFIG={folder}/kubeconfig" in lines
    # The suggested commands work.
    (url,) = {line.strip() for line in lines if line.startswith("  http://")}
    assert "Dray" in await asyncio.to_thread(page, url)
    client = client_of(Server(None, "", folder / "kubeconfig", folder, folder))  # type: ignore[arg-type]
    try:
        assert (await client.get(PODS, "latecomer", "default"))["status"]["phase"] == "Pending"
        # The Pod that `urgent` has evicted was created anew, and waits for a device as well.
        for name in ("trainer", "urgent"):
            await client.delete(PODS, name, "default")
        deadline = time.monotonic() + 60
        while (await client.get(PODS, "latecomer", "default"))["status"]["phase"] != "Running":
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)
    finally:
        await client.close()
    # So does the command that stops it.
    stop = next(line for line in lines if line.startswith("To stop it: "))
    assert stop.endswith(f" demo --stop --data-dir={folder}")
    stopped = await asyncio.to_thread(demo, folder, "--stop")
    assert (stopped.returncode, stopped.stdout) == (0, f"stopped the 12 processes of the demo in {folder}\n")
    check_nothing_is_left(folder)


def page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        text: str = answer.read().decode()
    return text


def test_an_interrupted_demo_leaves_nothing_running(folder: Path) -> None:
    with subprocess.Popen(
        (*DEMO, f"--data-dir={folder}"), env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        # The server runs, and the agents are being started.
        while "is ready after" not in process.stdout.readline():
            assert process.poll() is None, process.stderr.read()
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.stderr.read() == "dray demo: interrupted; all its processes were stopped\n"
    assert process.returncode == 1
    assert processes_of(folder) == []
    # The next command removes the remaining files.
    assert demo(folder, "--stop").returncode == 0
    assert not folder.exists()


def test_invalid_directories_are_rejected_with_a_hint(folder: Path) -> None:
    assert demo(folder, "--stop").stderr == f"dray demo: no demo is running in {folder}; specify its --data-dir\n"
    folder.mkdir()
    (folder / "thesis.txt").write_text("months of work")
    complaint = f"dray demo: {folder} is not empty (thesis.txt); remove it, or specify another --data-dir\n"
    assert demo(folder).stderr == complaint
    assert demo(folder / "thesis.txt").stderr == (
        f"dray demo: {folder}/thesis.txt: File exists; specify another --data-dir\n"
    )
    assert (folder / "thesis.txt").read_text() == "months of work"


def test_the_error_of_a_server_that_cannot_start_is_shown(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = demo(folder, f"--port={taken.getsockname()[1]}")
    assert done.returncode == 1
    assert "server did not become ready" in done.stderr
    assert "Address already in use" in done.stderr
    assert f"The logs are in {folder}" in done.stderr
    assert (folder / "server.log").exists()
    assert processes_of(folder) == []
