"""`describe`, `events`, `explain` and the server's own information."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from tests.e2e.kubectl import bodies
from tests.e2e.kubectl.tool import Kubectl, kubectl_version, needs_kubectl, rows_of
from tests.servers import Server

EVENT_TIMES: dict[str, Any] = {"firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:00:00Z"}


def squeezed(text: str) -> list[str]:
    """Lines with repeated spaces collapsed."""
    return [" ".join(line.split()) for line in text.splitlines()]


def test_describe_pod_shows_its_events(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", stdin=bodies.pod("p", app="web"))
    event = bodies.event(
        *("p.1", kubectl.get("pod", "p")),
        type="Warning",
        reason="FailedScheduling",
        message="0/1 nodes are available",
        **EVENT_TIMES,
    )
    kubectl("create", "-f", "-", stdin=event)
    lines = squeezed(kubectl("describe", "pod", "p"))
    assert {
        "Name: p",
        f"Namespace: {kubectl.namespace}",
        "Labels: app=web",
        "Status: Pending",
        "Image: example.com/image:1",
        "QoS Class: BestEffort",
    } <= set(lines)
    last = lines[-1].split()
    assert last[:2] == ["Warning", "FailedScheduling"]
    assert lines[-1].endswith("tester 0/1 nodes are available")


def test_describe_shows_bound_pods_on_their_node(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", stdin=bodies.node("busy") | {"status": {"allocatable": {"cpu": "1"}}})
    bound = bodies.pod("p")
    bound["spec"]["nodeName"] = "busy"
    bound["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "250m"}}
    kubectl("create", "-f", "-", stdin=bound)
    lines = squeezed(kubectl("describe", "node", "busy"))
    assert "Non-terminated Pods: (1 in total)" in lines
    assert any(line.startswith(f"{kubectl.namespace} p 250m (25%)") for line in lines)


def test_describe_namespace(kubectl: Kubectl) -> None:
    lines = squeezed(kubectl("describe", "namespace", kubectl.namespace))
    assert f"Labels: kubernetes.io/metadata.name={kubectl.namespace}" in lines
    assert "Status: Active" in lines
    assert "No resource quota." in lines


@pytest.mark.parametrize(
    ("create", "resource", "expected"),
    [
        pytest.param(("configmap", "x", "--from-literal=k=v"), "configmap/x", "Data", id="configmap"),
        pytest.param(("secret", "generic", "x", "--from-literal=k=four"), "secret/x", "k: 4 bytes", id="secret"),
        pytest.param(("serviceaccount", "x"), "serviceaccount/x", "Image pull secrets: <none>", id="serviceaccount"),
        pytest.param(("role", "x", "--verb=get", "--resource=pods"), "role/x", "pods [] [] [get]", id="role"),
        pytest.param(("deployment", "x", "--image=i"), "deployment/x", "StrategyType: RollingUpdate", id="deployment"),
        pytest.param(("job", "x", "--image=i"), "job/x", "Completions: 1", id="job"),
    ],
)
def test_describe_other_kinds(kubectl: Kubectl, create: tuple[str, ...], resource: str, expected: str) -> None:
    kubectl("create", *create)
    lines = squeezed(kubectl("describe", resource))
    assert "Name: x" in lines
    assert expected in lines


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        pytest.param(bodies.claim("c"), "Device Class Name: gpu.example.com", id="claim"),
        pytest.param(bodies.device_class("described"), "Kind: DeviceClass", id="class"),
        pytest.param(bodies.resource_slice("described", node_name="n"), "Driver: gpu.example.com", id="slice"),
        pytest.param(bodies.taint_rule("described"), "Effect: NoExecute", id="taint rule"),
        pytest.param(bodies.classic_claim("c", "x"), "Allocation Mode: Delayed", id="classic claim"),
    ],
)
def test_describe_device_kinds(kubectl: Kubectl, document: dict[str, object], expected: str) -> None:
    resource = kubectl("create", "-f", "-", "-o", "name", stdin=document).strip()
    lines = squeezed(kubectl("describe", resource))
    assert expected in lines
    assert lines[-1] == "Events: <none>"


def test_describe_claim_shows_its_events(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", stdin=bodies.claim("c"))
    found = kubectl.get("resourceclaim", "c")
    kubectl("create", "-f", "-", stdin=bodies.event("c.1", found, reason="Seen", message="hello claim", **EVENT_TIMES))
    assert squeezed(kubectl("describe", "resourceclaim", "c"))[-1].endswith("tester hello claim")


class TestEvents:
    @pytest.fixture
    def events(self, kubectl: Kubectl) -> Kubectl:
        kubectl("create", "-f", "-", stdin=[bodies.pod("p"), bodies.pod("q")])
        for number, name in enumerate("pq"):
            event = bodies.event(
                *(f"{name}.1", kubectl.get("pod", name)), reason=f"R{number}", message=f"m{number}", **EVENT_TIMES
            )
            kubectl("create", "-f", "-", stdin=event)
        return kubectl

    def test_get_events(self, events: Kubectl) -> None:
        rows = events.table("events")
        assert [(row["TYPE"], row["REASON"], row["OBJECT"], row["MESSAGE"]) for row in rows] == [
            ("Normal", "R0", "pod/p", "m0"),
            ("Normal", "R1", "pod/q", "m1"),
        ]

    def test_by_field(self, events: Kubectl) -> None:
        assert events("get", "events", "--field-selector=involvedObject.name=q", "-o", "name").split() == ["event/q.1"]

    def test_both_groups_show_the_same_events(self, events: Kubectl) -> None:
        new = events.get("events.v1.events.k8s.io", "p.1")
        assert (new["apiVersion"], new["regarding"]["name"], new["note"]) == ("events.k8s.io/v1", "p", "m0")

    @needs_kubectl(26)
    def test_events_command(self, events: Kubectl) -> None:
        rows = rows_of(events("events", "--for=pod/p"))
        assert [(row["REASON"], row["OBJECT"], row["MESSAGE"]) for row in rows] == [("R0", "Pod/p", "m0")]


class TestExplain:
    def test_kind(self, kubectl: Kubectl) -> None:
        lines = squeezed(kubectl("explain", "resourceclaims"))
        assert "KIND: ResourceClaim" in lines
        assert any(line.startswith("spec <") for line in lines)

    def test_field(self, kubectl: Kubectl) -> None:
        lines = squeezed(kubectl("explain", "resourceclaim.spec.devices.requests"))
        assert any(line.startswith("firstAvailable <") for line in lines)
        assert "name <string> -required-" in lines

    def test_another_version(self, kubectl: Kubectl) -> None:
        arguments = ("resourceclaim.spec.devices.requests", "--api-version=resource.k8s.io/v1beta1")
        lines = squeezed(kubectl("explain", *arguments))
        assert "deviceClassName <string>" in lines

    def test_classic_kind(self, kubectl: Kubectl) -> None:
        lines = squeezed(kubectl("explain", "resourceclaim.spec", "--api-version=cdi.k8s.io/v1alpha1"))
        assert "resourceClassName <string> -required-" in lines

    def test_recursive(self, kubectl: Kubectl) -> None:
        shown = kubectl("explain", "deployment.spec.template.spec.containers", "--recursive")
        assert "valueFrom" in shown
        assert "configMapKeyRef" in shown

    @needs_kubectl(27)
    def test_old_openapi_document(self, kubectl: Kubectl) -> None:
        lines = squeezed(kubectl("explain", "deviceclass.spec", "--output=plaintext-openapiv2"))
        assert "RESOURCE: spec <Object>" in lines

    def test_unknown_field(self, kubectl: Kubectl) -> None:
        assert 'field "nope" does not exist' in kubectl.error("explain", "pod.spec.nope")

    def test_unknown_kind(self, kubectl: Kubectl) -> None:
        assert 'doesn\'t have a resource type "nope"' in kubectl.error("explain", "nope")


class TestServer:
    def test_version(self, kubectl: Kubectl) -> None:
        assert json.loads(kubectl("version", "-o", "json"))["serverVersion"]["gitVersion"].startswith("v1.")

    def test_api_versions(self, kubectl: Kubectl) -> None:
        versions = kubectl("api-versions").split()
        assert {
            *("v1", "apps/v1", "batch/v1", "events.k8s.io/v1", "rbac.authorization.k8s.io/v1", "cdi.k8s.io/v1alpha1"),
            *(f"resource.k8s.io/{version}" for version in ("v1", "v1beta2", "v1beta1", "v1alpha3")),
        } <= set(versions)

    def test_cluster_info(self, kubectl: Kubectl) -> None:
        assert "Kubernetes control plane is running at" in kubectl("cluster-info")
        assert kubectl("get", "service", "kubernetes", "-n", "default", "-o", "jsonpath={.spec.ports[0].port}") == "443"

    @pytest.mark.behaviour("SP-01", "CL-01")
    def test_api_resources(self, kubectl: Kubectl) -> None:
        rows = rows_of(kubectl("api-resources"))
        found = {(row["APIVERSION"], row["NAME"]): (row["NAMESPACED"], row["KIND"]) for row in rows}
        assert found[("v1", "pods")] == ("true", "Pod")
        assert found[("resource.k8s.io/v1", "deviceclasses")] == ("false", "DeviceClass")
        assert found[("resource.k8s.io/v1", "resourceslices")] == ("false", "ResourceSlice")
        assert found[("resource.k8s.io/v1", "resourceclaims")] == ("true", "ResourceClaim")
        assert found[("resource.k8s.io/v1", "resourceclaimtemplates")] == ("true", "ResourceClaimTemplate")
        assert found[("resource.k8s.io/v1", "devicetaintrules")] == ("false", "DeviceTaintRule")
        assert found[("cdi.k8s.io/v1alpha1", "resourceclaims")] == ("true", "ResourceClaim")
        assert found[("cdi.k8s.io/v1alpha1", "resourceclasses")] == ("false", "ResourceClass")

    @pytest.mark.parametrize(
        ("flags", "expected"),
        [
            (("--api-group=scheduling.k8s.io",), ["priorityclasses.scheduling.k8s.io"]),
            (("--namespaced=false", "--api-group=resource.k8s.io", "--verbs=patch"), None),
            (("--verbs=create", "--namespaced", "--api-group=coordination.k8s.io"), ["leases.coordination.k8s.io"]),
        ],
    )
    def test_api_resources_by_flag(self, kubectl: Kubectl, flags: tuple[str, ...], expected: list[str] | None) -> None:
        names = kubectl("api-resources", *flags, "-o", "name").split()
        if expected is None:
            expected = [f"{name}.resource.k8s.io" for name in ("deviceclasses", "devicetaintrules", "resourceslices")]
        assert names == expected

    def test_config_view_hides_secrets(self, kubectl: Kubectl, server: Server) -> None:
        config = yaml.safe_load(kubectl("config", "view"))
        assert config["clusters"][0]["cluster"]["server"] == server.url
        # Old versions write REDACTED.
        hidden = config["users"][0]["user"]["client-key-data"]
        assert hidden == ("DATA+OMITTED" if kubectl_version() >= (1, 23) else "REDACTED")

    def test_config_contexts(self, kubectl: Kubectl) -> None:
        current = kubectl("config", "current-context").strip()
        assert kubectl("config", "get-contexts", "-o", "name").split() == [current]
