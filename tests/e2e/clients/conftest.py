"""What the client library tests share: small bodies of the device kinds, and a namespace of one's own."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from tests.servers import Server


@pytest.fixture
def namespace(server: Server, namespace_name: str) -> Iterator[str]:
    """A namespace made by kubectl, so that the library under test is not what sets the test up."""
    subprocess.run(
        ["kubectl", "create", "namespace", namespace_name], env=server.environment, check=True, capture_output=True
    )
    yield namespace_name
    subprocess.run(
        ["kubectl", "delete", "namespace", namespace_name, "--wait=false"],
        env=server.environment,
        check=True,
        capture_output=True,
    )
