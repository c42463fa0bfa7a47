"""Parts of Pods in the form that most have are recognized as what the rules find without errors or warnings."""

from __future__ import annotations

from typing import Any
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from dray.api import pod_warnings
from dray.api.document import Document
from dray.api.field_errors import Path
from dray.api.validation import resource_pod
from dray.api.validation.resource_pod import validate_pod_resource_claims

NAMES = st.sampled_from(["", "a", "a", "a-b", "a.b", "A", "-a", "a\n", "ä", "a" * 63, "a" * 64, "a" * 253, "a" * 254])
CLAIMS = st.one_of(
    st.fixed_dictionaries({"name": NAMES, "resourceClaimTemplateName": NAMES}),
    st.fixed_dictionaries(
        {},
        optional={
            "name": st.none() | NAMES,
            "resourceClaimName": NAMES,
            "resourceClaimTemplateName": st.none() | NAMES,
        },
    ),
)
METADATA = st.none() | st.fixed_dictionaries(
    {},
    optional={
        "name": NAMES,
        "annotations": st.sampled_from(
            [{}, {"kubernetes.io/config.mirror": "x"}, {"kubernetes.io/config.source": "x"}]
        ),
    },
)


@settings(max_examples=500, deadline=None)
@given(st.lists(CLAIMS, max_size=2), METADATA)
def test_errors_of_claims_are_those_of_every_rule(claims: list[Document], metadata: Document | None) -> None:
    spec = {"resourceClaims": claims}
    found = validate_pod_resource_claims(spec, Path("spec"), metadata=metadata)
    with mock.patch.object(resource_pod, "_is_one_generated", return_value=False):
        assert validate_pod_resource_claims(spec, Path("spec"), metadata=metadata) == found


def test_one_claim_from_a_template_is_recognized() -> None:
    claim = {"name": "gpu", "resourceClaimTemplateName": "gpu-template"}
    assert resource_pod._is_one_generated([claim], {"name": "pod-1"})
    assert not resource_pod._is_one_generated([claim], {"name": "p" * 250})


AMOUNTS = st.dictionaries(
    st.sampled_from(["cpu", "memory", "ephemeral-storage"]), st.sampled_from(["1", "500m", "1Gi", "0.5"]), max_size=3
)
CONTAINERS: st.SearchStrategy[Document] = st.fixed_dictionaries(
    {},
    optional={
        "resources": st.fixed_dictionaries({}, optional={"limits": AMOUNTS, "requests": AMOUNTS}),
        "env": st.lists(st.fixed_dictionaries({"name": st.sampled_from(["A", "B"]), "value": NAMES}), max_size=3),
    },
)


@settings(max_examples=300, deadline=None)
@given(st.lists(CONTAINERS, max_size=2), st.lists(CONTAINERS, max_size=2))
def test_warnings_about_containers_are_those_of_every_rule(containers: list[Any], init_containers: list[Any]) -> None:
    pod = {"metadata": {"name": "p"}, "spec": {"containers": containers, "initContainers": init_containers}}
    found = pod_warnings.pod_warnings(pod)
    with mock.patch.object(pod_warnings, "_is_plain", return_value=False):
        assert pod_warnings.pod_warnings(pod) == found
