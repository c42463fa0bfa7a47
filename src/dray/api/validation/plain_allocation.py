"""The form of nearly all allocations, which is recognized without applying every rule to every field.

A result has the names of its request, driver, pool and device and nothing else, and a node selector selects one node by
its name. Whatever has another form may be valid, too: `resource_claim_status` has the rules, and the errors.
"""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Final

from dray.api.document import Document
from dray.api.names import DNS1123_LABEL, DNS1123_SUBDOMAIN, LABEL_LENGTH_MAX, dns1123_subdomain
from dray.api.validation.resource_fields import DRIVER_NAME_LENGTH_MAX, POOL_NAME_LENGTH_MAX

_RESULT_FIELDS: Final = frozenset({"request", "driver", "pool", "device"})
# No name contains a slash, so that all names of a result are matched at once.
_are_names = re.compile("/".join((DNS1123_LABEL, DNS1123_SUBDOMAIN, DNS1123_SUBDOMAIN, DNS1123_LABEL))).fullmatch


def is_plain_allocation(allocation: Document, requests: Container[str], results_max: int) -> bool:
    """Report whether an allocation for these requests has the plain form; it is valid then."""
    devices = allocation.get("devices") or {}
    results = devices.get("results") or ()
    if devices.get("config") or len(results) > results_max:
        return False
    for result in results:
        if result.keys() != _RESULT_FIELDS:
            return False
        request, driver, pool, device = result["request"], result["driver"], result["pool"], result["device"]
        if not (
            _are_names(f"{request}/{driver}/{pool}/{device}")
            and request in requests
            and len(request) <= LABEL_LENGTH_MAX
            and len(driver) <= DRIVER_NAME_LENGTH_MAX
            and len(pool) <= POOL_NAME_LENGTH_MAX
            and len(device) <= LABEL_LENGTH_MAX
        ):
            return False
    match allocation.get("nodeSelector"):
        case None:
            return True
        case {
            "nodeSelectorTerms": [
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [str(node)]}], **others}
            ]
        }:
            return not others and not dns1123_subdomain(node)
    return False
