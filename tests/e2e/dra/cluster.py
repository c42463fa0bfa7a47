"""What the tests put into a cluster, and how they ask for it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from tests.e2e.kubectl.tool import Kubectl

Document = dict[str, Any]

SETTLE_SECONDS_MAX = 120.0


class Cluster:
    """Names of cluster-scoped objects carry the namespace, so that tests do not meet."""

    def __init__(self, kubectl: Kubectl) -> None:
        self.kubectl = kubectl
        self.namespace = kubectl.namespace
        self.driver = f"{kubectl.namespace}.example.com"

    def name(self, short: str) -> str:
        return f"{short}.{self.namespace}"

    def apply(self, *documents: Document) -> None:
        self.kubectl("create", "-f", "-", stdin={"apiVersion": "v1", "kind": "List", "items": list(documents)})

    # --- Objects. ---

    def node(self, short: str, pods: int = 110) -> Document:
        amounts = {"cpu": "64", "memory": "64Gi", "pods": str(pods)}
        status = {"capacity": amounts, "allocatable": amounts}
        return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name(short)}, "status": status}

    def device_class(self, short: str, model: str = "") -> Document:
        expression = f'device.driver == "{self.driver}"'
        if model:
            expression += f' && device.attributes["{self.driver}"].model == "{model}"'
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": self.name(short)},
            "spec": {"selectors": [{"cel": {"expression": expression}}]},
        }

    def devices(self, node: str, **models: str) -> Document:
        """A slice of devices by name and model; all share a PCIe root, but for those whose name begins with `far`."""
        items = [
            {
                "name": name.replace("_", "-"),
                "attributes": {
                    "model": {"string": model},
                    "resource.kubernetes.io/pcieRoot": {"string": "pci-1" if name.startswith("far") else "pci-0"},
                },
            }
            for name, model in models.items()
        ]
        pool = {"name": self.name(node), "generation": 1, "resourceSliceCount": 1}
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": self.name(node)},
            "spec": {"driver": self.driver, "nodeName": self.name(node), "pool": pool, "devices": items},
        }

    def template(self, *requests: Document, name: str = "template") -> Document:
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": name},
            "spec": {"spec": {"devices": {"requests": list(requests)}}},
        }

    def request(self, device_class: str = "gpu", **fields: Any) -> Document:
        return {"name": "gpu", "exactly": {"deviceClassName": self.name(device_class), **fields}}

    def pod(self, name: str, *, claim: str = "", template: str = "template") -> Document:
        entry = (
            {"name": "gpu", "resourceClaimName": claim}
            if claim
            else {"name": "gpu", "resourceClaimTemplateName": template}
        )
        container = {"name": "workload", "image": "my-app", "resources": {"claims": [{"name": "gpu"}]}}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {"containers": [container], "resourceClaims": [entry]},
        }

    # --- Questions. ---

    def wait_scheduled(self, *pods: str) -> None:
        names = [f"pod/{name}" for name in pods]
        self.kubectl("wait", "--for=condition=PodScheduled", *names, f"--timeout={int(SETTLE_SECONDS_MAX)}s")

    def node_of(self, pod: str) -> str:
        return self.kubectl.field(f"pod/{pod}", "spec.nodeName").removesuffix(f".{self.namespace}")

    def claim_of(self, pod: str) -> Document:
        name = self.kubectl.field(f"pod/{pod}", "status.resourceClaimStatuses[0].resourceClaimName")
        return self.kubectl.get("resourceclaim", name)

    def results(self, claim: Document) -> list[tuple[str, str]]:
        """(request, device) of an allocation."""
        results = claim["status"]["allocation"]["devices"]["results"]
        return [(result["request"], result["device"]) for result in results]

    def condition(self, pod: str) -> Document:
        found = self.kubectl.get("pod", pod)["status"].get("conditions", ())
        return next((item for item in found if item["type"] == "PodScheduled"), {})

    def until(self, question: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        while not (answer := question()):
            assert time.monotonic() < deadline, "it never came to be"
        return answer

    def events(self, reason: str) -> list[str]:
        items = json.loads(self.kubectl("get", "events", "--output=json"))["items"]
        return [item["message"] for item in items if item["reason"] == reason]
