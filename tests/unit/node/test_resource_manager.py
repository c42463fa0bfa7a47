"""The run options of several managers."""

from __future__ import annotations

from dray.node.resource_manager import HostDevice, Mount, RunOptions, merge_options


def test_options_are_merged_and_the_first_wins() -> None:
    first = RunOptions(envs={"A": "1"}, mounts=(Mount("/c", "/h"),), cdi_devices=("v/c=a", "v/c=a"))
    second = RunOptions(envs={"A": "2", "B": "2"}, devices=(HostDevice("/dev/x", "/dev/x"),), cdi_devices=("v/c=b",))
    merged = merge_options([first, second])
    assert merged.envs == {"A": "1", "B": "2"}
    assert merged.cdi_devices == ("v/c=a", "v/c=b")
    assert merged.devices == (HostDevice("/dev/x", "/dev/x"),)
