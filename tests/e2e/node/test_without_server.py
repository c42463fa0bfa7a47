"""A node while its API server is away: what runs keeps its devices, and starts again with them."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.e2e.node.conftest import ACCOUNTS, end_shims
from tests.e2e.node.devices import held, plugin, until, until_amounts, with_foo
from tests.e2e.node.harness import Agent, Cluster, client_of, container_status, is_running
from tests.servers import running_server


@pytest.mark.behaviour("DP-64", "PR-23")
async def test_a_container_starts_again_with_its_device(tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("w")
    starts, end = root / "starts", root / "end"
    script = f"echo $FOO >> {starts}; while [ ! -e {end} ]; do sleep 0.05; done; rm {end}; exit 1"
    with running_server(root / "server", command="apiserver") as server:
        agent = Agent(server, root / "n", "alone", ("--runtime=process",))
        agent.start()
        client = client_of(server)
        cluster = Cluster(client, agent.name, "default")
        try:
            await client.create(ACCOUNTS, {"metadata": {"name": "default", "namespace": "default"}})
            with plugin(agent, "a", "b"):
                await until_amounts(cluster, 2, 2)
                await cluster.run("p", with_foo(script), restartPolicy="Always")
                await cluster.wait("p", is_running())
                server.kill()
                end.touch()
                await until(lambda: _lines(starts) == ["a", "a"], "the second start")
                assert await held(agent) == {"p": ["a"]}
                port = urlsplit(server.url).port or 0
                with running_server(server.data_dir, command="apiserver", port=port):
                    # The server learns what has happened meanwhile.
                    pod = await cluster.wait("p", lambda found: container_status(found)["restartCount"] == 1)
                    assert is_running()(pod)
                    assert await held(agent) == {"p": ["a"]}
        finally:
            await client.close()
            agent.stop()
            end_shims(agent)


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
