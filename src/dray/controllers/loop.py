"""What the hands of controllers have in common: telling while they work, and taking for an answer what is gone."""

from __future__ import annotations

from typing import Any

from dray.client.controller import Controller
from dray.client.event_recorder import EventRecorder
from dray.runtime.tasks import TaskGroup


async def run_telling(controller: Controller[Any], recorder: EventRecorder) -> None:
    """Run the controller until cancelled, and beside it the recorder of what it tells."""
    async with TaskGroup(controller.name) as group:
        group.spawn(recorder.run(), f"events of {controller.name}")
        await controller.run()
