"""An interrupted rebalancing leaves no node held, whatever it was doing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from dray.api.errors import ServiceUnavailableError
from dray.api.features import FeatureGates
from dray.api.types.core_v1 import Node, NodeSpec
from dray.api.types.meta_v1 import ObjectMeta
from dray.cli.rebalance_apply import RebalanceExecutor
from dray.client.interface import Client
from dray.scheduler.config import ProfileConfig
from dray.sim.rebalance.moves import RebalancePlan, Step
from dray.sim.rebalance.planner import RebalanceOptions

STEP = Step("default", "big", "uid-big", "default/big", "a", ())
OPTIONS = RebalanceOptions(ProfileConfig(), FeatureGates())


class SlowNodes:
    """A client for one node, whose writes reach the server only when they are let through."""

    def __init__(self) -> None:
        self.node = Node(metadata=ObjectMeta(name="a"), spec=NodeSpec())
        self.writing = asyncio.Event()
        self.let_through = asyncio.Event()
        self.sent: list[asyncio.Future[None]] = []

    async def get(self, _resource: Any, _name: str) -> Node:
        return self.node

    async def update(self, _resource: Any, node: Node) -> Node:
        async def arrive() -> None:
            self.writing.set()
            await self.let_through.wait()
            self.node = node

        # What was sent arrives, even if nobody waits for the answer.
        self.sent.append(asyncio.ensure_future(arrive()))
        await asyncio.shield(self.sent[-1])
        return node


class Nodes:
    """A client for nodes, of which one is never released."""

    def __init__(self, *names: str, stuck: str) -> None:
        self.nodes = {name: Node(metadata=ObjectMeta(name=name), spec=NodeSpec()) for name in names}
        self._stuck = stuck

    async def get(self, _resource: Any, name: str) -> Node:
        return self.nodes[name]

    async def update(self, _resource: Any, node: Node) -> Node:
        name = node.metadata.name or ""
        if name == self._stuck and not node.spec.taints:
            raise ServiceUnavailableError("try again later")
        self.nodes[name] = node
        return node


class Unchecked(RebalanceExecutor):
    """Does not read the cluster."""

    async def _check(self, step: Step, later: Sequence[Step]) -> None:
        pass


async def test_a_node_whose_hold_was_being_written_is_released() -> None:
    client = SlowNodes()
    executor = Unchecked(cast("Client", client), OPTIONS, lambda _text: None)
    applying = asyncio.ensure_future(executor.apply(RebalancePlan((STEP,))))
    await client.writing.wait()
    applying.cancel()
    asyncio.get_running_loop().call_soon(client.let_through.set)
    with pytest.raises(asyncio.CancelledError):
        await applying
    await asyncio.wait(client.sent)
    assert len(client.sent) == 2, "held and released"
    assert client.node.spec.taints == ()


async def test_a_node_that_cannot_be_released_does_not_keep_the_others() -> None:
    client = Nodes("a", "b", "c", stuck="b")
    executor = Unchecked(cast("Client", client), OPTIONS, lambda _text: None)
    step = Step("", "", "", "a shape", "a", (), also_held=("b", "c"))
    with pytest.raises(ServiceUnavailableError):
        await executor.apply(RebalancePlan((step,)))
    assert [name for name, node in client.nodes.items() if node.spec.taints] == ["b"]
