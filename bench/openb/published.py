"""Published results of other policies on the trace: percent of the GPUs allocated, mean of ten seeds.

From "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent" (USENIX ATC 2023)
and its repository, at 100 % and 130 % of the GPUs arrived.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_POLICIES: Final = ("Random", "DotProduct", "Clustering", "Packing", "BestFit", "FGD")
_AT_130: Final = {
    "default": (87.47, 90.85, 91.88, 92.00, 93.08, 95.39),
    "gpuspec33": (86.46, 89.14, 92.12, 93.22, 93.09, 94.55),
    "multigpu50": (90.27, 94.85, 95.81, 96.18, 95.74, 97.18),
    "gpushare100": (79.44, 82.42, 82.65, 82.57, 85.01, 86.90),
    "cpu250": (80.42, 83.81, 87.99, 88.28, 91.45, 93.41),
}
_AT_100: Final = {
    "default": (86.30, 90.62, 91.65, 91.78, 92.86, 95.23),
    "gpuspec33": (83.87, 79.82, 81.09, 82.22, 80.39, 87.84),
    "multigpu50": (81.28, 94.73, 95.69, 96.06, 95.62, 97.09),
    "gpushare100": (78.90, 81.98, 82.22, 82.13, 84.62, 86.64),
    "cpu250": (80.00, 83.57, 87.75, 88.05, 91.21, 93.20),
}
# List -> policy -> percent arrived -> percent allocated.
PUBLISHED: Final[Mapping[str, Mapping[str, Mapping[int, float]]]] = {
    name: {
        policy: {100: at_100, 130: at_130}
        for policy, at_100, at_130 in zip(_POLICIES, _AT_100[name], _AT_130[name], strict=True)
    }
    for name in _AT_130
}
