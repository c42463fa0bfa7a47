"""The features of a component whose resources its server serves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Final, TypeAlias

from dray.api.features import FeatureGates
from dray.client.interface import ServedResource

# Group, version and plural of a resource.
GroupVersionResource: TypeAlias = tuple[str, str, str]

# Feature gates that need a resource, in one of its versions; without it their informers would never sync.
_NEEDED: Final[Mapping[str, Sequence[GroupVersionResource]]] = {
    "DynamicResourceAllocation": [("resource.k8s.io", version, "resourceclaims") for version in ("v1", "v1beta2")],
    "DRADeviceTaintRules": [("resource.k8s.io", version, "devicetaintrules") for version in ("v1", "v1beta2")],
    "DRAResourcePoolStatus": [("resource.k8s.io", "v1alpha3", "resourcepoolstatusrequests")],
    "DRAControlPlaneController": [("cdi.k8s.io", "v1alpha1", "resourceclaims")],
    "GenericWorkload": [("scheduling.k8s.io", "v1beta1", "podgroups")],
}


def resources_of(served: Iterable[ServedResource]) -> frozenset[GroupVersionResource]:
    """Return what was discovered."""
    return frozenset((item.group, item.version, item.plural) for item in served)


def served_features(served: Set[GroupVersionResource], features: FeatureGates) -> FeatureGates:
    """Return the features without those whose resources the server does not serve, and what requires them."""
    return features.without(gate for gate, kinds in _NEEDED.items() if served.isdisjoint(kinds))
