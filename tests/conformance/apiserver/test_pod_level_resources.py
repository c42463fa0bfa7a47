"""The resources of a Pod as a whole; kube-apiserver 1.37.0-rc.1 answered the same requests as is expected here."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from dray.api.document import Document
from dray.api.errors import InvalidError
from tests.local_server import Local

pytestmark = pytest.mark.api_faults

PODS = "core/v1/pods"
STRATEGIC = "application/strategic-merge-patch+json"
FULL = {"limits": {"cpu": "1", "memory": "1Gi"}}
UNSUPPORTED = 'Unsupported value: "{}": supported values: "cpu", "hugepages-", "memory"'


class Case(NamedTuple):
    given: Document
    containers: tuple[Document, ...]
    stored: Document
    qos: str = "Burstable"
    init: tuple[tuple[Document, bool], ...] = ()


def requirements(requests: Document | None = None, limits: Document | None = None) -> Document:
    return {name: value for name, value in (("requests", requests), ("limits", limits)) if value}


def pod_of(given: Any, containers: tuple[Document, ...], init: tuple[tuple[Document, bool], ...] = ()) -> Document:
    spec: Document = {
        "containers": [{"name": f"c{i}", "image": "x", "resources": each} for i, each in enumerate(containers or ({},))]
    }
    if init:
        spec["initContainers"] = [
            {"name": f"i{i}", "image": "x", "resources": each, **({"restartPolicy": "Always"} if sidecar else {})}
            for i, (each, sidecar) in enumerate(init)
        ]
    if given is not None:
        spec["resources"] = given
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}


async def created(api: Local, *parts: Any) -> Document:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    await api.request("create", "core/v1/serviceaccounts@default", account)
    return await api.request("create", f"{PODS}@default", pod_of(*parts))


CASES = {
    "requests are the limits": Case({"limits": {"cpu": "8"}}, (), requirements({"cpu": "8"}, {"cpu": "8"})),
    "requests are those of containers": Case(
        {"limits": {"cpu": "8"}}, ({"requests": {"cpu": "1"}},), requirements({"cpu": "1"}, {"cpu": "8"})
    ),
    "init containers count with their peak": Case(
        {"limits": {"cpu": "8"}},
        ({"requests": {"cpu": "1"}},),
        requirements({"cpu": "3"}, {"cpu": "8"}),
        init=(({"requests": {"cpu": "3"}}, False),),
    ),
    "sidecars count with containers": Case(
        {"limits": {"cpu": "8"}},
        ({"requests": {"cpu": "1"}},),
        requirements({"cpu": "2", "memory": "1Gi"}, {"cpu": "8"}),
        init=((FULL, True),),
    ),
    "limits of all containers become limits": Case(
        {"requests": {"memory": "3Gi"}},
        (FULL, FULL),
        requirements({"cpu": "2", "memory": "3Gi"}, {"cpu": "2", "memory": "3Gi"}),
        qos="Guaranteed",
    ),
    "huge pages": Case(
        {"requests": {"cpu": "1"}},
        ({"limits": {"cpu": "300m", "hugepages-2Mi": "2Mi"}}, {"limits": {"cpu": "200m", "memory": "1Gi"}}),
        requirements({"cpu": "1", "hugepages-2Mi": "2Mi", "memory": "1Gi"}, {"cpu": "1", "hugepages-2Mi": "2Mi"}),
    ),
    "nothing of its own": Case({}, (FULL,), {}, qos="Guaranteed"),
    "limits that equal requests": Case(
        FULL, (), requirements({"cpu": "1", "memory": "1Gi"}, {"cpu": "1", "memory": "1Gi"}), qos="Guaranteed"
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_resources_follow_from_containers(api: Local, case: Case) -> None:
    pod = await created(api, case.given, case.containers, case.init)
    assert (pod["spec"].get("resources"), pod["status"]["qosClass"]) == (case.stored, case.qos)


REFUSED: dict[str, tuple[Document, tuple[Document, ...], str]] = {
    "extended resource": (
        {"limits": {"example.com/gpu": "1"}},
        (),
        "spec.resources.limits[example.com/gpu]: " + UNSUPPORTED.format("example.com/gpu"),
    ),
    "implicit resource of a class": (
        {"limits": {"deviceclass.resource.kubernetes.io/gpu": "1"}},
        (),
        "spec.resources.limits[deviceclass.resource.kubernetes.io/gpu]: "
        + UNSUPPORTED.format("deviceclass.resource.kubernetes.io/gpu"),
    ),
    "storage": ({"limits": {"storage": "1"}}, (), "spec.resources.limits[storage]: " + UNSUPPORTED.format("storage")),
    "no domain": (
        {"limits": {"foo": "1"}},
        (),
        'spec.resources.limits[foo]: Invalid value: "foo": must be a standard resource type or fully qualified',
    ),
    "less than its containers request": (
        {"requests": {"cpu": "1"}},
        ({"requests": {"cpu": "2"}},),
        'spec.resources.requests[cpu]: Invalid value: "1": '
        "must be greater than or equal to aggregate container requests of 2",
    ),
    "fewer huge pages than its containers may use": (
        {"limits": {"hugepages-2Mi": "2Mi", "memory": "1Gi"}},
        ({"limits": {"hugepages-2Mi": "4Mi", "memory": "1Gi"}},),
        'spec.resources.limits[hugepages-2Mi]: Invalid value: "2Mi": '
        "must be greater than or equal to aggregate container limits of 4Mi",
    ),
    "container above the limit": (
        {"limits": {"cpu": "3"}, "requests": {"cpu": "2"}},
        ({"limits": {"cpu": "4"}, "requests": {"cpu": "1"}},),
        'spec.resources.containers[0][cpu].limits: Invalid value: "4": must be less than or equal to pod limits of 3',
    ),
    "claims": (
        {"claims": [{"name": "a"}], "limits": {"cpu": "1"}},
        (),
        "[spec.resources.claims: Forbidden: claims may not be set for Resources at pod-level, "
        'spec.resources.claims[0]: Not found: "a": must be one of the names in pod.spec.resourceClaims which is empty]',
    ),
}


@pytest.mark.parametrize(("given", "containers", "problem"), REFUSED.values(), ids=REFUSED)
async def test_what_a_pod_as_a_whole_cannot_have(
    api: Local, given: Document, containers: tuple[Document, ...], problem: str
) -> None:
    with pytest.raises(InvalidError) as caught:
        await created(api, given, containers)
    assert problem in caught.value.message


async def test_a_writer_that_does_not_know_the_field_keeps_it(api: Local) -> None:
    pod = await created(api, {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}, ())
    spec = {name: value for name, value in pod["spec"].items() if name != "resources"}
    for path in (f"{PODS}/p@default", f"{PODS}/p/resize@default"):
        changed = await api.request("update", path, {**pod, "spec": spec})
        assert changed["spec"]["resources"] == pod["spec"]["resources"]


async def test_the_resources_of_a_pod_as_a_whole_are_resized(api: Local) -> None:
    await created(api, {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}, ({"requests": {"cpu": "500m"}},))

    async def resize(**resources: Any) -> Document:
        body = {"spec": {"resources": resources}}
        changed = await api.request("patch", f"{PODS}/p/resize@default", body, content_type=STRATEGIC)
        return dict(changed["spec"]["resources"])

    assert await resize(requests={"cpu": "1500m"}) == requirements({"cpu": "1500m"}, {"cpu": "2"})
    assert await resize(requests={"memory": "1Gi"}) == requirements({"cpu": "1500m", "memory": "1Gi"}, {"cpu": "2"})
    for resources, problem in (
        ({"limits": {"cpu": None}}, "spec.resources.limits: Forbidden: pod-level resource limits cannot be removed"),
        (
            {"limits": {"hugepages-2Mi": "2Mi"}},
            "spec: Forbidden: only cpu and memory resources are mutable at pod-level",
        ),
        ({"requests": {"cpu": "100m"}}, "must be greater than or equal to aggregate container requests of 500m"),
    ):
        with pytest.raises(InvalidError) as caught:
            await resize(**resources)
        assert problem in caught.value.message
