"""The resources of a Pod as a whole (`spec.resources`): which are supported, and their defaults.

Works on documents, whose quantities are valid.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dray.api.document import Document
from dray.api.quantity import Quantity
from dray.api.quota.names import HUGE_PAGES_PREFIX
from dray.api.quota.usage import Usage, is_huge_pages, parse_amounts, peak_amounts

# As Kubernetes lists them in an error.
SUPPORTED: Final = ("cpu", HUGE_PAGES_PREFIX, "memory")
_COMPUTE: Final = frozenset({"cpu", "memory"})


def is_supported(name: str) -> bool:
    """Report whether a Pod as a whole may request the resource."""
    return name in _COMPUTE or is_huge_pages(name)


def aggregate(spec: Document, field: str) -> dict[str, Quantity]:
    """Return the peak of the containers' `requests` or `limits`."""

    def amounts(container: Document) -> Usage:
        return parse_amounts((container.get("resources") or {}).get(field) or {})

    return peak_amounts(
        [amounts(container) for container in spec.get("containers") or ()],
        [(amounts(item), item.get("restartPolicy") == "Always") for item in spec.get("initContainers") or ()],
    )


def default_pod_level_resources(spec: Document) -> None:
    """Complete the resources of the Pod as a whole, if it has any; those of containers have their defaults already.

    Limits of huge pages come first, since requests follow from limits, and limits from requests last.
    """
    resources = spec.get("resources") or {}
    requests, limits = dict(resources.get("requests") or {}), dict(resources.get("limits") or {})
    if not requests and not limits:
        return
    of_containers = aggregate(spec, "limits")
    pages = {name: str(of_containers[name]) for name in filter(is_huge_pages, of_containers) if name not in requests}
    limits = pages | limits
    sums = {name: str(amount) for name, amount in aggregate(spec, "requests").items() if name in _COMPUTE}
    requests = {name: limits[name] for name in filter(is_supported, limits)} | sums | requests
    for name in _limited_by_all(spec, requests.keys() - limits.keys()):
        limits[name] = str(max(of_containers[name], Quantity.parse(requests[name])))
    resources.update({field: found for field, found in (("requests", requests), ("limits", limits)) if found})


def _limited_by_all(spec: Document, names: Iterable[str]) -> list[str]:
    """Return the supported names for which every container has a limit."""
    kinds = ("initContainers", "containers", "ephemeralContainers")
    limits = [(item.get("resources") or {}).get("limits") or {} for kind in kinds for item in spec.get(kind) or ()]
    return [name for name in sorted(names) if is_supported(name) and all(name in each for each in limits)]
