"""Fixtures: a cluster and a node for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.e2e.driver.cluster import Cluster, Node, cluster_running, node_running


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with cluster_running() as running:
        yield running


@pytest.fixture
async def node(cluster: Cluster) -> AsyncIterator[Node]:
    async with node_running(cluster.folder / "kubelet", cluster.client) as running:
        yield running
