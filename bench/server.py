"""Benchmarks of the API server; each is a generator of rows."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.load import cpu_seconds
from bench.processes import LOAD_SECONDS_MAX, etcd, load, resident_megabytes, serving, wait_until_idle
from bench.rows import Row, Target, percentile, progress
from tests.servers import Server

STARTS = 5
SYNCS = 300
IDLE_SECONDS = 3.0
FILL_CLIENTS = 64
WATCHERS_PER_USER = 1000


@dataclass(frozen=True, slots=True)
class Size:
    """The size of the benchmarks."""

    writes: int = 8_000
    sequential: int = 800
    objects: int = 50_000
    list_objects: int = 5_000
    lists: int = 10
    events: int = 600
    fan_out_events: int = 40
    watchers: int = WATCHERS_PER_USER


FULL = Size()
QUICK = Size(
    writes=1_500,
    sequential=200,
    objects=5_000,
    list_objects=1_000,
    lists=5,
    events=100,
    fan_out_events=10,
    watchers=100,
)


def start_up(_size: Size) -> Iterator[Row]:
    """Measure from the start of the process until it reports ready."""
    seconds = []
    for number in range(STARTS):
        progress(f"start-up {number + 1} of {STARTS}")
        started = time.perf_counter()
        with serving():
            seconds.append(time.perf_counter() - started)
    yield Row("start-up to ready", statistics.median(seconds), "s", {"runs": STARTS, "store": "sqlite"}, Target(1.5))


def idle(_size: Size) -> Iterator[Row]:
    """Measure a server without requests."""
    with serving() as server:
        load(server, "create", clients=1, total=10, prefix="warm")
        wait_until_idle(server.process.pid)
        yield Row("memory, idle", resident_megabytes(server.process.pid), "MB", {"command": "up"})
        before = cpu_seconds(server.process.pid)
        time.sleep(IDLE_SECONDS)
        share = 100 * (cpu_seconds(server.process.pid) - before) / IDLE_SECONDS
        yield Row("processor, idle", share, "% of a core", {"seconds": IDLE_SECONDS})


def memory_and_lists(size: Size) -> Iterator[Row]:
    """Measure memory by number of objects, and lists of them."""
    with tempfile.TemporaryDirectory() as folder:
        with serving(data_dir=Path(folder)) as server:
            few = size.objects // 10
            yield from _filled(server, "few", few)
            yield from _lists(server, "few", size)
            yield from _filled(server, "many", size.objects - few, already=few)
        with serving(data_dir=Path(folder)) as server:
            load(server, "read", clients=1, total=1, path="/api/v1/namespaces/many/configmaps?limit=1")
            wait_until_idle(server.process.pid)
            value = resident_megabytes(server.process.pid)
            yield Row("memory after a restart", value, "MB", {"objects": size.objects}, _only_full(size, Target(150)))
            result = load(server, "read", clients=1, total=3, path="/api/v1/namespaces/many/configmaps")
            value = statistics.median(result["times"])
            megabytes = round(result["bytes"] / 1e6, 1)
            parameters = {"objects": size.objects - few, "format": "JSON", "tls": True, "MB": megabytes}
            yield Row("list", value, "s", parameters)


def _filled(server: Server, namespace: str, objects: int, *, already: int = 0) -> Iterator[Row]:
    progress(f"writing {objects} objects")
    subprocess.run(
        ["kubectl", "create", "namespace", namespace], env=server.environment, check=True, capture_output=True
    )
    load(server, "create", clients=FILL_CLIENTS, total=objects, prefix="object", namespace=namespace)
    total = objects + already
    target = Target(150) if total >= 50_000 else None
    yield Row("memory after writing", resident_megabytes(server.process.pid), "MB", {"objects": total}, target)


def _lists(server: Server, namespace: str, size: Size) -> Iterator[Row]:
    path = f"/api/v1/namespaces/{namespace}/configmaps?limit={size.list_objects}"
    result = load(server, "read", clients=1, total=size.lists, path=path)
    parameters = {
        "objects": min(size.list_objects, size.objects // 10),
        "format": "JSON",
        "tls": True,
        "MB": round(result["bytes"] / 1e6, 1),
    }
    yield Row("list", statistics.median(result["times"]), "s", parameters, Target(0.5))


def _only_full(size: Size, target: Target) -> Target | None:
    """Return the target if the run has 50,000 objects, for which it was defined."""
    return target if size.objects >= FULL.objects else None


def disk(_size: Size) -> Iterator[Row]:
    """Measure the cost of a durable write on this disk, to compare rates between machines."""
    times = []
    with tempfile.TemporaryFile() as file:
        for _ in range(SYNCS):
            file.write(b"x" * 4096)
            file.flush()
            start = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - start)
    parameters = {"directory": tempfile.gettempdir(), "bytes": 4096}
    yield Row("disk: fdatasync, p50", 1e6 * percentile(times, 0.5), "us", parameters)
    yield Row("disk: fdatasync, p99", 1e6 * percentile(times, 0.99), "us", parameters)


def claims_over_tls(size: Size) -> Iterator[Row]:
    """Measure creates of ResourceClaims, which need more defaulting and validation."""
    with serving() as server:
        load(server, "create", clients=4, total=100, prefix="warm", kind="ResourceClaim")
        for clients, total in ((1, size.sequential), (32, size.writes)):
            prefix = f"claim-{clients}"
            result = load(server, "create", clients=clients, total=total, prefix=prefix, kind="ResourceClaim")
            yield from _rates("claims created over TLS", result, {"clients": clients, "store": "sqlite"}, None)


def over_tls(size: Size) -> Iterator[Row]:
    """Measure writes over TLS."""
    yield from _writes_over_tls(size, "sqlite")


def over_tls_on_etcd(size: Size) -> Iterator[Row]:
    """Measure writes over TLS with etcd."""
    with etcd() as url:
        yield from _writes_over_tls(size, "etcd", f"--etcd-servers={url}")


def _writes_over_tls(size: Size, store: str, *flags: str) -> Iterator[Row]:
    with serving(f"--store={store}", *flags) as server:
        load(server, "create", clients=4, total=100, prefix="warm")
        for mode in ("create", "update"):
            for clients, total in ((1, size.sequential), (32, size.writes)):
                progress(f"{mode} over TLS on {store} by {clients}")
                result = load(server, mode, clients=clients, total=total, prefix=f"{mode}-{clients}")
                target = Target(1500, at_least=True) if (mode, clients, store) == ("create", 32, "sqlite") else None
                parameters = {"clients": clients, "store": store, "tls": True}
                yield from _rates(f"{mode}s over TLS", result, parameters, target)


def in_process(size: Size) -> Iterator[Row]:
    """Measure writes in process, as the controllers make them."""
    yield from _writes_in_process(size, "sqlite")
    yield from _writes_in_process(size, "memory")


def in_process_on_etcd(size: Size) -> Iterator[Row]:
    """Measure writes in process with etcd."""
    with etcd() as url:
        yield from _writes_in_process(size, "etcd", url)


def _writes_in_process(size: Size, store: str, *urls: str) -> Iterator[Row]:
    for mode in ("create", "update"):
        for clients, total in ((1, size.sequential), (32, size.writes)):
            progress(f"{mode} in process on {store} by {clients}")
            with tempfile.TemporaryDirectory() as folder:
                plan = {"mode": mode, "clients": clients, "total": total, "prefix": f"{mode}-{clients}-{store}"}
                result = _run_in_process(plan | {"store": store, "data_dir": folder, "etcd": urls})
            target = Target(4000, at_least=True) if (mode, clients, store) == ("create", 32, "sqlite") else None
            yield from _rates(f"{mode}s in process", result, {"clients": clients, "store": store}, target)


def _run_in_process(plan: dict[str, Any]) -> dict[str, Any]:
    result = subprocess.run(
        [sys.executable, "-m", "bench.in_process"],
        input=json.dumps(plan),
        capture_output=True,
        text=True,
        timeout=LOAD_SECONDS_MAX,
        check=False,
    )
    if result.returncode:
        raise SystemExit(f"the in-process benchmark failed: {result.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def _rates(name: str, result: dict[str, Any], parameters: dict[str, Any], target: Target | None) -> Iterator[Row]:
    """Return rate, latency and CPU time of one run; CPU time is independent of other load on the machine."""
    times = result["times"]
    yield Row(name, len(times) / result["seconds"], "per second", parameters, target)
    yield Row(f"{name}, p50", 1000 * percentile(times, 0.5), "ms", parameters)
    yield Row(f"{name}, p99", 1000 * percentile(times, 0.99), "ms", parameters)
    yield Row(f"{name}, server processor", 1e6 * result["server_cpu"] / len(times), "us each", parameters)


def watches(size: Size) -> Iterator[Row]:
    """Measure from sending a write to receiving its event."""
    with serving() as server:
        load(server, "create", clients=4, total=100, prefix="warm")
        for watchers, same, events, rate in (
            (1, False, size.events, 200),
            (size.watchers, False, size.events, 200),
            (size.watchers, True, size.fan_out_events, 10),
        ):
            progress(f"{watchers} watchers, {'same' if same else 'other'} namespaces")
            result = load(
                server,
                "watch",
                watchers=watchers,
                same=same,
                total=events,
                per_second=rate,
                prefix=f"seen-{watchers}-{same}".lower(),
            )
            parameters = {"watchers": watchers, "watching": "all" if same else "one", "writes_per_second": rate}
            target = None if same else Target(10)
            times = result["times"]
            yield Row("write to watch event, p50", 1000 * percentile(times, 0.5), "ms", parameters)
            yield Row("write to watch event, p99", 1000 * percentile(times, 0.99), "ms", parameters, target)
            share = 100 * result["server_cpu"] / result["seconds"]
            yield Row("processor while watching", share, "% of a core", parameters)


BENCHMARKS: dict[str, Callable[[Size], Iterator[Row]]] = {
    "disk": disk,
    "start-up": start_up,
    "idle": idle,
    "tls-sqlite": over_tls,
    "tls-claims": claims_over_tls,
    "tls-etcd": over_tls_on_etcd,
    "in-process": in_process,
    "in-process-etcd": in_process_on_etcd,
    "watch": watches,
    "memory-and-lists": memory_and_lists,
}
