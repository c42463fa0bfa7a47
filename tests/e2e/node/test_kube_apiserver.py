"""The node agent behind a real kube-apiserver, whose binary `KUBE_APISERVER` names: logs, streams and the node's proxy.

The tests of streams are those that run with Dray's own API server.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.e2e.kubectl.tool import Kubectl
from tests.e2e.node import test_streams as streams
from tests.e2e.node.conftest import BOTH
from tests.e2e.node.harness import Cluster, is_running, shell
from tests.kube_apiserver import needs_kube_apiserver, running_kube_apiserver
from tests.servers import Server

RUNTIMES = BOTH
pytestmark = needs_kube_apiserver

protocol = streams.protocol
tool = streams.tool
test_output_input_and_exit_codes = streams.test_output_input_and_exit_codes
test_terminals = streams.test_a_terminal_has_the_clients_size_and_hangs_up_with_it
test_a_client_that_vanishes_leaves_no_process = streams.test_a_client_that_vanishes_leaves_no_process
test_a_command_ends_with_its_container = streams.test_a_command_ends_with_its_container
test_files_are_copied_both_ways_unharmed = streams.test_files_are_copied_both_ways_unharmed
test_attached_clients_see_output_from_now_on = streams.test_attached_clients_see_output_from_now_on
test_run_with_standard_input = streams.test_run_with_standard_input
test_ports_are_forwarded = streams.test_ports_are_forwarded
test_refusals = streams.test_refusals


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_kube_apiserver(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="module")
def flags() -> tuple[str, ...]:
    # kube-apiserver asks the node at its address.
    return ("--address=127.0.0.1", "--node-ip=127.0.0.1")


@pytest.mark.behaviour("EX-06", "EX-49")
async def test_logs_and_the_proxy_of_the_node(cluster: Cluster, kubectl: Kubectl) -> None:
    await cluster.run("p", shell("a", "echo one; echo two; sleep 1000"))
    await cluster.wait("p", is_running())
    await cluster.until(lambda: kubectl("logs", "p") == "one\ntwo\n")
    assert kubectl("logs", "p", "--tail=1") == "two\n"
    proxy = f"/api/v1/nodes/{cluster.node}/proxy"
    assert kubectl("get", "--raw", f"{proxy}/healthz") == "ok"
    assert json.loads(kubectl("get", "--raw", f"{proxy}/stats/summary"))["node"]["nodeName"] == cluster.node
    node = json.loads(kubectl("get", "node", cluster.node, "-o", "json"))
    assert {"type": "Ready", "status": "True"}.items() <= node["status"]["conditions"][-1].items()
