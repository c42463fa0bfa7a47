"""What a Node says about the way to Services."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from dray.client.shared_informers import SharedInformerFactory
from dray.node.network import rule_writer
from dray.node.network.pod_network import RoutedNetwork
from dray.node.network.service_network import CONDITION, NetworkParts, ServiceNetwork
from dray.node.runtimes.runtime import RuntimeFailure
from dray.runtime.system import SystemClock
from dray.runtime.tasks import ChildTasks


@pytest.mark.behaviour("SV-45")
async def test_the_condition_says_why_services_are_not_reached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    client: Any = None
    clock = SystemClock()
    informers = SharedInformerFactory(client, clock, random.Random(1))
    own = RoutedNetwork(tmp_path / "network", tmp_path / "net.d")
    network = ServiceNetwork(NetworkParts(client, informers, clock, ChildTasks("test"), "n", ("192.0.2.1", 6443), own))
    reported: list[tuple[str, ...]] = []
    network.on_condition = lambda: reported.append(network.condition())
    assert network.condition()[:2] == (CONDITION, "False")
    network._note(None)
    assert network.condition()[3] == "the rules have not been written yet"

    async def fail(_state: object) -> None:
        raise RuntimeFailure("iptables-restore: no")

    async def succeed(_state: object) -> None:
        pass

    monkeypatch.setattr(rule_writer, "write_rules", fail)
    await network.writer._write()
    assert network.condition() == (CONDITION, "False", "RulesNotWritten", "iptables-restore: no")
    monkeypatch.setattr(rule_writer, "write_rules", succeed)
    await network.writer._write()
    assert network.is_in_force
    assert network.condition()[1:3] == ("True", "RulesWritten")
    assert [item[1] for item in reported] == ["False", "False", "True"]
