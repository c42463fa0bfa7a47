"""Attacks by webhooks, and by those who configure them: answers that break responses, moved objects, URLs that hide."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dray.api.document import Document
from dray.api.errors import APIError, BadRequestError, InternalError, InvalidError
from tests.conformance.apiserver.test_admission_webhooks import config_map, configure, create, refused, webhook
from tests.local_server import Local, local_server
from tests.webhook_server import patching, serving

CONFIG_MAPS = "core/v1/configmaps"
HOOKS = "admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
MUTATING = "admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
DEFINITIONS = "apiextensions.k8s.io/v1/customresourcedefinitions"


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Local]:
    async with local_server(tmp_path) as found:
        yield found


def denying(**status: Any) -> Any:
    return lambda _request: {"allowed": False, "status": status}


@pytest.mark.behaviour("WH-10")
@pytest.mark.parametrize("code", [-1, 0, 99, 100, 200, 399, 600, 999, 1000, 2_147_483_647])
async def test_a_status_code_that_is_no_failure_becomes_400(api: Local, code: int) -> None:
    async with serving(denying(code=code, message="no")) as hook:
        await configure(api, "validating", webhook(hook))
        error = await refused(api, config_map())
    assert (error.code, error.status()["code"]) == (400, 400)
    assert error.message == 'admission webhook "hook.example.com" denied the request: no'


BROKEN_STATUSES = (
    {"code": 4_294_967_696},
    {"code": "403"},
    {"code": 403.5},
    {"message": ["no"]},
    {"details": ["no"]},
    {"details": {"causes": ["no"]}},
    {"details": {"retryAfterSeconds": "1\r\nSet-Cookie: a=b"}},
)


@pytest.mark.behaviour("WH-09")
@pytest.mark.parametrize("status", BROKEN_STATUSES)
async def test_a_status_of_wrong_types_is_an_invalid_answer(api: Local, status: Document) -> None:
    async with serving(denying(**status)) as hook:
        await configure(api, "validating", webhook(hook))
        error = await refused(api, config_map())
        assert error.message.startswith('Internal error occurred: failed calling webhook "hook.example.com": received')
        assert "json: cannot unmarshal" in error.message
    async with serving(denying(**status)) as hook:
        await api.request("delete", f"{HOOKS}/config")
        await configure(api, "validating", webhook(hook, failurePolicy="Ignore"))
        await create(api, config_map())


async def test_a_denial_asks_for_no_retry_in_the_past(api: Local) -> None:
    async with serving(denying(code=429, details={"retryAfterSeconds": -1})) as hook:
        await configure(api, "validating", webhook(hook))
        assert (await refused(api, config_map())).retry_after_seconds is None


def replacing(path: str, value: str) -> Any:
    return patching({"op": "add", "path": path, "value": value})


@pytest.mark.behaviour("WH-12")
@pytest.mark.parametrize("field", ["name", "namespace"])
@pytest.mark.parametrize("verb", ["create", "patch"])
async def test_a_mutating_webhook_cannot_move_a_new_object(api: Local, field: str, verb: str) -> None:
    """The user, policies and other webhooks were asked about the place in the request."""
    async with serving(replacing(f"/metadata/{field}", "kube-system")) as hook:
        await configure(api, "mutating", webhook(hook))
        document = {"apiVersion": "v1", "kind": "ConfigMap", **config_map()}
        path = f"{CONFIG_MAPS}@default" if verb == "create" else f"{CONFIG_MAPS}/c@default"
        media = "application/json" if verb == "create" else "application/apply-patch+yaml"
        with pytest.raises(BadRequestError, match=f"the {field} of the provided object .* does not match the {field}"):
            await api.request(verb, path, document, query={"fieldManager": "m"}, content_type=media)
    names = [item["metadata"] for item in (await api.request("list", CONFIG_MAPS))["items"]]
    assert not [item for item in names if item["name"] in ("c", "kube-system")]


@pytest.mark.behaviour("WH-12")
@pytest.mark.parametrize("field", ["name", "namespace", "uid"])
async def test_a_mutating_webhook_cannot_move_an_existing_object(api: Local, field: str) -> None:
    made = await create(api, config_map())
    async with serving(replacing(f"/metadata/{field}", "other")) as hook:
        await configure(api, "mutating", webhook(hook))
        with pytest.raises(InvalidError, match=f"metadata.{field}"):
            await api.request("update", f"{CONFIG_MAPS}/c@default", made | {"data": {"a": "b"}})
    assert (await api.request("get", f"{CONFIG_MAPS}/c@default"))["metadata"] == made["metadata"]


async def test_a_mutating_webhook_cannot_choose_the_uid_of_a_new_object(api: Local) -> None:
    async with serving(replacing("/metadata/uid", "u")) as hook:
        await configure(api, "mutating", webhook(hook))
        assert (await create(api, config_map()))["metadata"]["uid"] != "u"


@pytest.mark.behaviour("WH-12")
async def test_a_mutating_webhook_can_name_an_object_whose_name_is_generated(api: Local) -> None:
    document = {"metadata": {"generateName": "g-"}}
    async with serving(replacing("/metadata/name", "chosen")) as hook:
        await configure(api, "mutating", webhook(hook))
        assert (await create(api, document))["metadata"]["name"] == "chosen"


@pytest.mark.parametrize("operation", [{"op": "remove", "path": "/metadata"}, {"op": "add", "path": "", "value": []}])
async def test_a_mutating_webhook_that_removes_what_every_object_has(api: Local, operation: Document) -> None:
    made = await create(api, config_map())
    async with serving(patching(operation)) as hook:
        await configure(api, "mutating", webhook(hook))
        with pytest.raises(APIError) as caught:
            await api.request("update", f"{CONFIG_MAPS}/c@default", made | {"data": {"a": "b"}})
    assert isinstance(caught.value, InvalidError if operation["op"] == "remove" else InternalError)


BROUGHT = {
    "deletionTimestamp": "1999-01-01T00:00:00Z",
    "deletionGracePeriodSeconds": 5,
    "selfLink": "/x",
    "creationTimestamp": "1999-01-01T00:00:00Z",
    "resourceVersion": "1",
}


@pytest.mark.behaviour("WH-12")
@pytest.mark.parametrize("field", BROUGHT)
@pytest.mark.parametrize("verb", ["create", "patch"])
async def test_a_mutating_webhook_cannot_create_an_object_whose_end_has_begun(
    api: Local, field: str, verb: str
) -> None:
    """It would never be removed."""
    async with serving(patching({"op": "add", "path": f"/metadata/{field}", "value": BROUGHT[field]})) as hook:
        await configure(api, "mutating", webhook(hook))
        document = {"apiVersion": "v1", "kind": "ConfigMap", **config_map()}
        path, media = f"{CONFIG_MAPS}@default", "application/json"
        if verb == "patch":
            path, media = f"{CONFIG_MAPS}/c@default", "application/apply-patch+yaml"
        made = await api.request(verb, path, document, query={"fieldManager": "m"}, content_type=media)
    assert made["metadata"].get(field) != BROUGHT[field]
    assert (await api.request("get", f"{CONFIG_MAPS}/c@default"))["metadata"].get(field) != BROUGHT[field]


@pytest.mark.parametrize("entry", [{"manager": "x"}, {"manager": "x", "operation": "Update", "fieldsV1": []}])
async def test_a_mutating_webhook_cannot_make_an_object_that_can_never_be_applied_again(
    api: Local, entry: Document
) -> None:
    async def apply(value: str) -> Document:
        document = {"apiVersion": "v1", "kind": "ConfigMap", **config_map(), "data": {"a": value}}
        query = {"fieldManager": "m", "force": "true"}
        return await api.request(
            "patch", f"{CONFIG_MAPS}/c@default", document, query=query, content_type="application/apply-patch+yaml"
        )

    async with serving(patching({"op": "add", "path": "/metadata/managedFields", "value": [entry]})) as hook:
        await configure(api, "mutating", webhook(hook))
        await create(api, config_map())
        await apply("b")
    await api.request("delete", f"{MUTATING}/config")
    assert (await apply("c"))["data"] == {"a": "c"}


FORM = "; desired format: https://host[/path]"
BAD_URLS = {
    "https://user@hook.example.com/x": "user information is not permitted in the URL",
    "https://user:secret@hook.example.com/x": "user information is not permitted in the URL",
    "https://hook.example.com/x?a=b": "query parameters are not permitted in the URL",
    "https://hook.example.com/x#a": "fragments are not permitted in the URL",
    "https://hook.example.com/x\r\nX-Forged: 1": "net/url: invalid control character in URL",
    "https://hook.\rexample.com/": "net/url: invalid control character in URL",
    "https://hook.example.com\t/": "net/url: invalid control character in URL",
    "https://hook.example.com\x00/": "net/url: invalid control character in URL",
    "https://hook.example.com:99999/": "Port out of range",
    "https://hook.example.com:0/": 'invalid port "0" after host',
    "https://hook.example.com:x/": "invalid host",
    "https://hook example.com/": "invalid host",
    "https://[::1/": "Invalid IPv6 URL",
    "https://hook.example.com/%zz": 'invalid URL escape "%zz"',
    "https:///x": "host must be specified",
    "http://hook.example.com/": "'https' is the only allowed URL scheme",
}


@pytest.mark.behaviour("WH-03")
@pytest.mark.parametrize("url", BAD_URLS)
async def test_a_url_that_hides_where_it_leads_is_refused(api: Local, url: str) -> None:
    bare = {**webhook({"url": url}), "clientConfig": {"url": url}}
    for kind in ("validating", "mutating"):
        with pytest.raises(InvalidError) as caught:
            await configure(api, kind, bare)
        assert f"webhooks[0].clientConfig.url: {'Required' if 'parse' in caught.value.message else 'Invalid'}" in (
            caught.value.message
        )
        assert BAD_URLS[url] in caught.value.message


@pytest.mark.behaviour("WH-03")
@pytest.mark.parametrize("path", ["/a\r\nX-Forged: 1", "a", "//", "/a//b", "/../b", "/a?b", "/a b", "/A"])
async def test_a_path_of_a_service_that_is_no_path_is_refused(api: Local, path: str) -> None:
    config = {"service": {"name": "s", "namespace": "default", "path": path}}
    with pytest.raises(InvalidError, match=r"clientConfig\.service\.path"):
        await configure(api, "validating", webhook(config))


@pytest.mark.behaviour("WH-03")
@pytest.mark.parametrize(
    "config", [{"url": "https://a\r/"}, {"service": {"name": "s", "namespace": "n", "path": "/ "}}]
)
async def test_conversion_webhooks_have_the_same_rules(api: Local, config: Document) -> None:
    webhook_conversion = {"clientConfig": config, "conversionReviewVersions": ["v1"]}
    schema = {"openAPIV3Schema": {"type": "object"}}
    definition = {
        "metadata": {"name": "things.example.com"},
        "spec": {
            "group": "example.com",
            "names": {"plural": "things", "kind": "Thing"},
            "scope": "Namespaced",
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
            "conversion": {"strategy": "Webhook", "webhook": webhook_conversion},
        },
    }
    with pytest.raises(InvalidError, match="webhookClientConfig"):
        await api.request("create", DEFINITIONS, definition)


@pytest.mark.behaviour("WH-03")
@pytest.mark.parametrize(
    "url", ["https://[::1]:8443/a/b-c", "https://hook.example.com", "https://h/a%20b?", "https://h/#"]
)
async def test_other_urls_are_stored(api: Local, url: str) -> None:
    await configure(api, "validating", webhook({"url": url}))
