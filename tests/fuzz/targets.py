"""What is fuzzed: every way in that decodes something, each with its inputs."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

from hypothesis import strategies as st

from dray.api import cdi
from dray.api.document import GroupVersionKind
from dray.apiserver.fairness import FairQueue
from dray.apiserver.http import Listener
from dray.apiserver.metrics import RequestMetrics
from dray.apiserver.request_limiter import RequestLimiter
from dray.cel import CELError, CELRuntimeError, compile_program
from dray.cel.types import DYN
from dray.node.cdi import cache as cdi_cache
from dray.runtime.http.requests import Limits, RequestError, RequestParser
from dray.runtime.metrics import Metrics
from dray.runtime.system import SystemClock
from tests.fuzz import inputs
from tests.fuzz.decoders import DECODERS
from tests.fuzz.target import Finding, FuzzedServer, Sent, Target
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
    attacked_server,
)

KINDS = {
    GroupVersionKind("", "v1", "ConfigMap"): CONFIG_MAPS,
    GroupVersionKind("", "v1", "Pod"): PODS,
    GroupVersionKind("", "v1", "Node"): "/api/v1/nodes",
    GroupVersionKind("", "v1", "ResourceQuota"): "/api/v1/namespaces/default/resourcequotas",
    GroupVersionKind("apps", "v1", "Deployment"): "/apis/apps/v1/namespaces/default/deployments",
    GroupVersionKind("batch", "v1", "Job"): "/apis/batch/v1/namespaces/default/jobs",
    GroupVersionKind(
        "rbac.authorization.k8s.io", "v1", "ClusterRole"
    ): "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    GroupVersionKind(
        "resource.k8s.io", "v1", "ResourceClaim"
    ): "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims",
    GroupVersionKind("resource.k8s.io", "v1", "ResourceSlice"): "/apis/resource.k8s.io/v1/resourceslices",
    GroupVersionKind("resource.k8s.io", "v1beta1", "ResourceSlice"): "/apis/resource.k8s.io/v1beta1/resourceslices",
    GroupVersionKind("resource.k8s.io", "v1", "DeviceClass"): "/apis/resource.k8s.io/v1/deviceclasses",
    GroupVersionKind("apiextensions.k8s.io", "v1", "CustomResourceDefinition"): DEFINITIONS,
}
_OBJECTS = st.sampled_from(sorted(KINDS)).flatmap(lambda gvk: st.tuples(st.just(KINDS[gvk]), inputs.documents(gvk)))
_POD = GroupVersionKind("", "v1", "Pod")
# No input is the server's fault, but for those below kube-apiserver has the same answer, without a reason. Clients know
# the texts; the recorded answers of a real server (tests/golden) have some of them.
ERROR_MIN = 500
KUBERNETES_ERRORS = re.compile(
    r"""
    resourceVersion[ ]should[ ]not[ ]be[ ]set[ ]on[ ]objects[ ]to[ ]be[ ]created
    | (resourceVersion:[ ]Invalid[ ]value:[ ]".*":[ ])?strconv\.ParseUint:[ ]parsing[ ]".*":[ ][a-z ]+
    | Timeout:[ ]Too[ ]large[ ]resource[ ]version:[ ]\d+,[ ]current:[ ]\d+
    | failed[ ]to[ ](create[ ]typed[ ]patch|convert[ ]new)[ ]object[ ]\(.*\):.*
    | failed[ ]to[ ]decode[ ]managed[ ]fields:.*
    | unknown[ ]patch[ ]type:.*[ ]in[ ]map:.*
    | expected[ ]a[ ](\[\]|map\[string\])interface[ ]{},[ ]but[ ]received[ ]a[ ]\S+([ ]{})?
    | map:.*[ ]does[ ]not[ ]contain[ ]declared[ ]merge[ ]key:[ ]\w+
    | list[ ]element[ ]types[ ]are[ ]not[ ]identical:.*
    | (cannot[ ]merge[ ]lists[ ]without[ ]merge[ ]key|merging[ ]lists[ ]cannot[ ]yet[ ]be[ ]specified).*
    | The[ ]order[ ]in[ ]patch[ ]list:.*
    | unable[ ]to[ ]find[ ]api[ ]field[ ]in[ ]struct.*
    """,
    re.VERBOSE | re.DOTALL,
)


@asynccontextmanager
async def fuzzed_server() -> AsyncIterator[FuzzedServer]:
    """A server with a Pod to patch, listening on a loopback port without TLS."""
    async with attacked_server() as attacker:
        pod = b'{"metadata":{"name":"victim"},"spec":{"containers":[{"name":"c","image":"i"}]}}'
        assert (await attacker.send("POST", PODS, pod)).code == 201
        bound = socket.create_server(("127.0.0.1", 0))
        limiter = RequestLimiter(FairQueue(), SystemClock())
        listener = Listener(attacker._server, limiter, RequestMetrics(Metrics()))
        await listener.start([bound], None)
        try:
            yield FuzzedServer(attacker, bound.getsockname()[1])
        finally:
            await listener.stop()


async def _send(server: FuzzedServer, sent: Sent) -> None:
    answer = await server.attacker.send(sent.method, sent.target, sent.body, sent.media)
    if answer.code >= ERROR_MIN and not (answer.code in (500, 504) and KUBERNETES_ERRORS.fullmatch(answer.message)):
        raise Finding(f"{answer.code} {answer.reason}: {answer.message}")
    if answer.code == 201 and sent.method == "POST":
        await server.attacker.send("DELETE", f"{sent.target.partition('?')[0]}/fuzzed?gracePeriodSeconds=0")


async def _cel(server: FuzzedServer, sent: Sent) -> None:
    text = sent.body.decode("utf-8", "replace")
    try:
        program = compile_program(text, {"x": DYN})
        program.evaluate({"x": {"a": [1, "b", None, 2.5], "c": {"d": True}}})
    except (CELError, CELRuntimeError):
        return


async def _cdi(server: FuzzedServer, sent: Sent) -> None:
    for parse in (cdi.parse, cdi_cache._from_yaml):
        try:
            parse(sent.body)
        except cdi.CdiError:
            continue


async def _parser(server: FuzzedServer, sent: Sent) -> None:
    parser = RequestParser(Limits())
    step = max(1, len(sent.body) // 5)
    try:
        for start in range(0, len(sent.body), step):
            parser.feed(sent.body[start : start + step])
    except RequestError:
        return
    for request in parser.ready:
        _ = request.path, request.query


async def _http(server: FuzzedServer, sent: Sent) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        writer.write(sent.body)
        writer.write_eof()
        head = await asyncio.wait_for(reader.read(4096), 5)
    except (ConnectionError, TimeoutError) as error:
        if isinstance(error, TimeoutError):
            raise Finding("no answer within 5 s, and no end of the connection") from error
        return
    finally:
        writer.close()
    if head.startswith(b"HTTP/1.1 5"):
        raise Finding(head.decode(errors="replace"))


def _bodies(write: Callable[[Any], bytes], media: str, method: str = "POST") -> st.SearchStrategy[Sent]:
    return _OBJECTS.map(lambda pair: Sent(method, pair[0], write(pair[1]), media))


def _patches(write: Callable[[Any], bytes], media: str) -> st.SearchStrategy[Sent]:
    target = f"{PODS}/victim?fieldManager=m&force=true" if media == APPLY_PATCH else f"{PODS}/victim"
    directives = st.dictionaries(
        st.sampled_from(
            ("$patch", "$retainKeys", "$setElementOrder/containers", "$deleteFromPrimitiveList/finalizers")
        ),
        st.one_of(inputs.values, st.sampled_from(("delete", "replace", "merge", [{"name": "c"}], ["a"]))),
        max_size=2,
    )
    merged = st.tuples(inputs.documents(_POD), directives, st.sampled_from(("", "spec", "metadata"))).map(_placed)
    return merged.map(lambda document: Sent("PATCH", target, write(document), media))


def _placed(drawn: tuple[Any, Any, str]) -> Any:
    document, directives, place = drawn
    part = document.get(place) if place else document
    if isinstance(part, dict):
        part.update(directives)
    return document


_PATHS = st.sampled_from(
    (
        "",
        "/",
        "/spec",
        "/spec/containers",
        "/spec/containers/0",
        "/spec/containers/-",
        "/spec/containers/0/name",
        "/x",
        "/x/y",
        "/metadata/labels",
        "/metadata/labels/a~1b",
        "/spec/containers/" + "9" * 5000,
        "/spec/containers/-1",
        "no slash",
    )
)
_OPERATIONS = st.lists(
    st.fixed_dictionaries(
        {"op": st.sampled_from(("add", "remove", "replace", "move", "copy", "copy", "test", "x")), "path": _PATHS},
        optional={"from": _PATHS, "value": inputs.values},
    ),
    max_size=12,
)
_SELECTORS = st.lists(
    st.one_of(
        inputs.texts,
        st.sampled_from(("a", "!", "=", "==", "!=", " in ", " notin ", "(", ")", ",", ">", "<", "metadata.name")),
    ),
    max_size=8,
).map("".join)
_OPTIONS = st.sampled_from(
    (
        "labelSelector",
        "fieldSelector",
        "limit",
        "continue",
        "resourceVersion",
        "resourceVersionMatch",
        "timeoutSeconds",
        "pretty",
        "allowWatchBookmarks",
        "dryRun",
        "fieldManager",
        "fieldValidation",
        "gracePeriodSeconds",
        "propagationPolicy",
    )
)
_QUERIES = st.lists(st.tuples(_OPTIONS, st.one_of(inputs.repeated(_SELECTORS), inputs.texts)), max_size=4).map(
    lambda pairs: "&".join(f"{name}={quote(value)}" for name, value in pairs)
)
_CEL = st.lists(
    st.sampled_from(
        (
            "x",
            "x.a",
            "x.c.d",
            "1",
            "-9223372036854775808",
            "1u",
            "2.5e300",
            "'a'",
            "b'\\xff'",
            "[1, 2]",
            "{'a': 1}",
            "true",
            "null",
            " + ",
            " - ",
            " * ",
            " / ",
            " % ",
            " == ",
            " && ",
            " || ",
            " ? ",
            " : ",
            "!",
            "(",
            ")",
            "[",
            "]",
            ".",
            ",",
            "size(",
            "int('9')",
            "string(",
            ".matches('(a+)+$')",
            ".map(i, i)",
            ".all(i, i > 0)",
            ".exists(i, ",
            "quantity('1Gi')",
            "semver('1.2.3')",
            "timestamp('2026-01-01T00:00:00Z')",
            "duration('1h')",
            ".format(['%s'])",
            "has(x.a)",
            " in ",
            "dyn(",
            "type(",
            "\u2028",
            "9" * 5000,
            "(" * 60,
        )
    ),
    max_size=14,
).map("".join)


def _request(parts: tuple[str, str, str, list[str], str]) -> Sent:
    method, target, version, headers, body = parts
    lines = "\r\n".join((f"{method} {target} {version}", *headers))
    return Sent("", "", f"{lines}\r\n\r\n{body}".encode("utf-8", "surrogateescape"))


_HEADS = st.tuples(
    st.sampled_from(("GET", "POST", "PATCH", "PRI", "G\x00T", "get", "CONNECT")),
    st.one_of(
        st.sampled_from(
            ("/", "/api/v1/pods", "/healthz?verbose", "*", "http://a/b", "/%00", "/api/v1/watch/pods", "//")
        ),
        st.text(max_size=20),
    ),
    st.sampled_from(("HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTP/9.9", "")),
    st.lists(
        st.sampled_from(
            (
                "Host: a",
                "Content-Length: 5",
                "Content-Length: -1",
                "Content-Length: " + "9" * 30,
                "Transfer-Encoding: chunked",
                "Transfer-Encoding: gzip, chunked",
                "Expect: 100-continue",
                "Connection: close",
                "Connection: Upgrade",
                "Upgrade: h2c",
                "Authorization: Bearer x",
                "Accept: application/json;as=Table;v=v1;g=meta.k8s.io",
                "X: " + "y" * 3000,
                "Bad Header: 1",
                ": x",
                "Impersonate-User: root",
                "Accept-Encoding: gzip",
                "A\x00: b",
                "\xff: \xff",
                " folded",
            )
        ),
        max_size=6,
    ),
    st.sampled_from(
        (
            "",
            "hello",
            "5\r\nhello\r\n0\r\n\r\n",
            "5;x=y\r\nhello\r\n0\r\nAuthorization: x\r\n\r\n",
            "ffffffffffffffff\r\n",
            "-1\r\n",
            "GET / HTTP/1.1\r\n\r\n",
        )
    ),
).map(_request)
_SPECS = st.fixed_dictionaries(
    {
        "cdiVersion": st.sampled_from(("0.6.0", "1.0.0", "9.9.9", "", 1)),
        "kind": st.sampled_from(("vendor.com/gpu", "x", "", "a/b/c")),
    },
    optional={
        "devices": st.lists(
            st.fixed_dictionaries({"name": inputs.texts}, optional={"containerEdits": inputs.values}), max_size=3
        ),
        "containerEdits": st.fixed_dictionaries(
            {},
            optional={
                "env": st.lists(inputs.texts, max_size=3),
                "deviceNodes": st.lists(
                    st.fixed_dictionaries({"path": inputs.texts}, optional={"fileMode": inputs.scalars}), max_size=2
                ),
                "mounts": inputs.values,
                "hooks": inputs.values,
            },
        ),
        "annotations": inputs.values,
    },
)

TARGETS: dict[str, Target] = {
    "json-body": Target(_bodies(inputs.as_json, JSON_TYPE), _send),
    "yaml-body": Target(_bodies(inputs.as_yaml, YAML_TYPE), _send),
    "protobuf-body": Target(_bodies(inputs.as_protobuf, PROTOBUF_TYPE), _send),
    "json-patch": Target(
        inputs.repeated(_OPERATIONS).map(lambda ops: Sent("PATCH", f"{PODS}/victim", inputs.as_json(ops), JSON_PATCH)),
        _send,
    ),
    "merge-patch": Target(_patches(inputs.as_json, MERGE_PATCH), _send),
    "strategic-patch": Target(_patches(inputs.as_json, STRATEGIC_PATCH), _send),
    "apply-patch": Target(_patches(inputs.as_yaml, APPLY_PATCH), _send),
    "query": Target(_QUERIES.map(lambda text: Sent("GET", f"{PODS}?{text}", b"")), _send, mutates_target=True),
    "delete-options": Target(
        inputs.documents(GroupVersionKind("", "v1", "Pod")).map(
            lambda item: Sent("DELETE", f"{PODS}/nothing", inputs.as_json(item))
        ),
        _send,
    ),
    "cel": Target(inputs.repeated(_CEL).map(lambda text: Sent("", "", text.encode("utf-8", "replace"))), _cel),
    "http-parser": Target(_HEADS, _parser),
    "http-server": Target(_HEADS, _http),
    "cdi": Target(_SPECS.map(lambda spec: Sent("", "", inputs.as_json(spec))), _cdi),
    **DECODERS,
}
