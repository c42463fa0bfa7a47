"""Health endpoints: which checks count where, and how a failure is reported."""

from __future__ import annotations

from dray.apiserver.healthz import HealthChecks

STALE = "namespaces: etcd does not answer"


def checks(reason: str | None) -> HealthChecks:
    return HealthChecks(live={}, ready={"informer-sync": lambda: reason})


def test_a_failed_check_of_readiness_is_named() -> None:
    result = checks(STALE).report("readyz", {})
    assert result.status == 500
    assert result.body.decode() == f"[+]ping ok\n[-]informer-sync failed: {STALE}\nreadyz check failed\n"


def test_liveness_does_not_depend_on_readiness() -> None:
    assert (checks(STALE).report("livez", {}).status, checks(STALE).report("healthz", {}).status) == (200, 500)


def test_all_checks_pass() -> None:
    assert checks(None).report("readyz", {}).body == b"ok"
    verbose = checks(None).report("readyz", {"verbose": ""}).body.decode()
    assert verbose == "[+]ping ok\n[+]informer-sync ok\nreadyz check passed\n"


def test_one_check_can_be_asked_for() -> None:
    failed, passed = checks(STALE).report_one("informer-sync"), checks(None).report_one("informer-sync")
    assert failed is not None
    assert passed is not None
    assert (failed.status, failed.body, passed.status, passed.body) == (500, STALE.encode(), 200, b"ok")
    assert checks(None).report_one("unknown") is None
