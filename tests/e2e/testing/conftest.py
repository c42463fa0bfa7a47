"""The fixtures of `pytest --dray`, without the flag: the rest of the suite has fixtures of the same name."""

from dray.cmd.testing.fixtures import _dray_thread, cluster, dray_clusters, pytest_runtest_call

__all__ = ["_dray_thread", "cluster", "dray_clusters", "pytest_runtest_call"]
