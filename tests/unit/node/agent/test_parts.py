"""The agent's smaller decisions: probes, room, the Node object, logs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from dray.api.types.core_v1 import HTTPGetAction, Probe
from dray.framework.resources import amounts_of
from dray.node.agent.admission import check_fit, check_node_selector, own_requests
from dray.node.agent.logs.cri_format import LogOptions, LogOptionsError, cut, last_lines, read_options, render
from dray.node.agent.node_object import (
    MachineInfo,
    NodeSpec,
    lease_document,
    node_document,
    node_status,
    parse_labels,
    parse_taints,
    stale_resources,
    without_heartbeats,
)
from dray.node.agent.pod.events import ProbeKind
from dray.node.agent.probes.thresholds import ThresholdCounter, first_at, http_url, resolve_port
from dray.node.resource_manager import HostDevice, Mount, NodeResources, RunOptions, merge_options
from tests.unit.node.agent.builders import START, a_container, at, container, pod

# --- Probes. ---


def judge(kind: ProbeKind = ProbeKind.LIVENESS, **probe: Any) -> ThresholdCounter:
    return ThresholdCounter(msgspec.convert(probe, Probe), kind)


def verdicts(subject: ThresholdCounter, answers: str) -> list[bool | None]:
    return [subject.answer(healthy=answer == "+") for answer in answers]


def test_a_failure_needs_as_many_answers_as_the_threshold() -> None:
    assert verdicts(judge(failureThreshold=3), "--+---") == [None, None, True, None, None, False]


def test_a_failing_liveness_probe_says_so_again() -> None:
    assert verdicts(judge(failureThreshold=1), "---") == [False, False, False]


def test_readiness_says_only_changes() -> None:
    subject = judge(ProbeKind.READINESS, failureThreshold=1, successThreshold=2)
    assert verdicts(subject, "--+++-") == [False, None, None, True, None, False]


def test_the_default_threshold_is_three() -> None:
    assert verdicts(judge(), "---") == [None, None, False]


def test_where_and_when_to_ask() -> None:
    subject = a_container(ports=[{"name": "web", "containerPort": 8080}])
    assert http_url(subject, HTTPGetAction(port="web", path="ok"), "10.0.0.1") == "http://10.0.0.1:8080/ok"
    assert http_url(subject, HTTPGetAction(port=1, scheme="HTTPS", host="::1"), "") == "https://[::1]:1/"
    assert resolve_port(subject, "81") == 81
    assert resolve_port(subject, "none") == 0
    assert first_at(Probe(initial_delay_seconds=5), START) == at(5)


# --- Room on the node. ---


def asking(**requests: str) -> Any:
    return pod(container(resources={"requests": requests}))


ROOM = amounts_of({"cpu": "2", "memory": "1Gi", "pods": "2", "example.com/gpu": "1"})


@pytest.mark.parametrize(
    ("asked", "others", "reason"),
    [
        ({"cpu": "2"}, [], None),
        ({"cpu": "1500m"}, [{"cpu": "1"}], "OutOfcpu"),
        ({"memory": "2Gi"}, [], "OutOfmemory"),
        ({}, [{}, {}], "OutOfpods"),
        ({"example.com/gpu": "1"}, [{"example.com/gpu": "1"}], "OutOfexample.com/gpu"),
        ({"unknown.com/x": "5"}, [], None),
    ],
)
def test_room(asked: dict[str, str], others: list[dict[str, str]], reason: str | None) -> None:
    found = check_fit(own_requests(asking(**asked)), [own_requests(asking(**other)) for other in others], ROOM)
    assert (found.reason if found else None) == reason


def test_the_message_of_a_full_node() -> None:
    found = check_fit(own_requests(asking(cpu="1500m")), [own_requests(asking(cpu="1"))], ROOM)
    assert found is not None
    assert found.message == "Node didn't have enough resource: cpu, requested: 1500, used: 1000, capacity: 2000"


@pytest.mark.behaviour("XR-32")
def test_what_a_claim_stands_for_is_not_asked_of_the_node() -> None:
    gpu = {"requests": {"example.com/gpu": "1", "cpu": "1"}, "limits": {"example.com/gpu": "1"}}
    mapping = {"containerName": "a", "resourceName": "example.com/gpu", "requestName": "r"}
    granted = {"name": "a", "allocatedResources": gpu["requests"], "resources": gpu}
    subject = pod(
        container("a", resources=gpu),
        container("b", resources=gpu),
        status={
            "extendedResourceClaimStatus": {"resourceClaimName": "c", "requestMappings": [mapping]},
            "containerStatuses": [granted],
        },
    )
    assert own_requests(subject) == {"cpu": 2000, "example.com/gpu": 1}
    assert own_requests(pod(container("a", resources=gpu)))["example.com/gpu"] == 1


def test_a_pod_that_selects_another_node_is_rejected() -> None:
    found = check_node_selector(pod(nodeSelector={"zone": "a"}), {"zone": "b"})
    assert found is not None
    assert found.reason == "NodeAffinity"
    assert check_node_selector(pod(nodeSelector={"zone": "a"}), {"zone": "a"}) is None


# --- The Node object. ---

MACHINE = MachineInfo("host", ("10.0.0.1",), "x86_64", 4, 8 * 1024**3, 100 * 1024**3, "6.1", "Debian")
SPEC = NodeSpec(
    "n1", MACHINE, "runc://1.1", port=10250, labels={"zone": "a"}, taints=({"key": "k", "effect": "NoSchedule"},)
)


def test_the_node_says_what_the_machine_has_and_what_managers_add() -> None:
    added = [NodeResources({"example.com/gpu": "2"}, {"example.com/gpu": "1"})]
    status = node_status(SPEC, added, {}, START)
    assert status["capacity"] == {
        "cpu": "4",
        "memory": "8388608Ki",
        "ephemeral-storage": "104857600Ki",
        "pods": "110",
        "example.com/gpu": "2",
    }
    assert status["allocatable"]["example.com/gpu"] == "1"
    assert status["daemonEndpoints"] == {"kubeletEndpoint": {"Port": 10250}}
    assert {item["type"]: item["status"] for item in status["conditions"]} == {
        "MemoryPressure": "False",
        "DiskPressure": "False",
        "PIDPressure": "False",
        "Ready": "True",
    }
    assert status["nodeInfo"]["architecture"] == "amd64"


@pytest.mark.behaviour("DP-20")
def test_stale_resources_are_none_until_a_plugin_has_them() -> None:
    known = {"capacity": {"cpu": "4", "vendor.com/a": "3", "vendor.com/b": "1", "hugepages-2Mi": "0", "pods": "110"}}
    assert stale_resources(known) == ("vendor.com/a", "vendor.com/b")
    spec = replace(SPEC, stale=stale_resources(known))
    added = [NodeResources({"vendor.com/b": "2"}, {"vendor.com/b": "1"})]
    status = node_status(spec, added, {}, START)
    assert [status[name]["vendor.com/a"] for name in ("capacity", "allocatable")] == ["0", "0"]
    assert [status[name]["vendor.com/b"] for name in ("capacity", "allocatable")] == ["2", "1"]


def test_heartbeats_are_no_change_and_transitions_keep_their_time() -> None:
    first = node_status(SPEC, (), {}, START)
    second = node_status(SPEC, (), first, at(10))
    assert second != first
    assert without_heartbeats(second) == without_heartbeats(first)


def test_labels_and_taints_of_a_new_node() -> None:
    document = node_document(SPEC)
    assert document["metadata"]["labels"]["kubernetes.io/arch"] == "amd64"
    assert document["metadata"]["labels"]["zone"] == "a"
    assert document["spec"]["taints"] == [{"key": "k", "effect": "NoSchedule"}]
    assert parse_taints(["a=b:NoExecute", "c:NoSchedule"]) == (
        {"key": "a", "value": "b", "effect": "NoExecute"},
        {"key": "c", "effect": "NoSchedule"},
    )
    assert parse_labels(["a=b", "c="]) == {"a": "b", "c": ""}
    with pytest.raises(ValueError, match="must be name=value"):
        parse_labels(["x"])
    with pytest.raises(ValueError, match="must be key"):
        parse_taints(["a=b:Never"])


def test_a_lease_belongs_to_its_node() -> None:
    document = lease_document("n1", "uid", START)
    assert document["metadata"]["ownerReferences"][0]["uid"] == "uid"
    assert document["spec"]["leaseDurationSeconds"] == 40
    assert document["spec"]["renewTime"] == "2026-01-01T00:00:00.000000Z"


# --- What several managers ask for. ---


def test_options_are_merged_and_the_first_wins() -> None:
    first = RunOptions(envs={"A": "1"}, mounts=(Mount("/c", "/h"),), cdi_devices=("v/c=a", "v/c=a"))
    second = RunOptions(envs={"A": "2", "B": "2"}, devices=(HostDevice("/dev/x", "/dev/x"),), cdi_devices=("v/c=b",))
    merged = merge_options([first, second])
    assert merged.envs == {"A": "1", "B": "2"}
    assert merged.cdi_devices == ("v/c=a", "v/c=b")
    assert merged.devices == (HostDevice("/dev/x", "/dev/x"),)


# --- Logs. ---

RAW = [
    b"2026-01-01T00:00:01.000000001Z stdout F one",
    b"2026-01-01T00:00:02.000000001Z stderr F two",
    b"2026-01-01T00:00:03.000000001Z stdout P thr",
    b"2026-01-01T00:00:03.000000002Z stdout F ee",
    b"2026-01-01T00:00:04.000000001Z stdout F ",
    b"garbage",
]


def shown(**options: Any) -> bytes:
    return b"".join(render(RAW, LogOptions(**options)))


def test_lines_are_shown_without_what_the_format_adds() -> None:
    assert shown() == b"one\ntwo\nthree\n\n"
    assert shown(stream="stderr") == b"two\n"
    assert shown(since=at(3)) == b"three\n\n"
    assert shown(timestamps=True).splitlines()[2] == b"2026-01-01T00:00:03.000000001Z three"


def test_the_last_lines_count_parts_as_one() -> None:
    assert last_lines(RAW[:4], 1) == RAW[2:4]
    assert last_lines(RAW, 0) == []
    assert b"".join(cut([b"abc", b"def"], 4)) == b"abcd"
    assert b"".join(cut([b"abc"], None)) == b"abc"


def test_options_are_read_from_the_query() -> None:
    query = {"follow": "true", "tailLines": "5", "sinceSeconds": "10", "limitBytes": "9", "previous": "1"}
    found = read_options(query, at(60))
    assert found == LogOptions(follow=True, previous=True, tail_lines=5, since=at(50), limit_bytes=9)
    assert read_options({"sinceTime": "2026-01-01T00:00:07Z"}, START).since == at(7)
    with pytest.raises(LogOptionsError):
        read_options({"tailLines": "x"}, START)
