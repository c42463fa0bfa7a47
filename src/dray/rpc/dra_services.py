"""The supported versions of the DRA driver API, for the node agent, the driver SDK and the conformance checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import grpc.aio

from dray.rpc.pb.dra.v1 import api_pb2 as v1
from dray.rpc.pb.dra.v1 import api_pb2_grpc as v1_grpc
from dray.rpc.pb.dra.v1beta1 import api_pb2 as v1beta1
from dray.rpc.pb.dra.v1beta1 import api_pb2_grpc as v1beta1_grpc

# The plugin type of DRA drivers in GetInfo, and the name of their gRPC service without its package.
DRA_PLUGIN: Final = "DRAPlugin"
HEALTH: Final = "v1alpha1.DRAResourceHealth"


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
