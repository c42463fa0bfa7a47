"""A database of the release before 1.37 is read and updated without loss, and is marked only if that is needed.

`tests/data/state-1.36.db.gz` was written by that release, with the gates of list attributes, of taint rules and of node
resources. Kubernetes has retired the alpha fields of the latter in 1.37; they go with the next write of their part.
"""

from __future__ import annotations

import copy
import gzip
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from dray.api.document import Document
from dray.api.features import FeatureGates
from dray.client.in_process import in_process_client
from dray.client.interface import Client, Patch, PatchType, Resource
from dray.cmd import apiserver
from dray.cmd.settings import APIServerSettings
from dray.store.interface import NewerStoreError
from dray.store.sqlite_file import open_database
from dray.store.sqlite_rows import MIGRATIONS

STORED = Path(__file__).parents[2] / "data" / "state-1.36.db.gz"
# Not written by the test that made the database: bootstrap roles and namespaces, events, leases, addresses.
OF_THE_SERVER = (
    "rbac.authorization.k8s.io",
    "namespaces",
    "events",
    "leases",
    "priorityclasses",
    "core/services/",
    "endpoint",
)
LABEL = Patch(PatchType.MERGE, {"metadata": {"labels": {"upgraded": "true"}}})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "state.db").write_bytes(gzip.decompress(STORED.read_bytes()))
    return tmp_path


def contents(folder: Path) -> dict[str, Document]:
    """The documents in the database, by key."""
    with closing(sqlite3.connect(folder / "state.db")) as connection:
        rows = connection.execute("SELECT key, type, value FROM log ORDER BY revision").fetchall()
    latest = {key: (kind, value) for key, kind, value in rows}
    return {
        key: json.loads(value)
        for key, (kind, value) in latest.items()
        if kind == 1 and not any(part in key for part in OF_THE_SERVER)
    }


def version(folder: Path) -> int:
    with closing(sqlite3.connect(folder / "state.db")) as connection:
        found: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return found


@asynccontextmanager
async def upgraded(folder: Path, gates: str = "") -> AsyncIterator[Client]:
    settings = APIServerSettings(data_dir=str(folder), port=0, feature_gates=FeatureGates.parse(gates))
    async with apiserver.running(settings) as running:
        yield in_process_client(running.local, user="admin", groups=("system:masters",))


async def resource_of(client: Client, document: Document) -> Resource[Document]:
    group, _, api_version = document["apiVersion"].rpartition("/")
    for item in await client.resources():
        if (item.group, item.version, item.kind) == (group, api_version, document["kind"]):
            return Resource(group, api_version, item.plural, item.kind, dict, item.namespaced)
    raise AssertionError(f"{document['apiVersion']} {document['kind']} is not served any more")


def without_retired(document: Document) -> Document:
    """The document as after an update of its spec: without the alpha field that 1.37 has retired."""
    kept = copy.deepcopy(document)
    for device in (kept.get("spec") or {}).get("devices") or () if document["kind"] == "ResourceSlice" else ():
        if device.pop("nodeAllocatableResourceMappings", None):
            # The write changes the spec.
            kept["metadata"]["generation"] += 1
    return kept


def same(found: Document, stored: Document) -> None:
    ignored = ("resourceVersion", "labels", "managedFields")
    for document in (found, stored):
        document["metadata"] = {key: value for key, value in document["metadata"].items() if key not in ignored}
    assert found == stored


async def test_every_object_is_read_as_it_was_stored(folder: Path) -> None:
    before = contents(folder)
    kinds = {document["kind"] for document in before.values()}
    assert {"Pod", "Node", "DeviceClass", "ResourceClaim", "ResourceSlice", "DeviceTaintRule", "Deployment"} <= kinds
    async with upgraded(folder) as client:
        for document in before.values():
            resource, metadata = await resource_of(client, document), document["metadata"]
            same(await client.get(resource, metadata["name"], metadata.get("namespace", "")), document)


async def test_an_update_loses_nothing_but_retired_fields(folder: Path) -> None:
    before = contents(folder)
    async with upgraded(folder) as client:
        for document in before.values():
            resource, metadata = await resource_of(client, document), document["metadata"]
            changed = await client.patch(resource, metadata["name"], metadata.get("namespace", ""), LABEL)
            assert changed["metadata"]["labels"]["upgraded"] == "true"
            same(changed, without_retired(document))
    after = contents(folder)
    assert after.keys() >= before.keys()
    for key, document in before.items():
        same(after[key], without_retired(document))
    # The release before can go on with it.
    assert version(folder) == 1


async def test_objects_are_served_in_the_versions_of_1_37(folder: Path) -> None:
    async with upgraded(folder) as client:
        rule = await client.get(
            Resource("resource.k8s.io", "v1", "devicetaintrules", "DeviceTaintRule", dict), "recall"
        )
        assert rule["apiVersion"] == "resource.k8s.io/v1"
        assert rule["spec"]["taint"] == {"key": "recall", "effect": "None", "timeAdded": "2026-01-01T00:00:00Z"}
        flat = Resource("resource.k8s.io", "v1beta1", "resourceclaims", "ResourceClaim", dict)
        request = (await client.get(flat, "flat", "default"))["spec"]["devices"]["requests"][0]
        assert request["deviceClassName"] == "gpu"


async def test_a_server_with_new_fields_marks_the_database_against_earlier_releases(folder: Path) -> None:
    async with upgraded(folder, "DRADerivedAttributes=true"):
        pass
    assert version(folder) == 2
    # As an earlier release opens it: it knows the first version only.
    with pytest.raises(NewerStoreError) as refused:
        open_database(folder / "state.db", MIGRATIONS[:1])
    text = str(refused.value)
    assert text.startswith(f"{folder / 'state.db'} was written by a newer release of Dray, and this one would lose ")
    assert "(schema version 2; this release knows 1 to 1). Nothing was changed. " in text
    assert text.endswith("Use the newer release, or restore a backup from before the upgrade")
    # This release goes on with it, whatever its gates.
    async with upgraded(folder) as client:
        await client.get(Resource("", "v1", "pods", "Pod", dict), "p", "default")
    assert version(folder) == 2
