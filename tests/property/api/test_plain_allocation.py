"""An allocation in plain form has no errors, and its form is the only thing that is recognized."""

from __future__ import annotations

from typing import Any
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from dray.api.document import Document
from dray.api.validation import resource_claim_status
from dray.api.validation.plain_allocation import is_plain_allocation
from dray.api.validation.resource_claim_status import RESULTS_MAX, validate_claim_status_update

NAMES = st.sampled_from(
    ["", "a", "gpu", "gpu.example.com", "GPU.example.com", "a/b", "a/", "-a", "a.", "a\n", "ä", "a" * 64, "a" * 254]
)
VALID_NAMES = st.sampled_from(["a", "gpu", "n" * 63])
NODE: Document = {"key": "metadata.name", "operator": "In", "values": ["node-1"]}
REQUIREMENTS = st.one_of(
    st.just(NODE),
    st.just(NODE),
    st.fixed_dictionaries(
        {"key": st.sampled_from(["metadata.name", "name"]), "operator": st.sampled_from(["In", "NotIn", "Exists"])},
        optional={"values": st.lists(NAMES, max_size=2)},
    ),
)
TERMS = st.fixed_dictionaries(
    {},
    optional={
        "matchFields": st.lists(REQUIREMENTS, max_size=2),
        "matchExpressions": st.sampled_from([[], [{"key": "a", "operator": "Exists"}], [{"key": "", "operator": "x"}]]),
    },
)
RESULTS: st.SearchStrategy[Document] = st.fixed_dictionaries(
    {},
    optional={
        **{name: st.one_of(VALID_NAMES, VALID_NAMES, NAMES) for name in ("request", "driver", "pool", "device")},
        "adminAccess": st.booleans(),
        "shareID": NAMES,
        "bindingConditions": st.lists(NAMES, max_size=1),
        "tolerations": st.just([{"operator": "x"}]),
    },
)
PLAIN_RESULTS = st.fixed_dictionaries(dict.fromkeys(("request", "driver", "pool", "device"), VALID_NAMES))
ALLOCATIONS = st.fixed_dictionaries(
    {},
    optional={
        "devices": st.fixed_dictionaries(
            {},
            optional={
                "results": st.one_of(
                    st.lists(PLAIN_RESULTS, max_size=3),
                    st.lists(RESULTS, max_size=3),
                    st.just([{"request": "a", "driver": "a", "pool": "a", "device": "a"}] * (RESULTS_MAX + 1)),
                ),
                "config": st.sampled_from([[], [{"source": "x"}]]),
            },
        ),
        "nodeSelector": st.one_of(
            st.just({"nodeSelectorTerms": [{"matchFields": [NODE]}]}),
            st.fixed_dictionaries({}, optional={"nodeSelectorTerms": st.lists(TERMS, max_size=2)}),
        ),
        "allocationTimestamp": st.just("2026-01-01T00:00:00Z"),
    },
)
CONSUMERS = st.lists(
    st.fixed_dictionaries({}, optional=dict.fromkeys(("resource", "name", "uid"), VALID_NAMES)), max_size=2
)


@settings(max_examples=500, deadline=None)
@given(ALLOCATIONS, CONSUMERS, st.sampled_from(["a", "gpu", "n" * 63, "gpu.example.com"]))
def test_the_errors_are_those_of_every_rule(allocation: Document, consumers: list[Any], request: str) -> None:
    claim = {
        "metadata": {"name": "c"},
        "spec": {"devices": {"requests": [{"name": "a"}, {"name": request}]}},
        "status": {"allocation": allocation, "reservedFor": consumers},
    }
    found = validate_claim_status_update(claim, {})
    with mock.patch.object(resource_claim_status, "is_plain_allocation", return_value=False):
        assert validate_claim_status_update(claim, {}) == found


def test_the_allocation_of_a_node_is_plain() -> None:
    result = {"request": "gpu", "driver": "gpu.example.com", "pool": "node-1", "device": "gpu-0"}
    selector = {"nodeSelectorTerms": [{"matchFields": [NODE]}]}
    allocation = {"devices": {"results": [result]}, "nodeSelector": selector}
    assert is_plain_allocation(allocation, {"gpu"}, RESULTS_MAX)
    assert not is_plain_allocation(allocation, {"other"}, RESULTS_MAX)
    assert not is_plain_allocation(allocation, {"gpu"}, 0)
