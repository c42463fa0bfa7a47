from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from dray.api.document import Document, NamespacedName
from dray.node.devices.assignments import UNKNOWN, Assignment, AssignmentKey
from dray.node.devices.checkpoint import Checkpoint
from dray.node.dra.claims import ClaimInfo
from dray.sim.doctor.checkpoints import check_cdi_files, check_claims, check_devices
from dray.sim.doctor.drivers import check_drivers
from dray.sim.doctor.findings import Finding, Severity, grouped
from dray.sim.doctor.rules import examine
from dray.sim.snapshot import Snapshot
from tests.unit.sim.cluster import (
    GPU,
    claim,
    device,
    device_class,
    exactly,
    node,
    pod,
    resource_slice,
    template,
    waiting_pod,
)
from tests.unit.sim.explain.test_path import event

NOW = datetime(2026, 1, 1, 0, 1, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)
DEVICE = f"{GPU}/node-a/gpu-0"
SOUND = [
    device_class("gpu", "true"),
    node("node-a"),
    resource_slice("node-a", GPU, device("gpu-0"), device("gpu-1"), nodeName="node-a"),
]


def user(name: str = "p", claim_name: str = "one", node_name: str = "node-a") -> Document:
    made = pod(name, node_name)
    made["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": claim_name}]
    return made


def found(*documents: Document, now: datetime = NOW) -> list[Finding]:
    return examine(Snapshot.of([*SOUND, *documents]), now)


@pytest.mark.behaviour("UD-06")
def test_an_object_that_cannot_be_decoded_is_reported_with_a_way_to_mend_it() -> None:
    (finding,) = found({**pod("p", "node-a"), "spec": {"nodeSelector": None, "containers": []}})
    assert (finding.severity, finding.rule, finding.subject) == (Severity.ERROR, "undecodable-object", "pod team/p")
    assert "nodeSelector" in finding.what
    assert "kubectl get pod p -n team -o json | kubectl replace -f -" in finding.advice


def test_a_sound_cluster_has_nothing() -> None:
    assert found(claim("one", DEVICE, pods=("p",)), user()) == []


def finished(name: str) -> Document:
    return user(name) | {"status": {"phase": "Succeeded"}}


NO_SERVICES: Document = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "node-c"},
    "status": {
        "conditions": [
            {
                "type": "dray.dev/ServiceNetwork",
                "status": "False",
                "reason": "RulesNotWritten",
                "message": "iptables-restore: no",
            }
        ]
    },
}


def unready(name: str) -> Document:
    broken = node(name)
    broken["status"]["conditions"] = [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}]
    return broken


@pytest.mark.parametrize(
    ("documents", "severity", "rule", "what"),
    [
        pytest.param(
            [claim("one", DEVICE, pods=("gone",))],
            Severity.ERROR,
            "dead-reservation",
            "is reserved for Pod gone (uid uid-gone), which does not exist",
            id="the Pod is gone",
        ),
        pytest.param(
            [claim("one", DEVICE, pods=("p",)), finished("p")],
            Severity.ERROR,
            "dead-reservation",
            "is reserved for Pod p (uid uid-p), which has finished",
            id="the Pod is done",
        ),
        pytest.param(
            [
                claim("one", DEVICE, pods=("p",)),
                claim("two", DEVICE, pods=("q",)),
                user(),
                user("q", "two"),
            ],
            Severity.ERROR,
            "double-allocation",
            "is allocated to team/one, team/two",
            id="given twice",
        ),
        pytest.param(
            [claim("one", DEVICE), user()],
            Severity.ERROR,
            "unserved-pod",
            "uses claim one, which is not reserved for it (gpu)",
            id="not reserved",
        ),
        pytest.param(
            [claim("one"), user()], Severity.ERROR, "unserved-pod", "uses claim one, which is not allocated (gpu)"
        ),
        pytest.param([user()], Severity.ERROR, "unserved-pod", "uses claim one, which does not exist (gpu)"),
        pytest.param(
            [claim("x") | {"spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "no"}}]}}}],
            Severity.ERROR,
            "missing-class",
            "does not exist and is requested by resourceclaim team/x",
        ),
        pytest.param(
            [resource_slice("torn", GPU, device("gpu-0"), count=2, nodeName="node-a")],
            Severity.WARNING,
            "incomplete-pool",
            "has 1 of 2 slices of generation 1: its devices are not allocated",
        ),
        pytest.param(
            [resource_slice("twice", GPU, device("gpu-0"), device("gpu-0"), nodeName="node-a")],
            Severity.ERROR,
            "invalid-pool",
            "duplicate device gpu-0",
        ),
        pytest.param(
            [resource_slice("lost", GPU, device("gpu-0"), nodeName="node-x")],
            Severity.WARNING,
            "orphaned-slice",
            "is for node node-x, which does not exist",
        ),
        pytest.param(
            [claim("one", f"{GPU}/node-a/gpu-9", pods=("p",)), user()],
            Severity.WARNING,
            "lost-device",
            "is allocated to team/one but is in no ResourceSlice; its driver publishes others",
        ),
        pytest.param(
            [
                unready("node-b"),
                claim("one", DEVICE, pods=("p",)),
                user() | {"spec": user()["spec"] | {"nodeName": "node-b"}},
            ],
            Severity.WARNING,
            "dead-node",
            "is not ready (NodeStatusUnknown), and 1 claims are reserved for Pods on it",
        ),
        pytest.param(
            [NO_SERVICES],
            Severity.ERROR,
            "unreachable-services",
            "Pods on the node do not reach Services by their cluster IPs: iptables-restore: no",
            marks=pytest.mark.behaviour("SV-45"),
        ),
    ],
)
def test_what_is_wrong_is_found(documents: list[Document], severity: Severity, rule: str, what: str) -> None:
    (finding,) = found(*documents)
    assert (finding.severity, finding.rule, finding.what) == (severity, rule, what)
    assert finding.advice


@pytest.mark.parametrize(
    ("document", "rule"),
    [
        (claim("one", DEVICE), "unused-allocation"),
        (claim("one", DEVICE, deletionTimestamp="2026-01-01T00:00:00Z", finalizers=["x/y"]), "stuck-deletion"),
        (
            waiting_pod("p", "t") | {"metadata": pod("p")["metadata"] | {"creationTimestamp": "2026-01-01T00:00:00Z"}},
            "long-wait",
        ),
    ],
)
def test_some_things_are_wrong_only_after_a_while(document: Document, rule: str) -> None:
    assert found(document) == []
    assert [finding.rule for finding in found(document, now=LATER)] == [rule]


def test_what_may_not_be_read_is_not_missing() -> None:
    """A user of one namespace reads neither classes nor slices; reservations of its Pods are still checked."""
    partial = {"DeviceClass": None, "ResourceSlice": None, "Node": None, "Pod": "team", "ResourceClaim": "team"}
    held = claim("one", DEVICE, pods=("gone",))
    snapshot = Snapshot.of([held, template("t", exactly(1))], partial=partial)
    assert [item.rule for item in examine(snapshot, NOW)] == ["dead-reservation"]


def test_reservations_are_not_judged_without_pods() -> None:
    snapshot = Snapshot.of([*SOUND, claim("one", DEVICE, pods=("hidden",))], partial={"Pod": "other"})
    assert examine(snapshot, NOW) == []


def test_pods_that_wait_for_a_template() -> None:
    """What nobody but a user can mend is a warning, and the advice is the one of `dray explain`."""
    document = waiting_pod("p", "t")
    document["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    (finding,) = found(document, now=LATER)
    assert finding.severity is Severity.WARNING
    assert finding.what == (
        "has been pending since 2026-01-01 00:00 UTC: "
        'it waits for ResourceClaimTemplate "t", which does not exist in namespace team'
    )
    assert finding.advice == "create it, or correct resourceClaimTemplateName in the Pod"


def test_a_missing_class_is_one_finding_with_its_pods() -> None:
    """Not one of the class, and one of each Pod that waits for it."""
    since = {"creationTimestamp": "2026-01-01T00:00:00Z"}
    pods = [waiting_pod(name, "t") for name in ("p", "q")]
    pods = [item | {"metadata": item["metadata"] | since} for item in pods]
    wrong = template("t", {"name": "r", "exactly": {"deviceClassName": "gpus", "count": 1}})
    (finding,) = found(wrong, *pods, now=LATER)
    assert (finding.rule, finding.subject) == ("missing-class", "deviceclass gpus")
    assert finding.what == (
        'does not exist (did you mean "gpu"?) and is requested by resourceclaimtemplate team/t; '
        "pod team/p, pod team/q wait for it"
    )


def test_pods_whose_claims_a_quota_refuses() -> None:
    """One finding for all of them, with the limit that is enough for all."""
    waiting = [waiting_pod(name, "t") for name in ("p-1", "p-2", "p-3")]
    refused = "resourceclaims is forbidden: exceeded quota: q, requested: d=1, used: d=4, limited: d=4"
    events = []
    for item in waiting:
        item["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
        events.append(event(item, "FailedResourceClaimCreation", refused))
    (group,) = grouped(found(template("t", exactly(1)), *waiting, *events, now=LATER))
    assert group.first.severity is Severity.WARNING
    assert group.first.advice == "raise d to 7 in quota q, or delete what uses it in namespace team"
    assert group.others == ("pod team/p-2", "pod team/p-3")


def test_a_pending_pod_without_what_preemption_could_not_do() -> None:
    document = pod("p")
    message = "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 No victims."
    document["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    document["status"] = {"conditions": [{"type": "PodScheduled", "status": "False", "message": message}]}
    (finding,) = found(document, now=LATER)
    assert finding.what.endswith(" UTC: 0/1 nodes are available: 1 Insufficient cpu.")
    assert finding.advice == "dray explain pod p -n team"


def test_a_reservation_is_mended_only_while_it_is_the_same() -> None:
    (finding,) = found(claim("one", DEVICE, pods=("gone",)))
    assert finding.fix is not None
    assert finding.fix.operations == (
        {"op": "test", "path": "/status/reservedFor/0/uid", "value": "uid-gone"},
        {"op": "remove", "path": "/status/reservedFor"},
        {"op": "remove", "path": "/status/allocation"},
    )
    finding, _ = found(claim("one", DEVICE, pods=("gone", "also-gone")))
    assert finding.fix is not None
    assert finding.fix.operations[1] == {"op": "remove", "path": "/status/reservedFor/0"}


def test_a_node_that_remembers_otherwise() -> None:
    snapshot = Snapshot.of([claim("one", DEVICE, pods=("p",), uid="u1"), user()])
    key = NamespacedName("team", "one")
    agrees = ClaimInfo("u1", key, {GPU: ()}, frozenset({"uid-p"}))  # type: ignore[arg-type]
    assert list(check_claims("node-a", [agrees], snapshot)) == []
    replaced = ClaimInfo("u0", key, {GPU: ()}, frozenset())  # type: ignore[arg-type]
    unreserved = ClaimInfo("u1", key, {GPU: ()}, frozenset({"uid-q"}))  # type: ignore[arg-type]
    rules = [item.rule for item in check_claims("node-a", [replaced, unreserved], snapshot)]
    assert rules == ["checkpoint-claim", "checkpoint-pod"]


@pytest.mark.behaviour("SP-148")
def test_cdi_files_of_claims_that_nobody_knows() -> None:
    known, prepared, lost = (f"0afb2905-8284-4353-a26c-4cdcb46b94b{digit}" for digit in "012")
    names = [f"/cdi/k8s.gpu.example.com-claim_{uid}.json" for uid in (known, prepared, lost)]
    snapshot = Snapshot.of([claim("one", DEVICE, pods=("p",), uid=known), user()])
    (finding,) = check_cdi_files("node-a", [*names, "/cdi/vendor.yaml"], {prepared}, snapshot)
    assert (finding.rule, finding.subject) == ("leftover-cdi-file", "node node-a")
    assert finding.what == f"has CDI file {names[2]} of a claim (uid {lost}) that does not exist and is not prepared"
    # Whoever may not list claims cannot know.
    assert list(check_cdi_files("node-a", names, (), replace(snapshot, partial={"ResourceClaim": None}))) == []


def test_devices_allocated_to_a_deleted_pod() -> None:
    snapshot = Snapshot.of([user()])
    held = Assignment({0: ("a",)}, b"")
    kept = Checkpoint(tuple((AssignmentKey(uid, "c", "x/gpu"), held) for uid in ("uid-p", "uid-gone")))
    (finding,) = check_devices("node-a", kept, snapshot)
    assert finding.what == "has allocated x/gpu to a Pod (uid uid-gone) that does not exist"


@pytest.mark.behaviour("DP-61")
def test_devices_of_which_nobody_knows_who_has_them() -> None:
    lost = Checkpoint(((AssignmentKey("uid-p", "c", "x/gpu"), UNKNOWN),))
    (finding,) = check_devices("node-a", lost, Snapshot.of([user()]))
    assert (finding.rule, finding.what) == (
        "unattributed-devices",
        "allocates no more x/gpu: a checkpoint was lost, and it is not known which container c of Pod team/p has",
    )
    assert finding.advice == "restart the container or delete the Pod: kubectl delete pod -n team p"


def owned_slice(uid: str) -> Document:
    made = resource_slice("node-b", GPU, device("gpu-0"), nodeName="node-b")
    made["metadata"]["ownerReferences"] = [
        {"apiVersion": "v1", "kind": "Node", "name": "node-b", "uid": uid, "controller": True}
    ]
    return made


def test_a_slice_of_a_node_that_was_deleted_and_registered_again() -> None:
    again = node("node-b")
    again["metadata"]["uid"] = "new"
    assert found(again, owned_slice("new")) == []
    (finding,) = found(again, owned_slice("old"))
    assert (finding.severity, finding.rule, finding.subject) == (Severity.ERROR, "former-node", "resourceslice node-b")
    assert finding.what == ("belongs to an earlier Node node-b (uid old, now new) and will be garbage-collected")
    # A Node that does not exist is another finding.
    assert [item.rule for item in found(owned_slice("old"))] == ["orphaned-slice"]


def test_a_driver_that_runs_on_a_node_and_publishes_nothing_for_it() -> None:
    snapshot = Snapshot.of(
        [
            *SOUND,
            resource_slice("other", "elsewhere.example.com", device("x"), nodeName="node-b"),
            resource_slice("shared", "fabric.example.com", device("x"), allNodes=True),
        ]
    )
    drivers = [GPU, "elsewhere.example.com", "fabric.example.com", "silent.example.com"]
    assert [(item.rule, item.subject, item.what.split()[2]) for item in check_drivers("node-a", drivers, snapshot)] == [
        ("unpublished-driver", "node node-a", "elsewhere.example.com,"),
        ("unpublished-driver", "node node-a", "silent.example.com,"),
    ]
