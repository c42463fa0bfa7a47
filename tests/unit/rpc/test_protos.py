"""What other implementations see: names of methods, and numbers of fields."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor

from dray.rpc.pb.dra.v1 import api_pb2 as v1
from dray.rpc.pb.dra.v1beta1 import api_pb2 as v1beta1
from dray.rpc.pb.dra_health.v1 import api_pb2 as health_v1
from dray.rpc.pb.dra_health.v1alpha1 import api_pb2 as health
from dray.rpc.pb.plugin_registration.v1 import api_pb2 as registration

DRA = {
    "Claim": {1: "namespace", 2: "uid", 3: "name"},
    "NodePrepareResourcesRequest": {1: "claims"},
    "NodePrepareResourcesResponse": {1: "claims"},
    "NodePrepareResourceResponse": {1: "devices", 2: "error"},
    "NodeUnprepareResourcesRequest": {1: "claims"},
    "NodeUnprepareResourcesResponse": {1: "claims"},
    "NodeUnprepareResourceResponse": {1: "error"},
}
DEVICE = {1: "request_names", 2: "pool_name", 3: "device_name", 4: "cdi_device_ids"}
HEALTH = {
    "NodeWatchResourcesRequest": {},
    "NodeWatchResourcesResponse": {1: "devices"},
    "DeviceIdentifier": {1: "pool_name", 2: "device_name"},
    "DeviceHealth": {
        1: "device",
        2: "health",
        3: "last_updated_time",
        4: "health_check_timeout_seconds",
        5: "message",
    },
}
MODULES: dict[str, tuple[Any, dict[str, dict[int, str]]]] = {
    "dra v1": (v1, {**DRA, "Device": {**DEVICE, 5: "share_id"}}),
    "dra v1beta1": (v1beta1, {**DRA, "Device": DEVICE}),
    "health v1": (health_v1, HEALTH),
    "health v1alpha1": (health, HEALTH),
    "registration": (
        registration,
        {
            "InfoRequest": {},
            "PluginInfo": {1: "type", 2: "name", 3: "endpoint", 4: "supported_versions"},
            "RegistrationStatus": {1: "plugin_registered", 2: "error"},
            "RegistrationStatusResponse": {},
        },
    ),
}


@pytest.mark.parametrize("name", MODULES)
def test_fields_have_their_numbers(name: str) -> None:
    module, messages = MODULES[name]
    found = {
        message: {field.number: field.name for field in descriptor.fields}
        for message, descriptor in module.DESCRIPTOR.message_types_by_name.items()
    }
    assert found == messages


@pytest.mark.parametrize(
    ("module", "methods"),
    [
        (
            v1,
            [
                "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin.NodePrepareResources",
                "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin.NodeUnprepareResources",
            ],
        ),
        (
            v1beta1,
            [
                "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin.NodePrepareResources",
                "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin.NodeUnprepareResources",
            ],
        ),
        (health_v1, ["v1.DRAResourceHealth.NodeWatchResources"]),
        (health, ["v1alpha1.DRAResourceHealth.NodeWatchResources"]),
        (
            registration,
            ["pluginregistration.Registration.GetInfo", "pluginregistration.Registration.NotifyRegistrationStatus"],
        ),
    ],
)
def test_methods_have_their_names(module: Any, methods: list[str]) -> None:
    (service,) = module.DESCRIPTOR.services_by_name.values()
    assert [method.full_name for method in service.methods] == methods


def test_types_that_matter_on_the_wire() -> None:
    fields = v1.NodePrepareResourcesResponse.DESCRIPTOR.fields_by_name
    entry = fields["claims"].message_type
    assert entry is not None
    assert entry.GetOptions().map_entry
    assert v1.Device.DESCRIPTOR.fields_by_name["share_id"].has_presence
    for name in ("last_updated_time", "health_check_timeout_seconds"):
        assert health.DeviceHealth.DESCRIPTOR.fields_by_name[name].type == FieldDescriptor.TYPE_INT64
    assert dict(health.HealthStatus.items()) == {"UNKNOWN": 0, "HEALTHY": 1, "UNHEALTHY": 2}
