"""Samples the use of CPU and memory from time to time, and serves it with kubelet's paths."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, NoReturn

import orjson

from dray.api.timestamps import format_duration
from dray.lib.clock import Clock
from dray.node.agent.pod_manager import PodManager
from dray.node.agent.stats.samples import ContainerSample, FileSystem, NodeSample, PodSample, Sample, rated
from dray.node.agent.stats.samples import container_samples as by_container
from dray.node.agent.stats.summary import resource_metrics, summary
from dray.node.runtimes.runtime import ContainerRecord, Runtime
from dray.node.runtimes.usage import Usage
from dray.node.runtimes.usage_reader import read_machine_usage
from dray.runtime.http.requests import Request
from dray.runtime.http.router import Handler, Reply, text
from dray.runtime.logs import fields
from dray.runtime.metrics import CONTENT_TYPE

_log = logging.getLogger(__name__)

# Shorter intervals would take more CPU time than they show.
INTERVAL_SECONDS_MIN: Final = 0.1


@dataclass(frozen=True, slots=True)
class _RunningPod:
    """A Pod and its running containers, as the event loop knows them at the time of a round."""

    uid: str
    namespace: str
    name: str
    records: tuple[ContainerRecord, ...]


class StatsSampler:
    """Keeps the newest round of samples."""

    def __init__(
        self, *, node_name: str, root: Path, pods: PodManager, runtime: Runtime, clock: Clock, interval_seconds: float
    ) -> None:
        self._node_name = node_name
        self._root = root
        self._pods = pods
        self._runtime = runtime
        self._clock = clock
        self._interval = interval_seconds
        self._newest: NodeSample | None = None

    @property
    def routes(self) -> Mapping[str, Handler]:
        """The handlers by path."""
        return {"/stats/summary": self._summary, "/metrics/resource": self._resource_metrics}

    async def run(self) -> NoReturn:
        """Sample until cancelled."""
        while True:
            await self.sample()
            await self._clock.sleep(self._interval)

    async def sample(self) -> None:
        """Take one round of samples; the one before is kept if the machine cannot be read."""
        running = self._running()
        usages = await self._runtime.usages([record for pod in running for record in pod.records])
        try:
            self._newest = await asyncio.to_thread(self._read, running, usages, self._newest)
        except (OSError, ValueError) as error:
            _log.warning("the use of CPU and memory cannot be read", extra=fields(error=str(error)))

    def _running(self) -> list[_RunningPod]:
        found = []
        for worker in self._pods.workers.values():
            states = worker.machine.containers.by_name.values()
            records = tuple(state.current for state in states if state.current and state.current.exit is None)
            if records:
                metadata = worker.pod.metadata
                found.append(_RunningPod(worker.uid, metadata.namespace or "", metadata.name or "", records))
        return found

    def _read(
        self, running: Sequence[_RunningPod], usages: Mapping[str, Usage], before: NodeSample | None
    ) -> NodeSample:
        """Read everything; in a thread of its own."""
        earlier = by_container(before.pods) if before is not None else {}
        machine = read_machine_usage()
        node = rated(Sample(self._clock.now(), machine.usage), before.sample if before is not None else None)
        pods = []
        count = 0
        for pod in running:
            containers = tuple(self._read_containers(pod.records, usages, earlier))
            count += len(containers)
            if containers:
                start = min(container.started_at for container in containers)
                pods.append(PodSample(pod.uid, pod.namespace, pod.name, start, containers))
        failed = count < sum(len(pod.records) for pod in running)
        return NodeSample(node, machine.available_bytes, _file_system(self._root), tuple(pods), failed)

    def _read_containers(
        self, records: Sequence[ContainerRecord], usages: Mapping[str, Usage], earlier: Mapping[str, Sample]
    ) -> Sequence[ContainerSample]:
        found = []
        for record in records:
            if record.id in usages:
                sample = rated(Sample(self._clock.now(), usages[record.id]), earlier.get(record.id))
                found.append(ContainerSample(record.id, record.name, record.started_at, sample))
        return found

    async def _summary(self, _request: Request) -> Reply:
        if self._newest is None:
            return text("nothing has been sampled yet", 503)
        window = format_duration(timedelta(seconds=self._interval))
        body = summary(self._node_name, _boot_time(self._clock.now()), self._newest, window)
        return Reply(orjson.dumps(body), content_type="application/json")

    async def _resource_metrics(self, _request: Request) -> Reply:
        return Reply(resource_metrics(self._newest).encode(), content_type=CONTENT_TYPE)


def _boot_time(now: datetime) -> datetime:
    return now - timedelta(seconds=time.clock_gettime(time.CLOCK_BOOTTIME))


def _file_system(root: Path) -> FileSystem:
    found = os.statvfs(root)
    size = found.f_frsize
    return FileSystem(
        found.f_blocks * size,
        found.f_bavail * size,
        (found.f_blocks - found.f_bfree) * size,
        found.f_files,
        found.f_ffree,
    )
