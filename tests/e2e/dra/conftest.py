"""kubectl against `dray up`: each test has a namespace, nodes, classes and a driver of its own."""

from __future__ import annotations

import pytest

from tests.e2e.dra.cluster import Cluster
from tests.e2e.kubectl.tool import Kubectl, kubectl_version
from tests.servers import Server


@pytest.fixture
def cluster(server: Server, namespace_name: str) -> Cluster:
    if kubectl_version() == (0, 0):
        pytest.skip("needs kubectl")
    tool = Kubectl(server.environment, namespace_name)
    tool("create", "namespace", namespace_name)
    return Cluster(tool)
