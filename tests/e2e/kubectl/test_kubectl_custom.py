"""Custom resources with kubectl: defined, established, used, and deleted."""

from __future__ import annotations

import json

import pytest

from tests.e2e.kubectl.tool import Document, Kubectl, kubectl_version, needs_kubectl


def definition(plural: str, **version: object) -> Document:
    kind = plural.removesuffix("s").capitalize()
    size = {"type": "integer", "minimum": 1, "description": "How big it is."}
    spec = {
        "type": "object",
        "required": ["size"],
        "properties": {"size": size, "color": {"type": "string", "default": "blue", "enum": ["blue", "red"]}},
        "x-kubernetes-validations": [{"rule": "self.size < 100 || self.color == 'red'", "message": "big ones are red"}],
    }
    status = {"type": "object", "properties": {"size": {"type": "integer"}}}
    schema = {"type": "object", "properties": {"spec": spec, "status": status}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind, "categories": ["all"]},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "additionalPrinterColumns": [
                        {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
                        {"name": "Color", "type": "string", "jsonPath": ".spec.color", "priority": 1},
                    ],
                    **version,
                }
            ],
        },
    }


def widget(name: str, kind: str = "Widget", **spec: object) -> Document:
    return {"apiVersion": "example.com/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def define(kubectl: Kubectl, document: Document) -> None:
    kubectl("apply", "-f", "-", stdin=document)
    name = document["metadata"]["name"]
    kubectl("wait", "--for=condition=Established", f"crd/{name}", "--timeout=10s")


@pytest.fixture
def widgets(kubectl: Kubectl) -> Kubectl:
    """Widgets are served; the definition stays for the tests after it."""
    scale = {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.size"}
    document = definition("widgets", subresources={"status": {}, "scale": scale})
    document["spec"]["names"]["shortNames"] = ["wg"]
    define(kubectl, document)
    return kubectl


def test_definition_is_listed(widgets: Kubectl) -> None:
    assert "widgets.example.com" in [row["NAME"] for row in widgets.table("crd")]
    assert widgets("api-resources", "--api-group=example.com", "-o", "name").split()[-1] == "widgets.example.com"


def test_apply_get_and_delete(widgets: Kubectl) -> None:
    for word in ("created", "unchanged"):
        assert widgets("apply", "-f", "-", stdin=widget("w", size=3)) == f"widget.example.com/w {word}\n"
    assert widgets.table("wg", "-o", "wide") == [{"NAME": "w", "SIZE": "3", "COLOR": "blue"}]
    assert widgets("get", "all", "-o", "name") == "widget.example.com/w\n"
    widgets("delete", "widget", "w")
    assert 'widgets.example.com "w" not found' in widgets.error("get", "widget", "w")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        pytest.param(
            {"size": 0}, "spec.size: Invalid value: 0: spec.size in body should be greater than", id="minimum"
        ),
        pytest.param({"size": "x"}, "spec.size: Invalid value: ", id="type"),
        pytest.param({}, "spec.size: Required value", id="required"),
        pytest.param({"size": 1, "color": "green"}, 'spec.color: Unsupported value: "green"', id="enum"),
        pytest.param({"size": 200}, "big ones are red", id="rule"),
    ],
)
def test_invalid(widgets: Kubectl, spec: Document, message: str) -> None:
    answer = widgets.error("create", "--validate=false", "-f", "-", stdin=widget("w", **spec))
    assert 'The Widget "w" is invalid' in answer
    assert message in answer


def test_unknown_field(widgets: Kubectl) -> None:
    document = widget("w", size=1, colour="red")
    assert 'unknown field "' in widgets.error("create", "-f", "-", stdin=document)
    widgets("create", "--validate=false", "-f", "-", stdin=document)
    assert widgets.get("widget", "w")["spec"] == {"size": 1, "color": "blue"}


def test_explain(widgets: Kubectl) -> None:
    shown = widgets("explain", "widget.spec.size")
    assert "How big it is." in shown


def test_patches(widgets: Kubectl) -> None:
    widgets("create", "-f", "-", stdin=widget("w", size=1))
    widgets("patch", "widget", "w", "--type=merge", "-p", '{"spec":{"color":"red"}}')
    widgets("patch", "widget", "w", "--type=json", "-p", '[{"op":"replace","path":"/spec/size","value":500}]')
    assert widgets.get("widget", "w")["spec"] == {"size": 500, "color": "red"}
    message = widgets.error("patch", "widget", "w", "-p", '{"spec":{"size":2}}')
    assert message.endswith(
        "the body of the request was in an unknown format - accepted media types include: "
        "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml"
    )


def test_server_side_apply(widgets: Kubectl) -> None:
    apply = ("apply", "--server-side", "-f", "-")
    widgets(*apply, stdin=widget("w", size=1))
    message = widgets.error(*apply, "--field-manager=other", stdin=widget("w", size=2))
    assert 'conflict with "kubectl"' in message
    assert ".spec.size" in message


def test_scale_and_status(widgets: Kubectl) -> None:
    widgets("create", "-f", "-", stdin=widget("w", size=1) | {"status": {"size": 9}})
    assert widgets("scale", "widget", "w", "--replicas=7") == "widget.example.com/w scaled\n"
    found = widgets.get("widget", "w")
    assert found["spec"]["size"] == 7
    assert "status" not in found
    assert found["metadata"]["generation"] == 2


@needs_kubectl(24)
def test_status_subresource(widgets: Kubectl) -> None:
    widgets("create", "-f", "-", stdin=widget("w", size=1))
    patch = {"spec": {"size": 5}, "status": {"size": 2}}
    widgets("patch", "widget", "w", "--subresource=status", "--type=merge", "-p", json.dumps(patch))
    found = widgets.get("widget", "w")
    assert (found["spec"]["size"], found["status"], found["metadata"]["generation"]) == (1, {"size": 2}, 1)


def test_diff(widgets: Kubectl) -> None:
    widgets("apply", "-f", "-", stdin=widget("w", size=1))
    answer = widgets.run("diff", "-f", "-", stdin=widget("w", size=2))
    assert answer.code == 1
    assert {"-  size: 1", "+  size: 2"} <= set(answer.out.splitlines())
    assert widgets.field("widget/w", "spec.size") == "1"


def test_watch(widgets: Kubectl) -> None:
    widgets("create", "-f", "-", stdin=widget("w", size=1))
    with widgets.background("get", "widgets", "-w") as lines:
        lines.until_cells("w", "1")
        widgets("scale", "widget", "w", "--replicas=2")
        lines.until_cells("w", "2")


@needs_kubectl(30)
def test_selectable_field(kubectl: Kubectl) -> None:
    define(kubectl, definition("pickers", selectableFields=[{"jsonPath": ".spec.color"}]))
    pickers = [widget("a", "Picker", size=1), widget("b", "Picker", size=1, color="red")]
    kubectl("create", "-f", "-", stdin=pickers)
    selected = kubectl("get", "pickers", "--field-selector=spec.color=red", "-o", "name")
    assert selected == "picker.example.com/b\n"


def test_deleting_the_definition_deletes_the_objects(kubectl: Kubectl) -> None:
    define(kubectl, definition("fleetings"))
    kubectl("create", "-f", "-", stdin=widget("f", "Fleeting", size=1))
    kubectl("delete", "crd", "fleetings.example.com", "--timeout=20s")
    path = f"/apis/example.com/v1/namespaces/{kubectl.namespace}/fleetings"
    assert "the server could not find the requested resource" in kubectl.error("get", "--raw", path)
    define(kubectl, definition("fleetings"))
    assert kubectl("get", "fleetings", "-o", "name") == ""


def test_broken_definition(kubectl: Kubectl) -> None:
    document = definition("brokens")
    document["metadata"]["name"] = "other.example.com"
    message = kubectl.error("create", "--validate=false", "-f", "-", stdin=document)
    assert 'metadata.name: Invalid value: "other.example.com": must be spec.names.plural+"."+spec.group' in message


def test_object_before_its_definition(kubectl: Kubectl) -> None:
    message = kubectl.error("apply", "-f", "-", stdin=widget("e", "Early", size=1))
    assert 'no matches for kind "Early" in version "example.com/v1"' in message
    assert kubectl_version() < (1, 25) or message.endswith("ensure CRDs are installed first")
