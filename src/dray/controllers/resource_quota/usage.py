"""What the objects of one quota use, kept object by object so that no change costs a recount; pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Final

from dray.api.document import GroupResource
from dray.api.quantity import Quantity
from dray.api.quota.check import in_scopes, scopes_of
from dray.api.quota.names import CLAIMS, PODS, counted_resource, measures
from dray.api.quota.usage import Usage, add_to, masked
from dray.api.types.core_v1 import Pod, ResourceQuota, ResourceQuotaSpec
from dray.api.validation.core_v1_resources import STANDARD_QUOTA

_ZERO: Final = Quantity(0)


class Book:
    """The account of one quota; changed only by `put`, `remove` and `settled`."""

    def __init__(self, quota: ResourceQuota, *, extended: bool) -> None:
        self.spec: Final[ResourceQuotaSpec] = quota.spec
        self._scopes = scopes_of(quota)
        self._extended = extended
        self._usage: dict[Hashable, Usage] = {}
        self._total: dict[str, Quantity] = {}
        # What objects have stopped using since the account was last settled.
        self._freed: dict[str, Quantity] = {}

    def counted(self) -> frozenset[GroupResource]:
        """The kinds, other than Pods and claims, whose objects the quota counts."""
        kinds = {counted_resource(name) for name in self.spec.hard} - {None, PODS, CLAIMS}
        return frozenset(kind for kind in kinds if kind is not None)

    def measures(self, resource: GroupResource) -> bool:
        """Whether the quota limits objects of the kind."""
        return any(measures(name, resource, extended=self._extended) for name in self.spec.hard)

    def put(self, resource: GroupResource, key: Hashable, usage: Usage, pod: Pod | None = None) -> bool:
        """Enter what an object uses now; says whether anything is different."""
        if not in_scopes(self._scopes, pod):
            return self.remove(resource, key)
        return self._enter((resource, key), masked(usage, self.spec.hard))

    def remove(self, resource: GroupResource, key: Hashable) -> bool:
        """The object is gone; says whether anything is different."""
        return self._enter((resource, key), {})

    def _enter(self, place: Hashable, usage: Usage) -> bool:
        before = self._usage.get(place, {})
        if usage == before:
            return False
        if usage:
            self._usage[place] = usage
        else:
            del self._usage[place]
        add_to(self._total, usage)
        add_to(self._total, {name: -amount for name, amount in before.items()})
        for name, amount in before.items():
            less = amount - usage.get(name, _ZERO)
            if less.nanos > 0:
                add_to(self._freed, {name: less})
        return True

    def used(self, unknown: Iterable[GroupResource] = ()) -> dict[str, Quantity]:
        """The usage under all limited names; those nobody can count are left out, as are the `unknown` kinds."""
        missing = frozenset(unknown)
        return {name: self._total.get(name, _ZERO) for name in self.spec.hard if self._known(name, missing)}

    def freed(self) -> Usage:
        """What was freed since the last settlement."""
        return dict(self._freed)

    def settled(self, freed: Usage) -> None:
        """What was freed by then is in the quota's status."""
        add_to(self._freed, {name: -amount for name, amount in freed.items()})
        self._freed = {name: amount for name, amount in self._freed.items() if amount.nanos > 0}

    def _known(self, name: str, missing: frozenset[GroupResource]) -> bool:
        kind = counted_resource(name)
        if kind is not None:
            return kind not in missing
        # Standard names of kinds that are not served are used by nobody.
        return name in STANDARD_QUOTA or any(measures(name, item, extended=self._extended) for item in (PODS, CLAIMS))
