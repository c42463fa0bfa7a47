"""Removes everything that an agent has set up in the network of this machine."""

from __future__ import annotations

from pathlib import Path

from dray.node.network.bridge import BridgeNetwork
from dray.node.network.commands import missing_tools, run_step, run_steps
from dray.node.network.links import Routes, Step, parse_routes, remove_link, route_protocol
from dray.node.network.rule_writer import remove_rules
from dray.node.runtimes.runtime import RuntimeFailure


async def clean_up(root_dir: str) -> None:
    """Remove rules, routes, links and namespaces of the agent with this root folder; raises `RuntimeFailure`."""
    if missing := missing_tools():
        raise RuntimeFailure(f"needs {', '.join(missing)}")
    network = BridgeNetwork(_network_folder(root_dir))
    await remove_rules(network.agent)
    await network.keep_only(())
    protocol = route_protocol(network.agent)
    known = await run_step(Step(("ip", "route", "show", "proto", protocol)))
    await run_steps(Routes(protocol, {}).steps_from(Routes(protocol, parse_routes(known))))
    await run_step(remove_link(network.bridge))


def _network_folder(root_dir: str) -> Path:
    return Path(root_dir).resolve() / "network"
