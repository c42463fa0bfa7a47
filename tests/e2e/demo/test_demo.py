"""`dray demo` as people run it: in a terminal, in a pipe, kept, interrupted, and in the wrong place."""

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

from dray.cmd.demo.story import STEPS
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


def check_story(lines: list[str]) -> None:
    """Each chapter once, and what was given and seen in each."""
    text = " ".join(" ".join(lines).split())
    for number, step in enumerate(STEPS, 2):
        assert text.count(f"{number} {step.title}") == 1, (number, text)
    for fact in (
        "3 drivers publish 4 cards, whole and in parts: 52 devices",
        "the device plugin of plugin-node offers example.com/gpu: 2",
        "notebook has gpu-0-2g-0 of h100-node, by claim notebook-gpu-",
        "notebook: GPU_GPU_0_2G_0=time-slicing",
        "as alternative a100 of request gpu, by claim big-gpu",
        "h100-node: no, gpu/h100: 13 devices: 12 do not match class selector, 1 lack counter gpu-0/memory",
        "of plugin-node, by the node's device plugin",
        "plugin-node has example.com/gpu: 2 from its device plugin, which goes first",
        "analyst has card 0, memory 2Gi, node a100-node-2, allocated by gpu.acme.com itself",
        "analyst: ACME_MEMORY=2Gi",
        "veteran/main: example.com/gpu null",
        "trainer/main: claim big-gpu: gpu.example.com/a100-node-",
        "claim default/big-gpu holds gpu-0",
    ):
        assert fact in text, fact
    assert len(re.findall(r"renderer-\S+ has gpu-\d of a100-node-\d, by a claim that the scheduler made", text)) == 2
    assert len(re.findall(r"renderer-\S+ has (?:null|zero) of plugin-node", text)) == 1
    assert len(re.findall(r"renderer-\S+: GPU_(?:GPU_\d=exclusive|DEVICES=/dev/\w+)", text)) == 3


def test_without_a_terminal_everything_is_said_once_and_ended(folder: Path) -> None:
    done = demo(folder)
    assert done.returncode == 0, done.stderr
    assert "\033" not in done.stdout
    assert done.stderr == ""
    check_story(done.stdout.splitlines())
    assert "Everything that was started is ended again." in done.stdout
    check_nothing_is_left(folder)


async def test_in_a_terminal_it_is_live_and_can_be_kept(folder: Path) -> None:
    environment = ENVIRONMENT | {"TERM": "xterm-256color", "LANG": "C.UTF-8", "PYTHONUTF8": "1"}
    run = await asyncio.to_thread(
        run_in_terminal, (*DEMO, f"--data-dir={folder}", "--keep"), environment, 100, 40, SECONDS_MAX
    )
    assert run.code == 0, run.written
    # It was drawn over many times, in colours; in the end everything is there once.
    assert run.written.count("\033[J") > len(STEPS)
    assert "\033[32m" in run.written
    lines = screen_text(run.written, 100)
    check_story(lines)
    assert not any("node agents start" in line for line in lines)
    assert f"  export KUBECONFIG={folder}/kubeconfig" in lines
    # What it says to try works.
    (url,) = {line.strip() for line in lines if line.startswith("  http://")}
    assert "Dray" in await asyncio.to_thread(page, url)
    client = client_of(Server(None, "", folder / "kubeconfig", folder, folder))  # type: ignore[arg-type]
    try:
        assert (await client.get(PODS, "latecomer", "default"))["status"]["phase"] == "Pending"
        await client.delete(PODS, "trainer", "default")
        deadline = time.monotonic() + 60
        while (await client.get(PODS, "latecomer", "default"))["status"]["phase"] != "Running":
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)
    finally:
        await client.close()
    # And so does what it says ends it.
    stop = next(line for line in lines if line.startswith("To stop it: "))
    assert stop.endswith(f" demo --stop --data-dir={folder}")
    stopped = await asyncio.to_thread(demo, folder, "--stop")
    assert (stopped.returncode, stopped.stdout) == (0, f"ended the 12 processes of the demo in {folder}\n")
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
        assert process.stderr.read() == "dray demo: interrupted; everything it had started is ended\n"
    assert process.returncode == 1
    assert processes_of(folder) == []
    # The next one is not in the way of what is left.
    assert demo(folder, "--stop").returncode == 0
    assert not folder.exists()


def test_wrong_places_are_named_with_what_to_do(folder: Path) -> None:
    assert demo(folder, "--stop").stderr == f"dray demo: no demo runs in {folder}; name its --data-dir\n"
    folder.mkdir()
    (folder / "thesis.txt").write_text("months of work")
    complaint = f"dray demo: {folder} is not empty (thesis.txt); remove it, or name another --data-dir\n"
    assert demo(folder).stderr == complaint
    assert demo(folder / "thesis.txt").stderr == (
        f"dray demo: {folder}/thesis.txt: File exists; name another --data-dir\n"
    )
    assert (folder / "thesis.txt").read_text() == "months of work"


def test_a_server_that_cannot_start_is_quoted(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = demo(folder, f"--port={taken.getsockname()[1]}")
    assert done.returncode == 1
    assert "server did not become ready" in done.stderr
    assert "address already in use" in done.stderr
    assert f"The logs are in {folder}" in done.stderr
    assert (folder / "server.log").exists()
    assert processes_of(folder) == []
