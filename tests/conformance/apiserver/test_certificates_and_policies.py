"""Certificate signing requests, webhook configurations and admission policies in a server."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from dray.api.document import GroupResource
from dray.api.errors import ForbiddenError, InvalidError
from dray.apiserver.admission.certificates import CertificateApproval, CertificateSigning
from dray.apiserver.admission.plugin import AdmissionAttributes, Operation
from dray.apiserver.options import WriteOptions
from dray.apiserver.request import Attributes, UserInfo
from tests.local_server import Local

Document = dict[str, Any]
REQUESTS = "certificates.k8s.io/v1/certificatesigningrequests"
PEM = base64.b64encode(b"-----BEGIN CERTIFICATE REQUEST-----\n-----END CERTIFICATE REQUEST-----\n").decode()
CERTIFICATE = base64.b64encode(b"-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n").decode()
APPROVED = {"type": "Approved", "status": "True", "reason": "Test"}


def request(**spec: Any) -> Document:
    base = {"request": PEM, "signerName": "example.com/signer", "usages": ["client auth"]}
    return {"metadata": {"name": "alice"}, "spec": base | spec}


def texts(error: InvalidError) -> list[str]:
    assert error.details is not None
    return [f"{cause['field']}: {cause['message']}" for cause in error.details["causes"]]


@pytest.mark.behaviour("CS-01", "CS-02")
async def test_the_life_of_a_signing_request(api: Local) -> None:
    made = await api.request("create", REQUESTS, request(username="mallory", groups=["system:masters"]))
    assert made["spec"]["username"] == "tester"
    assert made["spec"]["groups"] == ["system:masters", "system:authenticated"]
    assert made["status"] == {}

    # The main endpoint changes neither spec nor status.
    kept = await api.request("update", f"{REQUESTS}/alice", made | {"status": {"conditions": [APPROVED]}})
    assert kept["status"] == {}
    # Approval writes conditions, status everything but decisions.
    wanted = made | {"status": {"conditions": [APPROVED], "certificate": CERTIFICATE}}
    approved = await api.request("update", f"{REQUESTS}/alice/approval", wanted)
    (condition,) = approved["status"]["conditions"]
    assert condition.items() >= APPROVED.items()
    assert condition["lastUpdateTime"]
    assert "certificate" not in approved["status"]
    issued = approved | {"status": {"certificate": CERTIFICATE}}
    signed = await api.request("update", f"{REQUESTS}/alice/status", issued)
    assert signed["status"] == {"certificate": CERTIFICATE, "conditions": [condition]}
    denied = signed | {"status": {"conditions": [{"type": "Denied", "status": "True"}]}}
    with pytest.raises(InvalidError) as refused:
        await api.request("update", f"{REQUESTS}/alice/approval", denied)
    assert 'updates may not remove a condition of type "Approved"' in str(refused.value)


async def test_approval_writes_conditions_of_other_types_as_well(api: Local) -> None:
    made = await api.request("create", REQUESTS, request())
    other = {"type": "Checked", "status": "True", "reason": "Test"}
    body = made | {"status": {"conditions": [APPROVED, other]}}
    approved = await api.request("update", f"{REQUESTS}/alice/approval", body)
    assert [item["type"] for item in approved["status"]["conditions"]] == ["Approved", "Checked"]
    patched = {"status": {"conditions": [*approved["status"]["conditions"], {**other, "type": "Seen"}]}}
    await api.request("patch", f"{REQUESTS}/alice/approval", patched, content_type="application/merge-patch+json")
    found = await api.request("get", f"{REQUESTS}/alice")
    assert [item["type"] for item in found["status"]["conditions"]] == ["Approved", "Checked", "Seen"]
    # Status removes what is no decision.
    await api.request("update", f"{REQUESTS}/alice/status", found | {"status": {}})
    found = await api.request("get", f"{REQUESTS}/alice")
    assert [item["type"] for item in found["status"]["conditions"]] == ["Approved"]


@pytest.mark.parametrize(
    ("plugin", "subresource", "verb"),
    [
        (CertificateApproval, "approval", "approve"),
        (CertificateSigning, "status", "sign"),
    ],
)
async def test_a_decision_needs_permission_for_the_signer(plugin: Any, subresource: str, verb: str) -> None:
    asked: list[tuple[str, str, str]] = []

    def is_allowed(attributes: Attributes) -> bool:
        asked.append((attributes.verb, attributes.resource, attributes.name))
        return False

    old = request()
    new = old | {"status": {"conditions": [APPROVED]}}
    requests = GroupResource("certificates.k8s.io", "certificatesigningrequests")
    attributes = AdmissionAttributes(
        Operation.UPDATE,
        UserInfo("bob"),
        "update",
        requests,
        "v1",
        subresource,
        "",
        "alice",
        new,
        old,
        WriteOptions(),
        [],
    )
    assert plugin(is_allowed).handles(requests, subresource, Operation.UPDATE)
    with pytest.raises(ForbiddenError) as refused:
        await plugin(is_allowed).validate(attributes)
    assert f'user not permitted to {verb} requests with signerName "example.com/signer"' in str(refused.value)
    assert asked == [(verb, "signers", "example.com/signer"), (verb, "signers", "example.com/*")]
    assert await plugin(lambda _: True).validate(attributes) is None


@pytest.mark.behaviour("CS-01")
async def test_bad_signing_requests(api: Local) -> None:
    bad = request(request="AAAA", usages=["client auth", "client auth"], signerName="signer", expirationSeconds=60)
    with pytest.raises(InvalidError) as refused:
        await api.request("create", REQUESTS, bad)
    assert texts(refused.value) == [
        'spec.request: Invalid value: "AAAA": PEM block type must be CERTIFICATE REQUEST',
        'spec.usages[1]: Duplicate value: "client auth"',
        "spec.expirationSeconds: Invalid value: 60: may not specify a duration less than 600 seconds (10 minutes)",
        'spec.signerName: Invalid value: "signer": must be a fully qualified domain and path of the form '
        "'example.com/signer-name'",
    ]


GROUP = "admissionregistration.k8s.io/v1"
RULE = {"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["deployments"]}


async def test_webhooks(api: Local) -> None:
    webhook = {
        "name": "a.example.com",
        "clientConfig": {"service": {"namespace": "default", "name": "hook"}},
        "rules": [RULE],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    body = {"kind": "MutatingWebhookConfiguration", "metadata": {"name": "a"}, "webhooks": [webhook]}
    made = await api.request("create", f"{GROUP}/mutatingwebhookconfigurations", body)
    assert made["metadata"]["generation"] == 1
    assert made["webhooks"] == [
        {
            "name": "a.example.com",
            "clientConfig": {"service": {"namespace": "default", "name": "hook", "port": 443}},
            "rules": [RULE | {"scope": "*"}],
            "failurePolicy": "Fail",
            "matchPolicy": "Equivalent",
            "namespaceSelector": {},
            "objectSelector": {},
            "sideEffects": "None",
            "timeoutSeconds": 10,
            "admissionReviewVersions": ["v1"],
            "reinvocationPolicy": "Never",
        }
    ]
    wrong = webhook | {"name": "a", "clientConfig": {}, "sideEffects": "Some", "timeoutSeconds": 31}
    condition = {"name": "c", "expression": "object.metadata.name =="}
    wrong |= {"admissionReviewVersions": ["v2"], "matchConditions": [condition]}
    body = {"metadata": {"name": "b"}, "webhooks": [wrong]}
    with pytest.raises(InvalidError) as refused:
        await api.request("create", f"{GROUP}/validatingwebhookconfigurations", body)
    *rules, expression = texts(refused.value)
    assert rules == [
        'webhooks[0].name: Invalid value: "a": should be a domain with at least three segments separated by dots',
        'webhooks[0].sideEffects: Unsupported value: "Some": supported values: "None", "NoneOnDryRun"',
        "webhooks[0].timeoutSeconds: Invalid value: 31: the timeout value must be between 1 and 30 seconds",
        'webhooks[0].admissionReviewVersions: Invalid value: ["v2"]: must include at least one of v1, v1beta1',
        "webhooks[0].clientConfig: Required value: exactly one of url or service is required",
    ]
    assert expression.startswith(
        'webhooks[0].matchConditions[0].expression: Invalid value: "object.metadata.name ==": compilation failed: ERROR'
    )


def policy(*validations: Document, **spec: Any) -> Document:
    base = {"matchConstraints": {"resourceRules": [RULE]}, "validations": list(validations)}
    return {"metadata": {"name": "replicas"}, "spec": base | spec}


async def test_policies(api: Local) -> None:
    path = f"{GROUP}/validatingadmissionpolicies"
    made = await api.request("create", path, policy({"expression": "object.spec.replicas <= 5"}))
    assert made["spec"]["failurePolicy"] == "Fail"
    assert made["spec"]["matchConstraints"] == {
        "resourceRules": [RULE | {"scope": "*"}],
        "matchPolicy": "Equivalent",
        "namespaceSelector": {},
        "objectSelector": {},
    }
    cases: list[tuple[Document, str]] = [
        (
            policy({"expression": "1 + 1"}),
            'spec.validations[0].expression: Invalid value: "1 + 1": must evaluate to bool',
        ),
        (
            policy({"expression": "params.x"}),
            'spec.validations[0].expression: Invalid value: "params.x": compilation failed: ERROR: <input>:1:1: '
            "undeclared reference to 'params'",
        ),
        (
            policy({"expression": "true", "messageExpression": "true"}),
            'spec.validations[0].messageExpression: Invalid value: "true": must evaluate to string',
        ),
        (policy(), "spec.validations: Required value: validations or auditAnnotations must contain at least one item"),
        (policy({"expression": "true"}, matchConstraints=None), "spec.matchConstraints: Required value"),
    ]
    for body, expected in cases:
        with pytest.raises(InvalidError) as refused:
            await api.request("create", path, body)
        assert texts(refused.value)[0].startswith(expected)
    # The functions of the authorizer, and parameters of a policy with a kind for them.
    fine = policy(
        {"expression": "authorizer.group('').resource('pods').check('create').allowed()"},
        {"expression": "params.data.max > object.spec.replicas"},
        paramKind={"apiVersion": "v1", "kind": "ConfigMap"},
    )
    await api.request("create", path, fine | {"metadata": {"name": "fine"}})


async def test_policy_bindings(api: Local) -> None:
    path = f"{GROUP}/validatingadmissionpolicybindings"
    body = {"metadata": {"name": "a"}, "spec": {"policyName": "replicas", "validationActions": ["Deny"]}}
    await api.request("create", path, body)
    wrong = {"metadata": {"name": "b"}, "spec": {"validationActions": ["Deny", "Warn"], "paramRef": {"name": "x"}}}
    with pytest.raises(InvalidError) as refused:
        await api.request("create", path, wrong)
    assert texts(refused.value) == [
        "spec.policyName: Required value",
        "spec.paramRef.parameterNotFoundAction: Required value",
        'spec.validationActions: Invalid value: ["Deny","Warn"]: must not contain both Deny and Warn (repeating the '
        "same validation failure information in the API response and headers serves no purpose)",
    ]
