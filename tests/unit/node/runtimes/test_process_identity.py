"""Whether a command of a container has to change its user, which decides how its process is created."""

from __future__ import annotations

import os
from typing import Any

import pytest

from dray.node.runtimes.process.jobs import preparation

UID, GID, GROUPS = os.getuid(), os.getgid(), os.getgroups()


@pytest.mark.behaviour("EX-32")
@pytest.mark.parametrize(
    ("job", "changes"),
    [
        ({}, False),
        ({"uid": UID, "gid": GID, "groups": GROUPS}, False),
        ({"uid": UID, "gid": GID, "groups": [*GROUPS, GID]}, False),
        ({"uid": UID + 1, "gid": GID, "groups": GROUPS}, True),
        ({"uid": UID, "gid": GID + 1, "groups": GROUPS}, True),
        ({"uid": UID, "gid": GID, "groups": [*GROUPS, 4242]}, True),
        ({"gid": GID + 1}, True),
    ],
)
def test_a_command_changes_its_user_only_if_it_has_another(job: dict[str, Any], changes: bool) -> None:
    assert (preparation(job) is not None) is changes
