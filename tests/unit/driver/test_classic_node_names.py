"""Names that classic claims get on nodes: finalizers of nodes, and variables of containers."""

from __future__ import annotations

import pytest

from dray.api.names import qualified_name
from dray.driver.classic.plan import finalizer_of
from dray.node.dra.claims import variable


@pytest.mark.parametrize(
    ("node", "finalizer"),
    [
        pytest.param("", "gpu.example.com/deletion-protection", id="a controller of the cluster"),
        pytest.param("node-1", "gpu.example.com/node-1", id="a node"),
        pytest.param("n" * 63, f"gpu.example.com/{'n' * 63}", id="as long as may be"),
        pytest.param("n" * 64, "gpu.example.com/node-", id="too long"),
        pytest.param(".".join(["n" * 60] * 4), "gpu.example.com/node-", id="much too long"),
    ],
)
def test_a_nodes_finalizer(node: str, finalizer: str) -> None:
    made = finalizer_of("gpu.example.com", node)
    assert made.startswith(finalizer)
    assert not list(qualified_name(made))


def test_long_names_stay_apart() -> None:
    assert finalizer_of("d", "n" * 64) != finalizer_of("d", "n" * 65)


@pytest.mark.parametrize(
    ("entry", "name"),
    [("gpu", "DRAY_CLAIM_GPU"), ("big-gpu", "DRAY_CLAIM_BIG_GPU"), ("gpu-0", "DRAY_CLAIM_GPU_0")],
)
def test_a_containers_variable(entry: str, name: str) -> None:
    assert variable(entry) == name
