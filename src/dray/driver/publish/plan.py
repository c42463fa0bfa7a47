"""Which slices of a pool to delete, update and create. Pure.

The generation of a pool identifies the slices that belong together. It is kept if at most one slice is written and none
is new: one write is atomic. Otherwise it is incremented in all slices. Obsolete slices are deleted first, so that
removed devices are not allocated while the rest is written.

Slices belong to the Node by its UID. A Node that was deleted and registered again has another one: slices of its
predecessor are given to it, since the garbage collector would delete them. The generation stays, as the devices do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from dray.api.devices import newest_generation
from dray.api.types.meta_v1 import ObjectMeta, OwnerReference
from dray.api.types.resource_v1 import ResourcePool, ResourceSlice, ResourceSliceSpec
from dray.driver.devices import Pool
from dray.driver.publish.contents import SliceContent, content_of, contents_of, keep_times

# Pairs of requested and stored content: the API server drops unknown and disabled fields.
Accepted = Sequence[tuple[SliceContent, SliceContent]]


@dataclass(frozen=True, slots=True)
class Publisher:
    """The driver and node of the slices."""

    driver: str
    node_name: str
    # The Node, which owns the slices; None for a driver without a node.
    owner: OwnerReference | None


@dataclass(frozen=True, slots=True)
class Plan:
    """Writes in this order; written slices come with their requested content."""

    delete: tuple[ResourceSlice, ...] = ()
    update: tuple[tuple[ResourceSlice, SliceContent], ...] = ()
    create: tuple[tuple[ResourceSlice, SliceContent], ...] = ()

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write."""
        return not (self.delete or self.update or self.create)


def plan_pool(
    publisher: Publisher, name: str, pool: Pool | None, existing: Sequence[ResourceSlice], accepted: Accepted
) -> Plan:
    """Compare a pool of the driver (None: removed) with its published slices."""
    if pool is None:
        return Plan(delete=tuple(existing))
    wanted = contents_of(pool)
    expected = [_expected(content, accepted) for content in wanted]
    newest = max((item.spec.pool.generation for item in existing), default=0)
    kept = _match(expected, newest_generation(existing, lambda item: item.spec.pool.generation))
    kept_names = {item.metadata.name for item in kept.values()}
    obsolete = tuple(item for item in existing if item.metadata.name not in kept_names)
    published_pool = ResourcePool(name=name, generation=newest, resource_slice_count=len(wanted))
    changed = [
        index
        for index, item in kept.items()
        if item.spec.pool != published_pool or content_of(item.spec) != expected[index]
    ]
    new = [index for index in range(len(wanted)) if index not in kept]
    generation = _generation(pool, newest, new=len(new), changed=len(changed))
    if generation != newest:
        changed = list(kept)
        published_pool = msgspec.structs.replace(published_pool, generation=generation)
    elsewhere = [index for index, item in kept.items() if not _belongs_to(item, publisher.owner)]
    return Plan(
        obsolete,
        tuple(
            (_updated(publisher, kept[index], published_pool, wanted[index]), wanted[index])
            for index in sorted({*changed, *elsewhere})
        ),
        tuple((_created(publisher, published_pool, wanted[index], pool), wanted[index]) for index in new),
    )


def _generation(pool: Pool, newest: int, *, new: int, changed: int) -> int:
    if pool.generation > newest:
        return pool.generation
    return newest if not new and changed <= 1 else newest + 1


def _expected(content: SliceContent, accepted: Accepted) -> SliceContent:
    return next((made for asked, made in accepted if asked == content), content)


def _match(expected: Sequence[SliceContent], existing: Sequence[ResourceSlice]) -> dict[int, ResourceSlice]:
    """Match slices to contents: equal ones first, then those that share the most names."""
    left = [(content_of(item.spec), item) for item in sorted(existing, key=lambda item: item.metadata.name or "")]
    matched: dict[int, ResourceSlice] = {}
    for index, content in enumerate(expected):
        same = next((pair for pair in left if pair[0] == content), None)
        if same is not None:
            matched[index] = same[1]
            left.remove(same)
    for index, content in enumerate(expected):
        if index in matched or not left:
            continue
        best = max(left, key=lambda pair: len(pair[0].names & content.names))
        if best[0].names & content.names:
            matched[index] = best[1]
            left.remove(best)
    return matched


def _belongs_to(item: ResourceSlice, owner: OwnerReference | None) -> bool:
    return owner is None or any(each.uid == owner.uid for each in item.metadata.owner_references)


def _updated(publisher: Publisher, item: ResourceSlice, pool: ResourcePool, content: SliceContent) -> ResourceSlice:
    spec = msgspec.structs.replace(
        item.spec,
        pool=pool,
        devices=keep_times(item.spec.devices, content.devices),
        shared_counters=content.counters,
        node_selector=content.node_selector,
        all_nodes=content.all_nodes or None,
        per_device_node_selection=content.per_device_nodes or None,
        skip_node_operations=content.skip_node_operations,
        partition_type_attribute=content.partition_type_attribute or None,
    )
    return msgspec.structs.replace(item, metadata=_owned(item.metadata, publisher.owner), spec=spec)


def _owned(metadata: ObjectMeta, owner: OwnerReference | None) -> ObjectMeta:
    """Return the metadata with the owner instead of other Nodes; an object has one controller."""
    if owner is None or any(each.uid == owner.uid for each in metadata.owner_references):
        return metadata
    others = [each for each in metadata.owner_references if not each.controller and each.kind != owner.kind]
    return msgspec.structs.replace(metadata, owner_references=(*others, owner))


def _created(publisher: Publisher, published: ResourcePool, content: SliceContent, pool: Pool) -> ResourceSlice:
    owner = publisher.owner
    prefix = f"{owner.name}-{publisher.driver}-" if owner is not None else f"{publisher.driver}-"
    return ResourceSlice(
        metadata=ObjectMeta(generate_name=prefix, owner_references=(owner,) if owner is not None else ()),
        spec=ResourceSliceSpec(
            driver=publisher.driver,
            pool=published,
            node_name=publisher.node_name or None if pool.on_node else None,
            node_selector=content.node_selector,
            all_nodes=content.all_nodes or None,
            per_device_node_selection=content.per_device_nodes or None,
            devices=content.devices,
            shared_counters=content.counters,
            skip_node_operations=content.skip_node_operations,
            partition_type_attribute=content.partition_type_attribute or None,
        ),
    )
