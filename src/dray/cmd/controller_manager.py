"""`dray controller-manager`: the controllers alone, as clients of any Kubernetes API server."""

from __future__ import annotations

import asyncio
from pathlib import Path

from dray.client.kubeconfig import Access
from dray.cmd.component import Surroundings, run_component
from dray.cmd.controllers import spawn_controllers
from dray.cmd.settings import ControllerManagerSettings
from dray.runtime.tasks import TaskGroup


async def run(settings: ControllerManagerSettings, stop: asyncio.Event) -> None:
    """Run the controllers, while leading if asked to, until told to stop."""

    def spawn(group: TaskGroup, around: Surroundings) -> None:
        spawn_controllers(
            group,
            around.client,
            around.clock,
            around.metrics,
            root_ca=_root_ca(around.access),
            gates=around.gates,
            nodes=settings,
        )

    await run_component("kube-controller-manager", settings, stop, spawn)


def _root_ca(access: Access) -> str:
    if access.authority_data:
        return access.authority_data.decode()
    return Path(access.authority_file).read_text(encoding="utf-8") if access.authority_file else ""
