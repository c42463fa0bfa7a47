"""Who still writes versions of the API that the next release does not serve."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from dray.api.document import Document
from dray.sim.doctor.version_rules import removed_versions
from dray.sim.snapshot import Snapshot
from tests.unit.sim.cluster import claim, device_class

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def written(document: Document, *entries: tuple[str, str], **annotations: str) -> Document:
    changed: Any = document
    changed["metadata"]["managedFields"] = [
        {"manager": manager, "operation": "Update", "apiVersion": f"resource.k8s.io/{version}", "fieldsV1": {}}
        for manager, version in entries
    ]
    changed["metadata"]["annotations"] = annotations
    return document


@pytest.mark.behaviour("EV-33")
def test_clients_manifests_and_releases_are_named_with_their_objects() -> None:
    release = {"meta.helm.sh/release-name": "gpu", "meta.helm.sh/release-namespace": "drivers"}
    applied = {
        "kubectl.kubernetes.io/last-applied-configuration": '{"apiVersion":"resource.k8s.io/v1beta1","kind":"X"}'
    }
    claims = [
        written(claim("a"), ("operator", "v1beta1"), ("operator", "v1beta1"), ("scheduler", "v1beta2")),
        written(claim("b"), ("operator", "v1beta1"), ("kubectl-client-side-apply", "v1"), **applied),
        written(claim("c"), ("operator", "v1")),
    ]
    classes = [written(device_class("gpu", "true"), ("helm", "v1beta1"), ("driver", "v1"), **release)]
    # A cluster that is read: a file of `dray snapshot` has no managed fields.
    snapshot = Snapshot({"ResourceClaim": claims, "DeviceClass": classes})
    found = list(removed_versions(snapshot, NOW))
    what = "uses resource.k8s.io/v1beta1, which Kubernetes 1.38 does not serve: "
    assert {item.rule for item in found} == {"removed-version"}
    assert [(item.subject, item.what) for item in found] == [
        ("client operator", f"{what}resourceclaim team/a, resourceclaim team/b"),
        ("manifest of kubectl apply", f"{what}resourceclaim team/b"),
        ("release drivers/gpu of Helm", f"{what}deviceclass gpu"),
    ]
    assert {item.advice for item in found} == {"change it to resource.k8s.io/v1, and apply it again"}
