"""Benchmarks of long requests: how long their parts hold the event loop, and what another user's requests wait for.

The requests are the worst that `python -m bench.long_request_search` and attackers have found, one of each way in.
"""

from __future__ import annotations

import asyncio
import gc
import http.client
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import greenlet
import orjson

from bench.fairness import new_token
from bench.load import read_endpoint
from bench.processes import load, serving
from bench.rows import Row, Target, percentile, progress
from dray.api.protobuf import encode_object
from dray.apiserver.call import Pacer
from dray.apiserver.fairness import FairQueue
from dray.apiserver.request import UserInfo
from dray.apiserver.request_limiter import RequestLimiter
from dray.runtime.garbage import THRESHOLDS
from dray.runtime.system import SystemClock
from dray.runtime.tasks import ChildTasks
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
    Answer,
    Attacker,
    attacked_server,
)

PART_MILLISECONDS_MAX: Final = 50
REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
POLICIES: Final = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
BINDINGS: Final = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
THINGS: Final = "/apis/example.com/v1/namespaces/default/things"
CLAIM_TEMPLATES: Final = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates"
TABLE: Final = "application/json;as=Table;v=v1;g=meta.k8s.io"
LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
GREEDY: Final = UserInfo("greedy", groups=("system:authenticated",))
MODEST: Final = UserInfo("modest", groups=("system:authenticated",))
_ATTEMPTS: Final = 3
_OBJECTS: Final = 6_000
_REQUESTS: Final = 40
_FLOOD_SECONDS: Final = 4.0
_OVER_TLS: Final = ("create of a Pod with 45,000 variables", "apply of 45,000 keys", "access review of 2 MB")


@dataclass(frozen=True, slots=True)
class LongRequest:
    """A request, and what must exist before it."""

    method: str
    target: str
    body: Callable[[], bytes]
    media: str = JSON_TYPE
    before: tuple[LongRequest, ...] = ()
    accept: str = ""


def _object(kind: str, **fields: Any) -> bytes:
    version = {"SelfSubjectAccessReview": "authorization.k8s.io/v1", "Thing": "example.com/v1"}.get(kind, "v1")
    if kind.startswith("ValidatingAdmissionPolicy"):
        version = "admissionregistration.k8s.io/v1"
    return orjson.dumps({"apiVersion": version, "kind": kind, "metadata": {"name": "long"}, **fields})


def _data(count: int, value: str = "v") -> dict[str, str]:
    return {f"k{number}": value for number in range(count)}


def _config_map(count: int, value: str = "v") -> bytes:
    return _object("ConfigMap", data=_data(count, value))


def _pod() -> bytes:
    env = [{"name": f"E{number}", "value": "x"} for number in range(45_000)]
    return _object("Pod", spec={"containers": [{"name": "c", "image": "i", "env": env}]})


def _review() -> bytes:
    requirements = [{"key": f"k{number}", "operator": "In", "values": ["a"]} for number in range(45_000)]
    attributes = {"verb": "get", "resource": "pods", "labelSelector": {"requirements": requirements}}
    return _object("SelfSubjectAccessReview", spec={"resourceAttributes": attributes})


def _duplicates() -> bytes:
    fields = ",".join(f'"x":"{number}"' for number in range(200_000))
    return b'{"metadata":{"name":"long"},"data":{%s}}' % fields.encode()


def _policy(expression: str, validations: int = 1) -> tuple[LongRequest, ...]:
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
    spec = {"matchConstraints": {"resourceRules": [rule]}, "validations": [{"expression": expression}] * validations}
    bound = {"policyName": "long", "validationActions": ["Deny"]}
    return (
        LongRequest("POST", POLICIES, lambda: _object("ValidatingAdmissionPolicy", spec=spec)),
        LongRequest("POST", BINDINGS, lambda: _object("ValidatingAdmissionPolicyBinding", spec=bound)),
    )


def _definition() -> bytes:
    rules = [{"rule": "self.all(x, x >= 0)"}]
    items = {"type": "array", "items": {"type": "integer"}, "x-kubernetes-validations": rules, "maxItems": 100}
    unique = {"type": "object", "x-kubernetes-map-type": "atomic", "properties": {"k": {"type": "string"}}}
    fields = {
        "lists": {"type": "array", "maxItems": 2000, "items": items},
        "set": {"type": "array", "x-kubernetes-list-type": "set", "items": unique},
        "choices": {"type": "array", "items": {"type": "string", "enum": [f"v{number}" for number in range(2_000)]}},
    }
    spec = {"type": "object", "properties": fields}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}
    names = {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"}
    version = {"name": "v1", "served": True, "storage": True, "schema": schema}
    document = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": names, "versions": [version]},
    }
    return orjson.dumps(document)


def _free_definition() -> bytes:
    document = orjson.loads(_definition())
    version = document["spec"]["versions"][0]
    version["schema"]["openAPIV3Schema"] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    replicas = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}
    version["subresources"] = {"scale": replicas}
    version["additionalPrinterColumns"] = [
        {"name": f"c{number}", "type": "string", "jsonPath": ".spec.a[*].b"} for number in range(30)
    ]
    return orjson.dumps(document)


def _finalizers() -> bytes:
    names = [f"example.com/f{number}" for number in range(40_000)]
    return orjson.dumps(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "long", "finalizers": names}, "data": {}}
    )


def _yaml() -> bytes:
    return b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: long}\ndata:\n" + b"".join(
        b"  k%d: v\n" % number for number in range(45_000)
    )


_STORED: Final = LongRequest("POST", CONFIG_MAPS, lambda: _config_map(60_000))
_MANY: Final = tuple(
    LongRequest("POST", CONFIG_MAPS, partial(orjson.dumps, {"metadata": {"name": f"m{number}"}}))
    for number in range(_OBJECTS)
)
_LABELLED: Final = LongRequest(
    "POST", CLAIM_TEMPLATES, lambda: orjson.dumps({"metadata": {"name": "long", "labels": _data(60_000)}, "spec": {}})
)
_FREE: Final = LongRequest(
    "POST", THINGS, lambda: _object("Thing", spec={"a": [{"b": "c"}] * 80_000, "m": dict.fromkeys(_data(80_000), 1)})
)
_VICTIM: Final = f"{CONFIG_MAPS}/long?fieldManager=other&force=true"

REQUESTS: Final[dict[str, LongRequest]] = {
    "create with 200,000 times one key": LongRequest("POST", CONFIG_MAPS, _duplicates),
    "create in YAML": LongRequest("POST", CONFIG_MAPS, _yaml, YAML_TYPE),
    "create in protobuf": LongRequest(
        "POST", CONFIG_MAPS, lambda: encode_object(orjson.loads(_config_map(100_000))), PROTOBUF_TYPE
    ),
    "create of a Pod with 45,000 variables": LongRequest("POST", PODS, _pod),
    "update of 60,000 keys": LongRequest(
        "PUT", f"{CONFIG_MAPS}/long", lambda: _config_map(60_000, "w"), before=(_STORED,)
    ),
    "JSON patch of copies": LongRequest(
        "PATCH",
        f"{CONFIG_MAPS}/victim",
        lambda: orjson.dumps(
            [{"op": "add", "path": "/x", "value": []}, *[{"op": "copy", "from": "/x", "path": "/x/-"}] * 20]
        ),
        JSON_PATCH,
    ),
    "JSON patch of tests": LongRequest(
        "PATCH",
        f"{CONFIG_MAPS}/long",
        lambda: orjson.dumps([{"op": "test", "path": "/data", "value": _data(20)}] * 1_000),
        JSON_PATCH,
        (_STORED,),
    ),
    "merge patch of 60,000 keys": LongRequest(
        "PATCH", f"{CONFIG_MAPS}/long", lambda: orjson.dumps({"data": _data(60_000, "w")}), MERGE_PATCH, (_STORED,)
    ),
    "strategic patch of 60,000 keys": LongRequest(
        "PATCH", f"{CONFIG_MAPS}/long", lambda: orjson.dumps({"data": _data(60_000, "w")}), STRATEGIC_PATCH, (_STORED,)
    ),
    "apply of 45,000 keys": LongRequest("PATCH", _VICTIM, lambda: _config_map(45_000, "w"), APPLY_PATCH, (_STORED,)),
    "access review of 2 MB": LongRequest("POST", REVIEWS, _review),
    "policy with findAll": LongRequest(
        "POST",
        CONFIG_MAPS,
        lambda: _object("ConfigMap", data={"text": "ab " * 300_000}),
        before=_policy("object.data.text.findAll('[a-b]').size() > 0"),
    ),
    "policy that exhausts its budget": LongRequest(
        "POST", CONFIG_MAPS, lambda: _config_map(30_000), before=_policy("object.data == object.data", 30)
    ),
    "custom resource with rules": LongRequest(
        "POST",
        THINGS,
        lambda: _object("Thing", spec={"lists": [[*range(100)]] * 2_000}),
        before=(LongRequest("POST", DEFINITIONS, _definition),),
    ),
    "custom resource with a set of objects": LongRequest(
        "POST",
        THINGS,
        lambda: _object("Thing", spec={"set": [{"k": f"a{number}"} for number in range(60_000)]}),
        before=(LongRequest("POST", DEFINITIONS, _definition),),
    ),
    "custom resource with values of no enum": LongRequest(
        "POST",
        THINGS,
        lambda: _object("Thing", spec={"choices": [f"w{number}" for number in range(5_000)]}),
        before=(LongRequest("POST", DEFINITIONS, _definition),),
    ),
    "Table of a custom resource with 30 columns": LongRequest(
        "GET", f"{THINGS}/long", bytes, before=(LongRequest("POST", DEFINITIONS, _free_definition), _FREE), accept=TABLE
    ),
    "scale of a large custom resource": LongRequest(
        "PATCH",
        f"{THINGS}/long/scale",
        lambda: b'{"spec":{"replicas":3}}',
        MERGE_PATCH,
        (LongRequest("POST", DEFINITIONS, _free_definition), _FREE),
    ),
    "get in YAML": LongRequest("GET", f"{CONFIG_MAPS}/long", bytes, before=(_STORED,), accept=YAML_TYPE),
    "get in protobuf": LongRequest("GET", f"{CONFIG_MAPS}/long", bytes, before=(_STORED,), accept=PROTOBUF_TYPE),
    "patch beside 60,000 managed fields": LongRequest(
        "PATCH", f"{CLAIM_TEMPLATES}/long", lambda: b'{"metadata":{"labels":{"a":"b"}}}', MERGE_PATCH, (_LABELLED,)
    ),
    "apply of 40,000 finalizers": LongRequest(
        "PATCH",
        f"{CONFIG_MAPS}/long?fieldManager=other&force=true",
        _finalizers,
        APPLY_PATCH,
        (LongRequest("POST", CONFIG_MAPS, _finalizers),),
    ),
    "list, indented": LongRequest("GET", f"{CONFIG_MAPS}?pretty=true", bytes, before=_MANY),
    "deletecollection": LongRequest("DELETE", CONFIG_MAPS, bytes, before=_MANY),
    "OpenAPI": LongRequest("GET", "/openapi/v2", bytes),
}


@dataclass(slots=True)
class Parts:
    """The processor time of the parts in which a request holds the event loop, in seconds."""

    longest: float = 0.0
    total: float = 0.0
    count: int = 0
    _started: float = field(default_factory=time.thread_time)

    def __call__(self, _event: str, switch: tuple[Any, Any]) -> None:
        """Trace a switch of greenlets."""
        now = time.thread_time()
        if switch[1].parent is not None:
            self._started = now
            return
        used = now - self._started
        self.longest = max(self.longest, used)
        self.total += used
        self.count += 1


async def measured(attacker: Attacker, limiter: RequestLimiter, request: LongRequest) -> tuple[Answer, Parts]:
    """Send a request alone, and return the answer and the parts."""
    body, parts = request.body(), Parts()

    def work(pacer: Pacer) -> Any:
        return attacker.send(request.method, request.target, body, request.media, request.accept, pacer)

    before = greenlet.settrace(parts)
    try:
        answer = await limiter.run(GREEDY, "", work)
    finally:
        greenlet.settrace(before)
    return answer, parts


@asynccontextmanager
async def prepared(request: LongRequest) -> AsyncIterator[tuple[Attacker, RequestLimiter]]:
    """Yield a server that has what the request needs."""
    async with attacked_server() as attacker:
        for earlier in request.before:
            answer = await attacker.send(earlier.method, earlier.target, earlier.body(), earlier.media)
            assert answer.code == 201, answer
        yield attacker, RequestLimiter(FairQueue(), SystemClock())


async def least_parts(request: LongRequest, attempts: int = _ATTEMPTS) -> Parts:
    """Return the parts of the attempt whose longest one is the shortest: caches and other programs delay some."""
    found = []
    for _ in range(attempts):
        async with prepared(request) as (attacker, limiter):
            found.append((await measured(attacker, limiter, request))[1])
    return min(found, key=lambda parts: parts.longest)


async def waits_beside(request: LongRequest, connections: int = 2, requests: int = _REQUESTS) -> dict[str, list[float]]:
    """Return the processor time that passes while requests of others wait, beside those of a greedy user."""
    lease = orjson.dumps({"metadata": {"name": "l"}})
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    others: dict[str, Callable[[int], LongRequest]] = {
        "get": lambda _: LongRequest("GET", f"{CONFIG_MAPS}/victim", bytes),
        "readyz": lambda _: LongRequest("GET", "/readyz", bytes),
        "lease": lambda number: LongRequest(
            "PATCH", f"{LEASES}/l", lambda: orjson.dumps({"spec": {"holderIdentity": f"h{number}"}}), MERGE_PATCH
        ),
        "binding": lambda number: LongRequest(
            "POST",
            f"{PODS}/p{number}/binding",
            lambda: orjson.dumps({"metadata": {"name": f"p{number}"}, "target": {"kind": "Node", "name": "n"}}),
        ),
    }
    async with prepared(request) as (attacker, limiter):
        node = {"metadata": {"name": "n"}}
        assert (await attacker.send("POST", "/api/v1/nodes", orjson.dumps(node))).code == 201
        for number in range(requests):
            named = pod | {"metadata": {"name": f"p{number}"}}
            assert (await attacker.send("POST", PODS, orjson.dumps(named))).code == 201
        sent, all_sent = 0, asyncio.Event()

        async def flood() -> None:
            nonlocal sent
            body = request.body()

            def work(pacer: Pacer) -> Any:
                return attacker.send(request.method, request.target, body, request.media, request.accept, pacer)

            while True:
                sent += 1
                if sent == connections:
                    all_sent.set()
                await limiter.run(GREEDY, "", work)

        async def call(other: LongRequest) -> float:
            path = other.target if other.target == "/readyz" else ""
            before = time.thread_time()
            # As on a connection: a request is read in one turn of the event loop, and served by a task in the next.
            await asyncio.sleep(0)
            answer = await limiter.run(
                MODEST, path, lambda _: attacker.send(other.method, other.target, other.body(), other.media)
            )
            assert answer.code < 300, answer
            return time.thread_time() - before

        assert await call(LongRequest("POST", LEASES, lambda: lease)) >= 0
        greedy = ChildTasks("greedy user")
        tasks = [greedy.spawn(flood(), f"connection {number}") for number in range(connections)]
        waits: dict[str, list[float]] = {name: [] for name in others}
        try:
            await all_sent.wait()
            for number in range(requests):
                for name, make in others.items():
                    waits[name].append(await call(make(number)))
                    assert not any(task.done() for task in tasks), "the greedy user's connections stay busy"
        finally:
            await greedy.aclose()
    return waits


def rows() -> Iterator[Row]:
    """Measure the longest part of each long request, and the requests of others beside two connections of the worst."""
    yield from _rows_in_process()
    yield from _rows_of_a_server()


def _rows_of_a_server() -> Iterator[Row]:
    """Measure the elapsed time of another user's GET, over TLS, beside two connections of a long request."""
    with serving() as server:
        greedy, modest = (new_token(server, name, "default") for name in ("greedy", "modest"))
        load(server, "create", clients=1, total=1, prefix="object")
        for name in ("", *_OVER_TLS):
            stop = threading.Event()
            arguments = (str(server.kubeconfig), greedy, REQUESTS[name], stop) if name else ()
            with ThreadPoolExecutor() as executor:
                floods = [executor.submit(_flood, *arguments) for _ in range(2 if name else 0)]
                try:
                    time.sleep(_FLOOD_SECONDS if name else 0.0)
                    path = f"{CONFIG_MAPS}/object-0"
                    found = load(server, "hold", clients=1, token=modest, seconds=_FLOOD_SECONDS, path=path, pause=0.01)
                finally:
                    stop.set()
                sent = sum(flood.result() for flood in floods)
            beside = f"2 connections: {name}" if name else "nothing"
            parameters = {"beside": beside, "requests": len(found["times"]), "long requests": sent}
            milliseconds = 1000 * percentile(found["times"], 0.5)
            yield Row("over TLS beside long requests: get, p50", milliseconds, "ms", parameters, Target(50))


def _flood(kubeconfig: str, token: str, request: LongRequest, stop: threading.Event) -> int:
    """Repeat a request on one connection, and return how often."""
    endpoint, body, count = read_endpoint(kubeconfig, certificate=False), request.body(), 0
    connection = http.client.HTTPSConnection(endpoint.host, endpoint.port, context=endpoint.tls, timeout=300)
    while not stop.is_set():
        headers = {"Authorization": f"Bearer {token}", "Content-Type": request.media}
        connection.request(request.method, request.target, body, headers)
        connection.getresponse().read()
        count += 1
    connection.close()
    return count


def _rows_in_process() -> Iterator[Row]:
    """Measure in processor time, in one process without connections."""
    gc.set_threshold(*THRESHOLDS)
    totals: dict[str, float] = {}
    limit = Target(PART_MILLISECONDS_MAX)
    for name, request in REQUESTS.items():
        progress(name)
        parts = asyncio.run(least_parts(request))
        totals[name] = parts.total
        parameters = {"total": f"{1000 * parts.total:.0f} ms", "parts": parts.count, "bytes": len(request.body())}
        yield Row(f"longest part: {name}", 1000 * parts.longest, "ms", parameters, limit)
    worst = max(totals, key=lambda name: totals[name])
    for name, waits in asyncio.run(waits_beside(REQUESTS[worst])).items():
        parameters = {"beside": f"2 connections: {worst}", "requests": len(waits)}
        yield Row(f"beside long requests: {name}, p50", 1000 * percentile(waits, 0.5), "ms", parameters, limit)
        yield Row(f"beside long requests: {name}, p99", 1000 * percentile(waits, 0.99), "ms", parameters)
