"""`kubectl delete node` under a running agent and driver: both come back, and so do the devices."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.driver.cluster import short_folder
from tests.e2e.kubectl.tool import Kubectl, needs_kubectl
from tests.e2e.node.test_up_with_driver import driver_of
from tests.servers import running_server

pytestmark = needs_kubectl(31)

SECONDS_MAX = 120.0
LOOK_SECONDS = 0.7


def eventually(read: Callable[[], Any]) -> Any:
    """What is read as soon as it is true."""
    deadline = time.monotonic() + SECONDS_MAX
    while not (found := read()):
        assert time.monotonic() < deadline
        time.sleep(LOOK_SECONDS)
    return found


@pytest.mark.behaviour("SP-139")
def test_the_devices_of_a_deleted_node_come_back_and_stay() -> None:
    with short_folder() as folder:
        flags = (f"--node-root-dir={folder}", "--node-runtime=process", f"--node-cdi-spec-dirs={folder / 'cdi'}")
        with running_server(folder / "state", "--node", *flags) as server, driver_of(server, folder):
            kubectl = Kubectl(server.environment, "default")

            def owners() -> set[str]:
                items = json.loads(kubectl("get", "resourceslices", "-o", "json"))["items"]
                return {owner["uid"] for item in items for owner in item["metadata"]["ownerReferences"]}

            def node_uid() -> str:
                return kubectl("get", "nodes", "-o", "jsonpath={.items[*].metadata.uid}")

            before = node_uid()
            assert eventually(owners) == {before}
            kubectl("delete", "nodes", "--all", "--wait=false")
            eventually(lambda: node_uid() not in ("", before))
            after = node_uid()
            eventually(lambda: owners() == {after})
            # The garbage collector is quiet once it has deleted another object whose owner is gone.
            orphan = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "orphan", "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": "gone", "uid": before}
            ]}}  # fmt: skip
            kubectl("create", "-f", "-", stdin=json.dumps(orphan))
            kubectl("wait", "--for=delete", "configmap/orphan", "--timeout=60s")
            assert owners() == {after}
