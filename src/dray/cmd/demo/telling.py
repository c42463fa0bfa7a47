"""Tells the story: does each step, watches what comes of it, and says what was found."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from typing import Any, Final

from dray.api.document import Document
from dray.cmd.demo import found, programs
from dray.cmd.demo.asked import asked
from dray.cmd.demo.board import Look, board, is_complete, is_running, is_waiting, standing
from dray.cmd.demo.cluster import Cluster, read_manifest
from dray.cmd.demo.processes import Processes, until
from dray.cmd.demo.programs import Places
from dray.cmd.demo.scene import Chapter, Fact, NodeRow, State
from dray.cmd.demo.screen import Screen
from dray.cmd.demo.story import CLASSES, NODES, STEPS, DemoNode, Step

STEP_SECONDS_MAX: Final = 60.0
LOOK_SECONDS: Final = 0.1


class StoryError(Exception):
    """The story did not go on; the text says what to do next."""


class Teller:
    """Shows chapters, one after the other."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._chapter = Chapter(0, "", "")
        # How the nodes were when they were last looked at.
        self.rows: tuple[NodeRow, ...] = ()

    @contextlib.asynccontextmanager
    async def chapter(self, title: str, source: str) -> AsyncIterator[None]:
        """A chapter for the time of an `async with`; it moves while nothing happens."""
        self._chapter = Chapter(self._chapter.number + 1, title, source)
        started, moving = time.monotonic(), asyncio.create_task(self._move())
        state = State.FAILED
        try:
            yield
            state = State.DONE
        finally:
            moving.cancel()
            self._chapter = replace(self._chapter, state=state, seconds=time.monotonic() - started)
            self._show()

    def doing(self, text: str) -> None:
        """What is waited for now."""
        self._chapter = replace(self._chapter, doing=text)
        self._show()

    def facts(self, facts: Iterable[Fact]) -> None:
        """What has become known."""
        self._chapter = replace(self._chapter, facts=(*self._chapter.facts, *facts))
        self._show()

    def board(self, rows: tuple[NodeRow, ...]) -> None:
        """How the nodes are now."""
        self.rows = rows
        self._show()

    def _show(self) -> None:
        self._screen.show(self._chapter, self.rows)

    async def _move(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._show()


class Story:
    """The steps, done on a cluster of the demo's own processes."""

    def __init__(self, teller: Teller, at: Places, processes: Processes, cluster: Cluster) -> None:
        self._teller = teller
        self._at = at
        self._processes = processes
        self._cluster = cluster

    async def start_nodes(self) -> None:
        """Four agents and what offers their devices, all at the same time."""
        self._teller.doing(f"{len(NODES)} node agents start and register")
        self._processes.start(programs.classic_controller(self._at))
        starting = asyncio.gather(*(self._start_node(node) for node in NODES))
        try:
            look = await self._until("every node to have its devices", lambda look: is_complete(look, NODES), starting)
            await starting
        finally:
            starting.cancel()
            # Nothing is started any more when this returns.
            await asyncio.gather(starting, return_exceptions=True)
        self._teller.facts(found.hardware(look, NODES))
        await self._cluster.apply(read_manifest(self._at.examples / "demo" / CLASSES))

    async def _start_node(self, node: DemoNode) -> None:
        await self._processes.start_ready(programs.agent(self._at, node))
        for program in programs.providers(self._at, node):
            self._processes.start(program)

    async def tell(self) -> None:
        """All steps."""
        for step in STEPS:
            async with self._teller.chapter(step.title, step.source):
                await self._step(step)

    async def _step(self, step: Step) -> None:
        if step.manifest:
            documents = read_manifest(self._at.examples / "demo" / step.manifest)
            self._teller.facts(asked(documents))
            async with self._cluster.following_classic_claims() as states:
                await self._cluster.apply(documents)
                await self._until_settled(step)
                if step.negotiated:
                    await until(lambda: found.is_negotiated(states), STEP_SECONDS_MAX)
            self._teller.facts(found.negotiation(states))
            await self._show_outcome(step)
        for node in step.pod_resources:
            self._teller.doing(f"asks the PodResources socket of {node}")
            self._teller.facts(found.pod_resources(node, await self._cluster.pod_resources(node)))

    async def _until_settled(self, step: Step) -> None:
        def settled(look: Look) -> bool:
            pods = look.pods_of(step.story)
            self._teller.doing(", ".join(f"{pod['metadata']['name']} {standing(pod)}" for pod in pods) or "waits")
            running, waiting = sum(map(is_running, pods)), sum(map(is_waiting, pods))
            return (running, waiting) == (step.running, step.waiting)

        what = f"{step.running} running and {step.waiting} waiting Pods of {step.manifest}"
        await self._until(what, settled)

    async def _show_outcome(self, step: Step) -> None:
        look = await self._cluster.look()
        pods = look.pods_of(step.story)
        if step.explained:
            self._teller.doing("asks the scheduler's own filters about every node")
            answer = await self._cluster.explain(pods[0]["metadata"]["name"])
            self._teller.facts(found.tried(answer))
        for pod in pods:
            await self._show_given(pod, look)
        if step.explained:
            self._teller.facts([*found.passed_over(answer), *found.advice(answer)])
        elif step.running > 1:
            self._teller.facts(found.served_by(pods, look))

    async def _show_given(self, pod: Document, look: Look) -> None:
        node = pod["spec"].get("nodeName")
        if node is None:
            return
        name = pod["metadata"]["name"]
        self._teller.facts(found.given(pod, look, await self._cluster.pod_resources(node)))
        self._teller.facts(found.sees(pod, await self._log(name)))

    async def _log(self, pod: str) -> str:
        """The container runs a moment before it has written."""
        deadline = time.monotonic() + STEP_SECONDS_MAX
        while True:
            text = await self._cluster.log(pod)
            if text or time.monotonic() > deadline:
                return text
            await asyncio.sleep(LOOK_SECONDS)

    async def _until(
        self, what: str, settled: Callable[[Look], bool], starting: asyncio.Future[Any] | None = None
    ) -> Look:
        deadline = time.monotonic() + STEP_SECONDS_MAX
        while True:
            look = await self._cluster.look()
            self._teller.board(board(look, NODES))
            if settled(look):
                return look
            if starting is not None and starting.done():
                starting.result()
            if ended := self._processes.ended():
                raise StoryError(f"{ended[0]} has ended; its last words:\n{self._processes.last_words(ended[0])}")
            if time.monotonic() > deadline:
                raise StoryError(f"waited {STEP_SECONDS_MAX:.0f} s for {what}")
            await asyncio.sleep(LOOK_SECONDS)
