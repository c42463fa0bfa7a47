"""Objects of some kilobytes whose validation, or its errors, would take the time of the server: it is linear now."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable

import orjson
import pytest

from dray.api.document import Document
from dray.api.structural.values import compile_values
from tests.security.attacker import APPLY_PATCH, CONFIG_MAPS, PODS, Attacker, attacked_server

# Twice the input may take little more than twice the time; quadratic work takes four times.
GROWTH_MAX = 2.6
ATTEMPTS = 6
SIZE = 1500
ANSWER_BYTES_MAX = 4 * 1024 * 1024


def named(kind: str, api_version: str, **fields: object) -> Document:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": "bomb"}, **fields}


def texts(size: int) -> list[str]:
    return [f"n{i}" for i in range(size)]


def owners(size: int) -> Document:
    owner = {"apiVersion": "v1", "kind": "Pod", "uid": "u", "controller": True}
    references = [{**owner, "name": f"n{i}"} for i in range(size)]
    return {**named("ConfigMap", "v1"), "metadata": {"name": "bomb", "ownerReferences": references}}


def webhook(size: int) -> Document:
    hook = {
        "name": "a.example.com",
        "admissionReviewVersions": texts(size),
        "clientConfig": {"url": "https://a"},
        "sideEffects": "None",
    }
    return named("ValidatingWebhookConfiguration", "admissionregistration.k8s.io/v1", webhooks=[hook])


def pod_claims(size: int) -> Document:
    claims = [{"name": name} for name in texts(size)]
    container = {"name": "c", "image": "i", "resources": {"claims": claims}}
    # None of the claims that the container names is among those of the Pod.
    mine = [{"name": f"m{i}", "resourceClaimName": "x"} for i in range(size)]
    return named("Pod", "v1", spec={"containers": [container], "resourceClaims": mine})


def spread(size: int) -> Document:
    constraints = [
        {"topologyKey": name, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
        for name in texts(size)
    ]
    spec = {"containers": [{"name": "c", "image": "i"}], "topologySpreadConstraints": constraints}
    return named("Pod", "v1", spec=spec)


ADMISSION = "/apis/admissionregistration.k8s.io/v1"
BOMBS: dict[str, tuple[str, Callable[[int], Document]]] = {
    "owner references": (CONFIG_MAPS, owners),
    "scopes of a quota": (
        "/api/v1/namespaces/default/resourcequotas",
        lambda size: named("ResourceQuota", "v1", spec={"scopes": texts(size)}),
    ),
    "review versions of a webhook": (f"{ADMISSION}/validatingwebhookconfigurations", webhook),
    "actions of a binding": (
        f"{ADMISSION}/validatingadmissionpolicybindings",
        lambda size: named(
            "ValidatingAdmissionPolicyBinding",
            "admissionregistration.k8s.io/v1",
            spec={"policyName": "p", "validationActions": texts(size)},
        ),
    ),
    "tolerations of a runtime class": (
        "/apis/node.k8s.io/v1/runtimeclasses",
        lambda size: named(
            "RuntimeClass", "node.k8s.io/v1", handler="h", scheduling={"tolerations": [{"key": k} for k in texts(size)]}
        ),
    ),
    "features of a node": (
        "/api/v1/nodes",
        lambda size: named("Node", "v1", status={"declaredFeatures": texts(size)}),
    ),
    "usages of a certificate": (
        "/apis/certificates.k8s.io/v1/certificatesigningrequests",
        lambda size: named(
            "CertificateSigningRequest",
            "certificates.k8s.io/v1",
            spec={"signerName": "a.b/c", "request": "", "usages": ["any"] * size},
        ),
    ),
    "claims of a container": (PODS, pod_claims),
    "spread constraints": (PODS, spread),
}


@pytest.mark.parametrize("name", BOMBS)
async def test_validation_takes_linear_time_and_answers_are_bounded(name: str) -> None:
    target, make = BOMBS[name]
    async with attacked_server() as attacker:
        assert await growth(attacker, target, make) <= GROWTH_MAX
        answer = await attacker.send("POST", target, orjson.dumps(make(8 * SIZE)))
        assert answer.code in (201, 422)
        assert len(answer.message) <= ANSWER_BYTES_MAX


async def growth(attacker: Attacker, target: str, make: Callable[[int], Document]) -> float:
    """How many times as long the doubled object takes, the least of some attempts."""
    bodies = [orjson.dumps(make(size)) for size in (SIZE, 2 * SIZE)]
    least = [float("inf"), float("inf")]
    for _ in range(ATTEMPTS):
        for index, body in enumerate(bodies):
            started = time.thread_time()
            answer = await attacker.send("POST", target, body)
            least[index] = min(least[index], time.thread_time() - started)
            if answer.code == 201:
                await attacker.send("DELETE", f"{target}/bomb?gracePeriodSeconds=0")
        if least[1] <= GROWTH_MAX * least[0]:
            break
    return least[1] / least[0]


async def test_conflicts_of_an_apply_are_counted_and_some_are_shown() -> None:
    async with attacked_server() as attacker:
        answer = None
        for manager, value in (("one", "v"), ("two", "w")):
            data = {f"k{i}": value for i in range(5000)}
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "applied"}, "data": data}
            target = f"{CONFIG_MAPS}/applied?fieldManager={manager}"
            answer = await attacker.send("PATCH", target, orjson.dumps(body), APPLY_PATCH)
        assert answer is not None
        assert answer.code == 409
        assert answer.message.startswith('Apply failed with 5000 conflicts: conflicts with "one":\n- .data.k0\n')
        assert answer.message.endswith("\nand 4000 more conflicts")


def test_the_errors_of_values_that_are_none_of_many_share_their_text() -> None:
    """Each lists the 2,000 allowed values: 100,000 such values would take 3 GB."""
    allowed = [f"v{number}" for number in range(2000)]
    schema = {"properties": {"choices": {"type": "array", "items": {"type": "string", "enum": allowed}}}}
    validate = compile_values(schema)
    tracemalloc.start()
    try:
        errors = validate({"choices": [f"w{number}" for number in range(5000)]}, None)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(errors) == 5000
    assert peak < 10 * 1024 * 1024
