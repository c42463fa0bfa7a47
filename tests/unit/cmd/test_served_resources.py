"""What a component makes of the resources that its server serves: features, and versions of resources."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from dray.api.document import Document, GroupResource
from dray.api.features import FeatureGates
from dray.client.interface import Patch, PatchType, WatchBatch, WriteOptions
from dray.client.resources import DEVICE_CLASSES, DEVICE_TAINT_RULES
from dray.client.rest import Call, RestClient
from dray.cmd.component import older_versions, served_features

RULES = "resource.k8s.io", "devicetaintrules"
OLD, NEW = ("resource.k8s.io", "v1beta2", "devicetaintrules"), ("resource.k8s.io", "v1", "devicetaintrules")
ALPHA = "resource.k8s.io", "v1alpha3", "devicetaintrules"


@pytest.mark.behaviour("N-03")
@pytest.mark.parametrize(
    ("served", "enabled", "versions"),
    [
        ({NEW}, True, {}),
        ({NEW, OLD}, True, {}),
        ({OLD}, True, {GroupResource(*RULES): "v1beta2"}),
        ({ALPHA}, False, {}),
        (set(), False, {}),
    ],
)
def test_taint_rules_are_read_in_v1_or_else_in_v1beta2(
    served: set[tuple[str, str, str]], enabled: bool, versions: dict[GroupResource, str]
) -> None:
    gates = served_features(served, FeatureGates())
    assert gates.enabled("DRADeviceTaintRules") is enabled
    assert not gates.enabled("DRAControlPlaneController")
    assert older_versions(served) == versions


class Recorder:
    """A transport that notes what it is asked for."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, Any]] = []

    async def send(self, call: Call) -> Document:
        assert call.resource is not None
        self.calls.append((call.verb, call.resource.path(name=call.name, subresource=call.subresource), call.body))
        return {"apiVersion": call.resource.group_version.api_version, "metadata": {"name": "x"}, "items": []}

    async def stream(self, call: Call) -> AsyncIterator[WatchBatch]:
        assert call.resource is not None
        self.calls.append((call.verb, call.resource.path(), None))
        batches: list[WatchBatch] = []
        for batch in batches:
            yield batch

    async def close(self) -> None:
        self.calls.append(("close", "", None))


@pytest.mark.behaviour("N-03", "N-06")
async def test_requests_go_to_the_served_version() -> None:
    transport = Recorder()
    client = RestClient(transport).at_versions({GroupResource(*RULES): "v1beta2"})
    rules = "/apis/resource.k8s.io/v1beta2/devicetaintrules"
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceTaintRule", "status": {}}
    await client.list(DEVICE_TAINT_RULES)
    async for _event in client.watch(DEVICE_TAINT_RULES):
        pass
    patch = Patch(PatchType.APPLY, body)
    await client.patch(DEVICE_TAINT_RULES, "x", "", patch, WriteOptions(subresource="status"))
    await client.list(DEVICE_CLASSES)
    await client.close()
    assert transport.calls == [
        ("list", rules, None),
        ("watch", rules, None),
        ("patch", f"{rules}/x/status", {**body, "apiVersion": "resource.k8s.io/v1beta2"}),
        ("list", "/apis/resource.k8s.io/v1/deviceclasses", None),
        ("close", "", None),
    ]
    # The patch itself is left alone.
    assert body["apiVersion"] == "resource.k8s.io/v1"


def test_a_client_of_a_current_server_is_the_same() -> None:
    client = RestClient(Recorder())
    assert client.at_versions({}) is client
