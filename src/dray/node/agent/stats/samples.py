"""Samples of usage, and rates of CPU time between two of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from dray.node.runtimes.usage import Usage, total


@dataclass(frozen=True, slots=True)
class Sample:
    """The usage at a moment; the rate in billionths of a CPU is None for a first sample."""

    time: datetime
    usage: Usage
    nano_cores: int | None = None


@dataclass(frozen=True, slots=True)
class ContainerSample:
    """The sample of one run of a container."""

    id: str
    name: str
    started_at: datetime
    sample: Sample


@dataclass(frozen=True, slots=True)
class PodSample:
    """The samples of a Pod's running containers."""

    uid: str
    namespace: str
    name: str
    started_at: datetime
    containers: tuple[ContainerSample, ...]

    @property
    def sample(self) -> Sample:
        """The sum of the containers; without a rate while one of them has none."""
        samples = [container.sample for container in self.containers]
        rates = [sample.nano_cores for sample in samples if sample.nano_cores is not None]
        rate = sum(rates) if len(rates) == len(samples) else None
        return Sample(max(sample.time for sample in samples), total(sample.usage for sample in samples), rate)


@dataclass(frozen=True, slots=True)
class FileSystem:
    """The file system with the agent's folder."""

    capacity_bytes: int
    available_bytes: int
    used_bytes: int
    inodes: int
    inodes_free: int


@dataclass(frozen=True, slots=True)
class NodeSample:
    """One round of samples."""

    sample: Sample
    available_bytes: int
    file_system: FileSystem
    pods: tuple[PodSample, ...] = ()
    # Whether something could not be read.
    failed: bool = False


def rated(sample: Sample, earlier: Sample | None) -> Sample:
    """Return the sample with the rate since an earlier one.

    A total that has become smaller is that of another process: the rate is not known.
    """
    if earlier is None:
        return sample
    seconds = (sample.time - earlier.time).total_seconds()
    used = sample.usage.cpu_nanoseconds - earlier.usage.cpu_nanoseconds
    if seconds <= 0 or used < 0:
        return sample
    return replace(sample, nano_cores=round(used / seconds))


def container_samples(pods: Iterable[PodSample]) -> Mapping[str, Sample]:
    """Return the samples of containers by ID."""
    return {container.id: container.sample for pod in pods for container in pod.containers}
