"""Binds Pods to nodes.

A binding whose response was lost may still be executed, when the Pod's claims and its place on the node have long been
given to others. So every binding is conditional on the Pod's version, and none is reported as failed before it cannot
succeed any more: it is repeated a few times, then the Pod is written, which changes its version.

A Pod of a group is then bound all the same: others of its gang may be bound already, and would hold devices in vain
without it. It gives up only if the server refuses the binding, or the Pod is gone.
"""

from __future__ import annotations

import logging
from functools import cached_property
from typing import Final

import msgspec

from dray.api.document import Document
from dray.api.errors import APIError, ConflictError, is_not_executed, is_refusal
from dray.api.timestamps import format_time
from dray.api.types.core_v1 import Pod
from dray.client.errors import ignore_not_found
from dray.client.indexer import Lister
from dray.client.interface import Patch, PatchType, WriteOptions
from dray.client.objects import key_of
from dray.client.resources import PODS
from dray.framework.cycle_state import CycleState
from dray.framework.status import SUCCESS, Status, error
from dray.runtime.logs import fields
from dray.scheduler.cluster_events import UNFINISHED
from dray.scheduler.handle import Handle

_log = logging.getLogger(__name__)

# client-go's RetryOnConflict: five attempts, 10 ms apart.
ATTEMPTS_MAX: Final = 5
RETRY_SECONDS: Final = 0.01
# The interval of retries while the server does not respond.
SETTLE_SECONDS: Final = 1.0

_BINDING: Final = "binding"
_STATUS: Final = WriteOptions(subresource="status")


class _Binding(msgspec.Struct):
    """A Pod that is being bound."""

    pod: Pod
    node_name: str
    # On which the next request is conditional.
    version: str
    # On which a request with unknown result is conditional; empty if there is none.
    doubt: str = ""
    # Whether a request had an unknown result; if not, whoever bound the Pod was somebody else.
    unanswered: bool = False
    failure: APIError | None = None
    # Whether the Pod is gone, going, or has a node.
    ended: bool = False


class DefaultBinder:
    """Binds through the Pod's `binding` subresource, with uid and version as preconditions."""

    name = "DefaultBinder"

    def __init__(self, handle: Handle) -> None:
        self._client = handle.client
        self._clock = handle.clock
        self._informers = handle.informers

    @cached_property
    def _pods(self) -> Lister[Pod]:
        """The Pods of the scheduler, whose informer exists when a Pod is bound."""
        return self._informers.informer(PODS, UNFINISHED).lister

    async def bind(self, state: CycleState, pod: Pod, node_name: str) -> Status:
        """Write the binding; a failure is certain. The API rejects a Pod that already has a node."""
        binding = _Binding(pod, node_name, state.pod_version or self._latest_version(pod))
        while True:
            status = await self._try(binding, state)
            if status is SUCCESS or state.group is None or not _may_be_repeated(binding, state):
                return status
            await self._clock.sleep(SETTLE_SECONDS)

    async def _try(self, binding: _Binding, state: CycleState) -> Status:
        pod = binding.pod
        for attempt in range(ATTEMPTS_MAX):
            try:
                if attempt:
                    await self._clock.sleep(RETRY_SECONDS)
                    live = await self._live(pod)
                    if live is None or not _can_be_bound(live):
                        return _outcome(binding, live)
                    if not self._use_version(binding, live, state.pod_version):
                        break
                await self._write(binding)
            except APIError as failure:
                binding.failure = failure
                if is_refusal(failure) and not isinstance(failure, ConflictError):
                    break
            else:
                return SUCCESS
        return await self._settle(binding) if binding.doubt else _failed(binding)

    def _latest_version(self, pod: Pod) -> str:
        """Return the observed version: conditions written since the attempt began change nothing in the decision."""
        observed = self._pods.get_key(key_of(pod))
        same = observed is not None and observed.metadata.uid == pod.metadata.uid
        return (observed if same and observed is not None else pod).metadata.resource_version or ""

    def _use_version(self, binding: _Binding, live: Pod, required: str) -> bool:
        """Make the next request conditional on the version read; False if the Pod must have another one."""
        binding.version = live.metadata.resource_version or ""
        if binding.version != binding.doubt:
            binding.doubt = ""
        return not required or binding.version == required

    async def _write(self, binding: _Binding) -> None:
        metadata = binding.pod.metadata
        namespace, name = metadata.namespace or "", metadata.name or ""
        body: Document = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace, "uid": metadata.uid},
            "target": {"kind": "Node", "name": binding.node_name},
        }
        if binding.version:
            body["metadata"]["resourceVersion"] = binding.version
        try:
            await self._client.create_subresource(PODS, name, namespace, _BINDING, body)
        except APIError as failure:
            if not is_not_executed(failure):
                binding.doubt, binding.unanswered = binding.version, True
            raise

    # --- Unknown results. ---

    async def _settle(self, binding: _Binding) -> Status:
        """Determine the result of the binding, and make sure that it cannot succeed later; retry without a limit."""
        while True:
            try:
                live = await self._live(binding.pod)
                if live is None or not _can_be_bound(live):
                    return _outcome(binding, live)
                if live.metadata.resource_version == binding.doubt:
                    live = await self._change_version(binding, live)
                if live.metadata.resource_version != binding.doubt:
                    binding.version, binding.doubt = live.metadata.resource_version or "", ""
                    return _failed(binding)
            except ConflictError:
                continue
            except APIError as failure:
                _log.info("binding not settled", extra=fields(pod=str(key_of(binding.pod)), error=str(failure)))
            await self._clock.sleep(SETTLE_SECONDS)

    async def _change_version(self, binding: _Binding, live: Pod) -> Pod:
        """Write the condition with the time: the one field that says that the scheduler looked at the Pod."""
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "lastProbeTime": format_time(self._clock.now()),
            "reason": "SchedulerError",
            "message": str(binding.failure),
        }
        body: Document = {
            "metadata": {"uid": live.metadata.uid, "resourceVersion": live.metadata.resource_version},
            "status": {"conditions": [condition]},
        }
        name, namespace = live.metadata.name or "", live.metadata.namespace or ""
        return await self._client.patch(PODS, name, namespace, Patch(PatchType.STRATEGIC, body), _STATUS)

    async def _live(self, pod: Pod) -> Pod | None:
        live = await ignore_not_found(self._client.get(PODS, pod.metadata.name or "", pod.metadata.namespace or ""))
        return live if live is not None and live.metadata.uid == pod.metadata.uid else None


def _can_be_bound(live: Pod) -> bool:
    return not live.spec.node_name and live.metadata.deletion_timestamp is None


def _outcome(binding: _Binding, live: Pod | None) -> Status:
    """Return Success if the Pod has the node: a binding without a response was executed."""
    binding.ended = True
    executed = live is not None and live.spec.node_name == binding.node_name and binding.unanswered
    return SUCCESS if executed else _failed(binding)


def _may_be_repeated(binding: _Binding, state: CycleState) -> bool:
    """Return whether the server has not answered, and the Pod is as the binding requires it."""
    if binding.ended or binding.failure is None or is_refusal(binding.failure):
        return False
    return not state.pod_version or binding.version == state.pod_version


def _failed(binding: _Binding) -> Status:
    return error(str(binding.failure))
