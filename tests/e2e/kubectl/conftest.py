"""Real kubectl: each test has its own namespace on the server of its module."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.kubectl.tool import Kubectl, as_text, create_namespace, kubectl_path, kubectl_version
from tests.servers import Server

_shown = pytest.StashKey[bool]()


def _used() -> str:
    major, minor = kubectl_version()
    return f"kubectl: {kubectl_path()} {major}.{minor}"


def pytest_report_header(config: pytest.Config) -> str:
    config.stash[_shown] = True
    return _used()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    # The header is written before this file is read, unless the run was started for this directory.
    if not config.stash.get(_shown, False):
        terminalreporter.write_line(_used())


@pytest.fixture
def kubectl(server: Server, namespace_name: str) -> Kubectl:
    """kubectl as an administrator, in a new namespace."""
    create_namespace(server.url, namespace_name)
    return Kubectl(server.environment, namespace_name)


@pytest.fixture
def bare_config(server: Server, tmp_path: Path) -> Path:
    """A kubeconfig without a user; add `--token`."""
    path = tmp_path / "bare-kubeconfig"
    cluster = {"server": server.url, "insecure-skip-tls-verify": True}
    path.write_text(
        as_text(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "it", "cluster": cluster}],
                "users": [{"name": "nobody", "user": {}}],
                "contexts": [{"name": "it", "context": {"cluster": "it", "user": "nobody"}}],
                "current-context": "it",
            }
        )
    )
    return path


@pytest.fixture
def as_alice(kubectl: Kubectl, bare_config: Path) -> Kubectl:
    """kubectl as a user without permissions."""
    return kubectl.with_flags(f"--kubeconfig={bare_config}", "--token=alice-token")
