"""Values that break naive code (huge integers, nulls, invalid text): each a precise 4xx."""

from __future__ import annotations

from typing import Any, cast

import orjson
import pytest

from dray.api.document import Document
from dray.api.errors import BadRequestError
from dray.api.protobuf import encode_object
from dray.api.protobuf.wire import delimited, tag
from dray.api.schema.model import ListOf, MapOf, StructType, Type
from dray.apiserver.registry import builtin
from dray.dashboard.queries import Queries
from tests.security.attacker import (
    APPLY_PATCH,
    CONFIG_MAPS,
    DEFINITIONS,
    JSON_PATCH,
    JSON_TYPE,
    MERGE_PATCH,
    PODS,
    PROTOBUF_TYPE,
    STRATEGIC_PATCH,
    YAML_TYPE,
    assert_refused,
    attacked_server,
)

CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"
VICTIM = f"{CONFIG_MAPS}/victim"
# Python refuses to convert more than 4,300 digits.
DIGITS = "9" * 5000

TARGETS = {
    "limit": (f"{CONFIG_MAPS}?limit={DIGITS}", "value out of range"),
    "timeoutSeconds": (f"{CONFIG_MAPS}?timeoutSeconds={DIGITS}", "value out of range"),
    "resourceVersion of a list": (f"{CONFIG_MAPS}?resourceVersion={DIGITS}", "value out of range"),
    "resourceVersion of a get": (f"{VICTIM}?resourceVersion={DIGITS}", "value out of range"),
    "resourceVersion of a watch": (f"{CONFIG_MAPS}?watch=true&resourceVersion={DIGITS}", "value out of range"),
    "label selector": (f"{CONFIG_MAPS}?labelSelector=a%3E{DIGITS}", "must be an integer"),
    "zeros in a label selector": (f"{CONFIG_MAPS}?labelSelector=a%3C{'0' * 5000}1", "must be an integer"),
    "port of a port-forward": (f"{PODS}/p/portforward?ports={DIGITS}", "value out of range"),
    "ports of a port-forward": (f"{PODS}/p/portforward?ports={','.join(['80'] * 5000)}", "at most 256 ports"),
    "port beyond 16 bits": (f"{PODS}/p/portforward?ports=80,65536", "value out of range"),
    "tailLines of a log": (f"{PODS}/p/log?tailLines={DIGITS}", "value out of range"),
}


@pytest.mark.parametrize(("target", "why"), TARGETS.values(), ids=TARGETS.keys())
async def test_integer_with_5000_digits_in_a_query_is_refused(target: str, why: str) -> None:
    async with attacked_server() as attacker:
        assert_refused(await attacker.send("GET", target), 400, why)


@pytest.mark.parametrize("number", [DIGITS, f"-{DIGITS}", "1e999", "-1e400"], ids=["digits", "negative", "e", "-e"])
async def test_number_beyond_a_float_in_a_body_is_refused(number: str) -> None:
    body = f'{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"x","generation":{number}}}}}'.encode()
    async with attacked_server() as attacker:
        for method, target, content, media in (
            ("POST", CONFIG_MAPS, body, JSON_TYPE),
            ("POST", CONFIG_MAPS, body, YAML_TYPE),
            ("PATCH", VICTIM, body, MERGE_PATCH),
            ("PATCH", VICTIM, body, STRATEGIC_PATCH),
            ("PATCH", f"{VICTIM}?fieldManager=m", body, APPLY_PATCH),
            ("PATCH", VICTIM, f'[{{"op":"add","path":"/data/x","value":{number}}}]'.encode(), JSON_PATCH),
        ):
            # "unsupported value", or "cannot unmarshal number".
            assert_refused(await attacker.send(method, target, content, media), 400, "un")


@pytest.mark.parametrize("number", ["99999999999999999999", "1e30", "0x" + "f" * 5000, "-9223372036854775809"])
async def test_number_beyond_64_bits_is_refused_by_its_field(number: str) -> None:
    body = f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: x, generation: {number}}}".encode()
    async with attacked_server() as attacker:
        assert_refused(await attacker.send("POST", CONFIG_MAPS, body, YAML_TYPE), 400, "cannot unmarshal")


@pytest.mark.parametrize(
    ("field", "value", "kind"),
    [
        ("apiVersion", "61", "number"),
        ("apiVersion", "[v1]", "array"),
        ("kind", "{a: b}", "object"),
        ("kind", "true", "bool"),
    ],
)
async def test_kind_or_version_that_is_no_text_is_refused(field: str, value: str, kind: str) -> None:
    body = f"apiVersion: v2\nkind: Other\n{field}: {value}\n".encode()
    async with attacked_server() as attacker:
        answer = await attacker.send("POST", CONFIG_MAPS, body, YAML_TYPE)
        assert_refused(answer, 400, f"json: cannot unmarshal {kind} into Go struct field .{field} of type string")


async def test_index_with_5000_digits_in_a_patch_is_refused() -> None:
    body = orjson.dumps([{"op": "add", "path": f"/metadata/managedFields/{DIGITS}", "value": 1}])
    async with attacked_server() as attacker:
        assert_refused(await attacker.send("PATCH", VICTIM, body, JSON_PATCH), 422)


@pytest.mark.parametrize("revision", [10**25, -2, 2**63, 1e300, "1" * 5000])
async def test_forged_continue_token_is_refused(revision: float | str) -> None:
    import base64

    token = base64.urlsafe_b64encode(f'{{"v":"meta.k8s.io/v1","rv":{revision},"start":"/x"}}'.encode()).decode()
    async with attacked_server() as attacker:
        assert_refused(await attacker.send("GET", f"{CONFIG_MAPS}?continue={token}"), 400, "continue")


PROTOBUFS = {
    "name": tag(1, 2) + delimited(tag(1, 2) + delimited(b"\xff\xfe")),
    "key of data": tag(2, 2) + delimited(tag(1, 2) + delimited(b"\xff") + tag(2, 2) + delimited(b"a")),
    "value of data": tag(2, 2) + delimited(tag(1, 2) + delimited(b"a") + tag(2, 2) + delimited(b"\xc3\x28")),
}


@pytest.mark.parametrize("raw", PROTOBUFS.values(), ids=PROTOBUFS.keys())
async def test_invalid_utf8_in_protobuf_is_refused(raw: bytes) -> None:
    meta = tag(1, 2) + delimited(b"v1") + tag(2, 2) + delimited(b"ConfigMap")
    body = b"k8s\x00" + tag(1, 2) + delimited(meta) + tag(2, 2) + delimited(raw)
    broken_meta = tag(1, 2) + delimited(b"v1") + tag(2, 2) + delimited(b"\xff")
    other = b"k8s\x00" + tag(1, 2) + delimited(broken_meta) + tag(2, 2) + delimited(raw)
    async with attacked_server() as attacker:
        assert_refused(await attacker.send("POST", CONFIG_MAPS, body, PROTOBUF_TYPE), 400, "invalid UTF-8")
        assert_refused(await attacker.send("POST", CONFIG_MAPS, other, PROTOBUF_TYPE), 400, "invalid UTF-8")


async def test_null_container_is_an_empty_one_and_refused() -> None:
    pod = b'{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":{"containers":[null]}}'
    async with attacked_server() as attacker:
        for media in (JSON_TYPE, YAML_TYPE):
            answer = await attacker.send("POST", PODS, pod, media)
            assert_refused(answer, 422, "spec.containers[0].name: Required value")


def filled(kind: Type, leaf: Any, depth: int = 0) -> Any:
    """A value of the type in which every list has one null, every map too, and what is below is filled likewise."""
    if isinstance(kind, ListOf):
        return (
            [None, leaf]
            if depth > 6 or not isinstance(kind.element, StructType)
            else [None, filled(kind.element, leaf, depth + 1)]
        )
    if isinstance(kind, MapOf):
        return {"a": None, "": None}
    if isinstance(kind, StructType):
        if depth > 6:
            return {}
        return {name: filled(field.type, leaf, depth + 1) for name, field in kind.fields.items()}
    return leaf


ENDPOINTS = {
    f"{item.api_version} {item.definition.kind}": item
    for item in builtin.endpoints()
    if "create" in item.definition.verbs
}


@pytest.mark.parametrize("leaf", [None, "", "a\x00b"], ids=["null", "empty", "NUL"])
async def test_nulls_and_empty_values_in_every_field_of_every_kind_are_answered(leaf: Any) -> None:
    async with attacked_server() as attacker:
        for endpoint in ENDPOINTS.values():
            whole = filled(endpoint.struct, leaf)
            root = f"/apis/{endpoint.api_version}" if "/" in endpoint.api_version else f"/api/{endpoint.api_version}"
            scope = "/namespaces/default" if endpoint.definition.namespaced else ""
            target = f"{root}{scope}/{endpoint.definition.resource}"
            # One field after the other, so that the first complaint does not hide those of the rest.
            for name, value in whole.items():
                if not isinstance(value, dict):
                    continue
                for inner, content in value.items():
                    document: Document = {"metadata": {"name": "x"}, name: {inner: content}}
                    if name == "metadata":
                        document["metadata"] = {"name": "x", inner: content}
                    answer = await attacker.send("POST", target, orjson.dumps(document))
                    # Some refusals are 500 in Kubernetes; a bug is an InternalError.
                    assert answer.reason != "InternalError", (target, document, answer.message)


FOUND_BY_FUZZING = {
    "lone surrogate in a JSON patch": (JSON_PATCH, b'[{"op":"add","path":"/data/a","value":"\\ud800"}]', 200),
    "lone surrogate in a merge patch": (MERGE_PATCH, b'{"data":{"a":"\\ud800"}}', 200),
    "lone surrogate in a strategic patch": (STRATEGIC_PATCH, b'{"data":{"a":"\\udfff"}}', 200),
    "metadata of an apply that is text": (APPLY_PATCH, b"apiVersion: v1\nkind: ConfigMap\nmetadata: nam", 400),
    "metadata of an apply that is a list": (APPLY_PATCH, b"apiVersion: v1\nkind: ConfigMap\nmetadata: [a]", 400),
}


@pytest.mark.parametrize(("media", "body", "code"), FOUND_BY_FUZZING.values(), ids=FOUND_BY_FUZZING.keys())
async def test_patch_that_fuzzing_found_is_answered(media: str, body: bytes, code: int) -> None:
    async with attacked_server() as attacker:
        answer = await attacker.send("PATCH", f"{VICTIM}?fieldManager=m", body, media)
        assert (answer.code, answer.message) == (code, answer.message)


async def test_null_element_in_a_strategic_patch_is_refused() -> None:
    pod = b'{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i"}]}}'
    patch = b'{"spec":{"containers":[{"name":"c"},null]}}'
    async with attacked_server() as attacker:
        assert (await attacker.send("POST", PODS, pod)).code == 201
        assert_refused(await attacker.send("PATCH", f"{PODS}/p", patch, STRATEGIC_PATCH), 422)


async def test_stop_signal_of_a_lifecycle_is_no_handler() -> None:
    container = {"name": "c", "image": "i", "lifecycle": {"stopSignal": "SIGUSR1"}}
    pod = orjson.dumps({"metadata": {"name": "p"}, "spec": {"os": {"name": "linux"}, "containers": [container]}})
    async with attacked_server() as attacker:
        answer = await attacker.send("POST", PODS, pod)
        assert answer.code == 201, answer
        assert b'"stopSignal":"SIGUSR1"' in answer.body


async def test_version_of_a_definition_without_a_name_is_refused() -> None:
    names = {"plural": "things", "kind": "Thing"}
    versions = [{"served": True, "storage": True}]
    spec = {"group": "example.com", "scope": "Cluster", "names": names, "versions": versions}
    body = orjson.dumps({"metadata": {"name": "things.example.com"}, "spec": spec})
    async with attacked_server() as attacker:
        assert_refused(await attacker.send("POST", DEFINITIONS, body), 422, "spec.versions[0].name")


class NoClient:
    """Fails when it is asked for anything."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the client was asked to {name}")


@pytest.mark.parametrize("name", ["a\x00b", "-f/etc/passwd", "a/../b", "x" * 300, "ä"])
async def test_queries_of_the_dashboard_take_only_names_of_objects(name: str) -> None:
    queries, client = Queries(), cast(Any, NoClient())
    for namespace, given in (("default", name), (name, "pod")):
        query = {"kind": "pod", "namespace": namespace, "name": given, "change": "copies"}
        for ask in (queries.explain, queries.object):
            with pytest.raises(BadRequestError, match="of an object is required"):
                await ask(client, query)
    with pytest.raises(BadRequestError, match="of an object is required"):
        await queries.simulate(client, {"change": "drain", "name": name})


RAW_VALUES = {
    "a missing value": (b'{"k":1.5,"l":,}', "invalid character ',' looking for beginning of value"),
    "NaN": (b'{"k":1.5,"l":NaN}', "invalid character 'N' looking for beginning of value"),
    "Infinity": (b'{"k":1.5,"l":-Infinity}', "invalid character 'I' looking for beginning of value"),
    "text behind it": (b'{"k":1.5}x', "invalid character 'x' after top-level value"),
    "nesting": (b'{"k":1.5,"l":' + b"[" * 200 + b"]" * 200 + b"}", "exceeded max depth of 128 levels"),
    "a number beyond a float": (b'{"k":1e999}', "cannot unmarshal number 1e999"),
    "an integer of 5000 digits": (b'{"k":' + DIGITS.encode() + b"}", "cannot unmarshal number"),
    "a control character": (b'{"k":1.5,"l":"\x01"}', "in string literal"),
}


def with_raw_value(raw: bytes) -> bytes:
    """A DeviceClass in protobuf whose opaque parameters are these bytes."""
    mark = "x" * (len(raw) - 2)
    opaque = {"driver": "d.example.com", "parameters": mark}
    document = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "c"}}
    body = encode_object({**document, "spec": {"config": [{"opaque": opaque}]}})
    assert body.count(f'"{mark}"'.encode()) == 1
    return body.replace(f'"{mark}"'.encode(), raw)


@pytest.mark.parametrize(("raw", "why"), RAW_VALUES.values(), ids=RAW_VALUES.keys())
async def test_malformed_json_in_a_raw_value_of_protobuf_is_refused(raw: bytes, why: str) -> None:
    async with attacked_server() as attacker:
        assert_refused(await attacker.send("POST", CLASSES, with_raw_value(raw), PROTOBUF_TYPE), 400, why)


@pytest.mark.parametrize("media", [JSON_TYPE, PROTOBUF_TYPE])
async def test_a_lone_surrogate_beside_a_raw_number_is_replaced(media: str) -> None:
    raw = b'{"k":1.50,"l":"\\ud800"}'
    config = (
        b'{"kind":"DeviceClass","metadata":{"name":"c"},"spec":{"config":[{"opaque":{"driver":"d","parameters":%b}}]}}'
    )
    body = with_raw_value(raw) if media == PROTOBUF_TYPE else config % raw
    async with attacked_server() as attacker:
        answer = await attacker.send("POST", CLASSES, body, media)
        assert answer.code == 201, answer
        assert '{"k":1.50,"l":"\ufffd"}'.encode() in answer.body


async def test_a_limit_of_hundreds_of_digits_stops_no_pod() -> None:
    """It is larger than all doubles, in which ratios are computed."""
    huge = "9" * 400
    limits = {"maxLimitRequestRatio": {"cpu": huge}, "default": {"memory": huge}, "defaultRequest": {"memory": "1"}}
    ratio = {"type": "Container", **limits, "max": {"memory": huge}}
    bounds = {
        "type": "Container",
        "maxLimitRequestRatio": {"memory": "2"},
        "max": {"memory": huge},
        "min": {"memory": 1},
    }
    resources = {"requests": {"cpu": "1", "memory": "1"}, "limits": {"cpu": "2", "memory": huge}}
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i", "resources": resources}]}}
    async with attacked_server() as attacker:
        for item in (ratio, bounds):
            body = {"metadata": {"generateName": "l-"}, "spec": {"limits": [item]}}
            answer = await attacker.send("POST", "/api/v1/namespaces/default/limitranges", body)
            assert answer.code in (201, 422), answer
        assert (await attacker.send("POST", PODS, pod)).code in (201, 403)
