"""The classic node service. It translates and nothing else."""

from __future__ import annotations

from typing import Any

import grpc

from dray.api.document import UID, NamespacedName
from dray.driver.classic.node_preparer import cdi_devices
from dray.driver.prepared.preparer import ClaimRef, Outcome, Preparer
from dray.rpc.pb.classic_dra.v1alpha1 import api_pb2 as pb
from dray.rpc.pb.classic_dra.v1alpha1.api_pb2_grpc import NodeServicer


class ClassicNode(NodeServicer):  # type: ignore[misc]
    """`v1alpha1.Node`."""

    def __init__(self, preparer: Preparer) -> None:
        self._preparer = preparer

    async def NodePrepareResource(self, request: Any, context: Any) -> pb.NodePrepareResourceResponse:
        """The CDI devices of the claim."""
        ref = _ref(request.resource_uid)
        outcome = (await self._preparer.prepare([ref]))[ref.uid]
        await _check(outcome, context)
        return pb.NodePrepareResourceResponse(cdi_device=cdi_devices(outcome.devices))

    async def NodeUnprepareResource(self, request: Any, context: Any) -> pb.NodeUnprepareResourceResponse:
        """Undone, also when there was nothing to undo."""
        ref = _ref(request.resource_id)
        await _check((await self._preparer.unprepare([ref]))[ref.uid], context)
        return pb.NodeUnprepareResourceResponse()


def _ref(uid: str) -> ClaimRef:
    # Which claim has the UID is found out later.
    return ClaimRef(UID(uid), NamespacedName("", uid))


async def _check(outcome: Outcome, context: Any) -> None:
    if outcome.error:
        code = grpc.StatusCode.NOT_FOUND if outcome.missing else grpc.StatusCode.UNKNOWN
        await context.abort(code, outcome.error)
