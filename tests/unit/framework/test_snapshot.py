from __future__ import annotations

from dray.framework.snapshot import NodesAt, Snapshot
from tests.unit.scheduler.builders import node_info


def test_nodes_at_indices_are_those_of_a_list() -> None:
    snapshot = Snapshot([node_info(f"n{number}") for number in range(5)])
    indices = [3, 4, 0, 1]
    nodes, plain = NodesAt(snapshot, indices), [snapshot.nodes[index] for index in indices]
    assert (list(nodes), len(nodes)) == (plain, len(plain))
    assert [nodes[at] for at in range(-4, 4)] == [plain[at] for at in range(-4, 4)]
    assert nodes[1:3] == plain[1:3]
    assert plain[2] in nodes
    assert snapshot.nodes[2] not in nodes
