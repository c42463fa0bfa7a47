"""Quota evaluation of objects and its messages."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from dray.api.document import GroupResource
from dray.api.quota.check import Subject, excess, objection, requested
from dray.api.quota.names import CLAIMS, PODS
from dray.api.quota.usage import parse_amounts, pod_usage, write_amounts
from dray.api.types.core_v1 import Pod, ResourceQuota

MAPS = GroupResource("", "configmaps")


def quota(hard: dict[str, str], used: dict[str, str] | None = None, **spec: Any) -> ResourceQuota:
    status = {"hard": hard, "used": dict.fromkeys(hard, "0") if used is None else used}
    return msgspec.convert({"metadata": {"name": "q"}, "spec": {"hard": hard, **spec}, "status": status}, ResourceQuota)


def subject(resource: GroupResource, usage: dict[str, str], previous: Subject | None = None) -> Subject:
    return Subject(resource, parse_amounts(usage), None, previous)


def of_pod(*, deadline: int | None = None, cpu: str = "1") -> Subject:
    spec = {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}], "activeDeadlineSeconds": deadline}
    pod = msgspec.convert({"metadata": {"name": "p"}, "spec": spec}, Pod)
    return Subject(PODS, pod_usage(pod, None, datetime(2026, 1, 1, tzinfo=UTC)), pod)


@pytest.mark.behaviour("SP-142")
def test_the_message_that_kubernetes_gives() -> None:
    # Recorded from kube-apiserver 1.36.4.
    names = ("count/resourceclaims.resource.k8s.io", "gpu.example.com.deviceclass.resource.k8s.io/devices")
    given = quota(dict.fromkeys(names, "1"), dict.fromkeys(names, "4"))
    wanted = requested(given, subject(CLAIMS, dict.fromkeys(names, "1")))
    assert excess(given, parse_amounts(given.status.used), wanted) == (
        "exceeded quota: q, requested: count/resourceclaims.resource.k8s.io=1,"
        "gpu.example.com.deviceclass.resource.k8s.io/devices=1, used: count/resourceclaims.resource.k8s.io=4,"
        "gpu.example.com.deviceclass.resource.k8s.io/devices=4, limited: count/resourceclaims.resource.k8s.io=1,"
        "gpu.example.com.deviceclass.resource.k8s.io/devices=1"
    )


def test_only_exceeded_resources_are_listed() -> None:
    given = quota({"pods": "10", "requests.cpu": "1500m"}, {"pods": "1", "requests.cpu": "1"})
    wanted = requested(given, of_pod())
    assert excess(given, parse_amounts(given.status.used), wanted) == (
        "exceeded quota: q, requested: requests.cpu=1, used: requests.cpu=1, limited: requests.cpu=1500m"
    )


ROWS = {
    "what the quota limits": (
        quota({"configmaps": "1"}),
        {"count/configmaps": "1", "configmaps": "1"},
        {"configmaps": "1"},
    ),
    "nothing under its names": (quota({"secrets": "1"}), {"configmaps": "1"}, {}),
    "a limit without counted usage": (quota({}), {"configmaps": "1"}, {}),
    "scopes are for Pods alone": (quota({"configmaps": "1"}, scopes=["BestEffort"]), {"configmaps": "1"}, {}),
}


@pytest.mark.parametrize(("given", "usage", "expected"), ROWS.values(), ids=ROWS.keys())
def test_what_is_requested(given: ResourceQuota, usage: dict[str, str], expected: dict[str, str]) -> None:
    assert write_amounts(requested(given, subject(MAPS, usage))) == expected


def test_a_change_is_charged_for_what_it_adds() -> None:
    name = "gpu.deviceclass.resource.k8s.io/devices"
    before = subject(CLAIMS, {name: "2"})
    assert write_amounts(requested(quota({name: "9"}), subject(CLAIMS, {name: "5"}, before))) == {name: "3"}
    assert requested(quota({name: "9"}), subject(CLAIMS, {name: "1"}, before)) == {}


def test_a_pod_that_enters_a_scope_is_charged_in_full() -> None:
    given, after = quota({"pods": "1"}, scopes=["Terminating"]), of_pod(deadline=5)
    moved = Subject(after.resource, after.usage, after.pod, of_pod())
    stayed = Subject(after.resource, after.usage, after.pod, of_pod(deadline=9))
    assert write_amounts(requested(given, moved)) == {"pods": "1"}
    assert requested(given, stayed) == {}


OBJECTIONS = {
    "none": (quota({"pods": "1"}), None),
    "containers say too little": (
        quota({"limits.cpu": "1", "limits.memory": "1"}),
        "failed quota: q: must specify limits.cpu for: c; limits.memory for: c",
    ),
    "usage is not known": (
        quota({"pods": "1", "count/pods": "1"}, {"pods": "0"}),
        "status unknown for quota: q, resources: count/pods,pods",
    ),
    "usage of something else is not known": (quota({"pods": "1", "secrets": "1"}, {"pods": "0"}), None),
}


@pytest.mark.parametrize(("given", "expected"), OBJECTIONS.values(), ids=OBJECTIONS.keys())
def test_objections(given: ResourceQuota, expected: str | None) -> None:
    assert objection(given, of_pod()) == expected
