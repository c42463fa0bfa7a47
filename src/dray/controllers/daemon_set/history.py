"""Revisions of a DaemonSet's template. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import msgspec

from dray.api.document import Document
from dray.api.types.apps_v1 import ControllerRevision, DaemonSet
from dray.api.types.meta_v1 import ObjectMeta
from dray.client.objects import controller_reference
from dray.controllers.daemon_set.placement import HASH_LABEL, KIND
from dray.controllers.pod_control.pod_templates import template_hash


@dataclass(frozen=True, slots=True)
class History:
    """The revision of the current template, and older ones."""

    current: ControllerRevision
    old: tuple[ControllerRevision, ...]
    # Whether the current one has to be created or updated.
    create: bool = False
    update: bool = False

    @property
    def revision_hash(self) -> str:
        """The hash label of Pods of the current template."""
        return self.current.metadata.labels.get(HASH_LABEL, "")


def template_patch(daemon_set: DaemonSet) -> Document:
    """Return the strategic patch that restores this template, with sorted keys: clients compare its bytes."""
    # By a JSON round trip, since it is compared with decoded data.
    template = msgspec.json.decode(msgspec.json.encode(daemon_set.spec.template))
    patch: Document = msgspec.json.decode(
        msgspec.json.encode({"spec": {"template": {**template, "$patch": "replace"}}}, order="sorted")
    )
    return patch


def plan_history(daemon_set: DaemonSet, revisions: Sequence[ControllerRevision]) -> History:
    """Find the revision of the current template, or make one; it always gets the highest number."""
    patch = template_patch(daemon_set)
    same = [item for item in revisions if item.data == patch]
    if not same:
        made = _make(daemon_set, patch, _highest(revisions) + 1)
        return History(made, tuple(revisions), create=True)
    current = max(same, key=lambda item: item.revision)
    old = tuple(item for item in revisions if item is not current)
    number = _highest(old) + 1
    if current.revision >= number:
        return History(current, old)
    return History(msgspec.structs.replace(current, revision=number), old, update=True)


def _highest(revisions: Sequence[ControllerRevision]) -> int:
    return max((item.revision for item in revisions), default=0)


def _make(daemon_set: DaemonSet, patch: Document, number: int) -> ControllerRevision:
    revision_hash = template_hash(daemon_set.spec.template, daemon_set.status.collision_count)
    return ControllerRevision(
        api_version="apps/v1",
        kind="ControllerRevision",
        metadata=ObjectMeta(
            name=f"{daemon_set.metadata.name}-{revision_hash}",
            namespace=daemon_set.metadata.namespace,
            labels={**daemon_set.spec.template.metadata.labels, HASH_LABEL: revision_hash},
            annotations=daemon_set.metadata.annotations,
            owner_references=(controller_reference(KIND, daemon_set.metadata),),
        ),
        data=patch,
        revision=number,
    )


def surplus_history(daemon_set: DaemonSet, history: History, live: Collection[str]) -> tuple[ControllerRevision, ...]:
    """Return the oldest revisions beyond the limit, except those that Pods still use."""
    limit = daemon_set.spec.revision_history_limit
    surplus = len(history.old) - (10 if limit is None else limit)
    if surplus <= 0:
        return ()
    dead = [item for item in history.old if item.metadata.labels.get(HASH_LABEL) not in live]
    return tuple(sorted(dead, key=lambda item: item.revision)[:surplus])
