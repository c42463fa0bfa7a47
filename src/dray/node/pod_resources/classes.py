"""The device classes of a claim, for the class name that KEP-3695 puts into `DynamicResource`. Pure."""

from __future__ import annotations

from dray.api.types.resource_v1 import ResourceClaim


def class_name_of(claim: ResourceClaim) -> str:
    """The classes of the claim's requests and of their alternatives, each once, separated by commas."""
    names: dict[str, None] = {}
    for request in claim.spec.devices.requests:
        if request.exactly is not None:
            names.setdefault(request.exactly.device_class_name)
        for alternative in request.first_available:
            names.setdefault(alternative.device_class_name)
    return ",".join(filter(None, names))
