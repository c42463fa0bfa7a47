"""Quota usage of Pods, claims and other objects."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from dray.api.document import GroupResource
from dray.api.quota.check import in_scopes, scopes_of
from dray.api.quota.names import CLAIMS, PODS, ClassNames, count_names, counted_resource, measures
from dray.api.quota.usage import (
    claim_usage,
    devices_by_class,
    extended_resource_pod,
    is_charged_to,
    missing_amounts,
    pod_usage,
    write_amounts,
)
from dray.api.types.core_v1 import Pod, ResourceQuota
from dray.api.types.resource_v1 import DeviceClass, ResourceClaim

NOW = datetime(2026, 1, 1, tzinfo=UTC)
GPU = ClassNames({"example.com/gpu": "gpu"})
DEVICES = "gpu.deviceclass.resource.k8s.io/devices"
IMPLICIT = "requests.deviceclass.resource.kubernetes.io/gpu"
EXPLICIT = "requests.example.com/gpu"


def container(name: str = "c", *, limits: Any = None, **requests: str) -> dict[str, Any]:
    return {"name": name, "resources": {"requests": requests, "limits": limits or {}}}


def pod(*containers: dict[str, Any], metadata: Any = None, status: Any = None, **spec: Any) -> Pod:
    document = {
        "metadata": {"name": "p", "namespace": "team", "uid": "pod-uid", **(metadata or {})},
        "spec": {"containers": list(containers), **spec},
        "status": status or {},
    }
    return msgspec.convert(document, Pod)


def claim(*requests: dict[str, Any], name: str = "c", **metadata: Any) -> ResourceClaim:
    document = {
        "metadata": {"name": name, "namespace": "team", "uid": f"uid-{name}", **metadata},
        "spec": {"devices": {"requests": [{"name": f"r{i}", **request} for i, request in enumerate(requests)]}},
    }
    return msgspec.convert(document, ResourceClaim)


def wish(count: int | None = 1, *, of: str = "gpu", mode: str = "ExactCount", **more: Any) -> dict[str, Any]:
    found = {"deviceClassName": of, "allocationMode": mode, **more}
    return found if count is None else {**found, "count": count}


def exactly(count: int | None = 1, **more: Any) -> dict[str, Any]:
    return {"exactly": wish(count, **more)}


def first_of(*wishes: dict[str, Any]) -> dict[str, Any]:
    return {"firstAvailable": [{"name": f"s{i}", **item} for i, item in enumerate(wishes)]}


POD_ROWS = {
    "a Pod that asks for nothing": (pod(container()), {}),
    "requests and limits have two names each": (
        pod(container(cpu="1", memory="1Gi", limits={"cpu": "2"})),
        {"cpu": "1", "requests.cpu": "1", "memory": "1Gi", "requests.memory": "1Gi", "limits.cpu": "2"},
    ),
    "containers are added up": (
        pod(container("a", cpu="250m"), container("b", cpu="1")),
        {"cpu": "1250m", "requests.cpu": "1250m"},
    ),
    "an init container counts as far as it asks for more": (
        pod(container(cpu="1", memory="1Mi"), initContainers=[container("i", cpu="3")]),
        {"cpu": "3", "requests.cpu": "3", "memory": "1Mi", "requests.memory": "1Mi"},
    ),
    "a sidecar is added to the containers, and to later init containers": (
        pod(
            container(cpu="1"),
            initContainers=[container("s", cpu="1") | {"restartPolicy": "Always"}, container("i", cpu="2")],
        ),
        {"cpu": "3", "requests.cpu": "3"},
    ),
    "what is asked for the Pod replaces the sum": (
        pod(container(cpu="1"), resources={"requests": {"cpu": "5"}}),
        {"cpu": "5", "requests.cpu": "5"},
    ),
    "overhead is added, to limits only where there are any": (
        pod(container(cpu="1", limits={"memory": "1Mi"}), overhead={"cpu": "1", "memory": "1Mi"}),
        {"cpu": "2", "requests.cpu": "2", "memory": "1Mi", "requests.memory": "1Mi", "limits.memory": "2Mi"},
    ),
    "a resize counts with the larger of what is wanted and what is granted": (
        pod(container(cpu="1"), status={"containerStatuses": [{"name": "c", "allocatedResources": {"cpu": "2"}}]}),
        {"cpu": "2", "requests.cpu": "2"},
    ),
    "ephemeral storage and huge pages": (
        pod(container(**{"ephemeral-storage": "1Gi", "hugepages-2Mi": "4Mi"})),
        {
            "ephemeral-storage": "1Gi",
            "requests.ephemeral-storage": "1Gi",
            "hugepages-2Mi": "4Mi",
            "requests.hugepages-2Mi": "4Mi",
        },
    ),
    "an extended resource without a class": (
        pod(container(**{"example.com/fpga": "2"})),
        {"requests.example.com/fpga": "2"},
    ),
    "an extended resource of a class is charged under all names of the class": (
        pod(container(**{"example.com/gpu": "2"})),
        {EXPLICIT: "2", IMPLICIT: "2", DEVICES: "2"},
    ),
    "so is the implicit name": (
        pod(container(**{"deviceclass.resource.kubernetes.io/gpu": "2"})),
        {EXPLICIT: "2", IMPLICIT: "2", DEVICES: "2"},
    ),
    "both names of a class are added up": (
        pod(container(**{"deviceclass.resource.kubernetes.io/gpu": "2", "example.com/gpu": "1"})),
        {EXPLICIT: "3", IMPLICIT: "3", DEVICES: "3"},
    ),
}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param(*row, id=name, marks=[pytest.mark.behaviour("XR-41")] if EXPLICIT in row[1] else [])
        for name, row in POD_ROWS.items()
    ],
)
def test_usage_of_a_pod(given: Pod, expected: dict[str, str]) -> None:
    assert write_amounts(pod_usage(given, GPU, NOW)) == {"count/pods": "1", "pods": "1", **expected}


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(pod(container(cpu="1"), status={"phase": "Succeeded"}), id="succeeded"),
        pytest.param(pod(container(cpu="1"), status={"phase": "Failed"}), id="failed"),
        pytest.param(
            pod(
                container(cpu="1"),
                metadata={
                    "deletionTimestamp": NOW - timedelta(seconds=31),
                    "deletionGracePeriodSeconds": 30,
                },
            ),
            id="overdue",
        ),
    ],
)
def test_a_pod_that_has_ended_counts_as_an_object_only(given: Pod) -> None:
    assert write_amounts(pod_usage(given, GPU, NOW)) == {"count/pods": "1"}


@pytest.mark.behaviour("XR-44")
def test_without_the_gate_an_extended_resource_has_one_name() -> None:
    usage = pod_usage(pod(container(**{"example.com/gpu": "2"})), None, NOW)
    assert write_amounts(usage) == {"count/pods": "1", "pods": "1", EXPLICIT: "2"}


CLAIM_ROWS = {
    "no requests": ((), {}),
    "a count": ((exactly(3),), {"gpu": 3}),
    "requests are added up": ((exactly(3), exactly(2)), {"gpu": 5}),
    "all devices are as many as a claim can get": ((exactly(None, mode="All"),), {"gpu": 32}),
    "an unknown mode": ((exactly(3, mode="Later"),), {"gpu": 0}),
    "administrators pay too": ((exactly(2, adminAccess=True),), {"gpu": 2}),
    "of alternatives of a class the largest": ((first_of(wish(1), wish(4), wish(2)),), {"gpu": 4}),
    "every class of the alternatives": ((first_of(wish(2), wish(3, of="tpu")),), {"gpu": 2, "tpu": 3}),
    "all devices as an alternative": ((first_of(wish(1), wish(None, mode="All")),), {"gpu": 32}),
    "largest first, then added over requests": (
        (first_of(wish(2), wish(3, of="tpu")), first_of(wish(1), wish(5)), exactly(1)),
        {"gpu": 8, "tpu": 3},
    ),
    "a kind of request of a later version": (({},), {}),
}


def shows(requests: tuple[dict[str, Any], ...]) -> pytest.MarkDecorator:
    return pytest.mark.behaviour("PL-33" if any("firstAvailable" in item for item in requests) else "SP-142")


@pytest.mark.parametrize(
    ("requests", "expected"),
    [pytest.param(*row, id=name, marks=shows(row[0])) for name, row in CLAIM_ROWS.items()],
)
def test_devices_of_a_claim(requests: tuple[dict[str, Any], ...], expected: dict[str, int]) -> None:
    assert devices_by_class(claim(*requests)) == expected
    usage = write_amounts(claim_usage(claim(*requests), None))
    assert usage.pop("count/resourceclaims.resource.k8s.io") == "1"
    assert usage == {f"{name}.deviceclass.resource.k8s.io/devices": str(n) for name, n in expected.items() if n}


@pytest.mark.behaviour("XR-42")
def test_a_claim_is_charged_under_all_names_of_the_class() -> None:
    usage = write_amounts(claim_usage(claim(exactly(3), exactly(1, of="tpu")), GPU))
    assert usage == {
        "count/resourceclaims.resource.k8s.io": "1",
        **dict.fromkeys((DEVICES, IMPLICIT, EXPLICIT), "3"),
        **dict.fromkeys(
            ("tpu.deviceclass.resource.k8s.io/devices", "requests.deviceclass.resource.kubernetes.io/tpu"), "1"
        ),
    }


@pytest.mark.behaviour("XR-42")
@pytest.mark.behaviour("XR-43")
@pytest.mark.parametrize(("count", "left"), [(2, None), (3, "1"), (1, None)])
def test_what_the_pod_has_paid_is_not_charged_again(count: int, left: str | None) -> None:
    charged = pod_usage(pod(container(**{"example.com/gpu": "2"})), GPU, NOW)
    usage = write_amounts(claim_usage(claim(exactly(count)), GPU, charged))
    assert [usage.get(name) for name in (DEVICES, IMPLICIT, EXPLICIT)] == [left] * 3


# --- Extended-resource claims.

OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "pod-uid", "controller": True}
SPECIAL = {"resource.kubernetes.io/extended-resource-claim": "true"}


def special(name: str = "c", *, age: int = 0, owner: dict[str, Any] | None = None, **metadata: Any) -> ResourceClaim:
    created = NOW + timedelta(seconds=age)
    defaults = {"annotations": SPECIAL, "ownerReferences": [OWNER | (owner or {})], "creationTimestamp": created}
    return claim(exactly(1), name=name, **{**defaults, **metadata})


def mapped(name: str) -> Pod:
    status = {"resourceClaimName": name, "requestMappings": []}
    return pod(container(), status={"extendedResourceClaimStatus": status})


PAID_ROWS = {
    "the only claim of its Pod": (special(), pod(), (special(),), True),
    "a new claim, none before it": (special(), pod(), (), True),
    "any annotation but an empty one": (
        special(annotations={"resource.kubernetes.io/extended-resource-claim": "p"}),
        pod(),
        (),
        True,
    ),
    "no annotation": (special(annotations={}), pod(), (), False),
    "not the controller": (special(owner={"controller": False}), pod(), (), False),
    "another kind": (special(owner={"kind": "Job"}), pod(), (), False),
    "another Pod of that name": (special(owner={"uid": "other"}), pod(), (), False),
    "the claim that the Pod names": (special(), mapped("c"), (special("a", age=-5), special()), True),
    "the Pod names another": (special(), mapped("a"), (special("a"), special()), False),
    "an older claim is there": (special(), pod(), (special("z", age=-1), special()), False),
    "of the same age, the first by name": (special(), pod(), (special("z"), special()), True),
    "of the same age, not the first": (special(), pod(), (special("a"), special()), False),
    "a new claim after any other": (special(), pod(), (special("z"),), False),
}


@pytest.mark.behaviour("XR-42")
@pytest.mark.parametrize(("given", "owner", "siblings", "expected"), PAID_ROWS.values(), ids=PAID_ROWS.keys())
def test_one_claim_of_a_pod_is_paid(
    given: ResourceClaim, owner: Pod, siblings: tuple[ResourceClaim, ...], expected: bool
) -> None:
    assert is_charged_to(given, owner, siblings) is expected


def test_ordinary_claims_have_no_special_owner() -> None:
    assert extended_resource_pod(claim(exactly(1), ownerReferences=[OWNER])) is None


# --- Classes. ---


def device_class(name: str, resource: str | None, age: int = 0) -> DeviceClass:
    metadata = {"name": name, "creationTimestamp": NOW + timedelta(seconds=age)}
    return msgspec.convert({"metadata": metadata, "spec": {"extendedResourceName": resource}}, DeviceClass)


@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        pytest.param([device_class("a", "x.io/r"), device_class("b", "x.io/r", 1)], "b", id="youngest"),
        pytest.param([device_class("b", "x.io/r", 1), device_class("a", "x.io/r")], "b", id="in any order"),
        pytest.param([device_class("b", "x.io/r"), device_class("a", "x.io/r")], "a", id="same age"),
        pytest.param([device_class("a", None)], None, id="none"),
    ],
)
def test_class_of_an_extended_resource(classes: list[DeviceClass], expected: str | None) -> None:
    names = ClassNames.of(classes)
    assert names.class_of("x.io/r") == expected
    assert names.class_of("deviceclass.resource.kubernetes.io/a") == "a"


# --- Names. ---


@pytest.mark.parametrize(
    ("name", "resource", "extended", "expected"),
    [
        ("pods", PODS, True, True),
        ("count/pods", PODS, True, True),
        ("hugepages-2Mi", PODS, True, True),
        ("requests.hugepages-2Mi", PODS, True, True),
        (EXPLICIT, PODS, False, True),
        (IMPLICIT, PODS, True, True),
        (DEVICES, PODS, True, True),
        (DEVICES, PODS, False, False),
        ("configmaps", PODS, True, False),
        (DEVICES, CLAIMS, False, True),
        (EXPLICIT, CLAIMS, True, True),
        (EXPLICIT, CLAIMS, False, False),
        ("requests.cpu", CLAIMS, True, False),
        ("count/resourceclaims.resource.k8s.io", CLAIMS, True, True),
        ("configmaps", GroupResource("", "configmaps"), True, True),
        ("count/configmaps", GroupResource("", "configmaps"), True, True),
        ("count/widgets.example.com", GroupResource("example.com", "widgets"), True, True),
        ("widgets", GroupResource("example.com", "widgets"), True, False),
    ],
)
def test_what_is_measured_by_which_name(name: str, resource: GroupResource, extended: bool, expected: bool) -> None:
    assert measures(name, resource, extended=extended) is expected


@pytest.mark.parametrize(
    "resource", [GroupResource("", "secrets"), GroupResource("apps", "deployments"), GroupResource("a.b.c", "ds")]
)
def test_names_of_counts_lead_back_to_the_kind(resource: GroupResource) -> None:
    assert {counted_resource(name) for name in count_names(resource)} == {resource}


# --- Required amounts of containers, and scopes.

DEMANDS = {
    "all specified": ((container(cpu="1"),), ("requests.cpu",), None),
    "a limit is missing": ((container(cpu="1"),), ("limits.cpu",), "must specify limits.cpu for: c"),
    "several, by name": (
        (container("b"), container("a", cpu="1")),
        ("requests.memory", "cpu", "pods"),
        "must specify cpu for: b; requests.memory for: a,b",
    ),
    "no other name is demanded": ((container(),), ("requests.ephemeral-storage", EXPLICIT, "pods"), None),
}


@pytest.mark.parametrize(("containers", "names", "expected"), DEMANDS.values(), ids=DEMANDS.keys())
def test_what_a_quota_demands_of_containers(
    containers: tuple[dict[str, Any], ...], names: tuple[str, ...], expected: str | None
) -> None:
    assert missing_amounts(pod(*containers), names) == expected


def test_amounts_of_the_whole_pod_are_enough() -> None:
    assert missing_amounts(pod(container(), resources={"limits": {"cpu": "1"}}), ("limits.cpu",)) is None


BUSY, IDLE = pod(container(cpu="1")), pod(container())
DEADLINE = pod(container(), activeDeadlineSeconds=0)
HIGH = pod(container(), priorityClassName="high")
FAR = pod(
    container(),
    affinity={"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"namespaces": ["b"]}]}},
)


@pytest.mark.parametrize(
    ("spec", "inside", "outside"),
    [
        pytest.param({}, (BUSY, IDLE, None), (), id="none"),
        pytest.param({"scopes": ["Terminating"]}, (DEADLINE,), (BUSY, None), id="Terminating"),
        pytest.param({"scopes": ["NotTerminating"]}, (BUSY,), (DEADLINE, None), id="NotTerminating"),
        pytest.param({"scopes": ["BestEffort"]}, (IDLE,), (BUSY, None), id="BestEffort"),
        pytest.param({"scopes": ["NotBestEffort"]}, (BUSY,), (IDLE, None), id="NotBestEffort"),
        pytest.param({"scopes": ["BestEffort", "Terminating"]}, (DEADLINE,), (IDLE, BUSY), id="both"),
        pytest.param({"scopes": ["PriorityClass"]}, (HIGH,), (IDLE,), id="PriorityClass"),
        pytest.param({"scopes": ["CrossNamespacePodAffinity"]}, (FAR,), (IDLE,), id="affinity"),
        pytest.param({"scopes": ["VolumeAttributesClass"]}, (), (IDLE, None), id="volumes"),
        pytest.param(
            {
                "scopeSelector": {
                    "matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]
                }
            },
            (HIGH,),
            (IDLE, pod(container(), priorityClassName="low"), None),
            id="In",
        ),
        pytest.param(
            {
                "scopeSelector": {
                    "matchExpressions": [{"scopeName": "PriorityClass", "operator": "NotIn", "values": ["high"]}]
                }
            },
            (IDLE, pod(container(), priorityClassName="low")),
            (HIGH, None),
            id="NotIn",
        ),
        pytest.param(
            {"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "DoesNotExist"}]}},
            (IDLE,),
            (HIGH,),
            id="DoesNotExist",
        ),
    ],
)
def test_scopes(spec: dict[str, Any], inside: tuple[Pod | None, ...], outside: tuple[Pod | None, ...]) -> None:
    scopes = scopes_of(msgspec.convert({"spec": spec}, ResourceQuota))
    assert [in_scopes(scopes, item) for item in inside] == [True] * len(inside)
    assert [in_scopes(scopes, item) for item in outside] == [False] * len(outside)
