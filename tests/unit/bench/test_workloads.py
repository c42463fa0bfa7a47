"""The number of Pods of a workload."""

from __future__ import annotations

import pytest

from bench.workloads import BY_NAME, with_pods


@pytest.mark.parametrize(
    ("workload", "given", "pods"),
    [
        ("fill with devices, 500 nodes", 4000, 4000),
        ("gangs of 9 with devices, 500 nodes", 4000, 4005),
        ("gangs of 9 with devices, 500 nodes", 900, 900),
        ("gangs of 64 with devices, 500 nodes", 1, 64),
    ],
)
def test_the_number_of_pods_is_rounded_up_to_whole_gangs(workload: str, given: int, pods: int) -> None:
    assert with_pods(BY_NAME[workload], given).pods == pods
