"""The interface of Pod networks, and the node's own network as the simplest one."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from dray.node.runtimes.runtime import Sandbox


class PodNetwork(Protocol):
    """Gives Pods their networks. All operations may be repeated."""

    async def add(self, sandbox: Sandbox) -> tuple[str, ...]:
        """Connect a Pod; return its addresses, none meaning the node's. Raises `RuntimeFailure`."""

    def namespace(self, sandbox: Sandbox) -> str:
        """Return the path of the network namespace of a Pod; empty for the node's."""

    def namespace_of(self, pod_uid: str) -> str:
        """Return the path of the network namespace that a Pod has; empty for the node's."""

    async def remove(self, pod_uid: str) -> None:
        """Remove what a Pod has; unknown Pods are ignored. Raises `RuntimeFailure`."""

    async def keep_only(self, pod_uids: Collection[str]) -> None:
        """Remove what Pods have that are no longer known, for example after a crash."""


class NodeNetwork:
    """Implements `PodNetwork`: Pods use the network of the node."""

    async def add(self, sandbox: Sandbox) -> tuple[str, ...]:
        """Return no addresses."""
        return ()

    def namespace(self, sandbox: Sandbox) -> str:
        """Return no namespace."""
        return ""

    def namespace_of(self, pod_uid: str) -> str:
        """Return no namespace."""
        return ""

    async def remove(self, pod_uid: str) -> None:
        """Do nothing."""

    async def keep_only(self, pod_uids: Collection[str]) -> None:
        """Do nothing."""
