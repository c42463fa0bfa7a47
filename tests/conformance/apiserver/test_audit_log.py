"""The audit log of a server: events of requests over HTTPS, at every level."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from dray.api.document import Document
from dray.api.features import FeatureGates
from dray.cmd import apiserver
from dray.cmd.settings import APIServerSettings
from dray.runtime.http.client import HttpClient
from dray.runtime.http.dialing import Route
from dray.runtime.http.urls import Origin
from dray.runtime.settings import SettingsError

JSON = ("Content-Type", "application/json")


@asynccontextmanager
async def audited(directory: Path, *rules: Document, **fields: Any) -> AsyncIterator[tuple[HttpClient, Path]]:
    """Run a server with a policy; yield a client with an administrator's certificate, and the log."""
    policy, log = directory / "policy.yaml", directory / "audit.log"
    policy.write_text(
        yaml.safe_dump({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": list(rules), **fields})
    )
    settings = APIServerSettings(
        data_dir=str(directory / "data"),
        port=0,
        store="memory",
        feature_gates=FeatureGates.parse(""),
        audit_policy_file=str(policy),
        audit_log_path=str(log),
    )
    async with apiserver.running(settings) as running:
        context = ssl.create_default_context(cadata=running.pki.authority.certificate.decode())
        context.load_cert_chain(running.pki.directory / "admin.crt", running.pki.directory / "admin.key")
        port = int(running.url.rpartition(":")[2])
        client = HttpClient(Route(Origin("https", "127.0.0.1", port), context))
        try:
            yield client, log
        finally:
            await client.close()


async def send(client: HttpClient, method: str, target: str, body: Any = None, **headers: str) -> list[str]:
    """Send a request and return the Audit-Id headers of the answer."""
    raw = None if body is None else orjson.dumps(body)
    sent = [JSON, *((name.replace("_", "-"), value) for name, value in headers.items())]
    response = await client.send(method, target, sent, raw)
    with response:
        await response.read()
    return response.headers("audit-id")


def lines_of(log: Path) -> list[bytes]:
    return log.read_bytes().splitlines() if log.exists() else []


async def events(log: Path, count: int) -> list[Document]:
    """Wait for the number of events."""
    async with asyncio.timeout(30):
        while len(lines := lines_of(log)) < count:  # noqa: ASYNC110 - a thread writes the log
            await asyncio.sleep(0.01)
    assert len(lines) == count
    return [orjson.loads(line) for line in lines]


CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"


@pytest.mark.behaviour("AU-01", "AU-03", "AU-04")
async def test_events_of_a_write(tmp_path: Path) -> None:
    secrets = {"level": "Metadata", "resources": [{"group": "", "resources": ["secrets"]}]}
    rules = (secrets, {"level": "RequestResponse", "resources": [{"group": ""}]})
    async with audited(tmp_path, *rules, omitManagedFields=True) as (client, log):
        document = {"metadata": {"name": "c"}, "data": {"a": "b"}}
        answered = await send(client, "POST", CONFIG_MAPS, document, Audit_ID="mine", X_Forwarded_For="192.0.2.1")
        assert answered == ["mine"]
        await send(
            client, "POST", "/api/v1/namespaces/default/secrets", {"metadata": {"name": "s"}, "data": {"k": "eA=="}}
        )
        # No rule matches: nothing is recorded.
        await send(client, "GET", "/version")
        first, second, third, last = await events(log, 4)
    assert first["stage"] == "RequestReceived"
    assert (first["verb"], first["requestURI"], first["auditID"]) == ("create", CONFIG_MAPS, "mine")
    assert second["stage"] == "ResponseComplete"
    assert second["user"]["username"] == "kubernetes-admin"
    assert second["sourceIPs"] == ["192.0.2.1", "127.0.0.1"]
    # The name is that of the body, which is not read when the request is received.
    assert first["objectRef"] == {"resource": "configmaps", "namespace": "default", "apiVersion": "v1"}
    assert second["objectRef"] == {**first["objectRef"], "name": "c"}
    assert second["responseStatus"] == {"metadata": {}, "code": 201}
    assert second["requestObject"] == document
    assert second["responseObject"]["data"] == {"a": "b"}
    assert "managedFields" not in second["responseObject"]["metadata"]
    assert second["annotations"]["authorization.k8s.io/decision"] == "allow"
    assert len(second["requestReceivedTimestamp"]) == len("2026-01-01T00:00:00.000000Z")
    # Secrets are recorded by their metadata alone.
    assert third["level"] == last["level"] == "Metadata"
    assert not last.keys() & {"requestObject", "responseObject"}
    assert last["objectRef"]["name"] == "s"


@pytest.mark.behaviour("AU-03")
async def test_the_reference_of_an_update_says_which_version_was_sent(tmp_path: Path) -> None:
    rule = {"level": "Metadata", "verbs": ["update", "patch"]}
    async with audited(tmp_path, rule, omitStages=["RequestReceived"]) as (client, log):
        await send(client, "POST", CONFIG_MAPS, {"metadata": {"name": "c"}})
        document = {"metadata": {"name": "c", "uid": "u", "resourceVersion": "1"}}
        await send(client, "PUT", f"{CONFIG_MAPS}/c", document)
        # Whatever the body has, the event can be written.
        for metadata in (7, {"name": 7, "uid": ["x"], "resourceVersion": {}}):
            await send(client, "PUT", f"{CONFIG_MAPS}/c", {"metadata": metadata})
        update, *invalid = (item["objectRef"] for item in await events(log, 3))
    common = {"resource": "configmaps", "namespace": "default", "name": "c", "apiVersion": "v1"}
    assert update == {**common, "uid": "u", "resourceVersion": "1"}
    assert invalid == [common, common]


@pytest.mark.behaviour("AU-03")
async def test_refusals_watches_and_omitted_stages(tmp_path: Path) -> None:
    rule = {"level": "RequestResponse", "resources": [{"group": "", "resources": ["configmaps"]}]}
    async with audited(tmp_path, rule, omitStages=["RequestReceived"]) as (client, log):
        await send(client, "GET", f"{CONFIG_MAPS}/missing")
        response = await client.send("GET", f"{CONFIG_MAPS}?watch=1&timeoutSeconds=1")
        with response:
            await response.read()
        refusal, started, complete = await events(log, 3)
    assert refusal["responseStatus"]["code"] == 404
    assert refusal["responseStatus"]["reason"] == "NotFound"
    assert refusal["responseObject"]["kind"] == "Status"
    assert [started["stage"], complete["stage"]] == ["ResponseStarted", "ResponseComplete"]
    assert started["auditID"] == complete["auditID"]
    assert started["verb"] == "watch"


@pytest.mark.behaviour("AU-01", "VP-11")
async def test_annotations_of_policies_are_recorded(tmp_path: Path) -> None:
    async with audited(tmp_path, {"level": "Metadata", "verbs": ["create"], "namespaces": ["default"]}) as (
        client,
        log,
    ):
        rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
        validations = [{"expression": "false", "message": "never"}]
        spec = {"matchConstraints": {"resourceRules": [rule]}, "validations": validations}
        group = "/apis/admissionregistration.k8s.io/v1"
        await send(client, "POST", f"{group}/validatingadmissionpolicies", {"metadata": {"name": "p"}, "spec": spec})
        binding = {"metadata": {"name": "b"}, "spec": {"policyName": "p", "validationActions": ["Audit"]}}
        await send(client, "POST", f"{group}/validatingadmissionpolicybindings", binding)
        await send(client, "POST", CONFIG_MAPS, {"metadata": {"name": "c"}})
        _, last = await events(log, 2)
    (failure,) = orjson.loads(last["annotations"]["validation.policy.admission.k8s.io/validation_failure"])
    assert failure["message"] == "never"


@pytest.mark.behaviour("AU-02")
async def test_a_bad_policy_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"--audit-policy-file: rules\[0\].level: Unsupported value"):
        async with audited(tmp_path, {"level": "Everything"}):
            pass
