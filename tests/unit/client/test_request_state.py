"""Repeated requests: which right is missing, and one log line per change."""

from __future__ import annotations

import logging

import pytest

from dray.api.document import GroupResource
from dray.api.errors import APIError, ForbiddenError, ServiceUnavailableError
from dray.client.request_state import RequestState, describe_failure
from dray.client.resources import LEASES, NODES, RESOURCE_CLAIMS

LOG = logging.getLogger("dray.test")
CLAIMS = RESOURCE_CLAIMS.group_resource
FROM_SERVER = 'User "u" cannot list resource "resourceclaims" in API group "resource.k8s.io" at the cluster scope'


def bare(code: int) -> APIError:
    """What a proxy answers, without a Status."""
    error = APIError("<html>no</html>")
    error.code = code
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        pytest.param(
            ForbiddenError(CLAIMS, "", FROM_SERVER),
            f"resourceclaims.resource.k8s.io is forbidden: {FROM_SERVER}",
            id="the server names the right",
        ),
        pytest.param(
            bare(403),
            "<html>no</html>: "
            'cannot list resource "resourceclaims" in API group "resource.k8s.io" at the cluster scope',
            id="a proxy does not",
        ),
        pytest.param(bare(502), "<html>no</html>", id="not a refusal"),
    ],
)
def test_a_refusal_names_the_missing_right(error: APIError, expected: str) -> None:
    assert describe_failure(error, "list", RESOURCE_CLAIMS) == expected


def test_the_right_is_named_with_its_scope() -> None:
    assert 'in the namespace "kube-system"' in describe_failure(bare(403), "get", LEASES, "kube-system")
    assert "at the cluster scope" in describe_failure(bare(403), "get", NODES, "kube-system")


def test_failures_are_logged_when_they_begin_change_and_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dray.test")
    state = RequestState(LOG, "claims", RESOURCE_CLAIMS)
    assert state.health("never tried") == "never tried"
    refused = ForbiddenError(GroupResource("resource.k8s.io", "resourceclaims"), "", FROM_SERVER)
    for _ in range(3):
        state.failed("list", ServiceUnavailableError("connection refused"))
    for _ in range(3):
        state.failed("list", refused)
    assert state.health("") == state.failure == str(refused)
    for _ in range(3):
        state.succeeded()
    state.failed("list", refused)
    assert [record.getMessage() for record in caplog.records] == [
        "list failed, will be retried",
        "list failed, will be retried",
        "requests succeed again",
        "list failed, will be retried",
    ]
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING", "INFO", "WARNING"]
