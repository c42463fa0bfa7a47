"""`dray controller-manager`: the controllers as a client of any Kubernetes API server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from dray.api.document import NamespacedName
from dray.client.kubeconfig import Access
from dray.client.shared_informers import SharedInformerFactory
from dray.cmd.component import Dependencies, Election, run_component
from dray.cmd.controllers import spawn_controllers
from dray.cmd.settings import ControllerManagerSettings
from dray.runtime.tasks import TaskGroup

_NAME: Final = "kube-controller-manager"


async def run(settings: ControllerManagerSettings, stop: asyncio.Event) -> None:
    """Run the controllers, with leader election if enabled, until stopped."""

    def spawn(group: TaskGroup, dependencies: Dependencies) -> SharedInformerFactory:
        return spawn_controllers(
            group,
            dependencies.client,
            dependencies.clock,
            dependencies.metrics,
            root_ca=_root_ca(dependencies.access),
            gates=dependencies.gates,
            nodes=settings,
        )

    election = Election(NamespacedName("kube-system", _NAME)) if settings.leader_elect else None
    await run_component(_NAME, settings, stop, spawn, election=election)


def _root_ca(access: Access) -> str:
    if access.authority_data:
        return access.authority_data.decode()
    return Path(access.authority_file).read_text(encoding="utf-8") if access.authority_file else ""
