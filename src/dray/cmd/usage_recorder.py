"""Records what is in use in a cluster, once in a while: as a bounded file, and as metrics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dray.api.document import Document
from dray.api.errors import ServiceUnavailableError
from dray.client.interface import Client
from dray.lib.clock import Clock
from dray.runtime.files import replace_file
from dray.runtime.metrics import Metrics
from dray.sim.cluster_reader import read_documents
from dray.sim.snapshot import Snapshot
from dray.sim.usage_history import (
    History,
    HistoryError,
    Point,
    decode,
    encode,
    observed_seconds,
    to_document,
)
from dray.sim.usage_sample import KINDS, ClassUse, Sample, sample

_log = logging.getLogger(__name__)

FILE: Final = "usage-history.jsonl"
DAMAGED_SUFFIX: Final = ".damaged"
# How often the file is written; a crash loses what is newer.
SAVE_SECONDS: Final = 300.0
# Requests within this time get the same sample of now: with many devices so many times what the sample took, so that
# requests take at most a tenth of a processor.
FRESH_SECONDS: Final = 1.0
FRESH_COSTS: Final = 10.0


class UsageRecorder:
    """The history of usage of one cluster; the client must be able to read all devices, claims and Pods."""

    def __init__(self, client: Client, clock: Clock, metrics: Metrics, data_dir: Path, interval: float) -> None:
        self._client = client
        self._clock = clock
        self._path = data_dir / FILE
        self._interval = interval
        self._metrics = UsageMetrics(metrics)
        self._history = History()
        # When the time that the next point stands for began.
        self._since = clock.now().timestamp()
        self._saved = clock.monotonic()
        self._fresh: tuple[float, Sample] | None = None
        self._fresh_seconds = 0.0
        self._reading = asyncio.Lock()

    async def run(self) -> None:
        """Record until cancelled."""
        self._history = await asyncio.to_thread(load, self._path)
        try:
            while True:
                await self._clock.sleep(self._interval)
                await self._record()
        finally:
            # Not in a thread: a cancelled task does not wait for one.
            self._save()

    async def documents(self, seconds: float) -> Sequence[Document]:
        """Return the points of the last seconds as JSON data, the oldest first; the last is of now."""
        now, found = await self._now()
        kept = [point for point in self._history.points() if now - seconds < point.time <= now]
        return [to_document(point) for point in (*kept, self._point(now, found))]

    async def _record(self) -> None:
        try:
            now, found = await self._now()
        except Exception as error:  # noqa: BLE001 - one sample must not end the control plane
            _log.warning("usage is not recorded this time: %s", error)
            return
        point = self._point(now, found)
        self._history.add(point)
        self._since = now
        self._metrics.observe(point)
        if self._clock.monotonic() - self._saved >= SAVE_SECONDS:
            self._saved = self._clock.monotonic()
            await asyncio.to_thread(self._save)

    def _point(self, now: float, found: Sample) -> Point:
        return Point(now, round(observed_seconds(self._since, now, self._interval), 3), found)

    async def _now(self) -> tuple[float, Sample]:
        """Return what is in use now, read once for all who ask at the same time."""
        async with self._reading:
            now = round(self._clock.now().timestamp(), 3)
            if self._fresh is None or not 0 <= now - self._fresh[0] < self._fresh_seconds:
                began = self._clock.monotonic()
                documents = await read_documents(self._client, KINDS)
                # In a thread: with thousands of devices it takes long.
                self._fresh = now, await asyncio.to_thread(lambda: sample(Snapshot.of(documents)))
                cost = self._clock.monotonic() - began
                self._fresh_seconds = min(max(FRESH_SECONDS, cost * FRESH_COSTS), self._interval)
            return self._fresh

    def _save(self) -> None:
        if not self._history.raw:
            return
        try:
            replace_file(str(self._path), encode(self._history))
        except OSError as error:
            _log.warning("the history of usage is not saved: %s", error)


class RecordedUsage:
    """The history that the API server serves; the recorder is set when it can read from the server."""

    recorder: UsageRecorder | None = None

    async def documents(self, seconds: float) -> Sequence[Document]:
        """Return the points of the last seconds as JSON data, the oldest first; the last is of now."""
        if self.recorder is None:
            raise ServiceUnavailableError("usage is not recorded yet: the control plane is starting")
        return await self.recorder.documents(seconds)


def load(path: Path) -> History:
    """Return the history of a file, empty if there is none; a damaged file is set aside."""
    try:
        return decode(path.read_bytes())
    except FileNotFoundError:
        return History()
    except OSError as error:
        _log.warning("the history of usage cannot be read: %s", error)
    except HistoryError as error:
        aside = path.with_name(path.name + DAMAGED_SUFFIX)
        _log.warning("the history of usage is damaged and begins anew; the old file is now %s: %s", aside, error)
        path.replace(aside)
    return History()


class UsageMetrics:
    """The newest sample, and the device-seconds since the start."""

    def __init__(self, metrics: Metrics) -> None:
        self._seconds = metrics.counter(
            "dray_device_seconds_total",
            "Seconds of physical devices that claims and Pods of a namespace had, by requested class or resource.",
            ("namespace", "device_class"),
        )
        self._devices = metrics.gauge(
            "dray_devices", "Physical devices by class and state: in_use, free, unavailable.", ("device_class", "state")
        )
        self._used = metrics.gauge(
            "dray_devices_used", "Sum of the fractions of physical devices in use, by class.", ("device_class",)
        )
        self._classes: set[str] = set()

    def observe(self, point: Point) -> None:
        """Count a point, and show its sample."""
        for owner, part in point.sample.namespaces.items():
            self._seconds.labels(*owner).inc(part.used * point.seconds)
        classes = point.sample.classes
        for name, use in classes.items():
            self._used.labels(name).set(use.used)
            for state, count in _states(use).items():
                self._devices.labels(name, state).set(count)
        for name in self._classes - set(classes):
            self._used.remove(name)
            for state in _states(_NONE):
                self._devices.remove(name, state)
        self._classes = set(classes)


_NONE: Final = ClassUse(0, 0, 0, 0, 0)


def _states(use: ClassUse) -> dict[str, float]:
    free = use.total - use.held - use.unavailable
    return {"in_use": use.held, "free": free, "unavailable": use.unavailable}
