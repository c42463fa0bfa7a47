"""Attack: a user makes a claim pose as the scheduler's, so that the scheduler deletes it and gives its device again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dray.api.document import Document
from dray.api.errors import InvalidError
from tests.security.test_pod_security import cluster, user

CLAIMS = "resource.k8s.io/v1/resourceclaims"
ANNOTATION = "resource.kubernetes.io/extended-resource-claim"


def claim(**annotations: str) -> Document:
    request = {"name": "r", "exactly": {"deviceClassName": "gpu"}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "forged", "annotations": annotations},
        "spec": {"devices": {"requests": [request]}},
    }


@pytest.mark.behaviour("XR-05")
async def test_only_a_scheduler_creates_the_claim_of_extended_resources(tmp_path: Path) -> None:
    async with cluster(tmp_path) as admin:
        alice = user(admin, "alice")
        with pytest.raises(InvalidError, match="only schedulers create claims of extended resources"):
            await alice.request("create", f"{CLAIMS}@open", claim(**{ANNOTATION: "true"}))
        stored = await alice.request("create", f"{CLAIMS}@open", claim())
        forged: Any = {"metadata": {"annotations": {ANNOTATION: "true"}}}
        for content_type in ("application/merge-patch+json", "application/apply-patch+yaml"):
            query = {"fieldManager": "alice", "force": "true"} if "apply" in content_type else {}
            body = claim(**{ANNOTATION: "true"}) if "apply" in content_type else forged
            with pytest.raises(InvalidError, match=r"metadata.annotations\[resource.kubernetes.io/extended-resource"):
                await alice.request("patch", f"{CLAIMS}/forged@open", body, query=query, content_type=content_type)
        assert await admin.request("get", f"{CLAIMS}/forged@open") == stored
        # Whoever may allocate claims may also write such a claim again, as from a backup; and anybody else around it.
        marked = await admin.request(
            "patch", f"{CLAIMS}/forged@open", forged, content_type="application/merge-patch+json"
        )
        labelled = {**marked, "metadata": {**marked["metadata"], "labels": {"a": "b"}}}
        assert (await alice.request("update", f"{CLAIMS}/forged@open", labelled))["metadata"]["labels"] == {"a": "b"}
