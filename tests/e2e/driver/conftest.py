"""A world and a node of one's own for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.e2e.driver.world import Node, World, node_running, world_running


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with world_running() as running:
        yield running


@pytest.fixture
async def node(world: World) -> AsyncIterator[Node]:
    async with node_running(world.folder / "kubelet", world.client) as running:
        yield running
