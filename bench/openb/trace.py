"""Reads the trace, and makes the arrivals of one seed. Pure, except for reading files."""

from __future__ import annotations

import csv
import os
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# A whole GPU; shares are given in thousandths.
WHOLE: Final = 1000
# GPUs that arrive in all, as a share of those that exist.
ARRIVING: Final = 1.3
DEFAULT_FOLDER: Final = Path(__file__).resolve().parents[3] / "shared" / "openb"
SOURCE: Final = "hkust-adsl/kubernetes-scheduler-simulator on GitHub, data/csv"
_NODES: Final = "openb_node_list_gpu_node.csv"
_PODS: Final = "openb_pod_list_{}.csv"


class TraceMissingError(Exception):
    """The files of the trace are not where they are looked for."""


@dataclass(frozen=True, slots=True)
class TraceNode:
    """A node with equal GPUs; without a model it has none."""

    name: str
    milli_cpu: int
    memory_mib: int
    gpus: int
    model: str


@dataclass(frozen=True, slots=True)
class TracePod:
    """Requests of a Pod: number of GPUs, thousandths of each, and the accepted models (empty: any)."""

    milli_cpu: int
    memory_mib: int
    gpus: int
    milli_gpu: int
    models: tuple[str, ...] = ()

    @property
    def total_milli_gpu(self) -> int:
        """Return the thousandths of all of its GPUs."""
        return self.gpus * self.milli_gpu


def folder() -> Path:
    """Return where the trace is: `OPENB`, or beside the checkout."""
    return Path(os.environ.get("OPENB", "") or DEFAULT_FOLDER)


def _rows(name: str) -> list[dict[str, str]]:
    path = folder() / name
    try:
        with path.open(newline="") as file:
            return list(csv.DictReader(file))
    except FileNotFoundError:
        raise TraceMissingError(f"{path} is missing; set OPENB to the folder of the files from {SOURCE}") from None


def read_nodes() -> list[TraceNode]:
    """Return the nodes of the trace."""
    return [
        TraceNode(row["sn"], int(row["cpu_milli"]), int(row["memory_mib"]), int(row["gpu"]), row["model"])
        for row in _rows(_NODES)
    ]


def read_pods(name: str) -> list[TracePod]:
    """Return the Pods of a list, for example `default`."""
    return [_pod(row) for row in _rows(_PODS.format(name))]


def _pod(row: dict[str, str]) -> TracePod:
    gpus = int(row["num_gpu"])
    models = tuple(sorted(filter(None, (row.get("gpu_spec") or "").split("|"))))
    milli_gpu = int(row["gpu_milli"]) if gpus else 0
    return TracePod(int(row["cpu_milli"]), int(row["memory_mib"]), gpus, milli_gpu, models)


def milli_gpus(items: Iterable[TraceNode]) -> int:
    """Return the thousandths of all GPUs."""
    return WHOLE * sum(node.gpus for node in items)


def arrivals(pods: Sequence[TracePod], total_milli_gpu: int, seed: int) -> list[TracePod]:
    """Return the Pods in the order of their arrival.

    Pods drawn at random are added until 130 % of the GPUs are requested; if the list requests more, Pods are dropped
    at random. Then the order is shuffled.
    """
    rng = random.Random(seed)
    wanted = total_milli_gpu * ARRIVING
    found = list(pods)
    requested = sum(pod.total_milli_gpu for pod in found)
    if not requested:
        raise ValueError("the list requests no GPUs")
    while requested > wanted:
        requested -= found.pop(rng.randrange(len(found))).total_milli_gpu
    while requested < wanted:
        pod = rng.choice(pods)
        found.append(pod)
        requested += pod.total_milli_gpu
    rng.shuffle(found)
    return found


def arrived(pods: Iterable[TracePod], milli_gpu: int) -> Iterator[TracePod]:
    """Yield the Pods until they have requested so many thousandths of GPUs."""
    requested = 0
    for pod in pods:
        if requested >= milli_gpu:
            return
        yield pod
        requested += pod.total_milli_gpu
