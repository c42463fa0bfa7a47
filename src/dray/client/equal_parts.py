"""Equal parts of Pods and of claims, held in memory once. Pure.

Pods of one workload differ in little more than their names. A process that caches thousands of them needs their
tolerations, resource requirements and projected volumes only once: that is a third of a typed Pod.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final

import msgspec

from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import ResourceClaim

# Enough for the workloads whose Pods come at the same time; further parts are held more than once.
PARTS_MAX: Final = 512

# An empty structure is written and an absent one is not, although their JSON is the same.
_EMPTY: Final = b"{}"


class EqualParts:
    """Replaces parts of objects that were just decoded by equal parts of earlier ones.

    Nobody else may have seen the objects yet. Those that are soon replaced by their next version are left alone.
    """

    def __init__(self, count_max: int = PARTS_MAX) -> None:
        self._count_max = count_max
        self._encode: Final = msgspec.json.Encoder().encode
        # Field and JSON -> part, oldest first. By JSON, since equal maps may differ in the order of their keys.
        self._known: OrderedDict[tuple[str, bytes], Any] = OrderedDict()

    def share_pod(self, pod: Pod) -> None:
        """Share the parts of a Pod that has a node."""
        # Few large parts: each costs a few thousand instructions for each Pod.
        spec = pod.spec
        if spec.node_name is None:
            return
        if spec.tolerations:
            self._share(spec, "tolerations", spec.tolerations)
        for container in spec.containers:
            self._share(container, "resources", container.resources)
        for volume in spec.volumes:
            if volume.projected is not None:
                self._share(volume, "projected", volume.projected)

    def share_claim(self, claim: ResourceClaim) -> None:
        """Share the spec of a claim that has consumers."""
        if claim.status.reserved_for:
            self._share(claim, "spec", claim.spec)

    def _share(self, owner: msgspec.Struct, name: str, part: Any) -> None:
        """Replace a part by the first one that is equal to it."""
        text = self._encode(part)
        if text == _EMPTY:
            return
        first = self._known.setdefault((name, text), part)
        if first is not part:
            msgspec.structs.force_setattr(owner, name, first)
        elif len(self._known) > self._count_max:
            self._known.popitem(last=False)
