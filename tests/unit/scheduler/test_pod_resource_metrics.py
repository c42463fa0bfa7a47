"""`kube_pod_resource_request` and `kube_pod_resource_limit`, by the rows of kube-scheduler's own tests."""

from __future__ import annotations

from typing import Any

import pytest

from dray.api.codec import from_document
from dray.api.types.core_v1 import Pod
from dray.scheduler.pod_resource_metrics import LIMIT_TEXT, REQUEST_TEXT, pod_resources_page

HEADS = {
    name: f"# HELP kube_pod_resource_{name} {text}\n# TYPE kube_pod_resource_{name} gauge\n"
    for name, text in (("limit", LIMIT_TEXT), ("request", REQUEST_TEXT))
}


def container(requests: dict[str, str] | None = None, limits: dict[str, str] | None = None, **more: Any) -> Any:
    return {"name": "c", "resources": {"requests": requests or {}, "limits": limits or {}}, **more}


def pod(*containers: Any, name: str = "foo", phase: str = "", **spec: Any) -> Pod:
    return from_document(
        Pod,
        {
            "metadata": {"namespace": "test", "name": name},
            "spec": {"containers": list(containers), **spec},
            "status": {"phase": phase},
        },
    )


def samples(*pods: Pod) -> dict[str, float]:
    """By `request|limit node/pod resource[unit]`."""
    found = {}
    for line in pod_resources_page(pods).decode().splitlines():
        if line.startswith("#"):
            continue
        head, _, value = line.rpartition(" ")
        name, _, rest = head.partition("{")
        labels = dict(part.replace('"', "").split("=") for part in rest.rstrip("}").split(","))
        kind = name.removeprefix("kube_pod_resource_")
        found[f"{kind} {labels['node']}/{labels['pod']} {labels['resource']}[{labels['unit']}]"] = float(value)
    return found


def test_the_texts_are_those_of_kube_scheduler() -> None:
    init = container({"cpu": "2", "custom": "3"}, {"memory": "1G", "custom": "5"})
    main = container({"cpu": "1", "custom": "0"}, {"memory": "2.5Gi", "custom": "6"})
    page = pod_resources_page([pod(main, initContainers=[init], nodeName="node-one")]).decode()
    own = '{namespace="test",node="node-one",pod="foo",priority="",'
    assert page == (
        f"{HEADS['limit']}"
        f'kube_pod_resource_limit{own}resource="custom",scheduler="",unit=""}} 6.0\n'
        f'kube_pod_resource_limit{own}resource="memory",scheduler="",unit="bytes"}} 2.68435456e+09\n'
        f"{HEADS['request']}"
        f'kube_pod_resource_request{own}resource="cpu",scheduler="",unit="cores"}} 2.0\n'
        f'kube_pod_resource_request{own}resource="custom",scheduler="",unit=""}} 3.0\n'
    )
    assert REQUEST_TEXT == (
        "[STABLE] Resources requested by workloads on the cluster, broken down by pod. This shows the resource usage "
        "the scheduler and kubelet expect per pod for resources along with the unit for the resource if any."
    )
    assert REQUEST_TEXT.replace("Resources requested by", "Resources limit for") == LIMIT_TEXT


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param(pod(), {}, id="no containers"),
        pytest.param(pod(container({"cpu": "0"}, {"example.com/gpu": "0"})), {}, id="zeros are left out"),
        pytest.param(pod(container({"cpu": "100m"})), {"request /foo cpu[cores]": 0.1}, id="a fraction of a core"),
        pytest.param(pod(container({"cpu": "1"}), nodeName="n", phase="Succeeded"), {}, id="ended"),
        pytest.param(
            pod(container({"cpu": "1"}), phase="Failed"), {"request /foo cpu[cores]": 1}, id="without a node, not ended"
        ),
        pytest.param(
            pod(container({"hugepages-2Mi": "4Mi", "attachable-volumes-csi-x": "2", "ephemeral-storage": "1Ki"})),
            {
                "request /foo hugepages-2Mi[bytes]": 4194304,
                "request /foo attachable-volumes-csi-x[integer]": 2,
                "request /foo ephemeral-storage[bytes]": 1024,
            },
            id="units",
        ),
        pytest.param(
            pod(
                container({"cpu": "1"}),
                initContainers=[container({"cpu": "2"}, restartPolicy="Always"), container({"cpu": "4"})],
            ),
            {"request /foo cpu[cores]": 6},
            id="an init container beside a sidecar",
        ),
        pytest.param(
            pod(container({"cpu": "1"}, {"memory": "1Ki"}), overhead={"cpu": "250m", "memory": "1Ki"}),
            {
                "request /foo cpu[cores]": 1.25,
                "request /foo memory[bytes]": 1024,
                "limit /foo memory[bytes]": 2048,
            },
            id="overhead counts for limits that are set",
        ),
        pytest.param(
            pod(container({"cpu": "1"}), resources={"requests": {"cpu": "3"}, "limits": {"cpu": "4"}}),
            {"request /foo cpu[cores]": 3, "limit /foo cpu[cores]": 4},
            id="Pod-level resources",
        ),
    ],
)
def test_amounts(given: Pod, expected: dict[str, float]) -> None:
    assert samples(given) == expected


@pytest.mark.behaviour("XR-45")
def test_extended_resources_that_a_claim_serves_are_included() -> None:
    """They are in the Pod's requests by their own name, or by that of their class."""
    names = ("example.com/gpu", "deviceclass.resource.kubernetes.io/gpu")
    amounts = dict.fromkeys(names, "2")
    served = pod(container(amounts, amounts), nodeName="n")
    status = {"extendedResourceClaimStatus": {"resourceClaimName": "c", "requestMappings": []}}
    assert from_document(Pod, {"status": status}).status.extended_resource_claim_status is not None
    assert samples(served) == {f"{kind} n/foo {name}[]": 2 for kind in ("request", "limit") for name in names}


def test_scheduler_and_priority_are_labels() -> None:
    page = pod_resources_page([pod(container({"cpu": "1"}), schedulerName="default-scheduler", priority=0)]).decode()
    assert 'priority="0",resource="cpu",scheduler="default-scheduler"' in page
