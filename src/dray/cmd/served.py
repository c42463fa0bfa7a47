"""Which features make sense with the API server at hand: nobody can wait for a list of a kind that it does not have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dray.api.features import FeatureGates
from dray.client.interface import Client

# Gate -> (group, version, plural) without which it is off.
_NEEDED: Final[Mapping[str, tuple[str, str, str]]] = {
    "DRADeviceTaintRules": ("resource.k8s.io", "v1beta2", "devicetaintrules"),
    "DRAControlPlaneController": ("cdi.k8s.io", "v1alpha1", "resourceclaims"),
}


async def served_features(client: Client, features: FeatureGates) -> FeatureGates:
    """The features without those whose kinds the server does not have."""
    served = {(item.group, item.version, item.plural) for item in await client.resources()}
    missing = {gate: False for gate, kind in _NEEDED.items() if kind not in served}
    return FeatureGates({**features.overrides, **missing})
