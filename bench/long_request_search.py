"""Searches for legal requests that hold the event loop: `python -m bench.long_request_search [--seconds N] [--seed N]`.

Each candidate is an object of some kind in which one list or map is long. Those with the longest part are changed
further: the length, what the elements have, the media type, the verb. What was written is then read in all formats,
patched, applied again and deleted. The worst are printed.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from bench.long_requests import TABLE, LongRequest, measured
from dray.api.protobuf import encode_object
from dray.api.schema.model import ListOf, MapOf, Scalar, StructType, Type
from dray.apiserver.endpoint import Endpoint
from dray.apiserver.fairness import FairQueue
from dray.apiserver.http import BODY_SIZE_MAX
from dray.apiserver.request_limiter import RequestLimiter
from dray.runtime.garbage import THRESHOLDS
from dray.runtime.system import SystemClock
from tests.security.attacker import (
    APPLY_PATCH,
    JSON_TYPE,
    MERGE_PATCH,
    PROTOBUF_TYPE,
    STRATEGIC_PATCH,
    YAML_TYPE,
    Attacker,
    attacked_server,
)

_DEPTH_MAX: Final = 5
_MEDIA: Final = (JSON_TYPE, JSON_TYPE, YAML_TYPE, PROTOBUF_TYPE, APPLY_PATCH, MERGE_PATCH, STRATEGIC_PATCH)
_SHOWN: Final = 10
_REFUSED_MIN: Final = 400
_BEST: Final = 20


@dataclass(frozen=True, slots=True)
class Candidate:
    """An object with one long list or map."""

    endpoint: Endpoint
    path: tuple[str, ...]
    count: int
    # The fields of each element, or of the values of a map.
    fill: int
    media: str

    def __str__(self) -> str:
        kind = f"{self.endpoint.api_version} {self.endpoint.gvk.kind}"
        return f"{kind} {'.'.join(self.path)} x {self.count}, fill {self.fill}, {self.media.rpartition('/')[2]}"

    def request(self, name: str) -> LongRequest:
        """Return the request that writes the object."""
        document = _along(self.endpoint.struct, self.path, self)
        document |= {"apiVersion": self.endpoint.api_version, "kind": self.endpoint.gvk.kind}
        document["metadata"] = {"name": name} | document.get("metadata", {})
        definition = self.endpoint.definition
        group = f"/apis/{self.endpoint.api_version}" if definition.group else "/api/v1"
        target = f"{group}/namespaces/default/{definition.resource}"
        if not definition.namespaced:
            target = f"{group}/{definition.resource}"
        patches = self.media.endswith(("patch+json", "patch+yaml"))
        if patches:
            target += f"/{name}?fieldManager=search"
        body = encode_object(document) if self.media == PROTOBUF_TYPE else orjson.dumps(document)
        return LongRequest("PATCH" if patches else "POST", target, lambda: body, self.media)

    def following(self, name: str) -> Iterator[tuple[str, LongRequest]]:
        """Yield requests for the written object, and what they do."""
        created = replace(self, media=JSON_TYPE).request(name)
        target = f"{created.target}/{name}"
        for accept in (YAML_TYPE, PROTOBUF_TYPE, TABLE):
            yield f"get {accept}", LongRequest("GET", target, bytes, accept=accept)
        yield "list", LongRequest("GET", f"{created.target}?pretty=true", bytes)
        yield "small patch", LongRequest("PATCH", target, lambda: b'{"metadata":{"labels":{"a":"b"}}}', MERGE_PATCH)
        for manager in ("one", "other"):
            applied = f"{target}?fieldManager={manager}&force=true"
            yield "apply", LongRequest("PATCH", applied, created.body, APPLY_PATCH)
        yield "status", LongRequest("PATCH", f"{target}/status", created.body, MERGE_PATCH)
        yield "delete", LongRequest("DELETE", target, bytes)


def _along(kind: Type, path: tuple[str, ...], candidate: Candidate) -> Any:
    """Return a value whose descendant at the path is long."""
    if isinstance(kind, ListOf):
        if not path:
            return [_value(kind.element, number, candidate.fill) for number in range(candidate.count)]
        return [_along(kind.element, path, candidate)]
    if isinstance(kind, MapOf):
        if not path:
            return {f"k{number}": _value(kind.element, number, candidate.fill) for number in range(candidate.count)}
        return {"k": _along(kind.element, path, candidate)}
    assert isinstance(kind, StructType)
    return {path[0]: _along(kind.fields[path[0]].type, path[1:], candidate)}


def _value(kind: Type, number: int, fill: int) -> Any:
    """Return a value of a type; each bit of `fill` adds a field to an object."""
    if isinstance(kind, StructType):
        chosen = [field for bit, field in enumerate(kind.fields.values()) if fill >> bit & 1]
        return {field.name: _value(field.type, number, 1) for field in chosen}
    if isinstance(kind, ListOf):
        return [_value(kind.element, number, 1)]
    if isinstance(kind, MapOf):
        return {"k": _value(kind.element, number, 1)}
    if kind in (Scalar.INT32, Scalar.INT64, Scalar.DOUBLE, Scalar.INT_OR_STRING):
        return number
    if kind is Scalar.BOOL:
        return True
    return {} if kind is Scalar.ANY else f"n{number}"


def _long_fields(kind: Type, depth: int = 0) -> Iterator[tuple[str, ...]]:
    """Yield the paths of all lists and maps of a type."""
    if isinstance(kind, ListOf | MapOf):
        yield ()
        kind = kind.element
        if isinstance(kind, ListOf | MapOf):
            return
    if isinstance(kind, StructType) and depth < _DEPTH_MAX:
        for field in kind.fields.values():
            for path in _long_fields(field.type, depth + 1):
                yield (field.name, *path)


def _changed(candidate: Candidate, rng: random.Random) -> Candidate:
    """Return a neighbour."""
    step = rng.randrange(3)
    if step == 0:
        return replace(candidate, count=int(candidate.count * rng.choice((0.5, 1.5, 2.0, 3.0))) + 1)
    if step == 1:
        return replace(candidate, fill=candidate.fill ^ 1 << rng.randrange(8))
    return replace(candidate, media=rng.choice(_MEDIA))


async def _score(
    candidate: Candidate, name: str, attacker: Attacker, limiter: RequestLimiter
) -> tuple[float, int, str]:
    """Return the seconds of the longest part, the code of the answer and the step; nothing for what is too large."""
    try:
        request = candidate.request(name)
        size = len(request.body())
    except (TypeError, ValueError, AttributeError):
        # Values that protobuf does not have.
        return 0.0, 400, "write"
    if size > BODY_SIZE_MAX:
        return 0.0, 413, "write"
    answer, parts = await measured(attacker, limiter, request)
    worst = parts.longest, answer.code, "write"
    if answer.code < _REFUSED_MIN:
        for step, following in candidate.following(name):
            answer, parts = await measured(attacker, limiter, following)
            worst = max(worst, (parts.longest, answer.code, step))
    return worst


async def search(seconds: float, seed: int) -> list[tuple[float, int, Candidate, str]]:
    """Return the worst candidates, with the seconds of their longest part and its step."""
    rng, found = random.Random(seed), dict[str, tuple[float, int, Candidate, str]]()
    until, tried = time.monotonic() + seconds, 0
    async with attacked_server() as attacker:
        endpoints = [item for item in attacker.endpoints() if "create" in item.definition.verbs]
        first = [
            Candidate(endpoint, path, 15_000, 1, JSON_TYPE)
            for endpoint in endpoints
            for path in _long_fields(endpoint.struct)
            if path[0] != "metadata" or endpoint.gvk.kind == "ConfigMap"
        ]
        rng.shuffle(first)
        while time.monotonic() < until:
            best = sorted(found.values(), key=lambda item: -item[0])[:_BEST]
            # Half of the time for each: new fields, and changes of the worst known ones.
            candidate = first.pop() if first and (not best or tried % 2) else _changed(rng.choice(best)[2], rng)
            tried += 1
            longest, code, step = await _score(
                candidate, f"s{seed}-{tried}", attacker, RequestLimiter(FairQueue(), SystemClock())
            )
            place = f"{candidate.endpoint.api_version} {candidate.endpoint.gvk.kind} {candidate.path}"
            if place not in found or longest > found[place][0]:
                found[place] = (longest, code, candidate, step)
    print(f"{tried} requests, {len(first)} fields left")
    return sorted(found.values(), key=lambda item: -item[0])[:_SHOWN]


def main() -> None:
    """Search, and print the worst requests."""
    parser = argparse.ArgumentParser(prog="bench.long_request_search", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    gc.set_threshold(*THRESHOLDS)
    for longest, code, candidate, step in asyncio.run(search(given.seconds, given.seed)):
        print(f"{1000 * longest:7.1f} ms  {code}  {step}: {candidate}")


if __name__ == "__main__":
    main()
