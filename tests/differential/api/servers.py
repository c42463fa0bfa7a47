"""The two servers that are compared, with the same features and API versions."""

from __future__ import annotations

from typing import Final

_BETA_VERSIONS: Final = (
    "resource.k8s.io/v1beta1",
    "resource.k8s.io/v1beta2",
    "resource.k8s.io/v1alpha3",
    "scheduling.k8s.io/v1beta1",
)
FLAGS: Final = (
    # No controllers run that would create service accounts and untaint nodes.
    "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
    "--service-cluster-ip-range=10.96.0.0/24",
    "--feature-gates=GenericWorkload=true,DRADeviceTaintRules=true,DRAResourcePoolStatus=true",
)
OUR_FLAGS: Final = (*FLAGS, "--store=memory")
REAL_FLAGS: Final = (*FLAGS, f"--runtime-config={','.join(f'{version}=true' for version in _BETA_VERSIONS)}")
