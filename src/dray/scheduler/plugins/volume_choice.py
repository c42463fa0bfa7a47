"""Volumes for claims that wait for their first consumer: chosen by Filter, held by Reserve, written by PreBind.

A claim of the local provisioner for which there is no volume gets a new one on the node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final

from dray.api.codec import from_document
from dray.api.document import Document
from dray.api.errors import APIError
from dray.api.persistent_volumes import (
    BIND_COMPLETED,
    LOCAL_PROVISIONER,
    SELECTED_NODE,
    VOLUMES_FOLDER,
    annotation_of,
    claimed,
    class_of,
    provisioner_of,
    requested_storage,
    selected_node,
    smallest_match,
)
from dray.api.types.core_v1 import NodeSelector
from dray.client.indexer import Lister
from dray.client.interface import Patch, PatchType
from dray.client.resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, STORAGE_CLASSES
from dray.framework.node_info import NodeInfo
from dray.framework.node_selectors import compile_selector
from dray.framework.status import SUCCESS, Status, error
from dray.runtime.tasks import first_completed
from dray.scheduler.handle import Handle

# A claim, and the volume that it gets on a node; None if that is to be provisioned there.
Chosen = tuple[Document, Document | None]
_SHARED: Final = "VolumeBinding"


class VolumeChoices:
    """The volumes that are about to be bound; one per scheduler."""

    def __init__(self, handle: Handle) -> None:
        self._client = handle.client
        self._clock = handle.clock
        self._classes: Lister[Document] = handle.informers.informer(STORAGE_CLASSES).lister
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
            if volume is not None:
                taken.add(volume["metadata"]["name"])
            elif not self._can_provision(claim, node):
                return None
            chosen.append((claim, volume))
        return tuple(chosen)

    def _can_provision(self, claim: Document, node: NodeInfo) -> bool:
        """Return whether the node can get a new volume for the claim; once one was selected, only that can."""
        if provisioner_of(self._classes.get(class_of(claim))) != LOCAL_PROVISIONER:
            return False
        if claim["spec"].get("volumeMode") == "Block" or VOLUMES_FOLDER not in node.node.metadata.annotations:
            return False
        return selected_node(claim) in ("", node.name)

    def reserve(self, chosen: Sequence[Chosen]) -> None:
        """Keep the volumes from other claims."""
        for claim, volume in existing(chosen):
            self._reserved[volume["metadata"]["name"]] = claim["metadata"].get("uid") or ""

    def release(self, chosen: Sequence[Chosen]) -> None:
        """Undo `reserve`; a volume that was written names its claim, and stays so."""
        for claim, volume in existing(chosen):
            name = volume["metadata"]["name"]
            if self._reserved.get(name) == (claim["metadata"].get("uid") or ""):
                del self._reserved[name]

    async def bind(
        self, chosen: Sequence[Chosen], node_name: str, timeout_seconds: float, cancelled: asyncio.Event | None
    ) -> Status:
        """Write the references of volumes to their claims, or the node of new ones, and wait for the controller."""
        try:
            for claim, volume in chosen:
                if volume is None:
                    await self._select_node(claim, node_name)
                elif (wanted := claimed(volume, claim)) is not volume:
                    await self._client.update(PERSISTENT_VOLUMES, wanted)
        except APIError as failure:
            return error(f"binding volumes: {failure.message}")
        return await self._wait(chosen, timeout_seconds, cancelled or asyncio.Event())

    async def _select_node(self, claim: Document, node_name: str) -> None:
        if selected_node(claim) == node_name:
            return
        metadata = claim["metadata"]
        body = {
            "metadata": {
                # Another Pod may be about to select another node for it.
                "resourceVersion": metadata["resourceVersion"],
                "annotations": {SELECTED_NODE: node_name},
            }
        }
        patch = Patch(PatchType.MERGE, body)
        await self._client.patch(PERSISTENT_VOLUME_CLAIMS, metadata["name"], metadata.get("namespace") or "", patch)

    async def _wait(self, chosen: Sequence[Chosen], timeout_seconds: float, cancelled: asyncio.Event) -> Status:
        deadline = self._clock.monotonic() + timeout_seconds
        changed = asyncio.Event()
        self._waiting.add(changed)
        # The claims whose selected node has been observed: if it disappears, provisioning has failed.
        selected: set[str] = set()
        try:
            while True:
                changed.clear()
                left = [item for item in chosen if not self._is_bound(*item)]
                if not left:
                    return SUCCESS
                if cancelled.is_set():
                    return error("binding volumes: context canceled")
                problem = self._problem([claim for claim, _ in left], selected)
                if problem:
                    return error(f"binding volumes: {problem}")
                remaining = deadline - self._clock.monotonic()
                if remaining <= 0:
                    return error("binding volumes: context deadline exceeded")
                await first_completed(changed.wait(), cancelled.wait(), self._clock.sleep(remaining))
        finally:
            self._waiting.discard(changed)

    def _problem(self, claims: Sequence[Document], selected: set[str]) -> str:
        """Return why one of the claims will not be bound; empty if all may be."""
        for claim in claims:
            current, name = self._current(claim), claim["metadata"]["name"]
            if current is None:
                return f'persistentvolumeclaim "{name}" not found'
            if selected_node(current):
                selected.add(name)
            elif name in selected:
                return f'provisioning failed for PVC "{name}"'
        return ""

    def _current(self, claim: Document) -> Document | None:
        found = self._claims.get(claim["metadata"]["name"], claim["metadata"].get("namespace") or "")
        return found if found is not None and found["metadata"].get("uid") == claim["metadata"].get("uid") else None

    def _is_bound(self, claim: Document, volume: Document | None) -> bool:
        current = self._current(claim)
        if current is None or not current["spec"].get("volumeName"):
            return False
        if volume is not None and current["spec"]["volumeName"] != volume["metadata"]["name"]:
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


def existing(chosen: Sequence[Chosen]) -> Iterator[tuple[Document, Document]]:
    """Yield the claims that get a volume which exists."""
    for claim, volume in chosen:
        if volume is not None:
            yield claim, volume


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
