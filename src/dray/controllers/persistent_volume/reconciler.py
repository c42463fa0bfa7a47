"""The persistent volume controller: binds claims, creates local volumes for them, and writes the phases of both."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from dray.api.document import Document, NamespacedName
from dray.api.errors import AlreadyExistsError
from dray.api.persistent_volumes import class_of, selected_node
from dray.client.controller import Result
from dray.client.errors import ignore_not_found
from dray.client.event_recorder import NORMAL, WARNING
from dray.client.interface import WriteOptions
from dray.client.objects import key_of
from dray.client.resources import NODES, PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, STORAGE_CLASSES
from dray.controllers.persistent_volume.plan import (
    BOUND,
    EXTERNAL,
    FAILED_BINDING,
    WAITING,
    ClaimPlan,
    plan_claim,
    plan_volume,
)
from dray.controllers.persistent_volume.provisioning import PROVISIONED
from dray.controllers.reconciler import ControllerContext, Reconciler, newest

_STATUS = WriteOptions(subresource="status")
_NORMAL = frozenset({WAITING, FAILED_BINDING, EXTERNAL, PROVISIONED})


@dataclass(frozen=True, slots=True)
class VolumeClaimKey:
    """A PersistentVolumeClaim."""

    key: NamespacedName


@dataclass(frozen=True, slots=True)
class VolumeKey:
    """A PersistentVolume."""

    name: str


class PersistentVolumeController(Reconciler[VolumeClaimKey | VolumeKey]):
    """One worker: two claims must not choose the same volume at the same time."""

    name = "persistentvolume-binder"
    component = "persistentvolume-controller"

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._claims = context.informers.informer(PERSISTENT_VOLUME_CLAIMS)
        self._volumes = context.informers.informer(PERSISTENT_VOLUMES)
        self._classes = context.informers.informer(STORAGE_CLASSES)
        # The last event of each claim that waits: the same reason is not reported for every change in the cluster.
        self._reported: dict[VolumeClaimKey, tuple[str, str]] = {}
        self.controller.follow(self._claims, self._claim_changed)
        self.controller.follow(self._volumes, self._volume_changed)
        self.controller.follow(self._classes, self._class_changed)

    def _claim_changed(self, old: Document | None, new: Document | None) -> None:
        claim = newest(old, new)
        key = VolumeClaimKey(key_of(claim))
        if new is None:
            self._reported.pop(key, None)
        else:
            self.controller.queue.add(key)
        name = claim["spec"].get("volumeName")
        if name:
            self.controller.queue.add(VolumeKey(name))

    def _volume_changed(self, old: Document | None, new: Document | None) -> None:
        volume = newest(old, new)
        if new is not None:
            self.controller.queue.add(VolumeKey(volume["metadata"]["name"]))
        reference = volume["spec"].get("claimRef")
        if reference:
            self.controller.queue.add(
                VolumeClaimKey(NamespacedName(reference.get("namespace") or "", reference.get("name") or ""))
            )
        else:
            self._add_unbound()

    def _class_changed(self, _old: Document | None, _new: Document | None) -> None:
        self._add_unbound()

    def _add_unbound(self) -> None:
        """Look again at claims that have no volume."""
        for claim in self._claims.lister.list():
            if not claim["spec"].get("volumeName"):
                self.controller.queue.add(VolumeClaimKey(key_of(claim)))

    async def reconcile(self, key: VolumeClaimKey | VolumeKey) -> Result:
        """Bind a claim, or write the phase of a volume."""
        if isinstance(key, VolumeKey):
            await self._reconcile_volume(key)
        else:
            await self._reconcile_claim(key)
        return None

    async def _reconcile_volume(self, key: VolumeKey) -> None:
        volume = self._volumes.lister.get(key.name)
        if volume is None:
            return
        reference = volume["spec"].get("claimRef") or {}
        claim = self._claims.lister.get(reference.get("name") or "", reference.get("namespace") or "")
        changed = plan_volume(volume, claim)
        if changed is None:
            return
        if claim is None and reference.get("uid"):
            # The informer of claims may be behind: a released volume is lost to its claim.
            found = await ignore_not_found(
                self._client.get(PERSISTENT_VOLUME_CLAIMS, reference["name"], reference.get("namespace") or "")
            )
            changed = plan_volume(volume, found)
        if changed is not None:
            await ignore_not_found(self._client.update(PERSISTENT_VOLUMES, changed, _STATUS))

    async def _reconcile_claim(self, key: VolumeClaimKey) -> None:
        claim = self._claims.lister.get_key(key.key)
        if claim is None or claim["metadata"].get("deletionTimestamp"):
            return
        storage_class = self._classes.lister.get(class_of(claim)) if class_of(claim) else None
        node = await self._node(selected_node(claim))
        plan = plan_claim(claim, self._volumes.lister.list(), storage_class, node)
        await self._write(plan)
        if plan.event is None:
            self._reported.pop(key, None)
        elif self._reported.get(key) != plan.event:
            self._reported[key] = plan.event
            kind = NORMAL if plan.event[0] in _NORMAL else WARNING
            self._recorder.event(PERSISTENT_VOLUME_CLAIMS.group_version_kind, claim, kind, *plan.event)

    async def _node(self, name: str) -> Document | None:
        if not name:
            return None
        return await ignore_not_found(self._client.get(NODES.unstructured, name, ""))

    async def _write(self, plan: ClaimPlan) -> None:
        """Write the volume first: a claim must never name a volume that another one can still get."""
        if plan.new_volume is not None:
            with contextlib.suppress(AlreadyExistsError):
                await self._client.create(PERSISTENT_VOLUMES, plan.new_volume)
        if plan.volume is not None:
            volume = await self._client.update(PERSISTENT_VOLUMES, plan.volume)
            status = {**(volume.get("status") or {}), "phase": BOUND}
            await self._client.update(PERSISTENT_VOLUMES, {**volume, "status": status}, _STATUS)
        version = None
        if plan.claim is not None:
            written = await self._client.update(PERSISTENT_VOLUME_CLAIMS, plan.claim)
            version = written["metadata"]["resourceVersion"]
        if plan.status is not None:
            metadata = plan.status["metadata"] | ({} if version is None else {"resourceVersion": version})
            await self._client.update(PERSISTENT_VOLUME_CLAIMS, {**plan.status, "metadata": metadata}, _STATUS)
