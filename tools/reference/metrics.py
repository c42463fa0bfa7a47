"""The page of metrics, from the registries of components that are created in this process."""

from __future__ import annotations

import asyncio
import contextlib
import random
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.reference.markdown import page, table

from dray.api.features import FeatureGates
from dray.client.in_process import in_process_client
from dray.client.interface import Client
from dray.client.shared_informers import SharedInformerFactory
from dray.cmd import apiserver
from dray.cmd.controllers import spawn_controllers
from dray.cmd.node_managers import NodeContext, NodeManagers
from dray.cmd.scheduler import spawn_scheduler
from dray.cmd.settings import APIServerSettings, NodeSettings
from dray.cmd.usage_recorder import UsageMetrics
from dray.driver import Driver
from dray.driver.classic import ClassicController
from dray.driver.classic.reconciler import DriverReconciler
from dray.driver.runner import DriverRunner, Options
from dray.node.agent.dependencies import ContainerStartMetrics
from dray.node.agent.pod_manager import PodManager
from dray.runtime.metrics import Metrics
from dray.runtime.system import SystemClock
from dray.runtime.tasks import TaskGroup
from dray.scheduler.config_loader import read_config
from dray.scheduler.pod_resource_metrics import PodResourceMetrics

INTRODUCTION = """Every process serves its metrics at `/metrics` in the Prometheus text format; see
[operating](../operating.md#metrics) for the endpoints. `dray up` serves the metrics of API server, controllers and
scheduler on one endpoint. Names are those of Kubernetes, except those that start with `dray_`, `dra_driver_` or
`classic_`. A histogram has `_bucket`, `_sum` and `_count`."""
# With the metrics of features that are disabled by default.
_GATES = FeatureGates.parse("GenericWorkload=true,DRAResourcePoolStatus=true")
WHERE = {
    "API server": "`dray apiserver`, `dray up`",
    "controllers": "`dray controller-manager`, `dray up`",
    "scheduler": "`dray scheduler`, `dray up`",
    "usage of devices": "`dray up`, unless it runs with `--usage-interval=0`",
    "pods in the scheduler": "`dray up` and `dray scheduler` at `/metrics/resources`; by the latter, while it leads",
    "node agent": "`dray node`",
    "driver": "drivers that use the SDK, with `--metrics-port`",
    "classic driver": "the controller of a classic driver, with `--metrics-port`",
}


@dataclass(frozen=True, slots=True)
class Described:
    """The declaration of a metric."""

    name: str
    type: str
    labels: tuple[str, ...]
    help: str


def metrics_page() -> str:
    """Return docs/reference/metrics.md."""
    found = asyncio.run(collected())
    items = {process: described(registry) for process, registry in found.items()}
    counts = Counter(item for own in items.values() for item in own)
    parts: list[str] = []
    for process, where in WHERE.items():
        own = [item for item in items[process] if counts[item] == 1]
        parts += [f"## {process[0].upper()}{process[1:]}", f"Served by {where}.", *([_table(own)] if own else ())]
        queues = queues_of(found[process])
        if queues:
            parts.append(f"Workqueues (`name`): {', '.join(f'`{name}`' for name in queues)}.")
    shared = sorted((item for item, count in counts.items() if count > 1), key=lambda item: item.name)
    return page("Metrics", INTRODUCTION, *parts, "## Several processes", _table(shared))


def _table(items: list[Described]) -> str:
    rows = [(f"`{item.name}{_labels(item)}`", item.type, item.help) for item in items]
    return table(("name and labels", "type", "description"), rows)


def _labels(item: Described) -> str:
    return f"{{{','.join(item.labels)}}}" if item.labels else ""


def described(metrics: Metrics) -> list[Described]:
    """Return the metrics of a registry, sorted by name."""
    return sorted(_described(metrics), key=lambda item: item.name)


def _described(metrics: Metrics) -> Iterator[Described]:
    for family in metrics.families():
        yield Described(family.name, family.type, family.labels, family.text)


def queues_of(metrics: Metrics) -> list[str]:
    """Return the workqueues of a registry, except those named after a driver."""
    samples = (sample for family in metrics.families() if family.name == "workqueue_depth" for sample in family.samples)
    return sorted({labels["name"] for _, labels, _ in samples} - {_Classic.name})


async def collected() -> Mapping[str, Metrics]:
    """Return the registry of each process, filled by components wired as in `dray.cmd`."""
    clock = SystemClock()
    found = {name: Metrics() for name in WHERE}
    with tempfile.TemporaryDirectory(prefix="ref") as folder:
        async with _server(Path(folder)) as running:
            client = in_process_client(
                running.local, user="system:admin", groups=("system:masters",), user_agent="reference"
            )
            found["API server"] = running.metrics
            async with TaskGroup("reference") as group:
                spawn_controllers(group, client, clock, found["controllers"], root_ca="", gates=_GATES)
                spawn_scheduler(group, client, clock, found["scheduler"], config=read_config(""), features=_GATES)
                await group.cancel()
            UsageMetrics(found["usage of devices"])
            found["pods in the scheduler"].collect_once("pods", lambda: PodResourceMetrics(lambda: ()))
            _make_node(client, clock, found["node agent"], folder)
            _make_drivers(client, clock, found, folder)
    return found


@contextlib.asynccontextmanager
async def _server(folder: Path) -> AsyncIterator[apiserver.Running]:
    settings = APIServerSettings(data_dir=str(folder / "server"), port=0, store="memory", feature_gates=_GATES)
    async with apiserver.running(settings) as running:
        yield running


def _make_node(client: Client, clock: SystemClock, metrics: Metrics, folder: str) -> None:
    ContainerStartMetrics(metrics)
    NodeManagers(NodeContext(NodeSettings(), "node", Path(folder) / "node", client, clock, metrics), PodManager())


class _Structured(Driver):
    name = "driver.example.com"


class _Classic(ClassicController):
    name = "classic.example.com"


def _make_drivers(client: Client, clock: SystemClock, found: Mapping[str, Metrics], folder: str) -> None:
    options = Options("node", root=f"{folder}/driver", cdi_folder=f"{folder}/cdi")
    DriverRunner(_Structured(), client, options, clock, found["driver"])
    informers = SharedInformerFactory(client, clock, random.Random(0))
    DriverReconciler(_Classic(), client, informers, clock, found["classic driver"])
