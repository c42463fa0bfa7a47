"""Starts one container: its image, its devices, its environment, and the runtime."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from dray.api.cdi import CdiError
from dray.api.types.core_v1 import Container
from dray.client.objects import key_of
from dray.node.agent.metrics import CONTAINER, INIT_CONTAINER
from dray.node.agent.parts import Parts, PodWork
from dray.node.agent.pinning.loop import Pins, Running
from dray.node.agent.pod.environment import ConfigError
from dray.node.agent.pod.events import ContainerExited, ContainerStarted, Event, StartContainer, StartFailed, Tell
from dray.node.agent.pod.machine import NORMAL, WARNING
from dray.node.agent.pod.slots import Kind
from dray.node.interface import ResourceError, merge_options
from dray.node.runtimes.interface import ImageFailure, RuntimeFailure
from dray.runtime.logs import fields

_log = logging.getLogger(__name__)


class Starter:
    """Starts containers; says how that went as an event for the Pod's machine."""

    def __init__(self, parts: Parts, pins: Pins, tell: Callable[[PodWork, Tell], None]) -> None:
        self._parts = parts
        self._pins = pins
        self._tell = tell

    async def start(self, work: PodWork, action: StartContainer) -> Event:
        """Start the container; whatever is in the way, it is tried again."""
        slot = work.machine.slots.by_name[action.container]
        answer = await self._try(work, action, slot.spec)
        if self._parts.starts is not None:
            kind = CONTAINER if slot.kind is Kind.REGULAR else INIT_CONTAINER
            self._parts.starts.tried(kind, _failure(answer))
        return answer

    async def _try(self, work: PodWork, action: StartContainer, container: Container) -> Event:
        try:
            return await self._run(work, container, action.attempt)
        except ImageFailure as error:
            return StartFailed(action.container, error.reason, str(error))
        except ConfigError as error:
            self._tell(work, Tell(WARNING, "Failed", f"Error: {error}", action.container))
            return StartFailed(action.container, "CreateContainerConfigError", str(error), "")
        except ResourceError as error:
            return StartFailed(action.container, "CreateContainerConfigError", error.message, error.reason)
        except Exception as error:  # noqa: BLE001 - the outer edge: whatever it is, the container is tried again
            if not isinstance(error, RuntimeFailure | CdiError | OSError):
                _log.exception("start", extra=fields(pod=str(key_of(work.pod)), container=action.container))
            self._tell(work, Tell(WARNING, "Failed", f"Error: {error}", action.container))
            return StartFailed(action.container, "CreateContainerError", str(error), "")

    async def _run(self, work: PodWork, container: Container, attempt: int) -> Event:
        parts, pod = self._parts, work.pod
        image = await parts.runtime.ensure_image(
            container.image or "", container.image_pull_policy or "IfNotPresent", parts.builder.sandbox(pod)
        )
        if image.id:
            text = f'Container image "{container.image}" already present on machine and can be accessed by the pod'
            self._tell(work, Tell(NORMAL, "Pulled", text, container.name))
        options = merge_options([manager.container_options(pod, container.name) for manager in parts.managers])
        spec = await parts.builder.container(pod, container, attempt, options, work.machine.addresses)
        for manager in parts.managers:
            await manager.pre_start(pod, container.name)
        cpus, nodes = self._pins.of(pod, container.name)
        spec = replace(spec, limits=replace(spec.limits, cpus=cpus, memory_nodes=nodes))
        started = await parts.runtime.run(spec)
        self._tell(work, Tell(NORMAL, "Created", "Container created", container.name))
        if started.record.exit is not None:
            self._tell(work, Tell(WARNING, "Failed", f"Error: {started.record.exit.message}", container.name))
            return ContainerExited(started.record)
        self._pins.started(started.record.id, cpus)
        # Someone may have been given CPUs while it started.
        await self._pins.follow([Running(pod, container.name, started.record.id)])
        return ContainerStarted(started.record, started.warnings)


def _failure(answer: Event) -> str:
    """Why a container does not run, in the words of its status; empty when it does."""
    if isinstance(answer, StartFailed):
        return answer.reason
    return "RunContainerError" if isinstance(answer, ContainerExited) else ""
