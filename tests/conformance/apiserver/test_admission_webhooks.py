"""Admission webhooks in a server: real TLS on loopback, Kubernetes' messages, and nothing left behind by failures."""

from __future__ import annotations

import asyncio
import base64
from datetime import timedelta
from typing import Any

import orjson
import pytest

from dray.api.document import Document
from dray.api.errors import APIError, InvalidError
from dray.apiserver.call import Call
from dray.apiserver.request import UserInfo
from dray.apiserver.routes import RequestInfo
from tests.local_server import Local, until
from tests.webhook_server import Webhook, patching, serving

GROUP = "admissionregistration.k8s.io/v1"
CONFIG_MAPS = "core/v1/configmaps"
RULE = {
    "apiGroups": [""],
    "apiVersions": ["v1"],
    "operations": ["CREATE", "UPDATE", "DELETE"],
    "resources": ["configmaps"],
}
NAME = "hook.example.com"


def webhook(client: Webhook | Document, name: str = NAME, **fields: Any) -> Document:
    config = client if isinstance(client, dict) else client.client_config
    base = {
        "name": name,
        "clientConfig": config,
        "rules": [RULE],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        # Generous, because machines of tests are slow.
        "timeoutSeconds": 30,
    }
    return base | fields


async def configure(api: Local, kind: str, *webhooks: Document, name: str = "config") -> None:
    path = f"{GROUP}/{kind}webhookconfigurations"
    await api.request("create", path, {"metadata": {"name": name}, "webhooks": list(webhooks)})


def config_map(name: str = "c", **data: str) -> Document:
    return {"metadata": {"name": name, "namespace": "default"}, "data": data}


async def create(api: Local, document: Document, **query: str) -> Document:
    return await api.request("create", f"{CONFIG_MAPS}@default", document, query=query or None)


async def refused(api: Local, document: Document, **query: str) -> APIError:
    with pytest.raises(APIError) as caught:
        await create(api, document, **query)
    # Nothing is left behind.
    with pytest.raises(APIError):
        await api.request("get", f"{CONFIG_MAPS}/{document['metadata']['name']}@default")
    return caught.value


async def audited(api: Local, document: Document) -> Call:
    info = RequestInfo("POST", "", "create", "", "v1", "configmaps", "", "default", "")
    user = UserInfo("tester", groups=("system:masters",))
    call = Call(info, {}, user, document, "application/json", "test/1", audit={})
    await api.running.server.execute(call)
    return call


def annotations_of(call: Call) -> dict[str, str]:
    """Return the audit annotations without those of the authorization."""
    assert call.audit is not None
    return {key: value for key, value in call.audit.items() if not key.startswith("authorization.k8s.io/")}


@pytest.mark.behaviour("WH-01", "WH-08", "WH-15")
async def test_a_review_of_a_create(api: Local) -> None:
    async with serving() as hook:
        await configure(api, "validating", webhook(hook))
        await create(api, config_map(a="b"))
        (review,) = hook.requests
        assert hook.targets == ["POST /review?timeout=30s HTTP/1.1"]
    assert (review["kind"], review["apiVersion"]) == ("AdmissionReview", "admission.k8s.io/v1")
    request = review["request"]
    made = request.pop("object")
    assert len(request.pop("uid")) == 36
    assert (made["kind"], made["apiVersion"], made["data"]) == ("ConfigMap", "v1", {"a": "b"})
    assert made["metadata"]["managedFields"]
    assert request == {
        "kind": {"group": "", "version": "v1", "kind": "ConfigMap"},
        "resource": {"group": "", "version": "v1", "resource": "configmaps"},
        "requestKind": {"group": "", "version": "v1", "kind": "ConfigMap"},
        "requestResource": {"group": "", "version": "v1", "resource": "configmaps"},
        "name": "c",
        "namespace": "default",
        "operation": "CREATE",
        "userInfo": {"username": "tester", "groups": ["system:masters", "system:authenticated"]},
        "oldObject": None,
        "dryRun": False,
        "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1", "fieldValidation": "Warn"},
    }


@pytest.mark.behaviour("WH-08", "WH-04")
async def test_reviews_of_updates_patches_and_deletes(api: Local) -> None:
    async with serving() as hook:
        await configure(api, "validating", webhook(hook))
        made = await create(api, config_map(a="b"))
        await api.request("update", f"{CONFIG_MAPS}/c@default", made | {"data": {"a": "c"}})
        patch = {"data": {"a": "d"}}
        await api.request("patch", f"{CONFIG_MAPS}/c@default", patch, content_type="application/merge-patch+json")
        await api.request("delete", f"{CONFIG_MAPS}/c@default")
        await create(api, config_map("d"))
        await api.request("deletecollection", f"{CONFIG_MAPS}@default", query={"fieldSelector": "metadata.name=d"})
        requests = [review["request"] for review in hook.requests]
    shown = [
        (item["operation"], item["options"]["kind"], _data(item["object"]), _data(item["oldObject"]))
        for item in requests
    ]
    assert shown == [
        ("CREATE", "CreateOptions", {"a": "b"}, None),
        ("UPDATE", "UpdateOptions", {"a": "c"}, {"a": "b"}),
        ("UPDATE", "PatchOptions", {"a": "d"}, {"a": "c"}),
        ("DELETE", "DeleteOptions", None, {"a": "d"}),
        ("CREATE", "CreateOptions", {}, None),
        ("DELETE", "DeleteOptions", None, {}),
    ]
    assert requests[-1]["name"] == "d"


def _data(document: Document | None) -> Document | None:
    return None if document is None else document.get("data") or {}


@pytest.mark.behaviour("WH-08", "WH-12")
async def test_a_generated_name_comes_after_the_webhooks(api: Local) -> None:
    async with serving(patching({"op": "add", "path": "/data", "value": {"x": "y"}})) as hook:
        await configure(api, "mutating", webhook(hook))
        document = {"metadata": {"generateName": "gen-", "namespace": "default"}}
        made = await create(api, document)
        (review,) = hook.requests
    assert made["metadata"]["name"].startswith("gen-")
    assert made["data"] == {"x": "y"}
    assert "name" not in review["request"]
    assert review["request"]["object"]["metadata"].keys() & {"name", "uid"} == set()


DENIALS: dict[str, tuple[Document, int, str, str]] = {
    "nothing said": ({}, 400, "", "without explanation"),
    "message": ({"status": {"message": "no", "code": 418}}, 418, "", ": no"),
    "reason": ({"status": {"reason": "Because", "code": 200}}, 400, "Because", ": Because"),
}


@pytest.mark.behaviour("WH-10")
@pytest.mark.parametrize("kind", ["mutating", "validating"])
@pytest.mark.parametrize("name", DENIALS)
async def test_denials(api: Local, name: str, kind: str) -> None:
    answer, code, reason, text = DENIALS[name]
    async with serving(lambda _: {"allowed": False, **answer}) as hook:
        await configure(api, kind, webhook(hook))
        error = await refused(api, config_map())
    assert (error.code, error.reason) == (code, reason)
    separator = " " if text.startswith("without") else ""
    assert error.message == f'admission webhook "{NAME}" denied the request{separator}{text}'


@pytest.mark.behaviour("WH-12")
async def test_mutating_webhooks_see_what_others_made(api: Local) -> None:
    order: list[str] = []

    def second(request: Document) -> Document:
        order.append("b")
        patch = [{"op": "add", "path": "/data/seen", "value": str(sorted(request["object"]["data"]))}]
        return _patch(patch)

    def first(request: Document) -> Document:
        order.append("a")
        return _patch([{"op": "add", "path": "/data/first", "value": "1"}])

    async with serving(second) as later, serving(first) as earlier:
        await configure(api, "mutating", webhook(later), name="b")
        await configure(api, "mutating", webhook(earlier), name="a")
        made = await create(api, config_map(own="x"))
    assert order == ["a", "b"]
    assert made["data"] == {"own": "x", "first": "1", "seen": "['first', 'own']"}


def _patch(operations: list[Document]) -> Document:
    patch = base64.b64encode(orjson.dumps(operations)).decode()
    return {"allowed": True, "patchType": "JSONPatch", "patch": patch}


@pytest.mark.behaviour("WH-12")
async def test_a_webhook_is_called_again_if_something_changed_after_it(api: Local) -> None:
    calls: list[str] = []

    def counting(name: str) -> Any:
        def handler(request: Document) -> Document:
            calls.append(name)
            data = request["object"].get("data") or {}
            if name == "adds" and "added" not in data:
                return _patch([{"op": "add", "path": "/data/added", "value": "1"}])
            return {"allowed": True}

        return handler

    async with (
        serving(counting("wants")) as wants,
        serving(counting("never")) as never,
        serving(counting("adds")) as adds,
    ):
        hooks = (
            webhook(wants, "a.example.com", reinvocationPolicy="IfNeeded"),
            webhook(never, "b.example.com"),
            webhook(adds, "c.example.com", reinvocationPolicy="IfNeeded"),
        )
        await configure(api, "mutating", *hooks)
        await create(api, config_map(a="b"))
        assert calls == ["wants", "never", "adds", "wants"]
        calls.clear()
        await create(api, config_map("d", added="x"))
        assert calls == ["wants", "never", "adds"]


@pytest.mark.behaviour("WH-12")
async def test_defaults_apply_and_unknown_fields_are_dropped_after_a_patch(api: Local) -> None:
    patch = patching(
        {"op": "add", "path": "/spec/template/spec/containers/0/nonsense", "value": 1},
        {"op": "remove", "path": "/spec/template/spec/restartPolicy"},
    )
    rule = {**RULE, "apiGroups": ["apps"], "resources": ["deployments"]}
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
    async with serving(patch) as hook:
        await configure(api, "mutating", webhook(hook, rules=[rule]))
        document = {"metadata": {"name": "d", "namespace": "default"}, "spec": spec}
        made = await api.request("create", "apps/v1/deployments@default", document)
    pod = made["spec"]["template"]["spec"]
    assert pod["restartPolicy"] == "Always"
    assert "nonsense" not in pod["containers"][0]


@pytest.mark.behaviour("WH-04", "WH-12")
async def test_what_webhooks_write_is_validated(api: Local) -> None:
    async with serving(patching({"op": "add", "path": "/data/a~1b", "value": "x"})) as hook:
        await configure(api, "mutating", webhook(hook))
        with pytest.raises(InvalidError, match="a valid config key"):
            await create(api, config_map(a="b"))


@pytest.mark.behaviour("WH-05")
async def test_another_version_is_converted(api: Local) -> None:
    def add_attribute(request: Document) -> Document:
        assert request["object"]["apiVersion"] == "resource.k8s.io/v1"
        assert request["requestKind"]["version"] == "v1beta1"
        attribute = {"op": "add", "path": "/spec/devices/0/attributes", "value": {"a": {"int": 1}}}
        return _patch([attribute])

    rule = {**RULE, "apiGroups": ["resource.k8s.io"], "resources": ["resourceslices"], "scope": "Cluster"}
    spec = {
        "driver": "gpu.example.com",
        "nodeName": "n",
        "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "d", "basic": {}}],
    }
    async with serving(add_attribute) as hook:
        await configure(api, "mutating", webhook(hook, rules=[rule]))
        made = await api.request(
            "create", "resource.k8s.io/v1beta1/resourceslices", {"metadata": {"name": "s"}, "spec": spec}
        )
    assert made["spec"]["devices"] == [{"name": "d", "basic": {"attributes": {"a": {"int": 1}}}}]


def _answer(body: bytes, head: bytes = b"HTTP/1.1 200 OK") -> Any:
    return lambda _request: b"%b\r\nContent-Length: %d\r\n\r\n%b" % (head, len(body), body)


def _review(response: Any, api_version: str = "admission.k8s.io/v1") -> bytes:
    return orjson.dumps({"kind": "AdmissionReview", "apiVersion": api_version, "response": response})


BROKEN: dict[str, tuple[Any, str]] = {
    "not JSON": (_answer(b"hello"), "received invalid webhook response: couldn't get version/kind; json parse error"),
    "no response": (_answer(_review(None)), "received invalid webhook response: webhook response was absent"),
    "another uid": (
        lambda _: {"uid": "other", "allowed": True},
        'received invalid webhook response: expected response.uid="',
    ),
    "another version": (
        _answer(_review({"allowed": True}, "admission.k8s.io/v2")),
        "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got admission.k8s.io/v2, Kind=",
    ),
    "a patch without its type": (
        lambda _: {"allowed": True, "patch": "W10="},
        "received invalid webhook response: webhook returned response.patch but not response.patchType",
    ),
    "an unknown patch type": (
        lambda _: {"allowed": True, "patch": "W10=", "patchType": "Merge"},
        'webhook returned invalid response.patchType of "Merge"',
    ),
    "a server error": (
        _answer(b"oops", b"HTTP/1.1 500 Oops"),
        'failed to call webhook: an error on the server ("oops") has prevented the request from succeeding',
    ),
    "not found": (
        _answer(b"", b"HTTP/1.1 404 No"),
        "failed to call webhook: the server could not find the requested resource",
    ),
    "an endless body": (
        lambda _: b"HTTP/1.1 200 OK\r\nContent-Length: 9000000000\r\n\r\n" + b"x" * (3 * 1024 * 1024 + 10),
        "http: response body too large",
    ),
}


@pytest.mark.behaviour("WH-09", "WH-11")
@pytest.mark.parametrize("name", BROKEN)
async def test_broken_answers(api: Local, name: str) -> None:
    handler, text = BROKEN[name]
    async with serving(handler) as hook:
        await configure(api, "mutating", webhook(hook))
        error = await refused(api, config_map())
        assert (error.code, error.reason) == (500, "InternalError")
        assert error.message.startswith(f'Internal error occurred: failed calling webhook "{NAME}": ')
        assert text in error.message
        await api.request("delete", f"{GROUP}/mutatingwebhookconfigurations/config")
        # Ignored failures let the write pass, and leave an annotation.
        await configure(api, "mutating", webhook(hook, failurePolicy="Ignore"))
        call = await audited(api, config_map())
    assert annotations_of(call) == {"failed-open.mutation.webhook.admission.k8s.io/round_0_index_0": NAME}


@pytest.mark.behaviour("WH-09")
async def test_a_validating_webhook_may_not_patch(api: Local) -> None:
    async with serving(patching({"op": "remove", "path": "/data"})) as hook:
        await configure(api, "validating", webhook(hook))
        error = await refused(api, config_map(a="b"))
    assert error.message.endswith("received invalid webhook response: validating webhook may not return response.patch")


@pytest.mark.behaviour("WH-11")
@pytest.mark.parametrize(
    "operation",
    [
        {"op": "remove", "path": "/data/missing"},
        {"op": "nonsense", "path": "/"},
        {"op": "replace", "path": "/kind", "value": 5},
    ],
)
async def test_a_patch_that_cannot_be_applied_is_always_an_error(api: Local, operation: Document) -> None:
    async with serving(patching(operation)) as hook:
        await configure(api, "mutating", webhook(hook, failurePolicy="Ignore"))
        error = await refused(api, config_map(a="b"))
    assert error.code == 500


@pytest.mark.behaviour("WH-11")
async def test_a_deletion_cannot_be_patched(api: Local) -> None:
    rule = {**RULE, "operations": ["DELETE"]}
    async with serving(patching({"op": "remove", "path": "/data"})) as hook:
        await configure(api, "mutating", webhook(hook, rules=[rule], failurePolicy="Ignore"))
        await create(api, config_map(a="b"))
        with pytest.raises(APIError) as caught:
            await api.request("delete", f"{CONFIG_MAPS}/c@default")
        assert caught.value.code == 500
        assert await api.request("get", f"{CONFIG_MAPS}/c@default")


@pytest.mark.behaviour("WH-11", "WH-15")
async def test_a_wrong_authority(api: Local) -> None:
    async with serving() as hook, serving() as other:
        await configure(api, "validating", webhook({"url": hook.url, "caBundle": other.ca_bundle}))
        error = await refused(api, config_map())
        assert hook.requests == []
    assert error.message == (
        f'Internal error occurred: failed calling webhook "{NAME}": failed to call webhook: Post '
        f'"{hook.url}?timeout=30s": tls: failed to verify certificate: x509: certificate signed by unknown authority'
    )


@pytest.mark.behaviour("WH-11", "WH-15")
async def test_an_expired_certificate_and_one_for_another_name(api: Local) -> None:
    async with serving(age=timedelta(days=400)) as hook:
        await configure(api, "validating", webhook(hook))
        error = await refused(api, config_map())
        assert error.message.endswith("x509: certificate has expired or is not yet valid")
    await api.request("delete", f"{GROUP}/validatingwebhookconfigurations/config")
    async with serving(names=("other.example.com",)) as hook:
        await configure(api, "validating", webhook(hook))
        error = await refused(api, config_map())
    assert error.message.endswith("x509: certificate is not valid for any names, but wanted to match 127.0.0.1")


@pytest.mark.behaviour("WH-11")
async def test_nobody_there(api: Local) -> None:
    async with serving() as hook:
        pass
    await configure(api, "validating", webhook(hook))
    error = await refused(api, config_map())
    assert error.message.endswith(f"dial tcp 127.0.0.1:{hook.port}: connect: connection refused")


@pytest.mark.behaviour("WH-11", "WH-16", "WH-13")
async def test_a_slow_webhook_delays_only_its_own_requests(api: Local) -> None:
    release = asyncio.Event()

    async def wait(_request: Document) -> Document:
        await release.wait()
        return {"allowed": True}

    async with serving(wait) as slow, serving(wait) as other:
        hooks = (webhook(slow, "a.example.com"), webhook(other, "b.example.com"))
        await configure(api, "validating", *hooks)
        waiting = asyncio.ensure_future(create(api, config_map()))
        # Both are called at the same time, before either has answered.
        await until(lambda: bool(slow.requests and other.requests))
        # Other requests are answered meanwhile.
        await api.request("create", "core/v1/secrets@default", {"metadata": {"name": "s", "namespace": "default"}})
        assert not waiting.done()
        release.set()
        assert (await waiting)["metadata"]["name"] == "c"


@pytest.mark.behaviour("WH-11", "WH-16")
async def test_a_webhook_that_never_answers(api: Local) -> None:
    async def never(_request: Document) -> Document:
        await asyncio.Event().wait()
        raise AssertionError

    async with serving(never) as hook:
        await configure(api, "validating", webhook(hook, timeoutSeconds=1))
        error = await refused(api, config_map())
    assert error.message.endswith(f'Post "{hook.url}?timeout=1s": context deadline exceeded')


@pytest.mark.behaviour("WH-16")
async def test_a_webhook_may_call_the_api(api: Local) -> None:
    async def look(request: Document) -> Document:
        await api.request(
            "create", "core/v1/secrets@default", {"metadata": {"name": request["name"], "namespace": "default"}}
        )
        return {"allowed": True}

    async with serving(look) as hook:
        await configure(api, "mutating", webhook(hook))
        await create(api, config_map())
    assert await api.request("get", "core/v1/secrets/c@default")


@pytest.mark.behaviour("WH-14")
async def test_dry_runs(api: Local) -> None:
    async with serving() as hook:
        await configure(api, "validating", webhook(hook, sideEffects="NoneOnDryRun"))
        await create(api, config_map(), dryRun="All")
        (review,) = hook.requests
        assert review["request"]["dryRun"] is True
        assert review["request"]["options"]["dryRun"] == ["All"]


@pytest.mark.behaviour("WH-06")
async def test_match_conditions(api: Local) -> None:
    conditions = [
        {"name": "a", "expression": "object.data.a == 'x'"},
        {"name": "b", "expression": "request.userInfo.username != 'me'"},
    ]
    async with serving(lambda _: {"allowed": False}) as hook:
        await configure(api, "validating", webhook(hook, matchConditions=conditions))
        await create(api, config_map("free", a="y"))
        assert hook.requests == []
        await refused(api, config_map(a="x"))
        error = await refused(api, config_map(b="x"))
        assert (error.code, error.reason) == (403, "Forbidden")
        assert error.message == (
            "configmaps \"c\" is forbidden: expression 'object.data.a == 'x'' resulted in error: no such key: a"
        )


@pytest.mark.behaviour("WH-05")
async def test_selectors(api: Local) -> None:
    async with serving(lambda _: {"allowed": False}) as hook:
        selector = {"matchLabels": {"guarded": "yes"}}
        await configure(api, "validating", webhook(hook, objectSelector=selector))
        await create(api, config_map("free"))
        guarded = config_map()
        guarded["metadata"]["labels"] = {"guarded": "yes"}
        await refused(api, guarded)
        await api.request("delete", f"{GROUP}/validatingwebhookconfigurations/config")
        await configure(api, "validating", webhook(hook, namespaceSelector=selector))
        await create(api, guarded)


@pytest.mark.behaviour("WH-09", "WH-18")
async def test_warnings_and_audit_annotations(api: Local) -> None:
    answer = {"allowed": True, "warnings": ["careful"], "auditAnnotations": {"why": "because"}}
    patch = base64.b64encode(orjson.dumps([{"op": "add", "path": "/data/x", "value": "y"}])).decode()
    async with serving(lambda _: {**answer, "patchType": "JSONPatch", "patch": patch}) as hook:
        await configure(api, "mutating", webhook(hook))
        call = await audited(api, config_map(a="b"))
    assert call.warnings == ["careful"]
    assert annotations_of(call) == {
        f"{NAME}/why": "because",
        "mutation.webhook.admission.k8s.io/round_0_index_0": (
            f'{{"configuration":"config","webhook":"{NAME}","mutated":true}}'
        ),
        "patch.webhook.admission.k8s.io/round_0_index_0": (
            f'{{"configuration":"config","webhook":"{NAME}","patch":[{{"op":"add","path":"/data/x","value":"y"}}],'
            '"patchType":"JSONPatch"}'
        ),
    }


@pytest.mark.behaviour("SV-13", "WH-15")
async def test_a_service_is_resolved_to_a_ready_endpoint(api: Local) -> None:
    service = {
        "metadata": {"name": "hook", "namespace": "default"},
        "spec": {"ports": [{"name": "https", "port": 443}]},
    }
    reference = {"name": "hook", "namespace": "default", "path": "/validate"}
    async with serving() as hook:
        client = {"service": reference, "caBundle": hook.ca_bundle}
        await configure(api, "validating", webhook(client))
        shown = 'Post "https://hook.default.svc:443/validate?timeout=30s": '
        assert (await refused(api, config_map())).message.endswith(f'{shown}service "hook" not found')
        await api.request("create", "core/v1/services@default", service)
        text = 'no endpoints available for service "hook"'
        assert (await refused(api, config_map())).message.endswith(shown + text)
        endpoints = [
            {"addresses": ["127.0.0.2"], "conditions": {"ready": False}},
            {"addresses": ["127.0.0.1"], "conditions": {"ready": True}},
        ]
        endpoint_slice = {
            "metadata": {"name": "hook-1", "namespace": "default", "labels": {"kubernetes.io/service-name": "hook"}},
            "addressType": "IPv4",
            "endpoints": endpoints,
            "ports": [{"name": "https", "port": hook.port, "protocol": "TCP"}],
        }
        # Past validation, which refuses loopback addresses.
        key = "/registry/discovery.k8s.io/endpointslices/default/hook-1"
        await api.running.store.create(key, orjson.dumps(endpoint_slice))
        for number in range(3):
            await create(api, config_map(f"c-{number}"))
        assert hook.targets == ["POST /validate?timeout=30s HTTP/1.1"] * 3
        # The connection is kept.
        assert hook.connections == 1
        made = await api.request("get", f"{GROUP}/validatingwebhookconfigurations/config")
        made["webhooks"][0]["clientConfig"]["service"]["port"] = 8443
        await api.request("update", f"{GROUP}/validatingwebhookconfigurations/config", made)
        assert (await refused(api, config_map())).message.endswith('no service port 8443 found for service "hook"')


@pytest.mark.behaviour("WH-02", "WH-03")
async def test_defaults_and_bad_configurations(api: Local) -> None:
    bare = {
        "name": NAME,
        "clientConfig": {"url": "https://x/y"},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    service = {"name": "a.b.c", "clientConfig": {"service": {"name": "s", "namespace": "n"}}}
    path = f"{GROUP}/mutatingwebhookconfigurations"
    document = {"metadata": {"name": "m"}, "webhooks": [bare | {"rules": [RULE]}, bare | service]}
    made = await api.request("create", path, document)
    first, second = made["webhooks"]
    wanted = {
        "failurePolicy": "Fail",
        "matchPolicy": "Equivalent",
        "timeoutSeconds": 10,
        "reinvocationPolicy": "Never",
        "namespaceSelector": {},
        "objectSelector": {},
    }
    assert first.items() >= wanted.items()
    assert first["rules"][0]["scope"] == "*"
    assert second["clientConfig"]["service"]["port"] == 443
    bad = bare | {"matchConditions": [{"name": "a", "expression": "1"}, {"name": "b", "expression": "params.x"}]}
    with pytest.raises(InvalidError) as caught:
        await api.request("create", path, {"metadata": {"name": "n"}, "webhooks": [bad]})
    assert (
        'webhooks[0].matchConditions[0].expression: Invalid value: "1": must evaluate to bool' in caught.value.message
    )
    assert "undeclared reference to 'params'" in caught.value.message


@pytest.mark.behaviour("WH-17")
async def test_metrics(api: Local) -> None:
    async with serving() as hook:
        await configure(api, "validating", webhook(hook))
        await create(api, config_map())
    lines = api.running.metrics.exposition().decode().splitlines()
    labels = (f'name="{NAME}"', 'operation="CREATE"', 'type="validating"', 'rejected="false"')
    for name in ("request_total{", "admission_duration_seconds_count{"):
        found = [line for line in lines if line.startswith(f"apiserver_admission_webhook_{name}")]
        assert any(all(label in line for label in labels) and line.split()[-1] in ("1", "1.0") for line in found), found


@pytest.mark.behaviour("WH-04", "EX-04")
async def test_a_stream_can_be_denied_and_changed(api: Local) -> None:
    """As Kubernetes' test "should be able to deny attaching pod"."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CONNECT"], "resources": ["pods/attach"]}
    exec_rule = {**rule, "resources": ["pods/exec"]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}
    containers = [{"name": "a", "image": "i"}, {"name": "b", "image": "i"}]
    await api.request("create", "core/v1/serviceaccounts@default", {"metadata": {"name": "default"}})
    await api.request("create", "core/v1/pods@default", pod | {"spec": {"containers": containers}})

    def deny(_request: Document) -> Document:
        return {"allowed": False, "status": {"message": "attaching to pod 'p' is not allowed"}}

    change = patching({"op": "replace", "path": "/container", "value": "c"})
    async with serving(deny) as denying, serving(change) as changing:
        await configure(api, "validating", webhook(denying, rules=[rule]))
        await configure(api, "mutating", webhook(changing, rules=[exec_rule]))
        with pytest.raises(APIError) as caught:
            await api.request("create", "core/v1/pods/p/attach@default", query={"container": "a", "stdout": "1"})
        assert caught.value.message == (
            f"admission webhook \"{NAME}\" denied the request: attaching to pod 'p' is not allowed"
        )
        with pytest.raises(APIError) as caught:
            await api.request("create", "core/v1/pods/p/exec@default", query={"container": "a", "command": "ls"})
        assert caught.value.message == "container c is not valid for pod p"
        (review,) = denying.requests
    request = review["request"]
    assert (request["operation"], request["subResource"], request["name"]) == ("CONNECT", "attach", "p")
    assert request["kind"] == request["requestKind"] == {"group": "", "version": "v1", "kind": "PodAttachOptions"}
    assert request["object"] == {"kind": "PodAttachOptions", "apiVersion": "v1", "stdout": True, "container": "a"}
    assert (request["oldObject"], request["options"]) == (None, None)
