"""The resources of metrics.k8s.io, which nodes measure; they are not stored, and cannot be changed."""

from __future__ import annotations

from typing import Final

from dray.apiserver.registry.columns import AGE, NAME
from dray.apiserver.registry.strategy import ResourceDefinition, Strategy

GROUP: Final = "metrics.k8s.io"
VERSION: Final = "v1beta1"
_VERBS: Final = ("get", "list")


def _definition(resource: str, kind: str, *, namespaced: bool) -> ResourceDefinition:
    return ResourceDefinition(
        group=GROUP,
        resource=resource,
        # metrics-server has no singular names: `kubectl get pod` means the Pods of the core group.
        singular="",
        kind=kind,
        namespaced=namespaced,
        versions=(VERSION,),
        storage_version=VERSION,
        strategy=Strategy(),
        columns=(NAME, AGE),
        verbs=_VERBS,
    )


DEFINITIONS: Final = (
    _definition("nodes", "NodeMetrics", namespaced=False),
    _definition("pods", "PodMetrics", namespaced=True),
)
