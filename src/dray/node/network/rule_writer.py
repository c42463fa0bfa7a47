"""Writes the iptables rules of the node, all at once and at most once a second."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from dray.lib.clock import Clock
from dray.node.network.commands import run_step
from dray.node.network.links import Step
from dray.node.network.rules import NetworkState, cleanup_steps, jumps, own_chains, own_jumps, restore_step
from dray.node.runtimes.runtime import RuntimeFailure
from dray.runtime.logs import fields

_log = logging.getLogger(__name__)
PERIOD_SECONDS: Final = 1.0
# Rules that somebody has removed are written again after this time, as kube-proxy does.
REWRITE_SECONDS: Final = 30.0
_RETRY_SECONDS: Final = 5.0
TABLES: Final = ("nat", "filter")


class RuleWriter:
    """Keeps the rules of one agent as `state` says."""

    def __init__(self, state: Callable[[], NetworkState], clock: Clock) -> None:
        self._state = state
        self._clock = clock
        self._changed = asyncio.Event()
        self._written: NetworkState | None = None
        # Why the rules could not be written; None if they are in force, or were not written yet.
        self.failure: str | None = None
        self.on_result: Callable[[], None] = lambda: None
        # Set by the owner when it runs the writer.
        self.is_running = False

    @property
    def is_in_force(self) -> bool:
        """Whether rules have been written, and the last attempt succeeded."""
        return self._written is not None and self.failure is None

    def changed(self) -> None:
        """Write the rules soon."""
        self._changed.set()

    async def run(self) -> None:
        """Write the rules when they change, and again from time to time."""
        while True:
            await self._write()
            await self._clock.sleep(PERIOD_SECONDS if self.failure is None else _RETRY_SECONDS)
            try:
                async with asyncio.timeout(REWRITE_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                # Somebody may have removed them.
                self._written = None

    async def _write(self) -> None:
        self._changed.clear()
        state = self._state()
        if state == self._written:
            return
        before = self.failure
        try:
            await write_rules(state)
        except RuntimeFailure as error:
            self.failure = str(error)
            _log.warning("the rules for Services are not written", extra=fields(error=str(error)))
        else:
            self._written, self.failure = state, None
        if self.failure != before or before is None:
            self.on_result()


async def write_rules(state: NetworkState) -> None:
    """Replace the rules of the agent; raises `RuntimeFailure`."""
    saved = {table: await run_step(Step(("iptables-save", "-t", table))) for table in TABLES}
    await run_step(restore_step(state, own_chains(saved["nat"], state.agent)))
    for table in TABLES:
        present = own_jumps(saved[table], state.agent, table)
        for jump in jumps(state.agent):
            if jump[0] == table and jump not in present:
                await run_step(Step(("iptables", "-w", "5", "-t", table, "-I", jump[1], *jump[2].split())))


async def remove_rules(agent: str) -> None:
    """Remove everything of the agent; raises `RuntimeFailure`."""
    for table in TABLES:
        saved = await run_step(Step(("iptables-save", "-t", table)))
        for step in cleanup_steps(saved, agent, table):
            await run_step(step)
