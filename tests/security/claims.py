"""Claims and their allocations, written as schedulers write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from dray.api.document import Document
from dray.api.features import FeatureGates
from dray.cmd.settings import APIServerSettings
from tests.local_server import Local

CLAIMS: Final = "resource.k8s.io/v1/resourceclaims"
DRIVER: Final = "gpu.example.com"
GATES: Final = "DRAConsumableCapacity=true,DRAPartitionableDevices=true,DRAAdminAccess=true"


def settings(directory: Path, store: str, **fields: Any) -> APIServerSettings:
    """Return the settings of an API server with all features of devices."""
    gates = FeatureGates.parse(GATES)
    return APIServerSettings(data_dir=str(directory), port=0, store=store, feature_gates=gates, **fields)


def result(device: str, **fields: Any) -> Document:
    return {"request": "r", "driver": DRIVER, "pool": "node-1", "device": device, **fields}


async def new_claim(api: Local, name: str, namespace: str = "default", **fields: Any) -> Document:
    spec = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu", **fields}}]}}
    return await api.request("create", f"{CLAIMS}@{namespace}", {"metadata": {"name": name}, "spec": spec})


async def give(api: Local, claim: Document, *results: Document, query: dict[str, str] | None = None) -> Document:
    """Write an allocation as schedulers do: PUT of the status at the version that was read."""
    wanted = {**claim, "status": {"allocation": {"devices": {"results": list(results)}}} if results else {}}
    name, namespace = claim["metadata"]["name"], claim["metadata"]["namespace"]
    return await api.request("update", f"{CLAIMS}/{name}/status@{namespace}", wanted, query=query)
