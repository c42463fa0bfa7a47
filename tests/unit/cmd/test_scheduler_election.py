"""Flags of the leader election win over the configuration, as with kube-scheduler, if they are given."""

from __future__ import annotations

import pytest

from dray.cmd.scheduler import _election
from dray.cmd.settings import SchedulerSettings
from dray.runtime.settings import load
from dray.scheduler.config import LeaderElectionConfig, SchedulerConfig

OFF = SchedulerConfig(leader_election=LeaderElectionConfig(enabled=False))
OWN = SchedulerConfig(leader_election=LeaderElectionConfig(namespace="ns", name="own", lease_seconds=30.0))


@pytest.mark.parametrize(
    ("config", "flags", "expected"),
    [
        (SchedulerConfig(), [], True),
        (SchedulerConfig(), ["--leader-elect=false"], False),
        (OFF, [], False),
        (OFF, ["--leader-elect=true"], True),
        (OFF, ["--leader-elect"], True),
        (OFF, ["--leader-elect=false"], False),
    ],
)
def test_the_flag_wins_when_it_is_given(config: SchedulerConfig, flags: list[str], *, expected: bool) -> None:
    assert (_election(config, load(SchedulerSettings, flags, {})) is not None) == expected


def test_flags_override_single_fields() -> None:
    found = _election(OWN, load(SchedulerSettings, ["--leader-elect-resource-name=other"], {}))
    assert found is not None
    assert (str(found.lease), found.timing.lease_seconds) == ("ns/other", 30.0)
