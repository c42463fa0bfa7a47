"""Components that start before their API server wait for it, are not ready meanwhile, and say why."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.faults.health import component, restarted
from tests.servers import Server, running_server


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Server:
    """An API server that has ended."""
    with running_server(tmp_path_factory.mktemp("server"), command="apiserver") as server:
        return server


def test_components_wait_for_their_server_and_say_so(ended: Server, tmp_path: Path) -> None:
    folder, root, refused = ended.data_dir, tmp_path / "n", ended.url
    node_flags = ("node", "--port=0", "--runtime=process", f"--data-dir={folder}", f"--root-dir={root}")
    manager_flags = ("controller-manager", f"--kubeconfig={folder}/controller-manager.kubeconfig")
    with (
        component(tmp_path / "manager.log", "port", *manager_flags) as manager,
        component(tmp_path / "node.log", "healthz-port", *node_flags) as node,
    ):
        manager.until_check("informer-sync", "failed", refused)
        assert node.until_check("node-status", "failed", refused).startswith("[-]node-status failed: POST ")
        assert (manager.read("/livez"), node.read("/healthz")) == ((200, "ok"), (200, "ok"))
        assert not manager.has_announced
        assert not node.has_announced
        # Waiting does not delay the end.
        node.process.terminate()
        assert node.process.wait(10) == 0, node.log.read_text()
        with restarted(ended):
            manager.until("/readyz", lambda status, _: status == 200)
            assert manager.process.stdout is not None
            assert manager.process.stdout.readline().startswith("ready ")
