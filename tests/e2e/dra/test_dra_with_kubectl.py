"""From manifests to bound Pods: classes, slices, claims and Pods as their users write them."""

from __future__ import annotations

import re

import pytest
import yaml

from tests.e2e.dra.cluster import Cluster, Document


@pytest.mark.behaviour("SP-75", "SP-76", "SP-100")
def test_a_pod_with_a_claim_template_gets_a_device_and_a_node(cluster: Cluster) -> None:
    cluster.apply(cluster.device_class("gpu"), cluster.node("n"), cluster.devices("n", gpu_0="a"))
    cluster.apply(cluster.template(cluster.request()), cluster.pod("pod"))
    cluster.wait_scheduled("pod")
    assert cluster.node_of("pod") == "n"
    claim = cluster.claim_of("pod")
    assert cluster.results(claim) == [("gpu", "gpu-0")]
    assert claim["metadata"]["finalizers"] == ["resource.kubernetes.io/delete-protection"]
    pod = cluster.kubectl.get("pod", "pod")
    assert claim["status"]["reservedFor"] == [{"resource": "pods", "name": "pod", "uid": pod["metadata"]["uid"]}]
    [row] = cluster.kubectl.table("resourceclaims")
    assert row["STATE"] == "allocated,reserved"


def generations(cluster: Cluster) -> Document:
    """The latest model, or the one before, or two of an even older one."""
    listed = [
        {"name": "latest", "deviceClassName": cluster.name("latest")},
        {"name": "previous", "deviceClassName": cluster.name("previous")},
        {"name": "older", "deviceClassName": cluster.name("older"), "count": 2},
    ]
    return {"name": "gpu", "firstAvailable": listed}


def model_classes(cluster: Cluster) -> list[Document]:
    return [cluster.device_class(model, model) for model in ("latest", "previous", "older")]


@pytest.mark.behaviour("PL-25", "PL-29")
def test_story_1_the_best_model_that_is_left(cluster: Cluster) -> None:
    cluster.apply(*model_classes(cluster), *(cluster.node(name) for name in ("a", "b", "c")))
    cluster.apply(
        cluster.devices("a", old_0="older", old_1="older"),
        cluster.devices("b", mid_0="previous"),
        cluster.devices("c", new_0="latest"),
    )
    cluster.apply(cluster.template(generations(cluster)))
    expected = {
        "first": ("c", [("gpu/latest", "new-0")]),
        "second": ("b", [("gpu/previous", "mid-0")]),
        "third": ("a", [("gpu/older", "old-0"), ("gpu/older", "old-1")]),
    }
    for name, (node, results) in expected.items():
        cluster.apply(cluster.pod(name))
        cluster.wait_scheduled(name)
        assert cluster.node_of(name) == node
        assert cluster.results(cluster.claim_of(name)) == results


@pytest.mark.behaviour("PL-29")
@pytest.mark.parametrize(
    ("there", "chosen"),
    [
        ({"new_0": "latest", "mid_0": "previous"}, "gpu/latest"),
        ({"mid_0": "previous", "old_0": "older", "old_1": "older"}, "gpu/previous"),
        ({"old_0": "older", "old_1": "older"}, "gpu/older"),
    ],
)
def test_story_2_one_manifest_for_many_clusters(cluster: Cluster, there: dict[str, str], chosen: str) -> None:
    cluster.apply(*model_classes(cluster), cluster.node("n"), cluster.devices("n", **there))
    cluster.apply(cluster.template(generations(cluster)), cluster.pod("pod"))
    cluster.wait_scheduled("pod")
    assert {request for request, _ in cluster.results(cluster.claim_of("pod"))} == {chosen}


# KEP-4816's examples; class names are the test's own, and the two slips of its text are mended.
EXAMPLE_V1BETA2 = """
apiVersion: resource.k8s.io/v1beta2
kind: ResourceClaim
metadata:
  name: device-consumer-claim
spec:
  devices:
    requests:
    - name: nic
      exactly:
        deviceClassName: rdma-nic.NS
    - name: gpu
      firstAvailable:
      - name: big-gpu
        deviceClassName: big-gpu.NS
      - name: mid-gpu
        deviceClassName: mid-gpu.NS
      - name: small-gpu
        deviceClassName: small-gpu.NS
        count: 2
    constraints:
    - requests: ["nic", "gpu"]
      matchAttribute: resource.kubernetes.io/pcieRoot
    config:
    - requests: ["gpu/small-gpu"]
      opaque:
        driver: NS.example.com
        parameters:
          apiVersion: gpu.acme.example.com/v1
          kind: GPUConfig
          mode: multipleGPUs
"""
EXAMPLE_V1BETA1 = EXAMPLE_V1BETA2.replace("v1beta2", "v1beta1").replace(
    """      exactly:
        deviceClassName: rdma-nic.NS
""",
    """      deviceClassName: rdma-nic.NS
""",
)
POD = """
apiVersion: v1
kind: Pod
metadata:
  name: device-consumer
spec:
  resourceClaims:
  - name: "gpu-and-nic"
    resourceClaimName: device-consumer-claim
  containers:
  - name: workload
    image: my-app
    command: ["/bin/program"]
    resources:
      requests:
        memory: "64Mi"
        cpu: "250m"
      limits:
        memory: "128Mi"
        cpu: "500m"
      claims:
      - name: "gpu-and-nic"
        request: "gpu" # the 'nic' request is pod-level, no need to attach to container
"""


@pytest.mark.behaviour("PL-21", "PL-22")
@pytest.mark.parametrize(
    "example", [pytest.param(EXAMPLE_V1BETA2, id="v1beta2"), pytest.param(EXAMPLE_V1BETA1, id="v1beta1")]
)
@pytest.mark.parametrize("small", [pytest.param(False, id="big"), pytest.param(True, id="small")])
def test_the_examples_of_the_proposal(cluster: Cluster, example: str, small: bool) -> None:
    models = ("rdma-nic", "big-gpu", "mid-gpu", "small-gpu")
    # A big one too far from the network card is of no use.
    gpus = {"small_0": "small-gpu", "small_1": "small-gpu", "far_big" if small else "big_0": "big-gpu"}
    cluster.apply(*(cluster.device_class(model, model) for model in models), cluster.node("n"))
    cluster.apply(cluster.devices("n", nic_0="rdma-nic", **gpus))
    cluster.apply(yaml.safe_load(example.replace("NS", cluster.namespace)), yaml.safe_load(POD))
    cluster.wait_scheduled("device-consumer")
    claim = cluster.kubectl.get("resourceclaims.v1beta1.resource.k8s.io", "device-consumer-claim")
    chosen = [("gpu/small-gpu", "small-0"), ("gpu/small-gpu", "small-1")] if small else [("gpu/big-gpu", "big-0")]
    assert cluster.results(claim) == [("nic", "nic-0"), *chosen]
    configs = claim["status"]["allocation"]["devices"].get("config", [])
    assert [config["requests"] for config in configs] == ([["gpu/small-gpu"]] if small else [])


@pytest.mark.behaviour("SP-95")
def test_a_pending_pod_says_what_it_waits_for(cluster: Cluster) -> None:
    cluster.apply(cluster.device_class("gpu"), cluster.device_class("none", "none"), cluster.node("n"))
    cluster.apply(cluster.devices("n", gpu_0="a"), cluster.template(cluster.request("none")), cluster.pod("pod"))
    condition = cluster.until(lambda: cluster.condition("pod"))
    assert (condition["status"], condition["reason"]) == ("False", "Unschedulable")
    # Nodes of other tests may have other devices, whose reasons are counted too.
    assert re.search(
        r' cannot allocate all claims \((?:.*; )?(?:\d+: )?request "gpu": 1 device: ', condition["message"]
    )
    [event] = cluster.until(lambda: cluster.events("FailedScheduling"))
    assert event == condition["message"]


@pytest.mark.behaviour("SP-82", "SP-84", "SP-86", "SP-90", "SP-109")
def test_all_devices_are_used_and_freed_for_those_who_wait(cluster: Cluster) -> None:
    cluster.apply(cluster.device_class("gpu"), cluster.node("a"), cluster.node("b"))
    cluster.apply(cluster.devices("a", x="m", y="m"), cluster.devices("b", x="m", y="m"))
    names = [f"pod-{number}" for number in range(6)]
    cluster.apply(cluster.template(cluster.request()), *(cluster.pod(name) for name in names))

    def bound() -> list[str]:
        items = cluster.kubectl.get("pods")["items"]
        return [item["metadata"]["name"] for item in items if item["spec"].get("nodeName")]

    first = cluster.until(lambda: names if len(bound()) == 4 else None) and bound()
    claims = [cluster.claim_of(name) for name in first]
    places = {
        tuple(r[key] for key in ("pool", "device"))
        for c in claims
        for r in c["status"]["allocation"]["devices"]["results"]
    }
    assert len(places) == 4
    cluster.kubectl("delete", "pod", *first[:2], "--force", "--grace-period=0")
    cluster.until(lambda: len(bound()) == 4)
    assert set(bound()) == set(names) - set(first[:2])
    cluster.until(lambda: len(cluster.kubectl.get("resourceclaims")["items"]) == 4)


@pytest.mark.behaviour("SP-94", "SP-84")
def test_a_shared_claim_brings_its_pods_to_one_node(cluster: Cluster) -> None:
    claim = cluster.template(cluster.request(), name="shared") | {"kind": "ResourceClaim"}
    claim["spec"] = claim["spec"]["spec"]
    names = [f"pod-{number}" for number in range(5)]
    cluster.apply(cluster.device_class("gpu"), *(cluster.node(name) for name in "abc"))
    cluster.apply(*(cluster.devices(name, gpu="m") for name in "abc"))
    cluster.apply(claim, *(cluster.pod(name, claim="shared") for name in names))
    cluster.wait_scheduled(*names)
    assert len({cluster.node_of(name) for name in names}) == 1
    users = cluster.kubectl.get("resourceclaim", "shared")["status"]["reservedFor"]
    assert sorted(user["name"] for user in users) == names
    cluster.kubectl("delete", "pod", *names, "--force", "--grace-period=0")
    cluster.until(lambda: not cluster.kubectl.get("resourceclaim", "shared").get("status"))


@pytest.mark.behaviour("SP-79", "SP-89", "SP-91", "SP-93")
def test_a_pod_is_tried_again_when_what_it_lacks_appears(cluster: Cluster) -> None:
    cluster.apply(cluster.node("n"), cluster.pod("pod"))
    cluster.until(lambda: cluster.events("FailedResourceClaimCreation"))
    cluster.apply(cluster.template(cluster.request()))
    missing = f"request gpu: device class {cluster.name('gpu')} does not exist"
    cluster.until(lambda: missing in cluster.condition("pod").get("message", ""))
    cluster.apply(cluster.device_class("gpu"))
    cluster.until(lambda: "cannot allocate all claims" in cluster.condition("pod").get("message", ""))
    cluster.apply(cluster.devices("n", gpu="m"))
    cluster.wait_scheduled("pod")


@pytest.mark.behaviour("SP-96", "SP-91")
def test_a_selector_that_breaks_keeps_the_pod_pending_until_it_is_mended(cluster: Cluster) -> None:
    broken = cluster.device_class("gpu")
    broken["spec"]["selectors"][0]["cel"]["expression"] += f' && device.attributes["{cluster.driver}"].absent'
    cluster.apply(broken, cluster.node("n"), cluster.devices("n", gpu="m"))
    cluster.apply(cluster.template(cluster.request()), cluster.pod("pod"))
    condition = cluster.until(lambda: cluster.condition("pod"))
    assert (condition["status"], condition["reason"]) == ("False", "SchedulerError")
    assert "CEL runtime error" in condition["message"]
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=cluster.device_class("gpu"))
    cluster.wait_scheduled("pod")
