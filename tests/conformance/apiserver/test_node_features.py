"""Devices that use resources of their node need nodes that declare the feature (N-40)."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dray.api.document import Document
from dray.api.errors import ForbiddenError
from dray.api.features import FeatureGates
from dray.client.in_process import InProcessTransport
from dray.client.interface import unstructured
from dray.client.resources import NODES, RESOURCE_SLICES
from dray.client.rest import RestClient
from dray.runtime.system import SystemClock
from tests.in_process_server import in_process_server

FEATURE = "DRANodeAllocatableResources"
SLICES = unstructured(RESOURCE_SLICES.group_version, "resourceslices", "ResourceSlice", namespaced=False)
ALL_NODES = unstructured(NODES.group_version, "nodes", "Node", namespaced=False)
CORES = {"name": "cores", "nodeAllocatableResources": {"cpu": {"mapping": {"deviceMultiplier": "1"}}}}


@pytest.fixture
async def client() -> AsyncIterator[RestClient]:
    gates = FeatureGates.parse(f"{FEATURE}=true")
    async with in_process_server(SystemClock(), random.Random(1), gates=gates) as server:
        found = RestClient(InProcessTransport(server, user="u", groups=("system:masters",), user_agent="u"))
        for name, features in (("new", [FEATURE]), ("old", [])):
            status = {"declaredFeatures": features} if features else {}
            await found.create(ALL_NODES, {"metadata": {"name": name, "labels": {"age": name}}, "status": status})
        yield found


def resource_slice(*devices: Document, **spec: Any) -> Document:
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    return {
        "metadata": {"name": "s"},
        "spec": {"driver": "d.example.com", "pool": pool, "devices": list(devices or (CORES,)), **spec},
    }


def selecting(age: str) -> Document:
    expression = {"key": "age", "operator": "In", "values": [age]}
    return {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}


LACKING = f'node "old" does not support {FEATURE} feature'
NOWHERE = 'device "cores" in ResourceSlice has NodeAllocatableResources but does not map to any nodes'


@pytest.mark.behaviour("N-40")
@pytest.mark.parametrize(
    ("made", "problem"),
    [
        pytest.param(resource_slice(nodeName="new"), "", id="a node with the feature"),
        pytest.param(resource_slice(nodeName="old"), LACKING, id="a node without it"),
        pytest.param(resource_slice(nodeName="none"), 'node "none" not found for device "cores"', id="no such node"),
        pytest.param(resource_slice(nodeSelector=selecting("new")), "", id="selected nodes with it"),
        pytest.param(resource_slice(nodeSelector=selecting("old")), LACKING, id="selected nodes without it"),
        pytest.param(resource_slice(nodeSelector=selecting("x")), NOWHERE, id="no selected nodes"),
        pytest.param(resource_slice(allNodes=True), LACKING, id="all nodes"),
        pytest.param(resource_slice({"name": "other"}, allNodes=True), "", id="another device"),
        pytest.param(
            resource_slice(CORES | {"nodeName": "new"}, perDeviceNodeSelection=True), "", id="the device's own node"
        ),
        pytest.param(
            resource_slice(CORES | {"nodeName": "old"}, perDeviceNodeSelection=True), LACKING, id="own node without it"
        ),
    ],
)
async def test_slices(client: RestClient, made: Document, problem: str) -> None:
    if not problem:
        await client.create(SLICES, made)
        return
    with pytest.raises(ForbiddenError) as refused:
        await client.create(SLICES, made)
    assert str(refused.value) == f'resourceslices.resource.k8s.io "s" is forbidden: {problem}'


@pytest.mark.behaviour("N-40")
async def test_updates_are_checked(client: RestClient) -> None:
    stored = await client.create(SLICES, resource_slice({"name": "other"}, nodeName="old"))
    stored["spec"]["devices"].append(CORES)
    with pytest.raises(ForbiddenError, match="does not support"):
        await client.update(SLICES, stored)
