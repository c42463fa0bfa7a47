"""`pytest --dray`: a fixture `cluster` for tests of drivers; without the flag nothing more than this file is loaded."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

MARKER = (
    "dray(store='memory', feature_gates='', node=True, node_name='node-1', nodes=0, scheduler_config='', "
    "node_settings={}): what the fixture `cluster` is made of"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the flag."""
    group = parser.getgroup("dray", "Dray: Kubernetes device allocation")
    group.addoption(
        "--dray",
        action="store_true",
        default=False,
        help="provide the fixture `cluster`: a Kubernetes API server, controllers, scheduler and node agent in the "
        "test's own process, to test DRA drivers and device plugins with (docs/driver-sdk.md)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Bring in the fixtures, if they are asked for."""
    config.addinivalue_line("markers", MARKER)
    if config.getoption("--dray"):
        # gRPC's handlers around fork only complain when a program is started: nothing of ours forks without exec.
        os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
        from dray.cmd.testing import fixtures

        config.pluginmanager.register(fixtures, "dray-fixtures")
