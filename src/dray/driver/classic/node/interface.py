"""What the author of a classic driver writes for nodes: a subclass of `NodePlugin` with `prepare` and `unprepare`.

The kit promises the author: calls come one at a time, also across instances of the plugin; `prepare` is called for a
claim that is not prepared, `unprepare` for one that is or may be; after a crash in the middle the same call comes
again, so both must cope with finding some of their work done. What may fail belongs into the allocation: a Pod whose
claim cannot be prepared waits on its node. Plain methods run in a thread of their own and may block; coroutines run
in the event loop and must not.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import ClassVar

from dray.api.cdi import ContainerEdits
from dray.client.interface import Client
from dray.driver.classic.interface import Claim

# What containers get: edits, or the names of CDI devices that are there already.
Prepared = ContainerEdits | Iterable[str]


class NodePlugin:
    """Base of a classic driver's plugin; `name` is the driver's."""

    name: ClassVar[str]
    # The node that the plugin runs on; set before anything is called.
    node_name: str = ""
    # The API server, for coroutines; set before anything is called.
    client: Client

    def start(self) -> Awaitable[None] | None:
        """Called once, before anything else."""

    def prepare(self, claim: Claim) -> Prepared | Awaitable[Prepared]:
        """Make the claim's resource ready, and say what containers that use it get."""
        raise NotImplementedError

    def unprepare(self, claim: Claim) -> Awaitable[None] | None:
        """Undo `prepare`; the claim may be long gone, what is known of it is as it was when it was prepared."""
