"""What policies cost: creates in the same process without policies, with ten of others, and with one that matches.

`python -m bench.admission` prints the rows. Processor time is measured, so that a busy machine does not matter; the
variants take turns, and the least of several rounds counts.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bench.rows import Row, Target
from dray.api.document import Document
from tests.local_server import Local, local_server

ROUNDS = 60
CREATES = 150
GROUP = "admissionregistration.k8s.io/v1"
# Shares and times that are promised.
OTHERS_SHARE = 3.0
MATCHING_MICROSECONDS = 60.0


def policy(name: str, resource: str) -> Document:
    """Return a policy of the shape that drivers' charts have."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": [resource]}
    variables = [
        {"name": "user", "expression": "request.userInfo.username"},
        {"name": "size", "expression": "object.?data.orValue({}).size()"},
    ]
    validations = [
        {"expression": "variables.user != ''", "message": "no user"},
        {"expression": "variables.size < 100", "messageExpression": "'too large for ' + variables.user"},
    ]
    condition = {"name": "all", "expression": "request.userInfo.username != 'exempt'"}
    spec = {
        "matchConstraints": {"resourceRules": [rule]},
        "matchConditions": [condition],
        "variables": variables,
        "validations": validations,
    }
    return {"metadata": {"name": name}, "spec": spec}


async def add(api: Local, name: str, resource: str) -> None:
    """Create a policy with a binding."""
    await api.request("create", f"{GROUP}/validatingadmissionpolicies", policy(name, resource))
    spec = {"policyName": name, "validationActions": ["Deny"]}
    binding = {"metadata": {"name": name}, "spec": spec}
    await api.request("create", f"{GROUP}/validatingadmissionpolicybindings", binding)


@asynccontextmanager
async def server(directory: str, name: str, resources: dict[str, str]) -> Any:
    """Run a server with policies by name and resource."""
    async with local_server(Path(directory) / name) as api:
        for policy_name, resource in resources.items():
            await add(api, policy_name, resource)
        yield api


async def create(api: Local, first: int) -> float:
    """Return the processor time of some creates, in seconds."""
    start = time.process_time()
    for number in range(first, first + CREATES):
        document = {"metadata": {"name": f"c-{number}", "namespace": "default"}, "data": {"a": "b"}}
        await api.request("create", "core/v1/configmaps@default", document)
    return time.process_time() - start


async def measure() -> dict[str, float]:
    """Return the microseconds of a create by variant."""
    variants = {
        "none": {},
        "others": {f"p-{number}": "secrets" for number in range(10)},
        "matching": {"p": "configmaps"},
    }
    best: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as directory:
        async with (
            server(directory, "none", variants["none"]) as none,
            server(directory, "others", variants["others"]) as others,
            server(directory, "matching", variants["matching"]) as matching,
        ):
            for number in range(ROUNDS):
                for name, api in (("none", none), ("others", others), ("matching", matching)):
                    seconds = await create(api, number * CREATES)
                    best[name] = min(best.get(name, seconds), seconds)
    return {name: seconds / CREATES * 1e6 for name, seconds in best.items()}


def rows() -> Iterator[Row]:
    """Measure and return the rows."""
    found = asyncio.run(measure())
    parameters = {"creates": CREATES, "rounds": ROUNDS, "store": "memory", "in process": True}
    yield Row("create without policies", found["none"], "us of processor time", parameters)
    share = 100 * (found["others"] - found["none"]) / found["none"]
    yield Row("ten policies that match nothing", share, "% more", parameters, Target(OTHERS_SHARE))
    extra = found["matching"] - found["none"]
    yield Row("one policy that matches", extra, "us more", parameters, Target(MATCHING_MICROSECONDS))


if __name__ == "__main__":
    for row in rows():
        sys.stdout.write(f"{row.document()}\n")
