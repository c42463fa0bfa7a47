"""Names and numbers on the wire: what real kubelets, plugins and monitoring agents speak."""

from __future__ import annotations

from typing import Any

import pytest

from dray.rpc.pb.deviceplugin.v1beta1 import api_pb2 as plugin
from dray.rpc.pb.podresources.v1 import api_pb2 as v1
from dray.rpc.pb.podresources.v1alpha1 import api_pb2 as v1alpha1

METHODS = {
    "/v1beta1.Registration/Register": plugin,
    "/v1beta1.DevicePlugin/GetDevicePluginOptions": plugin,
    "/v1beta1.DevicePlugin/ListAndWatch": plugin,
    "/v1beta1.DevicePlugin/GetPreferredAllocation": plugin,
    "/v1beta1.DevicePlugin/Allocate": plugin,
    "/v1beta1.DevicePlugin/PreStartContainer": plugin,
    "/v1.PodResourcesLister/List": v1,
    "/v1.PodResourcesLister/GetAllocatableResources": v1,
    "/v1.PodResourcesLister/Get": v1,
    "/v1alpha1.PodResourcesLister/List": v1alpha1,
}

# Numbers and wire types; names are free.
FIELDS: dict[Any, str] = {
    plugin.RegisterRequest: "1 string, 2 string, 3 string, 4 DevicePluginOptions",
    plugin.DevicePluginOptions: "1 bool, 2 bool",
    plugin.ListAndWatchResponse: "1 rep Device",
    plugin.Device: "1 string, 2 string, 3 TopologyInfo",
    plugin.TopologyInfo: "1 rep NUMANode",
    plugin.NUMANode: "1 int64",
    plugin.PreferredAllocationRequest: "1 rep ContainerPreferredAllocationRequest",
    plugin.ContainerPreferredAllocationRequest: "1 rep string, 2 rep string, 3 int32",
    plugin.PreferredAllocationResponse: "1 rep ContainerPreferredAllocationResponse",
    plugin.ContainerPreferredAllocationResponse: "1 rep string",
    plugin.AllocateRequest: "1 rep ContainerAllocateRequest",
    plugin.ContainerAllocateRequest: "1 rep string",
    plugin.AllocateResponse: "1 rep ContainerAllocateResponse",
    plugin.ContainerAllocateResponse: (
        "1 rep EnvsEntry, 2 rep Mount, 3 rep DeviceSpec, 4 rep AnnotationsEntry, 5 rep CDIDevice"
    ),
    plugin.Mount: "1 string, 2 string, 3 bool",
    plugin.DeviceSpec: "1 string, 2 string, 3 string",
    plugin.CDIDevice: "1 string",
    plugin.PreStartContainerRequest: "1 rep string",
    plugin.PreStartContainerResponse: "",
    v1.ListPodResourcesResponse: "1 rep PodResources",
    v1.AllocatableResourcesResponse: "1 rep ContainerDevices, 2 rep int64, 3 rep ContainerMemory",
    v1.PodResources: "1 string, 2 string, 3 rep ContainerResources, 4 rep int64, 5 rep ContainerMemory",
    v1.ContainerResources: (
        "1 string, 2 rep ContainerDevices, 3 rep int64, 4 rep ContainerMemory, 5 rep DynamicResource"
    ),
    v1.ContainerDevices: "1 string, 2 rep string, 3 TopologyInfo",
    v1.ContainerMemory: "1 string, 2 uint64, 3 TopologyInfo",
    v1.DynamicResource: "1 string, 2 string, 3 string, 4 rep ClaimResource",
    v1.ClaimResource: "1 rep CDIDevice, 2 string, 3 string, 4 string, 5 string",
    v1.CDIDevice: "1 string",
    v1.GetPodResourcesRequest: "1 string, 2 string",
    v1.GetPodResourcesResponse: "1 PodResources",
    v1alpha1.PodResources: "1 string, 2 string, 3 rep ContainerResources",
    v1alpha1.ContainerResources: "1 string, 2 rep ContainerDevices",
    v1alpha1.ContainerDevices: "1 string, 2 rep string",
}
KINDS = {3: "int64", 4: "uint64", 5: "int32", 8: "bool", 9: "string"}


def described(message: Any) -> str:
    return ", ".join(
        f"{field.number} {'rep ' if field.is_repeated else ''}"
        f"{field.message_type.name if field.message_type else KINDS[field.type]}"
        for field in message.DESCRIPTOR.fields
    )


@pytest.mark.parametrize("message", FIELDS, ids=lambda message: message.DESCRIPTOR.full_name)
def test_fields(message: Any) -> None:
    assert described(message) == FIELDS[message]


@pytest.mark.parametrize("path", METHODS)
def test_methods(path: str) -> None:
    _, service, method = path.split("/")
    found = METHODS[path].DESCRIPTOR.services_by_name[service.partition(".")[2]]
    assert found.full_name == service
    assert method in found.methods_by_name
    assert found.methods_by_name[method].server_streaming == (method == "ListAndWatch")


@pytest.mark.behaviour("PR-16")
def test_the_request_of_get_is_the_same_under_both_names() -> None:
    assert v1.GetPodResourcesRequest(pod_name="p", pod_namespace="n").SerializeToString() == b"\x0a\x01p\x12\x01n"
