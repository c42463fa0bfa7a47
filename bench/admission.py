"""What policies and webhooks cost: creates in one process without any, with ten of others, with one that matches.

`python -m bench.admission` prints the rows. Processor time is measured, so that a busy machine does not matter; the
variants take turns, and the tenth percentile of the
rounds counts: a busy machine makes rounds longer, never shorter.
"""

from __future__ import annotations

import asyncio
import statistics
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
IDLE_SHARE = 1.0
# Without these there is nothing that could be configured.
CONFIGURED = ("MutatingAdmissionWebhook", "ValidatingAdmissionWebhook", "ValidatingAdmissionPolicy")


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
async def server(directory: str, name: str, resources: dict[str, str], disabled: tuple[str, ...] = ()) -> Any:
    """Run a server with policies by name and resource."""
    async with local_server(Path(directory) / name, disabled=disabled) as api:
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


async def measure() -> list[dict[str, float]]:
    """Return the microseconds of a create by variant, for each round."""
    others = {f"p-{number}": "secrets" for number in range(10)}
    found: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as directory:
        async with (
            server(directory, "disabled", {}, CONFIGURED) as without,
            server(directory, "none", {}) as none,
            server(directory, "others", others) as unmatched,
            server(directory, "matching", {"p": "configmaps"}) as matching,
        ):
            turns = [("disabled", without), ("none", none), ("others", unmatched), ("matching", matching)]
            for number in range(ROUNDS):
                # Each variant is first as often as the others.
                turns = [*turns[1:], turns[0]]
                found.append({name: await create(api, number * CREATES) / CREATES * 1e6 for name, api in turns})
    return found


def rows() -> Iterator[Row]:
    """Measure and return the rows."""
    found = asyncio.run(measure())
    parameters = {"creates": CREATES, "rounds": ROUNDS, "store": "memory", "in process": True}

    cost = {name: statistics.quantiles([each[name] for each in found], n=10)[0] for name in found[0]}

    def percent(name: str, base: str) -> float:
        return 100 * (cost[name] / cost[base] - 1)

    yield Row("create without policies", cost["none"], "us of processor time", parameters)
    idle = percent("none", "disabled")
    yield Row("no webhook and no policy configured", idle, "% more", parameters, Target(IDLE_SHARE))
    yield Row("ten policies that match nothing", percent("others", "none"), "% more", parameters, Target(OTHERS_SHARE))
    yield Row(
        "one policy that matches", cost["matching"] - cost["none"], "us more", parameters, Target(MATCHING_MICROSECONDS)
    )


if __name__ == "__main__":
    for row in rows():
        sys.stdout.write(f"{row.document()}\n")
