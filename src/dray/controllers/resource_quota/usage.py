"""Usage of the objects of one quota, per object, so that no event requires a recount. Pure."""

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


class QuotaUsage:
    """The usage of one quota; changed only by `put`, `remove` and `settle`."""

    def __init__(self, quota: ResourceQuota, *, extended: bool) -> None:
        self.spec: Final[ResourceQuotaSpec] = quota.spec
        self._scopes = scopes_of(quota)
        self._extended = extended
        self._usage: dict[Hashable, Usage] = {}
        self._total: dict[str, Quantity] = {}
        # What objects have released since the last `settle`.
        self._freed: dict[str, Quantity] = {}

    def counted_kinds(self) -> frozenset[GroupResource]:
        """Return the kinds, other than Pods and claims, whose objects the quota counts."""
        kinds = {counted_resource(name) for name in self.spec.hard} - {None, PODS, CLAIMS}
        return frozenset(kind for kind in kinds if kind is not None)

    def measures(self, resource: GroupResource) -> bool:
        """Return whether the quota limits objects of the kind."""
        return any(measures(name, resource, extended=self._extended) for name in self.spec.hard)

    def put(self, resource: GroupResource, key: Hashable, usage: Usage, pod: Pod | None = None) -> bool:
        """Set the usage of an object; return whether it changed."""
        if not in_scopes(self._scopes, pod):
            return self.remove(resource, key)
        return self._set((resource, key), masked(usage, self.spec.hard))

    def remove(self, resource: GroupResource, key: Hashable) -> bool:
        """Remove an object; return whether the usage changed."""
        return self._set((resource, key), {})

    def _set(self, entry: Hashable, usage: Usage) -> bool:
        before = self._usage.get(entry, {})
        if usage == before:
            return False
        if usage:
            self._usage[entry] = usage
        else:
            del self._usage[entry]
        add_to(self._total, usage)
        add_to(self._total, {name: -amount for name, amount in before.items()})
        for name, amount in before.items():
            less = amount - usage.get(name, _ZERO)
            if less.nanos > 0:
                add_to(self._freed, {name: less})
        return True

    def used(self, unknown: Iterable[GroupResource] = ()) -> dict[str, Quantity]:
        """Return the usage of all limited names, without those that cannot be counted and the `unknown` kinds."""
        missing = frozenset(unknown)
        return {name: self._total.get(name, _ZERO) for name in self.spec.hard if self._is_countable(name, missing)}

    def freed(self) -> Usage:
        """Return what was released since the last `settle`."""
        return dict(self._freed)

    def settle(self, freed: Usage) -> None:
        """Forget released usage that the quota's status reflects by now."""
        add_to(self._freed, {name: -amount for name, amount in freed.items()})
        self._freed = {name: amount for name, amount in self._freed.items() if amount.nanos > 0}

    def _is_countable(self, name: str, missing: frozenset[GroupResource]) -> bool:
        kind = counted_resource(name)
        if kind is not None:
            return kind not in missing
        # Standard names of kinds that are not served have no usage.
        return name in STANDARD_QUOTA or any(measures(name, item, extended=self._extended) for item in (PODS, CLAIMS))
