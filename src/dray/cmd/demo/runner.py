"""Runs the demo: starts the cluster, runs the steps, prints what to try next, and stops what it started."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shlex
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from dray.api.document import Document
from dray.api.errors import APIError
from dray.client.credentials import load_access
from dray.cmd.demo import facts, programs
from dray.cmd.demo.cluster import Cluster, read_manifest
from dray.cmd.demo.cluster_state import (
    ClusterState,
    is_complete,
    is_running,
    is_unschedulable,
    node_rows,
    pod_progress,
)
from dray.cmd.demo.processes import ProcessError, Processes, read_record, stop_processes, wait_until
from dray.cmd.demo.programs import Directories
from dray.cmd.demo.scenario import CLASSES, NODES, STEPS, DemoNode, Step
from dray.cmd.demo.screen import Fact, Line, NodeRow, Screen, StepState, StepView, node_lines, screen_for
from dray.cmd.settings import DemoSettings
from dray.runtime.tasks import TaskGroup, first_completed

STEP_SECONDS_MAX: Final = 60.0
POLL_SECONDS: Final = 0.1


class DemoError(Exception):
    """The demo cannot continue; the message says what to do."""


class ScenarioError(Exception):
    """A step did not reach its expected state."""


async def run(settings: DemoSettings, stop: asyncio.Event) -> None:
    """Run the demo, or with --stop end one that was left running."""
    # Log lines would break the live view. Libraries log connections that close when the demo ends, and failed tasks
    # are reported as the error of the command.
    logging.getLogger().setLevel(logging.CRITICAL)
    logging.getLogger("dray").setLevel(logging.WARNING)
    logging.getLogger("dray.runtime.tasks").setLevel(logging.CRITICAL)
    data = _resolve(settings.data_dir)
    if settings.stop:
        await _stop_previous(data, required=True)
        return
    await _stop_previous(data)
    _create_directory(data)
    screen = screen_for(sys.stdout, os.environ)
    try:
        await _run(settings, stop, screen, programs.make_directories(settings.data_dir))
    finally:
        screen.close()


async def _run(settings: DemoSettings, stop: asyncio.Event, screen: Screen, directories: Directories) -> None:
    processes = Processes(directories.data, directories.nodes)
    started = time.monotonic()
    keep, url, reporter = False, "", StepReporter(screen)
    try:
        url = await _run_until_stopped(_run_scenario(settings, reporter, directories, processes), stop)
        keep = settings.keep
    except (ScenarioError, ProcessError, APIError) as error:
        hint = f"The logs are in {directories.data}. Run {_dray()} demo to start over."
        raise DemoError(f"{error}\n{hint}") from error
    finally:
        seconds = time.monotonic() - started
        if not keep:
            await processes.stop()
    if not keep:
        _remove(directories)
    screen.write([*node_lines(reporter.rows, screen.style), (), *_closing_lines(directories, url, seconds, keep=keep)])


def _resolve(directory: str) -> Path:
    return Path(directory).resolve()


async def _run_until_stopped(scenario: Coroutine[Any, Any, str], stop: asyncio.Event) -> str:
    """Return the scenario's result; raise `DemoError` if the demo is stopped before."""
    position, result = await first_completed(scenario, stop.wait())
    if position:
        raise DemoError("interrupted; all its processes were stopped")
    url: str = result
    return url


async def _run_scenario(
    settings: DemoSettings, reporter: StepReporter, directories: Directories, processes: Processes
) -> str:
    """Run all steps; return the URL of the dashboard if the cluster is kept."""
    url = ""
    async with contextlib.AsyncExitStack() as stack:
        async with reporter.step("A cluster of four nodes on this machine, without root", "dray up, dray node"):
            reporter.status("the API server, controllers and scheduler are starting")
            started = time.monotonic()
            line = await processes.start_ready(programs.server(directories, settings.port))
            server = line.split()[0]
            reporter.add([Fact("server", f"{server} is ready after {time.monotonic() - started:.1f} s, with SQLite")])
            cluster = Cluster(load_access({}, path=str(directories.kubeconfig)), directories.nodes)
            stack.push_async_callback(cluster.close)
            runner = ScenarioRunner(reporter, directories, processes, cluster)
            await runner.start_nodes()
            if settings.keep:
                url = await processes.start_ready(programs.dashboard(directories))
                reporter.add([Fact("dashboard", url, "cyan")])
        await runner.run_steps()
    return url


class StepReporter:
    """Shows the steps on the screen, one after the other."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._view = StepView(0, "", "")
        # The last state of the nodes.
        self.rows: tuple[NodeRow, ...] = ()

    @contextlib.asynccontextmanager
    async def step(self, title: str, source: str) -> AsyncIterator[None]:
        """Show a step for the time of an `async with`; the view is redrawn periodically."""
        self._view = StepView(self._view.number + 1, title, source)
        started = time.monotonic()
        state = StepState.FAILED
        try:
            async with TaskGroup("demo screen") as group:
                group.spawn(self._redraw(), "redraw")
                yield
            state = StepState.DONE
        finally:
            self._view = replace(self._view, state=state, seconds=time.monotonic() - started)
            self._show()

    def status(self, text: str) -> None:
        """Show what the step is waiting for."""
        self._view = replace(self._view, status=text)
        self._show()

    def add(self, new_facts: Iterable[Fact]) -> None:
        """Add facts to the step."""
        self._view = replace(self._view, facts=(*self._view.facts, *new_facts))
        self._show()

    def update_nodes(self, rows: tuple[NodeRow, ...]) -> None:
        """Show the current state of the nodes."""
        self.rows = rows
        self._show()

    def _show(self) -> None:
        self._screen.show(self._view, self.rows)

    async def _redraw(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            self._show()


class ScenarioRunner:
    """Runs the steps of the scenario on the demo's cluster."""

    def __init__(
        self, reporter: StepReporter, directories: Directories, processes: Processes, cluster: Cluster
    ) -> None:
        self._reporter = reporter
        self._directories = directories
        self._processes = processes
        self._cluster = cluster

    async def start_nodes(self) -> None:
        """Start all node agents, drivers and device plugins concurrently."""
        self._reporter.status(f"{len(NODES)} node agents are starting")
        self._processes.start(programs.classic_controller(self._directories))
        try:
            async with TaskGroup("demo nodes") as group:
                for node in NODES:
                    group.spawn(self._start_node(node), node.name)
                state = await self._wait_for("all nodes to have their devices", lambda now: is_complete(now, NODES))
                await group.wait()
        except BaseExceptionGroup as failures:
            # Several agents failed; the first error is enough.
            raise failures.exceptions[0] from failures
        self._reporter.add(facts.hardware_facts(state, NODES))
        await self._cluster.apply(read_manifest(self._directories.examples / "demo" / CLASSES))

    async def _start_node(self, node: DemoNode) -> None:
        await self._processes.start_ready(programs.agent(self._directories, node))
        for program in programs.providers(self._directories, node):
            self._processes.start(program)

    async def run_steps(self) -> None:
        """Run all steps."""
        for step in STEPS:
            async with self._reporter.step(step.title, step.source):
                await self._run_step(step)

    async def _run_step(self, step: Step) -> None:
        if step.manifest:
            documents = read_manifest(self._directories.examples / "demo" / step.manifest)
            self._reporter.add(facts.request_facts(documents))
            async with self._cluster.watch_classic_claims() as states:
                await self._cluster.apply(documents)
                await self._wait_until_settled(step)
                if step.negotiated:
                    await wait_until(lambda: facts.is_negotiated(states), STEP_SECONDS_MAX)
            self._reporter.add(facts.negotiation_facts(states))
            await self._show_outcome(step)
        for node in step.pod_resources:
            self._reporter.status(f"reading the PodResources socket of {node}")
            self._reporter.add(facts.pod_resources_facts(node, await self._cluster.pod_resources(node)))

    async def _wait_until_settled(self, step: Step) -> None:
        def is_settled(state: ClusterState) -> bool:
            pods = state.pods_of(step.story)
            progress = [f"{pod['metadata']['name']} {pod_progress(pod)}" for pod in pods]
            self._reporter.status(", ".join(progress) or "waiting for Pods")
            running, unschedulable = sum(map(is_running, pods)), sum(map(is_unschedulable, pods))
            return (running, unschedulable) == (step.running, step.pending)

        await self._wait_for(f"{step.running} running and {step.pending} pending Pods of {step.manifest}", is_settled)

    async def _show_outcome(self, step: Step) -> None:
        state = await self._cluster.read_state()
        pods = state.pods_of(step.story)
        if step.explained:
            self._reporter.status("explaining the placement")
            answer = await self._cluster.explain(pods[0]["metadata"]["name"])
            self._reporter.add(facts.node_facts(answer))
        for pod in pods:
            await self._show_allocation(pod, state)
        if step.explained:
            self._reporter.add([*facts.alternative_facts(answer), *facts.suggestion_facts(answer)])
        elif step.preempts:
            self._reporter.add(facts.preemption_facts(await self._cluster.events("Preempted"), pods))
        elif step.running > 1:
            self._reporter.add(facts.provider_facts(pods, state))

    async def _show_allocation(self, pod: Document, state: ClusterState) -> None:
        node = pod["spec"].get("nodeName")
        if node is None:
            return
        name = pod["metadata"]["name"]
        self._reporter.add(facts.allocation_facts(pod, state, await self._cluster.pod_resources(node)))
        self._reporter.add(facts.environment_facts(pod, await self._read_log(name)))

    async def _read_log(self, pod: str) -> str:
        """Return the Pod's log; a container that has just started may not have written it yet."""
        deadline = time.monotonic() + STEP_SECONDS_MAX
        while True:
            text = await self._cluster.log(pod)
            if text or time.monotonic() > deadline:
                return text
            await asyncio.sleep(POLL_SECONDS)

    async def _wait_for(self, what: str, is_settled: Callable[[ClusterState], bool]) -> ClusterState:
        deadline = time.monotonic() + STEP_SECONDS_MAX
        while True:
            state = await self._cluster.read_state()
            self._reporter.update_nodes(node_rows(state, NODES))
            if is_settled(state):
                return state
            if exited := self._processes.exited():
                raise ScenarioError(f"{exited[0]} exited; the end of its log:\n{self._processes.log_tail(exited[0])}")
            if time.monotonic() > deadline:
                raise ScenarioError(f"timed out after {STEP_SECONDS_MAX:.0f} s waiting for {what}")
            await asyncio.sleep(POLL_SECONDS)


def _closing_lines(directories: Directories, url: str, seconds: float, *, keep: bool) -> list[Line]:
    summary: Line = ((f"Finished in {seconds:.1f} s.", "bold"),)
    if not keep:
        return [
            summary,
            (("All processes were stopped. To keep the cluster and its dashboard running:", ""),),
            (),
            ((f"  {_dray()} demo --keep", "cyan"),),
            (("  The manifests are in ", ""), (str(directories.examples / "demo"), "cyan")),
        ]
    commands = [
        (f"{_dray()} explain pod latecomer", "why it is pending, per node"),
        (f"{_dray()} top", "device usage by class, node and namespace"),
        ("kubectl delete pod trainer urgent", "latecomer gets a device: kubectl get pods -o wide"),
    ]
    if shutil.which("kubectl") is None:
        commands[2] = (f"{_dray()} claims --watch", "all claims, after every change")
    width = max(len(command) for command, _ in commands)
    return [
        summary,
        (("The cluster keeps running. Its dashboard:", ""),),
        (),
        ((f"  {url}", "cyan"),),
        (),
        (("Three things to try:", ""),),
        (),
        ((f"  export KUBECONFIG={shlex.quote(str(directories.kubeconfig))}", "cyan"),),
        *(((f"  {command.ljust(width)}", "cyan"), (f"   # {comment}", "dim")) for command, comment in commands),
        (),
        (("To stop it: ", ""), (f"{_dray()} demo --stop{_data_dir_flag(directories.data)}", "cyan")),
    ]


def _dray() -> str:
    """Return the command that runs dray in the user's shell."""
    if shutil.which("dray"):
        return "dray"
    beside = Path(sys.executable).with_name("dray")
    if not beside.exists():
        return f"{sys.executable} -m dray"
    return os.path.relpath(beside) if beside.is_relative_to(Path.cwd()) else str(beside)


def _data_dir_flag(data: Path) -> str:
    default = Path(DemoSettings().data_dir).resolve()
    return "" if data == default else f" --data-dir={shlex.quote(str(data))}"


async def _stop_previous(data: Path, *, required: bool = False) -> None:
    """Stop the processes of an earlier demo in this directory, and remove its state."""
    record = read_record(data)
    if record is None:
        if required:
            raise DemoError(f"no demo is running in {data}; specify its --data-dir")
        return
    records, nodes = record
    running = sum(item.is_alive for item in records)
    await stop_processes(records, nodes)
    _remove(Directories(data, nodes, Path()))
    if running:
        sys.stdout.write(f"stopped the {running} processes of the demo in {data}\n")
        sys.stdout.flush()


def _create_directory(data: Path) -> None:
    """Create the directory; it may exist if it is empty, because everything in it is removed at the end."""
    try:
        data.mkdir(parents=True, exist_ok=True, mode=0o700)
        existing = sorted(item.name for item in data.iterdir())
    except OSError as error:
        raise DemoError(f"{data}: {error.strerror}; specify another --data-dir") from error
    if existing:
        raise DemoError(f"{data} is not empty ({existing[0]}); remove it, or specify another --data-dir")


def _remove(directories: Directories) -> None:
    """Remove all files of the demo."""
    shutil.rmtree(directories.nodes, ignore_errors=True)
    shutil.rmtree(directories.data, ignore_errors=True)
