"""Streams with the official Python client, which speaks WebSocket in other dialects than kubectl, and many at once."""

from __future__ import annotations

import asyncio
import base64
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
import websocket
from kubernetes import client, config
from kubernetes.stream import stream

from tests.e2e.node.harness import PODS, Cluster, is_running, shell
from tests.e2e.node.test_streams import listening
from tests.servers import Server

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
SESSIONS = 50
SECONDS_MAX = 120.0
SERVER = (
    "import socket, sys; s = socket.create_server(('127.0.0.1', int(sys.argv[1])))\n"
    "while True:\n    c, _ = s.accept(); c.sendall(c.recv(100).upper()); c.close()"
)


@pytest.fixture
def core(server: Server) -> Iterator[client.CoreV1Api]:
    with config.new_client_from_config(str(server.kubeconfig)) as api:
        yield client.CoreV1Api(api)


def execute(core: client.CoreV1Api, cluster: Cluster, script: str, **options: Any) -> Any:
    chosen = {"stdin": False, "stdout": True, "stderr": True, "tty": False, "_preload_content": False, **options}
    command = ["sh", "-c", script]
    return stream(core.connect_get_namespaced_pod_exec, "p", cluster.namespace, command=command, **chosen)


async def running(cluster: Cluster, script: str = "sleep 1000") -> None:
    await cluster.run("p", shell("a", script))
    await cluster.wait("p", is_running())


# The client leaves sockets and threads behind when the other side ends a stream; they end with a process of its own.
PREAMBLE = """
import sys
from kubernetes import client, config
from kubernetes.stream import portforward, stream

config.load_kube_config(sys.argv[1])
core, namespace = client.CoreV1Api(), sys.argv[2]
"""
EXEC = """
def execute(script, **options):
    chosen = {"stdin": False, "stdout": True, "stderr": True, "tty": False, **options}
    command = ["sh", "-c", script]
    return stream(core.connect_get_namespaced_pod_exec, "p", namespace, command=command, **chosen)

session = execute("read line; echo got $line; echo bad >&2; exit 7", stdin=True, _preload_content=False)
session.write_stdin("word\\n")
session.run_forever(timeout=60)
print(repr((session.read_stdout(), session.read_stderr(), session.returncode, execute("echo one"))))
"""
FORWARD = """
port = int(sys.argv[3])
forward = portforward(core.connect_get_namespaced_pod_portforward, "p", namespace, ports=str(port))
connection = forward.socket(port)
connection.setblocking(True)
connection.sendall(b"word")
print(repr((connection.recv(100), forward.error(port))))
"""


async def client_prints(server: Server, cluster: Cluster, script: str, *arguments: str) -> str:
    """What a program with the Python client prints."""
    command = [sys.executable, "-c", PREAMBLE + script, str(server.kubeconfig), cluster.namespace, *arguments]
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, check=False, timeout=SECONDS_MAX
    )
    assert done.returncode == 0, done.stderr
    return str(done.stdout).strip()


@pytest.mark.behaviour("EX-10", "EX-11", "EX-14")
async def test_exec(server: Server, cluster: Cluster) -> None:
    await running(cluster)
    assert await client_prints(server, cluster, EXEC) == repr(("got word\n", "bad\n", 7, "one\n"))


@pytest.mark.behaviour("EX-22")
async def test_port_forward_over_channels(server: Server, cluster: Cluster) -> None:
    with listening() as free:
        port = free.getsockname()[1]
    await cluster.run("p", {"name": "a", "image": "i", "command": ["python3", "-c", SERVER, str(port)]})
    await cluster.wait("p", is_running())
    await cluster.until(lambda: is_listening(port))
    assert await client_prints(server, cluster, FORWARD, str(port)) == repr((b"WORD", None))


@pytest.mark.parametrize("protocol", ["binary.k8s.io", "base64.binary.k8s.io", ""])
@pytest.mark.behaviour("EX-46")
async def test_logs_by_websocket(server: Server, cluster: Cluster, protocol: str) -> None:
    await running(cluster, "echo one; cat; echo two; sleep 1000")
    url = server.url.replace("https", "wss") + f"/api/v1/namespaces/{cluster.namespace}/pods/p/log?follow=true"

    def dial(*protocols: str) -> Any:
        return websocket.create_connection(
            url,
            timeout=SECONDS_MAX,
            sslopt={"ca_certs": str(server.data_dir / "pki" / "ca.crt")},
            header={"Authorization": "Bearer admin-token"},
            subprotocols=list(protocols),
        )

    with pytest.raises(websocket.WebSocketBadStatusException, match="403"):
        await asyncio.to_thread(dial, "other.k8s.io")
    session = await asyncio.to_thread(dial, *filter(None, ("unknown", protocol) if protocol else ()))
    try:
        assert (session.getsubprotocol() or "") == protocol
        text = b""
        while b"two" not in text:
            opcode, data = await asyncio.to_thread(session.recv_data)
            is_text = protocol == "base64.binary.k8s.io"
            assert opcode == (websocket.ABNF.OPCODE_TEXT if is_text else websocket.ABNF.OPCODE_BINARY)
            text += base64.b64decode(data) if is_text else data
        assert text == b"one\ntwo\n"
        session.ping("still there")
        assert await asyncio.to_thread(session.recv_frame) is not None
        # The end of the container ends the log, and with it the connection.
        await cluster.delete("p", 0)
        opcode, data = await asyncio.to_thread(session.recv_data)
        assert (opcode, data[:2]) == (websocket.ABNF.OPCODE_CLOSE, b"\x03\xe8")
    finally:
        session.close()


def is_listening(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as connection:
            connection.sendall(b"x")
            return connection.recv(10) == b"X"
    except OSError:
        return False


@pytest.mark.behaviour("EX-05", "EX-08")
async def test_many_sessions_do_not_disturb_the_api(cluster: Cluster, core: client.CoreV1Api) -> None:
    await running(cluster)
    sessions = await asyncio.gather(
        *(asyncio.to_thread(execute, core, cluster, "echo ready; cat", stdin=True) for _ in range(SESSIONS))
    )
    try:
        for session in sessions:
            line = await asyncio.to_thread(session.readline_stdout, SECONDS_MAX)
            assert line == "ready", (session.peek_stderr(), session.is_open(), session.read_channel(3))
        started = time.monotonic()
        for _ in range(20):
            await cluster.client.get(PODS, "p", cluster.namespace)
        # All sessions idle: a request takes milliseconds, and must not take seconds.
        assert time.monotonic() - started < 10
        for number, session in enumerate(sessions):
            session.write_stdin(f"{number}\n")
        for number, session in enumerate(sessions):
            assert await asyncio.to_thread(session.readline_stdout, SECONDS_MAX) == str(number)
    finally:
        for session in sessions:
            session.close()
