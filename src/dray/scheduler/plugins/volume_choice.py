"""Volumes for claims that wait for their first consumer: chosen by Filter, held by Reserve, written by PreBind."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from dray.api.codec import from_document
from dray.api.document import Document
from dray.api.errors import APIError
from dray.api.persistent_volumes import BIND_COMPLETED, annotation_of, claimed, requested_storage, smallest_match
from dray.api.types.core_v1 import NodeSelector
from dray.client.resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES
from dray.framework.node_info import NodeInfo
from dray.framework.node_selectors import compile_selector
from dray.framework.status import SUCCESS, Status, error
from dray.runtime.tasks import pause
from dray.scheduler.handle import Handle

# A claim, and the volume that it gets on a node.
Chosen = tuple[Document, Document]
_SHARED: Final = "VolumeBinding"


class VolumeChoices:
    """The volumes that are about to be bound; one per scheduler."""

    def __init__(self, handle: Handle) -> None:
        self._client = handle.client
        self._clock = handle.clock
        claims = handle.informers.informer(PERSISTENT_VOLUME_CLAIMS)
        volumes = handle.informers.informer(PERSISTENT_VOLUMES)
        self._claims, self._volumes = claims.lister, volumes.lister
        # Name of a volume -> uid of the claim that it is reserved for, until the volume says so itself.
        self._reserved: dict[str, str] = {}
        self._waiting: set[asyncio.Event] = set()
        claims.add_handler(self._claim_changed)
        volumes.add_handler(self._volume_changed)

    def choose(self, claims: Sequence[Document], node: NodeInfo) -> tuple[Chosen, ...] | None:
        """Return a volume for each claim that the node can use, the smallest claims first; None if one has none."""
        chosen: list[Chosen] = []
        taken = set(self._reserved)
        for claim in sorted(claims, key=lambda item: requested_storage(item).nanos):
            own = {name for name, uid in self._reserved.items() if uid == claim["metadata"].get("uid")}
            volume = smallest_match(
                claim, self._volumes.list(), taken=taken - own, accepts=lambda item: is_usable_on(item, node)
            )
            if volume is None:
                return None
            taken.add(volume["metadata"]["name"])
            chosen.append((claim, volume))
        return tuple(chosen)

    def reserve(self, chosen: Sequence[Chosen]) -> None:
        """Keep the volumes from other claims."""
        for claim, volume in chosen:
            self._reserved[volume["metadata"]["name"]] = claim["metadata"].get("uid") or ""

    def release(self, chosen: Sequence[Chosen]) -> None:
        """Undo `reserve`; a volume that was written names its claim, and stays so."""
        for claim, volume in chosen:
            name = volume["metadata"]["name"]
            if self._reserved.get(name) == (claim["metadata"].get("uid") or ""):
                del self._reserved[name]

    async def bind(self, chosen: Sequence[Chosen], timeout_seconds: float) -> Status:
        """Write the references of volumes to their claims, and wait until the controller has bound the claims."""
        try:
            for claim, volume in chosen:
                wanted = claimed(volume, claim)
                if wanted is not volume:
                    await self._client.update(PERSISTENT_VOLUMES, wanted)
        except APIError as failure:
            return error(f"binding volumes: {failure.message}")
        return await self._wait(chosen, timeout_seconds)

    async def _wait(self, chosen: Sequence[Chosen], timeout_seconds: float) -> Status:
        deadline = self._clock.monotonic() + timeout_seconds
        changed = asyncio.Event()
        self._waiting.add(changed)
        try:
            while True:
                changed.clear()
                left = [item for item in chosen if not self._is_bound(*item)]
                gone = [claim["metadata"]["name"] for claim, _ in left if self._current(claim) is None]
                if gone:
                    return error(f'binding volumes: persistentvolumeclaim "{gone[0]}" not found')
                if not left:
                    return SUCCESS
                remaining = deadline - self._clock.monotonic()
                if remaining <= 0:
                    return error("binding volumes: context deadline exceeded")
                await pause(self._clock, changed, remaining)
        finally:
            self._waiting.discard(changed)

    def _current(self, claim: Document) -> Document | None:
        found = self._claims.get(claim["metadata"]["name"], claim["metadata"].get("namespace") or "")
        return found if found is not None and found["metadata"].get("uid") == claim["metadata"].get("uid") else None

    def _is_bound(self, claim: Document, volume: Document) -> bool:
        current = self._current(claim)
        if current is None or current["spec"].get("volumeName") != volume["metadata"]["name"]:
            return False
        return annotation_of(current, BIND_COMPLETED)

    def _claim_changed(self, _old: Document | None, _new: Document | None) -> None:
        for event in self._waiting:
            event.set()

    def _volume_changed(self, old: Document | None, new: Document | None) -> None:
        volume = new if new is not None else old
        assert volume is not None
        if new is None or new["spec"].get("claimRef"):
            self._reserved.pop(volume["metadata"]["name"], None)


def is_usable_on(volume: Document, node: NodeInfo) -> bool:
    """Return whether the node affinity of a volume matches the node."""
    required: Document | None = (volume["spec"].get("nodeAffinity") or {}).get("required")
    return not required or compile_selector(from_document(NodeSelector, required))(node)


def volume_choices_of(handle: Handle) -> VolumeChoices:
    """Return the choices that all profiles of the scheduler share."""
    shared = handle.shared.get(_SHARED)
    if shared is None:
        shared = handle.shared[_SHARED] = VolumeChoices(handle)
    assert isinstance(shared, VolumeChoices)
    return shared
