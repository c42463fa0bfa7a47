"""`pytest --dray`: the fixture `cluster` for tests of drivers. Without the flag only this module is loaded."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

MARKER = (
    "dray(store='memory', feature_gates='', node=True, node_name='node-1', nodes=0, scheduler_config='', "
    "node_settings={}): options of the fixture `cluster`"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the flag."""
    group = parser.getgroup("dray", "Dray: Kubernetes device allocation")
    group.addoption(
        "--dray",
        action="store_true",
        default=False,
        help="provide the fixture `cluster`: a Kubernetes API server, controllers, scheduler and node agent in the "
        "test process, for tests of DRA drivers and device plugins (docs/driver-sdk.md)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the fixtures if the flag is given."""
    config.addinivalue_line("markers", MARKER)
    if config.getoption("--dray"):
        # gRPC's fork handlers only log warnings when a program is started; Dray never forks without exec.
        os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
        from dray.cmd.testing import fixtures

        config.pluginmanager.register(fixtures, "dray-fixtures")
