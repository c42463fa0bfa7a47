"""How long containers are given to end by themselves. Pure."""

from __future__ import annotations

from typing import Final

from dray.api.types.core_v1 import Container, Pod
from dray.node.agent.pod.events import ProbeKind

DEFAULT_GRACE_SECONDS: Final = 30


def spec_grace(pod: Pod) -> float:
    """What the Pod asks for."""
    grace = pod.spec.termination_grace_period_seconds
    return float(DEFAULT_GRACE_SECONDS if grace is None else grace)


def end_grace(pod: Pod) -> float:
    """What a container gets when its Pod ends: whoever deleted the Pod may have said less."""
    asked = pod.metadata.deletion_grace_period_seconds
    if pod.metadata.deletion_timestamp is None or asked is None:
        return spec_grace(pod)
    return float(asked)


def probe_grace(pod: Pod, container: Container, kind: ProbeKind) -> float:
    """What a container gets that failed a probe."""
    probe = container.liveness_probe if kind is ProbeKind.LIVENESS else container.startup_probe
    grace = probe.termination_grace_period_seconds if probe is not None else None
    return spec_grace(pod) if grace is None else float(grace)
