"""What `dray doctor` says about claims of cdi.k8s.io."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from dray.api.document import Document
from dray.sim.doctor.findings import Finding, Severity
from dray.sim.doctor.rules import examine
from dray.sim.snapshot import CLASSIC_CLAIM, Snapshot
from tests.unit.sim.cluster import CLASSIC_DRIVER, classic_claim, pod, resource_class

NOW = datetime(2026, 1, 1, 0, 1, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)
EARLY = {"creationTimestamp": "2026-01-01T00:00:30Z"}
OWNED = {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "uid-p", "controller": True}]}


def user(**entry: object) -> Document:
    """A running Pod with one claim."""
    made = pod("p", "node-a")
    made["spec"]["resourceClaims"] = [{"name": "acme", **(entry or {"resourceClaimName": "one"})}]
    return made


TEMPLATE = {"template": {"metadata": {}, "spec": {"resourceClassName": "acme"}}}


def found(*documents: Document, now: datetime = NOW) -> list[Finding]:
    return examine(Snapshot.of([resource_class(), *documents]), now)


@pytest.mark.parametrize(
    "documents",
    [
        pytest.param([classic_claim("one", "p", phase="Allocated"), user()], id="reserved"),
        pytest.param(
            [classic_claim("p-acme", "p", phase="Allocated", metadata=OWNED), user(**TEMPLATE)], id="template"
        ),
        pytest.param([user(**TEMPLATE, optional=True)], id="optional, without its claim"),
        pytest.param([classic_claim("one", mode="Immediate", metadata=EARLY)], id="allocating for some seconds"),
    ],
)
def test_nothing_is_wrong(documents: list[Document]) -> None:
    assert found(*documents) == []


@pytest.mark.parametrize(
    ("documents", "severity", "rule", "what"),
    [
        pytest.param(
            [classic_claim("one", "gone", phase="Allocated")],
            Severity.ERROR,
            "dead-reservation",
            "is reserved for Pod gone (uid uid-gone), which does not exist",
        ),
        pytest.param(
            [classic_claim("one", metadata=EARLY), user()],
            Severity.ERROR,
            "unserved-pod",
            "uses classic claim one, which is not allocated (acme)",
        ),
        pytest.param(
            [classic_claim("one", phase="Allocated"), user()],
            Severity.ERROR,
            "unserved-pod",
            "uses classic claim one, which is not reserved for it (acme)",
        ),
        pytest.param(
            [user(**TEMPLATE)],
            Severity.ERROR,
            "unserved-pod",
            "uses classic claim p-acme, which does not exist (acme)",
        ),
        pytest.param(
            [classic_claim("p-acme", "p", phase="Allocated"), user(**TEMPLATE)],
            Severity.ERROR,
            "unserved-pod",
            "uses classic claim p-acme, which belongs to another Pod (acme)",
        ),
        pytest.param(
            [classic_claim("one", mode="Immediate")],
            Severity.WARNING,
            "unanswered-claim",
            f"is pending: driver {CLASSIC_DRIVER} has to allocate it; it was created at 2025-12-31 23:00 UTC",
        ),
    ],
)
def test_what_is_wrong_is_found(documents: list[Document], severity: Severity, rule: str, what: str) -> None:
    (finding,) = found(*documents)
    assert (finding.severity, finding.rule, finding.what) == (severity, rule, what)
    assert finding.advice


@pytest.mark.behaviour("CL-62")
def test_a_driver_that_refuses_every_node() -> None:
    says = f"0/2 nodes are available: 2 x. resourceclaim team/one: driver {CLASSIC_DRIVER} has refused node a 3 times."
    waiting = user()
    waiting["status"] = {
        "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": says}]
    }
    del waiting["spec"]["nodeName"]
    asked = classic_claim("one", scheduling={"scheduler": {"potentialNodes": ["a", "b"]}})
    (finding,) = (item for item in found(asked, waiting) if item.rule == "refused-claim")
    asked_for = f"driver {CLASSIC_DRIVER} has to report which of nodes a, b are suitable"
    assert finding.what == f"is pending: {asked_for}; the scheduler says: {says}"


def test_a_missing_class() -> None:
    (finding,) = examine(Snapshot.of([classic_claim("one"), classic_claim("two", phase="Allocated")]), LATER)
    assert (finding.rule, finding.subject) == ("missing-class", "resourceclass acme")
    assert finding.what == "does not exist and is requested by resourceclaim.cdi.k8s.io team/one"


@pytest.mark.parametrize(
    ("pods", "advice"),
    [
        ((), f"driver {CLASSIC_DRIVER} must deallocate it: check that its controller is running"),
        (("p",), "it is in use: delete Pod p first"),
    ],
)
def test_a_deletion_that_does_not_end(pods: tuple[str, ...], advice: str) -> None:
    deleted = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["a/b"]}
    documents = [classic_claim("one", *pods, phase="Allocated", metadata=deleted), user()]
    assert [finding.rule for finding in found(*documents) if finding.rule == "stuck-deletion"] == []
    (finding,) = (finding for finding in found(*documents, now=LATER) if finding.rule == "stuck-deletion")
    assert finding.what == "has been terminating since 2026-01-01 00:00 UTC; finalizers: a/b"
    assert finding.advice == advice


def test_the_fix_of_a_reservation_is_for_the_classic_claim() -> None:
    (finding,) = found(classic_claim("one", "gone", phase="Allocated"))
    assert finding.fix is not None
    assert (finding.fix.kind, finding.fix.namespace, finding.fix.name) == (CLASSIC_CLAIM, "team", "one")
