"""Revisions of the template of a DaemonSet or StatefulSet. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from dray.api.document import Document, GroupVersionKind
from dray.api.types.apps_v1 import ControllerRevision
from dray.api.types.core_v1 import PodTemplateSpec
from dray.api.types.meta_v1 import ObjectMeta
from dray.client.objects import controller_reference
from dray.controllers.pod_control.pod_templates import template_hash

HISTORY_LIMIT: Final = 10


@dataclass(frozen=True, slots=True)
class Revised:
    """An object whose template has revisions; `hash_label` is the label of revisions with their hash."""

    kind: GroupVersionKind
    metadata: ObjectMeta
    template: PodTemplateSpec
    collision_count: int | None
    history_limit: int | None
    hash_label: str


@dataclass(frozen=True, slots=True)
class History:
    """The revision of the current template, and older ones."""

    current: ControllerRevision
    old: tuple[ControllerRevision, ...]
    # Whether the current one has to be created or updated.
    create: bool = False
    update: bool = False


def template_patch(template: PodTemplateSpec) -> Document:
    """Return the strategic patch that restores this template, with sorted keys: clients compare its bytes."""
    # By a JSON round trip, since it is compared with decoded data.
    document = msgspec.json.decode(msgspec.json.encode(template))
    patch: Document = msgspec.json.decode(
        msgspec.json.encode({"spec": {"template": {**document, "$patch": "replace"}}}, order="sorted")
    )
    return patch


def template_of(revision: ControllerRevision) -> PodTemplateSpec:
    """Return the template that a revision restores."""
    data: Any = revision.data
    return msgspec.convert(data["spec"]["template"], PodTemplateSpec)


def plan_history(revised: Revised, revisions: Sequence[ControllerRevision]) -> History:
    """Find the revision of the current template, or make one; it always gets the highest number."""
    patch = template_patch(revised.template)
    same = [item for item in revisions if item.data == patch]
    if not same:
        made = _make(revised, patch, _highest(revisions) + 1)
        return History(made, tuple(revisions), create=True)
    current = max(same, key=lambda item: item.revision)
    old = tuple(item for item in revisions if item is not current)
    number = _highest(old) + 1
    if current.revision >= number:
        return History(current, old)
    return History(msgspec.structs.replace(current, revision=number), old, update=True)


def _highest(revisions: Sequence[ControllerRevision]) -> int:
    return max((item.revision for item in revisions), default=0)


def _make(revised: Revised, patch: Document, number: int) -> ControllerRevision:
    revision_hash = template_hash(revised.template, revised.collision_count)
    return ControllerRevision(
        api_version="apps/v1",
        kind="ControllerRevision",
        metadata=ObjectMeta(
            name=f"{revised.metadata.name}-{revision_hash}",
            namespace=revised.metadata.namespace,
            labels={**revised.template.metadata.labels, revised.hash_label: revision_hash},
            annotations=revised.metadata.annotations,
            owner_references=(controller_reference(revised.kind, revised.metadata),),
        ),
        data=patch,
        revision=number,
    )


def surplus_history(revised: Revised, history: History, live: Collection[str]) -> tuple[ControllerRevision, ...]:
    """Return the oldest revisions beyond the limit, except live ones; `live` has their hashes and names."""
    limit = HISTORY_LIMIT if revised.history_limit is None else revised.history_limit
    surplus = len(history.old) - limit
    if surplus <= 0:
        return ()
    dead = [
        item
        for item in history.old
        if item.metadata.labels.get(revised.hash_label) not in live and item.metadata.name not in live
    ]
    return tuple(sorted(dead, key=lambda item: item.revision)[:surplus])
