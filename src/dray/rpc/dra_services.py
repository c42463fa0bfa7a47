"""Versions of the DRA driver API and types of plugins, for the node agent, the driver SDK and conformance checks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import grpc.aio

from dray.rpc.pb.dra.v1 import api_pb2 as v1
from dray.rpc.pb.dra.v1 import api_pb2_grpc as v1_grpc
from dray.rpc.pb.dra.v1beta1 import api_pb2 as v1beta1
from dray.rpc.pb.dra.v1beta1 import api_pb2_grpc as v1beta1_grpc
from dray.rpc.pb.dra_health.v1 import api_pb2 as health_v1
from dray.rpc.pb.dra_health.v1 import api_pb2_grpc as health_v1_grpc
from dray.rpc.pb.dra_health.v1alpha1 import api_pb2 as health_v1alpha1
from dray.rpc.pb.dra_health.v1alpha1 import api_pb2_grpc as health_v1alpha1_grpc

# The plugin type of DRA drivers in GetInfo, and the name of their gRPC service without its package.
DRA_PLUGIN: Final = "DRAPlugin"
# The other plugin types: device plugins, and drivers of the classic API, cdi.k8s.io.
DEVICE_PLUGIN: Final = "DevicePlugin"
RESOURCE_PLUGIN: Final = "ResourcePlugin"


@dataclass(frozen=True, slots=True)
class DRAService:
    """One version of the API: its generated messages, client stub and registration with a server."""

    messages: Any
    stub: Callable[[grpc.aio.Channel], Any]
    add_servicer: Callable[[Any, grpc.aio.Server], None]


# By the name in the supported_versions of GetInfo, in the order of preference. A new version is a row here;
# `dray.node.dra.driver_client` and `dray.driver.servicer` convert the messages.
DRA_SERVICES: Final[Mapping[str, DRAService]] = {
    "v1.DRAPlugin": DRAService(v1, v1_grpc.DRAPluginStub, v1_grpc.add_DRAPluginServicer_to_server),
    "v1beta1.DRAPlugin": DRAService(v1beta1, v1beta1_grpc.DRAPluginStub, v1beta1_grpc.add_DRAPluginServicer_to_server),
}

# Health services by their name in supported_versions, newest first; the messages of all versions have the same fields.
HEALTH_SERVICES: Final[Mapping[str, DRAService]] = {
    "v1.DRAResourceHealth": DRAService(
        health_v1, health_v1_grpc.DRAResourceHealthStub, health_v1_grpc.add_DRAResourceHealthServicer_to_server
    ),
    "v1alpha1.DRAResourceHealth": DRAService(
        health_v1alpha1,
        health_v1alpha1_grpc.DRAResourceHealthStub,
        health_v1alpha1_grpc.add_DRAResourceHealthServicer_to_server,
    ),
}


def choose_health_service(listed: Collection[str]) -> str | None:
    """Return the newest health service in a plugin's supported_versions; None if it has none."""
    return next((name for name in HEALTH_SERVICES if name in listed), None)
