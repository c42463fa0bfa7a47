"""Which Pods keep a volume claim from being deleted."""

from __future__ import annotations

from typing import Any

import pytest

from dray.api.codec import from_document
from dray.api.document import Document
from dray.api.persistent_volumes import is_claim_used_by
from dray.api.types.core_v1 import Pod

NAMED = {"name": "v", "persistentVolumeClaim": {"claimName": "data"}}
EPHEMERAL = {"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}
CLAIM: Document = {"metadata": {"name": "data", "namespace": "team"}, "spec": {}}
OWNED: Document = {
    "metadata": {
        "name": "p-v",
        "namespace": "team",
        "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "uid-p", "controller": True}],
    },
    "spec": {},
}
SHUT_DOWN: Document = {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 0}


def pod(volume: Document, node: str = "n", namespace: str = "team", phase: str = "Running", **metadata: Any) -> Pod:
    return from_document(
        Pod,
        {
            "metadata": {"name": "p", "namespace": namespace, "uid": "uid-p", **metadata},
            "spec": {"nodeName": node, "containers": [], "volumes": [volume]},
            "status": {"phase": phase},
        },
    )


@pytest.mark.behaviour("SC-06")
@pytest.mark.parametrize(
    ("claim", "user", "used"),
    [
        pytest.param(CLAIM, pod(NAMED), True, id="running"),
        pytest.param(CLAIM, pod(NAMED, phase="Succeeded"), True, id="finished"),
        pytest.param(CLAIM, pod(NAMED, **SHUT_DOWN), True, id="being deleted"),
        pytest.param(CLAIM, pod(NAMED, node=""), False, id="not scheduled"),
        pytest.param(CLAIM, pod(NAMED, namespace="other"), False, id="another namespace"),
        pytest.param(OWNED, pod(EPHEMERAL), True, id="ephemeral"),
        pytest.param(OWNED, pod(EPHEMERAL, **SHUT_DOWN), False, id="ephemeral, shut down"),
        pytest.param(
            OWNED | {"metadata": {"name": "p-v", "namespace": "team"}}, pod(EPHEMERAL), False, id="not its own"
        ),
        pytest.param(OWNED, pod(NAMED), False, id="another claim"),
    ],
)
def test_claims_in_use(claim: Document, user: Pod, used: bool) -> None:
    assert is_claim_used_by(claim, user) is used
