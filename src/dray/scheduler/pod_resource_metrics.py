"""The resources that Pods request and are limited to, as metrics; served apart, since there are several for each Pod.

Extended resources are among them, whether a device plugin or a claim serves them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from dray.api.types.core_v1 import Pod
from dray.framework.resources import CPU, EPHEMERAL_STORAGE, MEMORY, declared_limits, declared_requests
from dray.runtime.metrics import Family, page

_LABELS: Final = ("namespace", "pod", "node", "scheduler", "priority", "resource", "unit")
_SHOWN: Final = (
    "broken down by pod. This shows the resource usage the scheduler and kubelet expect per pod for resources along "
    "with the unit for the resource if any."
)
REQUEST_TEXT: Final = f"[STABLE] Resources requested by workloads on the cluster, {_SHOWN}"
LIMIT_TEXT: Final = f"[STABLE] Resources limit for workloads on the cluster, {_SHOWN}"
_UNITS: Final = {CPU: "cores", MEMORY: "bytes", "storage": "bytes", EPHEMERAL_STORAGE: "bytes"}
_TERMINAL: Final = frozenset({"Succeeded", "Failed"})


class PodResourceMetrics:
    """A collector of the Pods that a function returns."""

    def __init__(self, pods: Callable[[], Iterable[Pod]]) -> None:
        self._pods = pods

    def collect(self) -> Iterator[Family]:
        """Yield both metrics of all Pods that use resources."""
        limits = Family("kube_pod_resource_limit", LIMIT_TEXT, "gauge", _LABELS)
        requests = Family("kube_pod_resource_request", REQUEST_TEXT, "gauge", _LABELS)
        for pod in self._pods():
            # A Pod without a node cannot have ended, whatever its phase says.
            if not (pod.spec.node_name and pod.status.phase in _TERMINAL):
                _add(limits, pod, declared_limits(pod))
                _add(requests, pod, declared_requests(pod))
        yield limits
        yield requests


def pod_resources_page(pods: Iterable[Pod]) -> bytes:
    """Return the metrics of the Pods in the Prometheus text format."""
    families = PodResourceMetrics(lambda: pods).collect()
    return page(family for family in families if family.samples).encode()


def _add(family: Family, pod: Pod, amounts: Mapping[str, int]) -> None:
    metadata, spec = pod.metadata, pod.spec
    priority = "" if spec.priority is None else str(spec.priority)
    own = (metadata.namespace or "", metadata.name or "", spec.node_name or "", spec.scheduler_name or "", priority)
    for name, amount in sorted(amounts.items()):
        if amount:
            family.add((*own, name, _unit(name)), amount / 1000 if name == CPU else amount)


def _unit(resource: str) -> str:
    if resource.startswith("hugepages-"):
        return "bytes"
    if resource.startswith("attachable-volumes-"):
        return "integer"
    return _UNITS.get(resource, "")
