"""EndpointSlices that hold wanted endpoints: which to create, update and delete. Pure.

A slice holds endpoints of one address family and with the same ports. Existing slices are kept as they are where
possible, since every change of a slice is sent to all nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dray.api.document import Document
from dray.client.objects import is_older, labels_of, uid_of
from dray.controllers.service_endpoints.addresses import EndpointPort, Group

SERVICE_NAME_LABEL: Final = "kubernetes.io/service-name"
MANAGED_BY_LABEL: Final = "endpointslice.kubernetes.io/managed-by"
# Kubernetes' default; a slice may have up to 1,000 endpoints.
ENDPOINTS_MAX: Final = 100
# A written slice that is not in the cache by then was deleted before the response to its creation arrived.
EXPIRY_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class SliceTemplate:
    """The metadata of all slices of one owner."""

    generate_name: str
    namespace: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    owner_reference: Document


@dataclass(frozen=True, slots=True)
class SlicePlan:
    """The slices to create, to update and to delete."""

    create: list[Document] = field(default_factory=list)
    update: list[Document] = field(default_factory=list)
    delete: list[Document] = field(default_factory=list)


def plan_slices(
    template: SliceTemplate, groups: Mapping[Group, Sequence[Document]], existing: Iterable[Document], default: Group
) -> SlicePlan:
    """Compare the wanted endpoints with the slices; without endpoints one empty slice of the default group stays."""
    plan = SlicePlan()
    by_group: dict[Group, list[Document]] = {}
    for item in existing:
        by_group.setdefault(_group_of(item), []).append(item)
    wanted = dict(groups) or {default: []}
    for group, slices in by_group.items():
        if group not in wanted:
            plan.delete.extend(slices)
    for group, endpoints in wanted.items():
        _plan_group(plan, template, group, endpoints, by_group.get(group, []))
    return plan


def _plan_group(
    plan: SlicePlan, template: SliceTemplate, group: Group, endpoints: Sequence[Document], slices: list[Document]
) -> None:
    missing = {_identity(endpoint): endpoint for endpoint in endpoints}
    is_empty = not missing
    kept: list[tuple[Document, list[Document]]] = []
    for item in sorted(slices, key=lambda each: each["metadata"].get("name") or ""):
        identities = (_identity(endpoint) for endpoint in item.get("endpoints") or ())
        kept.append((item, [missing.pop(identity) for identity in identities if identity in missing]))
    # Slices that change anyway take new endpoints first, then the fullest.
    kept.sort(key=lambda pair: (_is_same(pair[0].get("endpoints") or [], pair[1]), -len(pair[1])))
    waiting = list(missing.values())
    for item, found in kept:
        space = max(ENDPOINTS_MAX - len(found), 0)
        found.extend(waiting[:space])
        del waiting[:space]
        if found or (is_empty and item is kept[0][0]):
            _plan_update(plan, template, item, found)
        else:
            plan.delete.append(item)
    for start in range(0, len(waiting), ENDPOINTS_MAX):
        plan.create.append(_new(template, group, waiting[start : start + ENDPOINTS_MAX]))
    if is_empty and not kept:
        plan.create.append(_new(template, group, []))


def _plan_update(plan: SlicePlan, template: SliceTemplate, item: Document, endpoints: list[Document]) -> None:
    if _is_same(item.get("endpoints") or [], endpoints) and labels_of(item) == template.labels:
        return
    annotations = {**(item["metadata"].get("annotations") or {}), **template.annotations}
    metadata = {**item["metadata"], "labels": dict(template.labels), "annotations": annotations}
    plan.update.append({**item, "metadata": metadata, "endpoints": endpoints})


def _new(template: SliceTemplate, group: Group, endpoints: list[Document]) -> Document:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "generateName": template.generate_name,
            "namespace": template.namespace,
            "labels": dict(template.labels),
            "annotations": dict(template.annotations),
            "ownerReferences": [dict(template.owner_reference)],
        },
        "addressType": group.address_type,
        "endpoints": endpoints,
        "ports": [port.document() for port in group.ports],
    }


def _group_of(item: Document) -> Group:
    return Group(item.get("addressType") or "", tuple(map(EndpointPort.read, item.get("ports") or ())))


def _identity(endpoint: Document) -> tuple[str, ...]:
    """Return what tells endpoints apart: addresses and the object behind them."""
    return (*endpoint.get("addresses", ()), (endpoint.get("targetRef") or {}).get("uid") or "")


def _is_same(old: Sequence[Document], new: Sequence[Document]) -> bool:
    return len(old) == len(new) and all(before == after for before, after in zip(old, new, strict=True))


class WrittenSlices:
    """The controller's own writes of slices that its informer has not delivered yet.

    A sync on a cache without them would write the same endpoints again, in another slice.
    """

    def __init__(self) -> None:
        # Owner uid -> slice uid -> expiry, and the slice as written; None for a deletion.
        self._written: dict[str, dict[str, tuple[float, Document | None]]] = {}

    def wrote(self, owner_uid: str, item: Document, now: float) -> None:
        """Record a slice that the server has created or updated."""
        self._written.setdefault(owner_uid, {})[uid_of(item)] = (now + EXPIRY_SECONDS, item)

    def deleted(self, owner_uid: str, item: Document, now: float) -> None:
        """Record a deletion."""
        self._written.setdefault(owner_uid, {})[uid_of(item)] = (now + EXPIRY_SECONDS, None)

    def forget(self, owner_uid: str) -> None:
        """Drop everything of an owner."""
        self._written.pop(owner_uid, None)

    def are_visible(self, owner_uid: str, cached: Iterable[Document], now: float) -> bool:
        """Return whether the cache shows all writes, and drop those that it shows."""
        written = self._written.get(owner_uid)
        if written is None:
            return True
        found: dict[str, Document] = {uid_of(item): item for item in cached}
        for uid, (expires, item) in tuple(written.items()):
            if expires < now or _shows(found.get(uid), item):
                del written[uid]
        if not written:
            del self._written[owner_uid]
        return not written


def _shows(cached: Document | None, written: Document | None) -> bool:
    if written is None or cached is None:
        return cached is written
    return not is_older(cached, written)
