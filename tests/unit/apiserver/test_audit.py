"""Audit policies: which rule decides; and rotation of the log."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest

from dray.api.document import Document
from dray.apiserver.audit.log import AuditLog, AuditLogSettings
from dray.apiserver.audit.policy import AuditPolicy, Level, PolicyError
from dray.apiserver.request import UserInfo
from dray.apiserver.routes import RequestInfo, parse_request
from dray.runtime.metrics import Metrics


def policy(*rules: Document, **fields: Any) -> AuditPolicy:
    return AuditPolicy({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": list(rules), **fields})


def request(method: str, path: str) -> RequestInfo:
    return parse_request(method, path, {})


ALICE = UserInfo("alice", groups=("devs", "system:authenticated"))
GET_POD = request("GET", "/api/v1/namespaces/default/pods/p")
POD_LOG = request("GET", "/api/v1/namespaces/default/pods/p/log")
SCALE = request("PUT", "/apis/apps/v1/namespaces/default/deployments/d/scale")
NODE = request("GET", "/api/v1/nodes/n")
HEALTH = request("GET", "/healthz/ping")
MATCHES: dict[str, tuple[Document, RequestInfo, bool]] = {
    "everything": ({}, GET_POD, True),
    "user": ({"users": ["alice"]}, GET_POD, True),
    "another user": ({"users": ["bob"]}, GET_POD, False),
    "group": ({"userGroups": ["devs"]}, GET_POD, True),
    "another group": ({"userGroups": ["ops"]}, GET_POD, False),
    "verb": ({"verbs": ["get", "list"]}, GET_POD, True),
    "another verb": ({"verbs": ["watch"]}, GET_POD, False),
    "resource": ({"resources": [{"group": "", "resources": ["pods"]}]}, GET_POD, True),
    "group of resources": ({"resources": [{"group": ""}]}, GET_POD, True),
    "another group of resources": ({"resources": [{"group": "apps"}]}, GET_POD, False),
    "a resource is not its subresource": ({"resources": [{"group": "", "resources": ["pods"]}]}, POD_LOG, False),
    "subresource": ({"resources": [{"group": "", "resources": ["pods/log"]}]}, POD_LOG, True),
    "any resource with it": ({"resources": [{"group": "apps", "resources": ["*/scale"]}]}, SCALE, True),
    "any subresource": ({"resources": [{"group": "", "resources": ["pods/*"]}]}, POD_LOG, True),
    "name": ({"resources": [{"group": "", "resources": ["pods"], "resourceNames": ["p"]}]}, GET_POD, True),
    "another name": ({"resources": [{"group": "", "resources": ["pods"], "resourceNames": ["q"]}]}, GET_POD, False),
    "namespace": ({"namespaces": ["default"]}, GET_POD, True),
    "cluster-scoped": ({"namespaces": [""]}, NODE, True),
    "not cluster-scoped": ({"namespaces": [""]}, GET_POD, False),
    "path": ({"nonResourceURLs": ["/healthz*"]}, HEALTH, True),
    "another path": ({"nonResourceURLs": ["/healthz"]}, HEALTH, False),
    "a path is no resource": ({"nonResourceURLs": ["*"]}, GET_POD, False),
}


@pytest.mark.behaviour("AU-02")
@pytest.mark.parametrize("name", MATCHES)
def test_rules(name: str) -> None:
    rule, info, matches = MATCHES[name]
    decision = policy({"level": "Metadata", **rule}).decide(ALICE, info)
    assert (decision.level is Level.METADATA) is matches


@pytest.mark.behaviour("AU-02")
def test_the_first_rule_decides_and_no_rule_means_none() -> None:
    secrets = {"level": "None", "resources": [{"group": "", "resources": ["pods"]}], "omitStages": ["RequestReceived"]}
    made = policy(secrets, {"level": "RequestResponse", "omitManagedFields": False}, omitManagedFields=True)
    assert made.decide(ALICE, GET_POD).level is Level.NONE
    decision = made.decide(ALICE, NODE)
    assert decision.level is Level.REQUEST_RESPONSE
    assert not decision.omit_managed_fields
    assert policy({"level": "Metadata", "users": ["bob"]}).decide(ALICE, NODE).level is Level.NONE


@pytest.mark.behaviour("AU-02")
@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({}, "kind must be Policy"),
        ({"kind": "Policy"}, "apiVersion must be audit.k8s.io/v1"),
        ({"kind": "Policy", "apiVersion": "audit.k8s.io/v1"}, "loaded illegal policy with 0 rules"),
        (
            {"kind": "Policy", "apiVersion": "audit.k8s.io/v1", "rules": [{"level": "Some"}]},
            'Unsupported value: "Some"',
        ),
        (
            {"kind": "Policy", "apiVersion": "audit.k8s.io/v1", "rules": [{"level": "None", "omitStages": ["X"]}]},
            'Unsupported value: "X"',
        ),
        (
            {
                "kind": "Policy",
                "apiVersion": "audit.k8s.io/v1",
                "rules": [{"level": "None", "nonResourceURLs": ["/a"], "namespaces": ["b"]}],
            },
            "rules cannot apply to both regular resources and non-resource URLs",
        ),
    ],
)
def test_bad_policies(document: Document, text: str) -> None:
    with pytest.raises(PolicyError, match=text):
        AuditPolicy(document)


def backups_of(directory: Path) -> list[Path]:
    return sorted(directory.glob("audit-*.log"))


async def written(log: AuditLog, events: list[Document]) -> None:
    log.open()
    task = asyncio.ensure_future(log.run())
    for event in events:
        await log.add(event)
    await log.flush()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.behaviour("AU-01")
async def test_the_log_is_rotated_and_old_ones_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    settings = AuditLogSettings(str(path), backups_max=2, size_megabytes_max=1)
    events: list[Document] = [{"number": number, "text": "x" * 300_000} for number in range(20)]
    await written(AuditLog(settings, Metrics()), events)
    backups = backups_of(tmp_path)
    assert len(backups) == 2
    newest = [orjson.loads(line)["number"] for file in (*backups, path) for line in file.read_bytes().splitlines()]
    # Three fit into a megabyte; nothing is lost but what was removed.
    assert sorted(newest) == list(range(12, 20))
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.behaviour("AU-01")
async def test_a_full_queue_drops_or_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dray.apiserver.audit.log.QUEUE_MAX", 2)
    metrics = Metrics()
    dropping = AuditLog(AuditLogSettings(str(tmp_path / "a"), drops=True), metrics)
    for number in range(5):
        await dropping.add({"number": number})
    assert b'apiserver_audit_error_total{plugin="log"} 3' in metrics.exposition()
    waiting = AuditLog(AuditLogSettings(str(tmp_path / "b")), Metrics())
    await waiting.add({})
    await waiting.add({})
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await waiting.add({})
