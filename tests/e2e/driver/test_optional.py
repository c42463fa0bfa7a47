"""Claims of resource.k8s.io that a Pod can do without."""

from __future__ import annotations

import pytest

from dray.api.codec import from_document
from dray.api.document import Document
from dray.api.types.core_v1 import Pod
from dray.node.resource_manager import ResourceError
from tests.e2e.driver.cluster import Cluster, Node, driver_running, result
from tests.e2e.driver.test_sdk import TestDriver

ENTRIES: list[Document] = [
    {"name": "had", "resourceClaimName": "had", "optional": True},
    {"name": "not-had", "resourceClaimName": "not-had", "optional": True},
    {"name": "missing", "resourceClaimName": "missing", "optional": True},
    {"name": "needed", "resourceClaimName": "needed"},
]


def pod() -> Pod:
    listed = [{"name": entry["name"]} for entry in ENTRIES]
    return from_document(
        Pod,
        {
            "metadata": {"name": "p", "namespace": "default", "uid": "uid-p"},
            "spec": {
                "resourceClaims": ENTRIES,
                "containers": [{"name": "main", "resources": {"claims": listed}}, {"name": "other"}],
            },
        },
    )


async def test_a_container_learns_what_it_has(cluster: Cluster, node: Node) -> None:
    await cluster.claim("had", result("x"), pods=["p"])
    await cluster.claim("not-had", result("y"), pods=["somebody"])
    await cluster.claim("needed", result("z"), pods=["p"])
    manager = node.claims
    async with driver_running(TestDriver(), node):
        await manager.prepare(pod())
        options = manager.container_options(pod(), "main")
        assert options.envs == {
            "DRAY_CLAIM_HAD": "allocated",
            "DRAY_CLAIM_NOT_HAD": "none",
            "DRAY_CLAIM_MISSING": "none",
        }
        assert len(options.cdi_devices) == 2
        assert manager.container_options(pod(), "other").envs == {}
        container = pod().spec.containers[0]
        assert [claim.info.key.name for claim in node.claims.container_claims(pod(), container)] == ["had", "needed"]
        await manager.release(pod())
        assert node.claims.claims() == ()


async def test_what_is_needed_is_still_waited_for(cluster: Cluster, node: Node) -> None:
    await cluster.claim("needed", result("z"), pods=["somebody"])
    with pytest.raises(ResourceError, match="not allowed to use ResourceClaim needed"):
        await node.claims.prepare(pod())
