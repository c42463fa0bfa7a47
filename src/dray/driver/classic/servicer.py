"""gRPC service of a classic node plugin. It only translates."""

from __future__ import annotations

from typing import Any

import grpc

from dray.api.document import UID, NamespacedName
from dray.driver.classic.node_preparer import NodePluginPreparer, cdi_devices
from dray.driver.prepared.preparer import ClaimRef, Outcome
from dray.rpc.pb.classic_dra.v1alpha1 import api_pb2 as pb
from dray.rpc.pb.classic_dra.v1alpha1.api_pb2_grpc import NodeServicer


class ClassicNode(NodeServicer):  # type: ignore[misc]
    """`v1alpha1.Node`."""

    def __init__(self, preparer: NodePluginPreparer) -> None:
        self._preparer = preparer

    async def NodePrepareResource(self, request: Any, context: Any) -> pb.NodePrepareResourceResponse:
        """Prepare the claim and return its CDI devices."""
        ref = _ref(request.resource_uid)
        outcome = (await self._preparer.prepare([ref]))[ref.uid]
        await _check(outcome, context)
        return pb.NodePrepareResourceResponse(cdi_device=cdi_devices(outcome.devices))

    async def NodeUnprepareResource(self, request: Any, context: Any) -> pb.NodeUnprepareResourceResponse:
        """Unprepare the claim; an unknown one is unprepared already."""
        ref = _ref(request.resource_id)
        await _check((await self._preparer.unprepare([ref]))[ref.uid], context)
        return pb.NodeUnprepareResourceResponse()


def _ref(uid: str) -> ClaimRef:
    # The preparer looks up the claim by uid; its name is unknown here.
    return ClaimRef(UID(uid), NamespacedName("", uid))


async def _check(outcome: Outcome, context: Any) -> None:
    if outcome.error:
        code = grpc.StatusCode.NOT_FOUND if outcome.missing else grpc.StatusCode.UNKNOWN
        await context.abort(code, outcome.error)
