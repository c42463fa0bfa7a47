"""A replica of a snapshot settles, whatever the snapshot lacks."""

from __future__ import annotations

from datetime import UTC, datetime

from dray.api.features import FeatureGates
from dray.client.resources import REPLICA_SETS
from dray.scheduler.config import SchedulerConfig
from dray.sim.replica.cluster import Options, pass_time, running
from dray.sim.replica.virtual_time import run_virtually
from dray.sim.scheduler_profiles import profiles_of
from dray.sim.snapshot import Snapshot
from tests.unit.sim.cluster import node

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_deployment_without_defaults_has_one_replica_set() -> None:
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "team", "uid": "uid-web"},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }
    snapshot = Snapshot.of([node("node-a"), deployment])

    async def replica_sets() -> int:
        options = Options(FeatureGates(), SchedulerConfig(profiles=profiles_of(snapshot)))
        async with running(snapshot, NOW, options) as replica:
            await pass_time(30.0)
            return len((await replica.client.list(REPLICA_SETS)).items)

    assert run_virtually(replica_sets()) == 1
