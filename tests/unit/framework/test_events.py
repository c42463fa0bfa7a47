"""Which registrations are asked about which events."""

from __future__ import annotations

import pytest

from dray.framework.events import (
    ANYTHING,
    ASSIGNED_POD,
    NODE,
    POD,
    UNSCHEDULED_POD,
    Action,
    ClusterEvent,
)


@pytest.mark.parametrize(
    ("registered", "happened", "expected"),
    [
        (ClusterEvent(NODE, Action.ADD), ClusterEvent(NODE, Action.ADD), True),
        (ClusterEvent(NODE, Action.ADD), ClusterEvent(NODE, Action.UPDATE_NODE_LABEL), False),
        (ClusterEvent(NODE, Action.ADD | Action.UPDATE_NODE_LABEL), ClusterEvent(NODE, Action.UPDATE_NODE_LABEL), True),
        (ClusterEvent(NODE, Action.UPDATE), ClusterEvent(NODE, Action.UPDATE_NODE_TAINT), True),
        (ClusterEvent(POD, Action.DELETE), ClusterEvent(ASSIGNED_POD, Action.DELETE), True),
        (ClusterEvent(POD, Action.DELETE), ClusterEvent(UNSCHEDULED_POD, Action.DELETE), True),
        (ClusterEvent(ASSIGNED_POD, Action.DELETE), ClusterEvent(UNSCHEDULED_POD, Action.DELETE), False),
        (ClusterEvent(NODE, Action.ADD), ClusterEvent(ASSIGNED_POD, Action.ADD), False),
        (ClusterEvent(NODE, Action.ADD), ANYTHING, True),
        (ANYTHING, ClusterEvent("foos.v1.example.com", Action.DELETE), True),
    ],
)
def test_covers(registered: ClusterEvent, happened: ClusterEvent, expected: bool) -> None:
    assert registered.covers(happened) is expected
