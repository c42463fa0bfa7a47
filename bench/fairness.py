"""Benchmarks of fairness: the latency of one user's requests, alone and beside another user's hundred connections."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bench.load import cpu_seconds
from bench.processes import load, loading, measurements, serving
from bench.rows import Row, Target, percentile, progress
from tests.servers import Server

CONNECTIONS = 100
NAMESPACE = "crowded"
# The greedy user's load is running once the server has used this much CPU time.
BUSY_CPU_SECONDS = 1.0
BUSY_SECONDS_MAX = 30.0
# Between two requests of the measured user.
PAUSE_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class Size:
    """The size of the benchmark."""

    objects: int = 5_000
    seconds: float = 8.0


FULL = Size()
QUICK = Size(objects=1_000, seconds=3.0)


def rows(size: Size) -> Iterator[Row]:
    """Measure a get and a create of one user; the other one lists everything, or creates objects."""
    with serving() as server:
        _kubectl(server, "create", "namespace", NAMESPACE)
        greedy, modest = (new_token(server, name, NAMESPACE, "default") for name in ("greedy", "modest"))
        load(server, "create", clients=32, total=size.objects, prefix="object", namespace=NAMESPACE)
        path = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
        table = {"path": path, "accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
        yield from _measured(server, modest, size, "alone")
        for name, plan in (("lists", {"path": path}), ("tables", table), ("creates", {"prefix": "greedy"})):
            progress(f"beside {name}")
            held: dict[str, Any] = {**plan, "namespace": NAMESPACE, "seconds": 4 * size.seconds + BUSY_SECONDS_MAX}
            before = cpu_seconds(server.process.pid)
            with loading(server, "hold", clients=CONNECTIONS, token=greedy, **held) as process:
                _wait_until_busy(server, before, process)
                yield from _measured(server, modest, size, f"beside {CONNECTIONS} connections of {name}")
        with loading(server, "hold", clients=32, token=greedy, prefix="alone", seconds=size.seconds) as process:
            result = measurements(process)
        done = len(result["times"])
        parameters = {"clients": 32, "user": "not an administrator"}
        yield Row("fairness: creates of one user", done / result["seconds"], "per second", parameters)
        yield Row("fairness: creates, server processor", 1e6 * result["server_cpu"] / done, "us each", parameters)


def _measured(server: Server, token: str, size: Size, beside: str) -> Iterator[Row]:
    """Measure sequential requests of one user, with pauses between them."""
    path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/object-0"
    common = {"clients": 1, "token": token, "seconds": size.seconds, "pause": PAUSE_SECONDS}
    reads = load(server, "hold", path=path, **common)["times"]
    writes = load(server, "hold", prefix=f"modest-{time.monotonic_ns()}", namespace=NAMESPACE, **common)["times"]
    target = None if beside == "alone" else Target(20)
    for verb, times in (("get", reads), ("create", writes)):
        parameters = {"other user": beside, "requests": len(times)}
        yield Row(f"fairness: {verb}, p50", 1000 * percentile(times, 0.5), "ms", parameters, target)
        yield Row(f"fairness: {verb}, p99", 1000 * percentile(times, 0.99), "ms", parameters)


def _wait_until_busy(server: Server, before: float, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + BUSY_SECONDS_MAX
    while time.monotonic() < deadline and process.poll() is None:
        if cpu_seconds(server.process.pid) - before > BUSY_CPU_SECONDS:
            return
        time.sleep(0.05)
    raise SystemExit("the load of the greedy user did not start")


def new_token(server: Server, name: str, *namespaces: str) -> str:
    """Create a service account that may edit the namespaces, and return a token for it."""
    _kubectl(server, "create", "serviceaccount", name)
    for namespace in namespaces:
        subject = f"--serviceaccount=default:{name}"
        _kubectl(server, "create", "rolebinding", name, "--clusterrole=edit", subject, "--namespace", namespace)
    return str(json.loads(_kubectl(server, "create", "token", name, "--output=json"))["status"]["token"])


def _kubectl(server: Server, *arguments: str) -> str:
    return subprocess.run(
        ["kubectl", *arguments], env=server.environment, check=True, capture_output=True, text=True
    ).stdout
