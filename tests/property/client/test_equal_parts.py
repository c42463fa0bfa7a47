"""Objects that share parts are equal to objects that do not, down to the order of their keys."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from dray.api.document import Document
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import ResourceClaim
from dray.client.equal_parts import EqualParts

# Few values, so that many parts are equal; the order of their keys is part of a map.
QUANTITIES = st.lists(st.sampled_from(["cpu", "memory", "example.com/gpu"]), unique=True).map(
    lambda names: dict.fromkeys(names, "1")
)


def _requests(quantities: dict[str, str]) -> Document:
    return {"requests": quantities}


TOLERATIONS = st.lists(
    st.fixed_dictionaries(
        {"key": st.sampled_from(["a", "b"]), "operator": st.just("Exists")},
        optional={"tolerationSeconds": st.integers(0, 1), "effect": st.just("NoExecute")},
    ),
    max_size=2,
)
VOLUMES = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from(["token-1", "token-2"])},
        optional={
            "emptyDir": st.just({}),
            "projected": st.fixed_dictionaries(
                {"sources": st.just([{"serviceAccountToken": {"path": "token"}}])},
                optional={"defaultMode": st.integers(0, 1)},
            ),
        },
    ),
    max_size=2,
)
CONTAINERS = st.lists(
    st.fixed_dictionaries(
        {"name": st.just("main"), "image": st.sampled_from(["", "pause:3.10"])},
        optional={"resources": st.fixed_dictionaries({}, optional={"requests": QUANTITIES, "limits": QUANTITIES})},
    ),
    max_size=2,
)
SPECS = st.fixed_dictionaries(
    {"containers": CONTAINERS},
    optional={
        "nodeName": st.sampled_from(["node-1", "node-2"]),
        "tolerations": TOLERATIONS,
        "volumes": VOLUMES,
        "restartPolicy": st.sampled_from(["Always", "Never"]),
        "securityContext": st.fixed_dictionaries({}, optional={"runAsUser": st.integers(0, 1)}),
        "resourceClaims": st.lists(st.fixed_dictionaries({"name": st.sampled_from(["a", "b"])}), max_size=2),
    },
)
CLAIMS = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {"name": st.just("claim")},
            optional={
                "annotations": QUANTITIES,
                "finalizers": st.lists(st.sampled_from(["example.com/a", "example.com/b"]), unique=True),
            },
        ),
        "status": st.fixed_dictionaries(
            {}, optional={"reservedFor": st.just([{"resource": "pods", "name": "pod", "uid": "1"}])}
        ),
    },
    optional={
        "spec": st.fixed_dictionaries(
            {},
            optional={
                "devices": st.fixed_dictionaries(
                    {},
                    optional={
                        "requests": st.lists(
                            st.fixed_dictionaries(
                                {"name": st.just("gpu")},
                                optional={
                                    "exactly": st.fixed_dictionaries({"capacity": st.builds(_requests, QUANTITIES)})
                                },
                            ),
                            max_size=2,
                        )
                    },
                )
            },
        )
    },
)


def pod(spec: Document) -> Pod:
    return msgspec.convert({"metadata": {"name": "pod"}, "spec": spec}, Pod)


@given(st.lists(SPECS, max_size=8), st.integers(1, 4))
def test_sharing_changes_no_pod(specs: list[dict[str, Any]], count_max: int) -> None:
    parts = EqualParts(count_max)
    shared = [pod(spec) for spec in specs]
    for each in shared:
        parts.share_pod(each)
    assert [msgspec.json.encode(each) for each in shared] == [msgspec.json.encode(pod(spec)) for spec in specs]


@given(st.lists(CLAIMS, max_size=8), st.integers(1, 4))
def test_sharing_changes_no_claim(documents: list[Document], count_max: int) -> None:
    parts = EqualParts(count_max)
    shared = [msgspec.convert(document, ResourceClaim) for document in documents]
    for each in shared:
        parts.share_claim(each)
    plain = [msgspec.convert(document, ResourceClaim) for document in documents]
    assert [msgspec.json.encode(each) for each in shared] == [msgspec.json.encode(each) for each in plain]


def test_claims_with_consumers_share_equal_parts() -> None:
    document = {
        "metadata": {"name": "claim", "finalizers": ["example.com/a"]},
        "spec": {"devices": {"requests": [{"name": "gpu"}]}},
        "status": {"reservedFor": [{"resource": "pods", "name": "pod", "uid": "1"}]},
    }
    parts = EqualParts()
    first, second = (msgspec.convert(document, ResourceClaim) for _ in range(2))
    for each in (first, second):
        parts.share_claim(each)
    assert second.spec is first.spec


def test_pods_with_a_node_share_equal_parts() -> None:
    spec = {
        "nodeName": "node-1",
        "containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}],
        "tolerations": [{"key": "a", "operator": "Exists"}],
        "volumes": [{"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}],
    }
    parts = EqualParts()
    first, second, waiting = pod(spec), pod(spec | {"nodeName": "node-2"}), pod(spec | {"nodeName": None})
    for each in (first, second, waiting):
        parts.share_pod(each)
    assert second.spec.tolerations is first.spec.tolerations
    assert second.spec.volumes[0].projected is first.spec.volumes[0].projected
    assert second.spec.containers[0].resources is first.spec.containers[0].resources
    assert waiting.spec.tolerations is not first.spec.tolerations
