"""Binds Pods to nodes."""

from __future__ import annotations

from typing import Final

from dray.api.document import Document
from dray.api.errors import APIError
from dray.api.types.core_v1 import Pod
from dray.client.resources import PODS
from dray.framework.cycle_state import CycleState
from dray.framework.status import SUCCESS, Status, error
from dray.scheduler.handle import Handle

_BINDING: Final = "binding"


class DefaultBinder:
    """Binds through the Pod's `binding` subresource, with the uid as a precondition."""

    name = "DefaultBinder"

    def __init__(self, handle: Handle) -> None:
        self._client = handle.client

    async def bind(self, state: CycleState, pod: Pod, node_name: str) -> Status:
        """Write the binding; the API rejects a Pod that already has a node."""
        metadata = pod.metadata
        namespace, name = metadata.namespace or "", metadata.name or ""
        body: Document = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace, "uid": metadata.uid},
            "target": {"kind": "Node", "name": node_name},
        }
        if state.pod_version:
            body["metadata"]["resourceVersion"] = state.pod_version
        try:
            await self._client.create_subresource(PODS, name, namespace, _BINDING, body)
        except APIError as failure:
            return error(str(failure))
        return SUCCESS
