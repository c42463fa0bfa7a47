"""Stands in for the programs of drivers' images: needs the standard library alone, and runs inside the test's image.

It looks for the files that the program would need, reaches the API, opens the same ports and health services, and
then waits. Anything that is missing ends it with a line that names it.
"""

from __future__ import annotations

import argparse
import encodings.idna  # noqa: F401 - names of hosts need it, and the image has what is imported here alone
import http.server
import json
import os
import pathlib
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

ACCOUNT = pathlib.Path("/var/run/secrets/kubernetes.io/serviceaccount")
WAIT_SECONDS_MAX = 120.0
# Frames of HTTP/2 and the health service's answers.
DATA, HEADERS, SETTINGS, PING = 0, 1, 4, 6
ACK, END_STREAM, END_HEADERS = 1, 1, 4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SERVICES = ("", "liveness", "readiness")


def literal(name: str, value: str) -> bytes:
    """A header field that is not indexed."""
    return b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


RESPONSE = b"\x88" + literal("content-type", "application/grpc")
OK = literal("grpc-status", "0")
NOT_FOUND = literal("grpc-status", "5")


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack("!I", len(payload))[1:] + struct.pack("!BBI", kind, flags, stream) + payload


def health_answer(stream: int, message: bytes) -> bytes:
    """The frames of a HealthCheckResponse: SERVING, or NOT_FOUND for a service that is not there."""
    # A HealthCheckRequest has one string, and the prefix of a gRPC message five bytes.
    service = message[7:].decode()
    begin = frame(HEADERS, END_HEADERS, stream, RESPONSE)
    if service not in SERVICES:
        return begin + frame(HEADERS, END_HEADERS | END_STREAM, stream, NOT_FOUND)
    serving = frame(DATA, 0, stream, b"\0" + struct.pack("!I", 2) + b"\x08\x01")
    return begin + serving + frame(HEADERS, END_HEADERS | END_STREAM, stream, OK)


def serve_health(connection: socket.socket) -> None:
    """Serve grpc.health.v1.Health on one connection; paths are not read, since there is one method."""
    with connection, connection.makefile("rb") as reader:
        if reader.read(len(PREFACE)) != PREFACE:
            return
        connection.sendall(frame(SETTINGS, 0, 0))
        while len(head := reader.read(9)) == 9:
            length = int.from_bytes(head[:3], "big")
            kind, flags, stream = struct.unpack("!BBI", head[3:])
            payload = reader.read(length)
            if kind in (SETTINGS, PING) and not flags & ACK:
                connection.sendall(frame(kind, ACK, 0, payload if kind == PING else b""))
            elif kind == DATA and payload:
                connection.sendall(health_answer(stream, payload))


def listen_grpc(port: int) -> None:
    server = socket.create_server(("", port))

    def accept() -> None:
        while True:
            connection, _ = server.accept()
            threading.Thread(target=serve_health, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


class Handler(http.server.BaseHTTPRequestHandler):
    """Healthy, whatever is asked; reviews refuse objects with the word "invalid" in their spec."""

    def do_GET(self) -> None:
        self.answer(b"ok")

    def do_POST(self) -> None:
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        request = review["request"]
        allowed = "invalid" not in json.dumps(request["object"]["spec"])
        response = {"uid": request["uid"], "allowed": allowed}
        if not allowed:
            response["status"] = {"message": "invalid parameters"}
        self.answer(json.dumps({**review, "request": None, "response": response}).encode())

    def answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


def listen_http(port: int, certificates: str = "") -> None:
    server = http.server.ThreadingHTTPServer(("", port), Handler)
    if certificates:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(f"{certificates}/tls.crt", f"{certificates}/tls.key")
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def call(method: str, path: str, body: object = None) -> tuple[int, str]:
    """Send a request to the API server with the Pod's own token."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    token = (ACCOUNT / "token").read_text()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"https://{host}:{port}{path}", data, headers, method=method)
    context = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    try:
        with urllib.request.urlopen(request, timeout=10, context=context) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def require_call(method: str, path: str, body: object = None) -> None:
    """Fail unless the request succeeds within the time; roles may be a moment behind."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while True:
        code, text = call(method, path, body)
        if code in (200, 201, 409):
            return
        if time.monotonic() > deadline:
            sys.exit(f"{method} {path}: {code} {text}")
        time.sleep(0.2)


def publish(driver: str, node: str) -> None:
    """Write a slice of the Pod's own node; another node's must be refused."""
    path = "/apis/resource.k8s.io/v1/resourceslices"

    def body(name: str) -> dict[str, object]:
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": driver, "nodeName": name, "pool": pool, "devices": [{"name": "gpu-0"}]}
        metadata = {"name": f"{name}-{driver}"}
        return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec}

    require_call("POST", path, body(node))
    code, text = call("POST", path, body("another-node"))
    if code not in (403, 422) or "may not modify resourceslices on node" not in text:
        sys.exit(f"a slice of another node was not refused: {code} {text}")


def wait_for(what: str, condition: object) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not condition():  # type: ignore[operator]
        if time.monotonic() > deadline:
            sys.exit(f"{what} did not come")
        time.sleep(0.1)


def process_with(word: str) -> int:
    """The process of another container whose arguments have the word; 0 if there is none."""
    for folder in pathlib.Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                if word in (folder / "cmdline").read_text().split("\0"):
                    return int(folder.name)
            except OSError:
                continue
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name in ("grpc", "http", "https"):
        parser.add_argument(f"--{name}", type=int, action="append", default=[])
    for name in ("exists", "writable", "get", "mounted"):
        parser.add_argument(f"--{name}", action="append", default=[])
    for name in ("certificates", "publish", "node", "mount", "signal", "name", "touch", "wait-for-signal"):
        parser.add_argument(f"--{name}", default="")
    parser.add_argument("--once", action="store_true")
    return parser.parse_args()


def check(options: argparse.Namespace) -> None:
    for path in options.exists:
        wait_for(path, pathlib.Path(path).exists)
    for path in options.writable:
        (pathlib.Path(path) / f".{os.uname().nodename}").write_text("")
    for path in options.get:
        require_call("GET", path)
    if options.publish:
        publish(options.publish, options.node)


def main() -> None:
    options = arguments()
    signalled = threading.Event()
    signal.signal(signal.SIGHUP, lambda *_: signalled.set())
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    check(options)
    if options.mount:
        pathlib.Path(options.mount).mkdir(parents=True, exist_ok=True)
        subprocess.run(["/bin/mount", "-t", "tmpfs", "none", options.mount], check=True)
    for path in options.mounted:
        wait_for(f"a mount at {path}", lambda path=path: os.path.ismount(path))
    if options.signal:
        wait_for(options.signal, lambda: process_with(options.signal))
        os.kill(process_with(options.signal), signal.SIGHUP)
    if options.wait_for_signal:
        pathlib.Path(options.wait_for_signal).write_text("")
        if not signalled.wait(WAIT_SECONDS_MAX):
            sys.exit("no SIGHUP came")
    if not options.once:
        serve(options)


def serve(options: argparse.Namespace) -> None:
    for port in options.grpc:
        listen_grpc(port)
    for port in options.http:
        listen_http(port)
    for port in options.https:
        listen_http(port, options.certificates)
    if options.touch:
        pathlib.Path(options.touch).write_text("")
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
