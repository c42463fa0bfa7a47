"""exec, attach, cp, run and port-forward with a real kubectl, which speaks WebSocket or SPDY."""

from __future__ import annotations

import contextlib
import fcntl
import filecmp
import json
import os
import pty
import random
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import termios
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from tests.e2e.kubectl.tool import Kubectl, kubectl_path, needs_kubectl
from tests.e2e.node.conftest import BOTH
from tests.e2e.node.harness import Agent, Cluster, container_status, is_running, shell
from tests.servers import Server

RUNTIMES = BOTH
SECONDS_MAX = 120.0
MEGABYTE = 1024 * 1024
# Debian's busybox has no links for its programs.
HTTPD = "httpd" if shutil.which("httpd") else "busybox httpd"


@pytest.fixture(params=["websocket", "spdy"])
def protocol(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What kubectl speaks; one that knows only SPDY ignores the variables."""
    name: str = request.param
    value = "true" if name == "websocket" else "false"
    monkeypatch.setenv("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", value)
    monkeypatch.setenv("KUBECTL_PORT_FORWARD_WEBSOCKETS", value)
    return name


class KubectlProcess:
    """kubectl with standard input, exit codes and bytes."""

    def __init__(self, server: Server, namespace: str) -> None:
        self._environment = {**os.environ, **server.environment}
        self._base = [kubectl_path(), "-n", namespace]

    def run(self, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [*self._base, *arguments],
            input=stdin,
            capture_output=True,
            timeout=SECONDS_MAX,
            check=False,
            env=self._environment,
        )

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*self._base, *arguments], env=self._environment, **options)

    def piped(self, *arguments: str) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        return self.start(*arguments, stdin=pipe, stdout=pipe, stderr=pipe)


@pytest.fixture
def tool(server: Server, cluster: Cluster, protocol: str) -> KubectlProcess:
    if not shutil.which(kubectl_path()):
        pytest.skip("needs kubectl")
    return KubectlProcess(server, cluster.namespace)


class Terminal:
    """A terminal with kubectl in it, as a person has."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process = process
        self.master = master
        self.seen = b""

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def resize(self, rows: int, columns: int) -> None:
        set_size(self.master, rows, columns)
        os.kill(self.process.pid, signal.SIGWINCH)

    def until(self, pattern: str) -> None:
        """Wait for output that matches."""
        deadline = time.monotonic() + SECONDS_MAX
        while (match := re.search(pattern.encode(), self.seen)) is None:
            left = deadline - time.monotonic()
            assert left > 0, self.seen
            if select.select([self.master], [], [], left)[0]:
                try:
                    self.seen += os.read(self.master, 4096)
                except OSError as error:
                    raise AssertionError(f"kubectl has ended: {self.seen!r}") from error
        self.seen = self.seen[match.end() :]


@contextlib.contextmanager
def terminal(tool: KubectlProcess, *arguments: str) -> Iterator[Terminal]:
    """A terminal of 40 rows and 100 columns; at the end kubectl is killed."""
    master, slave = pty.openpty()
    set_size(master, 40, 100)
    process = tool.start(*arguments, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        process.kill()
        process.wait(SECONDS_MAX)
        os.close(master)


def set_size(master: int, rows: int, columns: int) -> None:
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def new_mark() -> str:
    return f"mark-{os.getpid()}-{time.monotonic_ns()}"


def processes_with(mark: str) -> list[int]:
    """The processes of this machine with a word in their command line, without kubectl's."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                line = (entry / "cmdline").read_bytes()
                if mark.encode() in line and b"kubectl" not in line:
                    found.append(int(entry.name))
    return found


def reads(process: subprocess.Popen[bytes], line: bytes) -> None:
    """Check the next line of output."""
    assert process.stdout is not None
    found = process.stdout.readline()
    assert found == line, found or process.communicate()


async def sleeping(cluster: Cluster, script: str = "sleep 1000", **fields: object) -> None:
    await cluster.run("p", shell("a", script, **fields))
    await cluster.wait("p", is_running())


@pytest.mark.behaviour("EX-14", "EX-19", "EX-30", "EX-32")
async def test_output_input_and_exit_codes(cluster: Cluster, tool: KubectlProcess, runtime: str) -> None:
    await sleeping(cluster, env=[{"name": "X", "value": "from-spec"}])
    done = tool.run("exec", "-i", "p", "--", "sh", "-c", "cat; echo $X; echo oops >&2; exit 42", stdin=b"given\n")
    assert done.stdout == b"given\nfrom-spec\n"
    assert done.stderr.startswith(b"oops\n")
    assert done.returncode == 42
    assert tool.run("exec", "p", "--", "true").returncode == 0
    missing = tool.run("exec", "p", "--", "no-such-program")
    # A CRI runtime reports it as an error, not as an exit code, as with kubelet.
    assert missing.returncode == (1 if runtime == "cri" else 127)
    assert b"no-such-program" in missing.stderr


@needs_kubectl(30)
@pytest.mark.behaviour("EX-05", "EX-07", "EX-23")
async def test_kubectl_speaks_what_it_was_asked_to(
    cluster: Cluster, tool: KubectlProcess, kubectl: Kubectl, protocol: str
) -> None:
    await sleeping(cluster)

    def upgrades(verb: str) -> int:
        lines = kubectl("get", "--raw", "/metrics").splitlines()
        counted = (line for line in lines if line.startswith("apiserver_request_total{"))
        wanted = ('subresource="exec"', f'verb="{verb}"', 'code="101"')
        return sum(int(float(line.split()[-1])) for line in counted if all(label in line for label in wanted))

    verb = "GET" if protocol == "websocket" else "CREATE"
    before = upgrades(verb)
    assert tool.run("exec", "p", "--", "true").returncode == 0
    assert upgrades(verb) == before + 1


@pytest.mark.behaviour("EX-13", "EX-31", "EX-34")
async def test_a_terminal_has_the_clients_size_and_hangs_up_with_it(
    cluster: Cluster, tool: KubectlProcess, runtime: str
) -> None:
    await sleeping(cluster)
    sizes = "until stty size | grep -x '40 100'; do :; done; echo $TERM; until stty size | grep -x '24 80'; do :; done"
    with terminal(tool, "exec", "-it", "p", "--", "sh", "-c", f"{sizes}; read line; echo got $line; exit 3") as term:
        term.until(r"40 100\r\n")
        term.until(r"xterm\r\n")
        term.resize(24, 80)
        term.until(r"24 80\r\n")
        term.type("word\r")
        term.until(r"got word\r\n")
        assert term.process.wait(SECONDS_MAX) == 3
    if runtime == "cri":
        # containerd lets commands go on whose client is gone.
        return
    mark = new_mark()
    with terminal(tool, "exec", "-it", "p", "--", "sh", "-c", f"echo ready; : {mark}; sleep 1000; true") as term:
        term.until("ready")
        assert processes_with(mark)
    await cluster.until(lambda: not processes_with(mark))


@pytest.mark.behaviour("EX-34")
async def test_a_client_that_vanishes_leaves_no_process(cluster: Cluster, tool: KubectlProcess) -> None:
    await sleeping(cluster)
    mark = new_mark()
    with tool.piped("exec", "-i", "p", "--", "sh", "-c", f"echo ready; cat; : {mark}") as process:
        reads(process, b"ready\n")
        assert processes_with(mark)
        process.kill()
    await cluster.until(lambda: not processes_with(mark))


@pytest.mark.behaviour("EX-34")
async def test_a_command_ends_with_its_container(cluster: Cluster, tool: KubectlProcess) -> None:
    await sleeping(cluster)
    mark = new_mark()
    with tool.piped("exec", "p", "--", "sh", "-c", f"echo ready; : {mark}; sleep 1000; true") as process:
        reads(process, b"ready\n")
        await cluster.delete("p", 0)
        assert process.wait(SECONDS_MAX) != 0
    await cluster.until(lambda: not processes_with(mark))


@pytest.mark.behaviour("EX-12", "EX-19", "EX-40")
async def test_files_are_copied_both_ways_unharmed(
    cluster: Cluster, tool: KubectlProcess, runtime: str, tmp_path: Path
) -> None:
    await sleeping(cluster)
    there, back = tmp_path / "there", tmp_path / "back"
    with there.open("wb") as file:
        for number in range(100):
            file.write(random.Random(number).randbytes(MEGABYTE))
    copy = f"p:{'/tmp' if runtime == 'cri' else tmp_path}/copy"
    assert tool.run("cp", str(there), copy).returncode == 0
    assert tool.run("cp", copy, str(back)).returncode == 0
    assert back.stat().st_size == 100 * MEGABYTE
    assert filecmp.cmp(there, back, shallow=False)


@pytest.mark.behaviour("EX-15", "EX-35")
async def test_attached_clients_see_output_from_now_on(cluster: Cluster, tool: KubectlProcess) -> None:
    await sleeping(cluster, "echo before; i=0; while test $i -lt 1000; do i=$((i+1)); echo line $i; sleep 0.05; done")
    with tool.piped("attach", "p") as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        assert all(line.startswith(b"line ") for line in lines), lines
        await cluster.delete("p", 0)
        assert process.wait(SECONDS_MAX) == 0


@pytest.mark.behaviour("EX-35", "EX-36")
async def test_an_attached_terminal_survives_the_agent(
    cluster: Cluster, agent: Agent, tool: KubectlProcess, kubectl: Kubectl
) -> None:
    await sleeping(cluster, "stty -echo; while read line; do echo got $line; done", stdin=True, tty=True)
    with terminal(tool, "attach", "-it", "p") as term:
        term.type("one\r")
        term.until("got one\r\n")
        agent.kill()
        agent.start()
    with terminal(tool, "attach", "-it", "p") as term:
        term.type("two\r")
        term.until("got two\r\n")
    assert kubectl("logs", "p").split() == ["got", "one", "got", "two"]


@pytest.mark.behaviour("EX-35", "EX-41")
async def test_run_with_standard_input(cluster: Cluster, tool: KubectlProcess) -> None:
    overrides = json.dumps({"spec": {"nodeName": cluster.node, "automountServiceAccountToken": False}})
    arguments = (
        "--image=busybox",
        "--image-pull-policy=IfNotPresent",
        "--restart=Never",
        f"--overrides={overrides}",
        "--quiet",
    )
    command = ("--command", "--", "sh", "-c", "wc -c; exit 5")
    done = tool.run("run", "r", "-i", "--rm", *arguments, *command, stdin=b"x" * 100000)
    assert b"100000" in done.stdout, done
    assert done.returncode == 5
    assert b"NotFound" in tool.run("get", "pod", "r").stderr


@pytest.mark.behaviour("EX-20", "EX-21", "EX-37")
async def test_ports_are_forwarded(cluster: Cluster, tool: KubectlProcess, runtime: str) -> None:
    with listening() as free:
        port = free.getsockname()[1]
    folder = "/d" if runtime == "cri" else "$DRAY_MOUNT_D"
    files = f"head -c 3000000 /dev/zero > {folder}/big; echo hello > {folder}/index.html"
    program = "httpd" if runtime == "cri" else HTTPD
    script = f"{files}; exec {program} -f -p {port} -h {folder}"
    container = shell("a", script, volumeMounts=[{"name": "d", "mountPath": "/d"}])
    await cluster.run("p", container, volumes=[{"name": "d", "emptyDir": {}}])
    await cluster.wait("p", is_running())
    # On the other port this process listens, and no process of the Pod.
    other = listening()
    number = other.getsockname()[1]
    if runtime == "cri":
        # The Pod is on the node's network, which the runtime connects to; nobody listens.
        other.close()
    with other, tool.piped("port-forward", "p", f":{port}", f":{number}") as process:
        assert process.stdout is not None
        first, second = (forwarded(process.stdout) for _ in range(2))
        # After the first failure kubectl ends.
        await cluster.until(lambda: fetch(port, "index.html"))
        assert fetch(first, "index.html") == b"hello\n"
        assert len(fetch(first, "big")) == 3000000
        assert fetch(second, "index.html") == b""
        _, errors = process.communicate(timeout=SECONDS_MAX)
    assert b"connection refused" in errors


def listening() -> socket.socket:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    return listener


def forwarded(output: IO[bytes]) -> int:
    """The local port of the next line; kubectl prints one for each address."""
    while line := output.readline():
        match = re.match(rb"Forwarding from 127.0.0.1:(\d+)", line)
        if match is not None:
            return int(match.group(1))
    raise AssertionError("kubectl has ended")


def fetch(port: int, path: str) -> bytes:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=SECONDS_MAX) as answer:
            content: bytes = answer.read()
            return content
    except OSError:
        return b""


@pytest.mark.behaviour("EX-03", "EX-06")
async def test_refusals(cluster: Cluster, tool: KubectlProcess) -> None:
    await cluster.run("p", shell("a", "sleep 1000"), shell("b", "exit 0"))
    await cluster.wait(
        "p", lambda pod: is_running()(pod) and "terminated" in container_status(pod, "b").get("state", {})
    )
    assert b"container nope is not valid for pod p" in tool.run("exec", "p", "-c", "nope", "--", "true").stderr
    assert b'container not found ("b")' in tool.run("exec", "p", "-c", "b", "--", "true").stderr
    assert b'pods "q" not found' in tool.run("exec", "q", "--", "true").stderr
