"""The resource limits of containers and of whole Pods, as kubelet computes them.

What the devices of claims use of the node (`framework.node_allocatable`) is added to the limits that a Pod declares.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dray.api.quantity import Quantity
from dray.api.types.core_v1 import Container, Pod
from dray.framework.node_allocatable import container_amounts, container_share, integers, pod_amounts
from dray.framework.resources import CPU, MEMORY, declared_limits, declared_requests
from dray.node.runtimes.runtime import PERIOD_MICROSECONDS, Limits

# The kernel's minimum and default CPU shares, and its minimum CPU quota.
SHARES_LEAST: Final = 2
SHARES_PER_CPU: Final = 1024
QUOTA_LEAST: Final = 1000
# kubelet's OOM score adjustments; those of burstable containers are between them.
OOM_GUARANTEED: Final = -997
OOM_BEST_EFFORT: Final = 1000
OOM_BURSTABLE_LEAST: Final = 1000 + OOM_GUARANTEED
OOM_BURSTABLE_MOST: Final = OOM_BEST_EFFORT - 1
# Of Pods that the node itself needs (system-node-critical).
NODE_CRITICAL_PRIORITY: Final = 2_000_001_000

_HUGE_PAGES: Final = "hugepages-"
_ZERO: Final = Quantity(0)
# The kernel's names of page sizes.
_SIZE_NAMES: Final = ((30, "GB"), (20, "MB"), (10, "KB"))


def limits_of(pod: Pod, container: Container, memory_capacity: int = 0) -> Limits:
    """Return the limits of a container; `memory_capacity` is that of the node, 0 if it is not known.

    The CPU shares are those of the request, or else of the limit without what claims use.
    """
    requests, limits = container.resources.requests, container.resources.limits
    used = container_amounts(pod.status.node_allocatable_resource_claim_statuses, container.name)
    return Limits(
        cpu_shares=_shares(Quantity.parse(requests.get(CPU, limits.get(CPU, "0"))).milli_value()),
        cpu_quota_microseconds=_quota(_limit(limits, used, CPU).milli_value()),
        memory_bytes=_limit(limits, used, MEMORY).value(),
        oom_score_adj=_oom_score(pod, container, memory_capacity),
        huge_pages=_huge_pages(_huge_page_limits(pod, limits, used)),
    )


def _limit(limits: Mapping[str, str], used: Mapping[str, Quantity], name: str) -> Quantity:
    """Return the container's own limit with what its claims use; zero if it has none."""
    return Quantity.parse(limits[name]) + used.get(name, _ZERO) if name in limits else _ZERO


def _huge_page_limits(pod: Pod, limits: Mapping[str, str], used: Mapping[str, Quantity]) -> dict[str, int]:
    shared = {} if pod.spec.resources is None else pod.spec.resources.limits
    found: dict[str, Quantity] = {}
    for name in sorted({*limits, *shared, *used}):
        if not name.startswith(_HUGE_PAGES):
            continue
        if name in limits:
            found[name] = _limit(limits, used, name)
        elif name in shared:
            found[name] = Quantity.parse(shared[name])
        else:
            # Without a limit nothing could be used.
            found[name] = used[name]
    return integers(found)


def _oom_score(pod: Pod, container: Container, memory_capacity: int) -> int:
    if (pod.spec.priority or 0) >= NODE_CRITICAL_PRIORITY or pod.status.qos_class == "Guaranteed":
        return OOM_GUARANTEED
    if pod.status.qos_class != "Burstable" or not memory_capacity:
        return OOM_BEST_EFFORT
    statuses = pod.status.node_allocatable_resource_claim_statuses
    requested = Quantity.parse(container.resources.requests.get(MEMORY, "0"))
    requested += container_share(statuses, container.name, MEMORY)
    score = 1000 - 1000 * requested.value() // memory_capacity
    return min(max(score, OOM_BURSTABLE_LEAST), OOM_BURSTABLE_MOST)


def pod_limits_of(pod: Pod) -> Limits:
    """Return the limits of a Pod as a whole.

    A resource is limited only if the Pod, or each of its containers, has a limit; huge pages always are.
    """
    used = integers(pod_amounts(pod.status.node_allocatable_resource_claim_statuses))
    requests, limits = declared_requests(pod), declared_limits(pod)
    # The resources of the Pod as a whole cover what its claims use.
    pod_requests = {} if pod.spec.resources is None else pod.spec.resources.requests
    pod_limits = {} if pod.spec.resources is None else pod.spec.resources.limits

    def limit(name: str) -> int:
        if name in pod_limits:
            return limits.get(name, 0)
        containers = (*pod.spec.init_containers, *pod.spec.containers)
        if not all(name in container.resources.limits for container in containers):
            return 0
        return limits.get(name, 0) + used.get(name, 0)

    pages = {
        name: limits.get(name, 0) + (0 if name in pod_limits else used.get(name, 0))
        for name in sorted({*limits, *used})
        if name.startswith(_HUGE_PAGES)
    }
    return Limits(
        cpu_shares=_shares(requests.get(CPU, 0) + (0 if CPU in pod_requests else used.get(CPU, 0))),
        cpu_quota_microseconds=_quota(limit(CPU)),
        memory_bytes=limit(MEMORY),
        huge_pages=_huge_pages(pages),
    )


def _shares(milli: int) -> int:
    return max(milli * SHARES_PER_CPU // 1000, SHARES_LEAST)


def _quota(milli: int) -> int:
    return max(milli * PERIOD_MICROSECONDS // 1000, QUOTA_LEAST) if milli else 0


def _huge_pages(amounts: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple((_page_size(name), amount) for name, amount in amounts.items())


def _page_size(name: str) -> str:
    """Return the kernel's name of a page size: `2MB` for `hugepages-2Mi`."""
    size = Quantity.parse(name.removeprefix(_HUGE_PAGES)).value()
    for shift, unit in _SIZE_NAMES:
        if size >> shift and not size % (1 << shift):
            return f"{size >> shift}{unit}"
    return f"{size}B"
