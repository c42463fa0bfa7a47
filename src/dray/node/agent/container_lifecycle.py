"""Starts and stops containers, with their lifecycle hooks."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from dray.api.cdi import CdiError
from dray.api.types.core_v1 import Container
from dray.client.objects import key_of
from dray.node.agent.cpuset_reconciler import CpusetReconciler, RunningContainer
from dray.node.agent.dependencies import CONTAINER, EPHEMERAL_CONTAINER, INIT_CONTAINER, Dependencies
from dray.node.agent.pod.containers import ContainerKind
from dray.node.agent.pod.environment import ConfigError
from dray.node.agent.pod.events import (
    ContainerExited,
    ContainerStarted,
    Event,
    RecordEvent,
    StartContainer,
    StartFailed,
    StopContainer,
)
from dray.node.agent.pod.machine import CONFIG_ERROR, NORMAL, WARNING
from dray.node.agent.pod_manager import PodWorker
from dray.node.resource_manager import ResourceError, merge_options
from dray.node.runtimes.image_references import default_policy
from dray.node.runtimes.runtime import ImageFailure, ImageRequest, RuntimeFailure
from dray.runtime.logs import fields

_log = logging.getLogger(__name__)

# The events of kubelet for images that were not tried to pull.
_IMAGE_EVENTS: Final = {"ErrImageNeverPull": "ErrImageNeverPull", "InvalidImageName": "InspectFailed"}


class ContainerStarter:
    """Starts containers, and returns the result as an event for the `PodMachine`."""

    def __init__(
        self, dependencies: Dependencies, cpusets: CpusetReconciler, record: Callable[[PodWorker, RecordEvent], None]
    ) -> None:
        self._deps = dependencies
        self._cpusets = cpusets
        self._record = record

    async def start(self, worker: PodWorker, action: StartContainer) -> Event:
        """Start the container; every failure is retried."""
        state = worker.machine.containers.by_name[action.container]
        answer = await self._try(worker, action, state.spec)
        if self._deps.start_metrics is not None:
            self._deps.start_metrics.observe(_METRIC_KINDS[state.kind], _failure(answer))
        return answer

    async def _try(self, worker: PodWorker, action: StartContainer, container: Container) -> Event:
        try:
            return await self._run(worker, container, action.attempt)
        except ImageFailure as error:
            return StartFailed(action.container, error.reason, str(error), _IMAGE_EVENTS.get(error.reason, "Failed"))
        except ConfigError as error:
            self._record(worker, RecordEvent(WARNING, "Failed", f"Error: {error}", action.container))
            return StartFailed(action.container, CONFIG_ERROR, str(error), "")
        except ResourceError as error:
            text = f"Error: {error.message}" if error.reason == "Failed" else error.message
            self._record(worker, RecordEvent(WARNING, error.reason, text, action.container))
            return StartFailed(action.container, CONFIG_ERROR, error.message, "")
        except Exception as error:  # noqa: BLE001 - whatever the failure, the start is retried
            if not isinstance(error, RuntimeFailure | CdiError | OSError):
                _log.exception(
                    "container not started", extra=fields(pod=str(key_of(worker.pod)), container=action.container)
                )
            self._record(worker, RecordEvent(WARNING, "Failed", f"Error: {error}", action.container))
            return StartFailed(action.container, "CreateContainerError", str(error), "")

    async def _run(self, worker: PodWorker, container: Container, attempt: int) -> Event:
        deps, pod = self._deps, worker.pod
        await deps.runtime.ensure_image(await self._image_request(worker, container))
        is_ephemeral = worker.machine.containers.by_name[container.name].kind is ContainerKind.EPHEMERAL
        # An ephemeral container has no resources of its own.
        managers = () if is_ephemeral else deps.managers
        options = merge_options([manager.container_options(pod, container.name) for manager in managers])
        spec = await deps.pod_setup.container(pod, container, attempt, options, worker.machine.addresses)
        for manager in managers:
            await manager.pre_start(pod, container.name)
        cpus, nodes = ("", "") if is_ephemeral else self._cpusets.lookup(pod, container.name)
        spec = replace(spec, limits=replace(spec.limits, cpus=cpus, memory_nodes=nodes))
        if is_ephemeral:
            spec = replace(spec, target_id=_target_id(worker, container.name))
        started = await deps.runtime.run(spec)
        for reason, message in spec.notices:
            self._record(worker, RecordEvent(WARNING, reason, message))
        self._record(worker, RecordEvent(NORMAL, "Created", "Container created", container.name))
        if started.record.exit is not None:
            self._record(
                worker, RecordEvent(WARNING, "Failed", f"Error: {started.record.exit.message}", container.name)
            )
            return ContainerExited(started.record)
        if is_ephemeral:
            return ContainerStarted(started.record, started.warnings)
        self._cpusets.started(started.record.id, cpus)
        # Exclusive CPUs may have been assigned in the meantime.
        await self._cpusets.reconcile([RunningContainer(pod, container.name, started.record.id)])
        return ContainerStarted(started.record, started.warnings)

    async def _image_request(self, worker: PodWorker, container: Container) -> ImageRequest:
        deps, pod = self._deps, worker.pod
        credentials, missing = await deps.pod_setup.image_credentials(pod)
        if missing:
            text = (
                f"Unable to retrieve some image pull secrets ({', '.join(missing)}); attempting to pull the image may "
                "not succeed."
            )
            self._record(worker, RecordEvent(WARNING, "FailedToRetrieveImagePullSecret", text))
        image = container.image or ""
        return ImageRequest(
            image,
            container.image_pull_policy or default_policy(image),
            deps.pod_setup.sandbox(pod),
            credentials,
            lambda reason, message: self._record(worker, RecordEvent(NORMAL, reason, message, container.name)),
        )


_METRIC_KINDS: Final = {
    ContainerKind.REGULAR: CONTAINER,
    ContainerKind.INIT: INIT_CONTAINER,
    ContainerKind.SIDECAR: INIT_CONTAINER,
    ContainerKind.EPHEMERAL: EPHEMERAL_CONTAINER,
}


def _target_id(worker: PodWorker, name: str) -> str:
    """Return the ID of the running container whose processes an ephemeral container sees; empty if it names none."""
    found = (item.target_container_name for item in worker.pod.spec.ephemeral_containers if item.name == name)
    target = next(found, None)
    if not target:
        return ""
    state = worker.machine.containers.by_name.get(target)
    if state is None or state.current is None or state.current.exit is not None:
        raise ConfigError(f'target container "{target}" is not running')
    return state.current.id


def _failure(answer: Event) -> str:
    """Return the reason in the container's status; empty if it runs."""
    if isinstance(answer, StartFailed):
        return answer.reason
    return "RunContainerError" if isinstance(answer, ContainerExited) else ""


# kubelet's minimum grace period after a long preStop hook.
GRACE_AFTER_HOOK_SECONDS: Final = 2.0
# A postStart hook may take long.
POST_START_SECONDS_MAX: Final = 600.0
STOP_RETRY_SECONDS: Final = 2.0


class ContainerStopper:
    """Stops containers and runs hooks; `address` returns the address of a Pod's containers."""

    def __init__(
        self,
        dependencies: Dependencies,
        address: Callable[[PodWorker], str],
        record: Callable[[PodWorker, RecordEvent], None],
    ) -> None:
        self._deps = dependencies
        self._clock = dependencies.clock
        self._address = address
        self._record = record

    async def post_start(self, worker: PodWorker, container: str, container_id: str) -> str:
        """Run the postStart hook; return its failure, or an empty text."""
        return await self._hook(worker, container, container_id, "post_start", POST_START_SECONDS_MAX)

    async def stop(self, worker: PodWorker, action: StopContainer) -> None:
        """Run the preStop hook and stop the container; retry until it has exited."""
        begun = self._clock.monotonic()
        has_time = action.hook and action.grace_seconds > 0
        if has_time:
            failure = await self._hook(worker, action.container, action.container_id, "pre_stop", action.grace_seconds)
            if failure:
                text = f"PreStopHook failed: {failure}"
                self._record(worker, RecordEvent(WARNING, "FailedPreStopHook", text, action.container))
        left = action.grace_seconds - (self._clock.monotonic() - begun)
        if has_time:
            left = max(left, min(GRACE_AFTER_HOOK_SECONDS, action.grace_seconds))
        ends = self._clock.monotonic() + left
        while not await self._try(worker, action, ends - self._clock.monotonic()):
            await self._clock.sleep(STOP_RETRY_SECONDS)

    async def _try(self, worker: PodWorker, action: StopContainer, grace_seconds: float) -> bool:
        """Stop the container; return whether it has exited."""
        try:
            await self._deps.runtime.stop_container(action.container_id, max(grace_seconds, 0.0))
        except Exception as error:  # noqa: BLE001 - whatever the failure, the stop is retried
            if not isinstance(error, RuntimeFailure | OSError):
                _log.exception(
                    "container not stopped", extra=fields(pod=str(key_of(worker.pod)), container=action.container)
                )
            self._record(worker, RecordEvent(WARNING, "FailedKillPod", f"error killing pod: {error}", action.container))
            return False
        return True

    async def _hook(self, worker: PodWorker, name: str, container_id: str, which: str, seconds: float) -> str:
        container = worker.machine.containers.by_name[name].spec
        hook = getattr(container.lifecycle, which) if container.lifecycle is not None else None
        if hook is None:
            return ""
        if hook.sleep is not None:
            await self._clock.sleep(min(float(hook.sleep.seconds), seconds))
            return ""
        answer = await self._deps.prober.probe(hook, container, container_id, self._address(worker), seconds)
        return "" if answer.healthy else answer.text or "the hook failed"
