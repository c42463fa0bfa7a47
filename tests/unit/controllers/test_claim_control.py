"""What the claim controllers share."""

from __future__ import annotations

import pytest

from dray.api.types.core_v1 import Pod
from dray.client.controller import Requeue
from dray.controllers.claim_control import CONFIRM_SECONDS, confirm_again


@pytest.mark.parametrize(
    ("names", "found", "expected"),
    [
        ((), None, None),
        (("pod",), None, None),
        (("pod",), Pod(), Requeue(CONFIRM_SECONDS)),
    ],
)
def test_pods_that_only_a_live_read_found_are_looked_for_again(
    names: tuple[str, ...], found: Pod | None, expected: Requeue | None
) -> None:
    """They may go while the watch is interrupted: no event would tell."""
    assert confirm_again(names, lambda _name: found) == expected
