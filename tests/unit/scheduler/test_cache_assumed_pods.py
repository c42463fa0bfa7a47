"""Assumed Pods when they are confirmed: their node changes only if something changed that plugins read."""

from __future__ import annotations

from typing import Any

import pytest

from dray.api.codec import from_document
from dray.api.types.core_v1 import Node, Pod
from dray.framework.pod_info import PodInfo
from dray.framework.snapshot import Snapshot
from dray.scheduler.cache import Cache

_ZONE = "topology.kubernetes.io/zone"


def pod(labels: dict[str, str], node_name: str = "", **status: Any) -> Pod:
    metadata = {"name": "p", "namespace": "default", "uid": "u", "labels": labels}
    spec = {"containers": [{"name": "c"}], **({"nodeName": node_name} if node_name else {})}
    return from_document(Pod, {"metadata": metadata, "spec": spec, "status": status})


def assumed(node_labels: dict[str, str], labels: dict[str, str]) -> tuple[Cache, Snapshot]:
    """Return a cache with a Pod that is assumed on a node, and an up-to-date snapshot."""
    cache, snapshot = Cache(), Snapshot()
    cache.set_node(from_document(Node, {"metadata": {"name": "n", "labels": node_labels}}))
    cache.assume(PodInfo(pod(labels, "n")), "n")
    cache.update_snapshot(snapshot)
    return cache, snapshot


def test_a_confirmed_pod_does_not_change_its_node_again() -> None:
    cache, snapshot = assumed({_ZONE: "a"}, {"app": "x"})
    version = snapshot.version
    cache.set_pod(pod({"app": "x", _ZONE: "a"}, "n"))
    cache.update_snapshot(snapshot)
    assert list(snapshot.changed_since(version) or ()) == []
    assert not cache.is_assumed("u")


@pytest.mark.parametrize("labels", [{_ZONE: "b"}, {}])
def test_the_labels_of_the_node_win(labels: dict[str, str]) -> None:
    _, snapshot = assumed({_ZONE: "a"}, labels)
    (node,) = snapshot
    assert node.pods["u"].pod.metadata.labels == {_ZONE: "a"}


def test_a_server_that_adds_no_labels_is_followed() -> None:
    cache, snapshot = assumed({_ZONE: "a"}, {"app": "x"})
    cache.set_pod(pod({"app": "x"}, "n"))
    cache.update_snapshot(snapshot)
    (node,) = snapshot
    assert node.pods["u"].pod.metadata.labels == {"app": "x"}


def test_preemption_sees_the_claim_of_extended_resources_when_the_pod_is_confirmed() -> None:
    """The scheduler writes it before it binds the Pod, and looks it up when the Pod could be a victim."""
    cache, snapshot = assumed({}, {})
    claim = {"resourceClaimName": "p-extended-resources-1", "requestMappings": []}
    cache.set_pod(pod({}, "n", extendedResourceClaimStatus=claim))
    cache.update_snapshot(snapshot)
    (node,) = snapshot
    status = node.pods["u"].pod.status.extended_resource_claim_status
    assert status is not None
    assert status.resource_claim_name == "p-extended-resources-1"
