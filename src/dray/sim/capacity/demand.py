"""Pods to place, grouped into kinds whose members can replace each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from dray.api.codec import to_document
from dray.api.types.resource_v1 import DeviceRequest, DeviceSubRequest, ResourceClaim
from dray.sim.headroom import requests_text
from dray.sim.snapshot import SnapshotError
from dray.sim.trial_cluster import TrialPod

replace = msgspec.structs.replace


@dataclass(slots=True)
class DemandKind:
    """Pods with equal specs, labels and claims."""

    pods: list[TrialPod] = field(default_factory=list)

    @property
    def sample(self) -> TrialPod:
        """Return one of them."""
        return self.pods[0]

    @property
    def text(self) -> str:
        """Return what one of them requests."""
        return requests_text(self.sample)


def scheduling_order(pods: Iterable[TrialPod]) -> list[TrialPod]:
    """Return the Pods in the order of the scheduler's queue: by priority, then by age and name."""
    return sorted(
        pods, key=lambda pod: (-pod.priority, str(pod.pod.metadata.creation_timestamp or ""), _natural(pod.key.name))
    )


def _natural(name: str) -> tuple[str, int, str]:
    head, _, number = name.rpartition("-")
    return (head, int(number), "") if number.isdecimal() else (name, 0, "")


def grouped(pods: Iterable[TrialPod]) -> list[DemandKind]:
    """Return the kinds, in the order of their first Pods."""
    found: dict[bytes, DemandKind] = {}
    specs: dict[int, bytes] = {}
    for pod in pods:
        spec = pod.pod.spec
        if id(spec) not in specs:
            specs[id(spec)] = msgspec.json.encode(to_document(spec), order="deterministic")
        claims = [to_document(claim.spec) for claim in pod.claims]
        labels = sorted(pod.pod.metadata.labels.items())
        key = specs[id(spec)] + msgspec.json.encode([pod.key.namespace, labels, claims], order="deterministic")
        found.setdefault(key, DemandKind()).pods.append(pod)
    return list(found.values())


# --- Fallbacks. ---


def parse_fallback(text: str) -> tuple[str, str]:
    """Return the two classes of `CLASS=CLASS`; raises `SnapshotError`."""
    wanted, separator, other = text.partition("=")
    if not separator or not wanted or not other or wanted == other:
        raise SnapshotError(f"cannot read the fallback {text!r}: expected CLASS=OTHER-CLASS, as in h100=a100")
    return wanted, other


def with_fallbacks(pod: TrialPod, fallbacks: Mapping[str, str]) -> TrialPod:
    """Return the Pod with a prioritized list instead of each request for a class that has a fallback."""
    return TrialPod(pod.pod, tuple(_claim_with(claim, fallbacks) for claim in pod.claims))


def _claim_with(claim: ResourceClaim, fallbacks: Mapping[str, str]) -> ResourceClaim:
    requests = tuple(_request_with(request, fallbacks) for request in claim.spec.devices.requests)
    devices = replace(claim.spec.devices, requests=requests)
    return replace(claim, spec=replace(claim.spec, devices=devices))


def _request_with(request: DeviceRequest, fallbacks: Mapping[str, str]) -> DeviceRequest:
    wanted = request.exactly
    if wanted is None or wanted.device_class_name not in fallbacks or wanted.admin_access:
        return request
    first = DeviceSubRequest(
        name="wanted",
        device_class_name=wanted.device_class_name,
        selectors=wanted.selectors,
        allocation_mode=wanted.allocation_mode,
        count=wanted.count,
        tolerations=wanted.tolerations,
        capacity=wanted.capacity,
    )
    # Selectors describe the device that was wanted; the other class has its own.
    other = replace(first, name="fallback", device_class_name=fallbacks[wanted.device_class_name], selectors=())
    return replace(request, exactly=None, first_available=(first, other))
