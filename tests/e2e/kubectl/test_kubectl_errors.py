"""Exact error messages of kubectl."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.kubectl import bodies
from tests.e2e.kubectl.tool import Document, Kubectl, kubectl_version, needs_kubectl
from tests.servers import running_server


def test_not_found(kubectl: Kubectl) -> None:
    assert kubectl.error("get", "pod", "nope") == 'Error from server (NotFound): pods "nope" not found'
    assert kubectl.error("get", "deviceclass", "nope") == (
        'Error from server (NotFound): deviceclasses.resource.k8s.io "nope" not found'
    )


def test_already_exists(kubectl: Kubectl) -> None:
    assert kubectl.error("create", "namespace", kubectl.namespace).endswith(
        f'(AlreadyExists): namespaces "{kubectl.namespace}" already exists'
    )
    kubectl("create", "-f", "-", stdin=bodies.claim("c"))
    assert kubectl.error("create", "-f", "-", stdin=bodies.claim("c")) == (
        'Error from server (AlreadyExists): error when creating "STDIN": '
        'resourceclaims.resource.k8s.io "c" already exists'
    )


def test_missing_namespace(kubectl: Kubectl) -> None:
    tool = kubectl.with_flags("--namespace=nowhere")
    assert tool.error("create", "-f", "-", stdin=bodies.config_map("c")) == (
        'Error from server (NotFound): error when creating "STDIN": namespaces "nowhere" not found'
    )
    assert tool.run("get", "pods").err == "No resources found in nowhere namespace.\n"


def test_wrong_namespace_in_the_file(kubectl: Kubectl) -> None:
    document = bodies.config_map("c")
    document["metadata"]["namespace"] = "default"
    message = kubectl.error("create", "-f", "-", stdin=document)
    assert "the namespace from the provided object" in message


def invalid_pod(**spec: object) -> Document:
    document = bodies.pod("p")
    document["spec"] |= spec
    return document


@pytest.mark.parametrize(
    ("document", "message"),
    [
        pytest.param(
            invalid_pod(containers=[]),
            'The Pod "p" is invalid: spec.containers: Required value',
            id="required",
        ),
        pytest.param(
            invalid_pod(restartPolicy="Sometimes"),
            'The Pod "p" is invalid: spec.restartPolicy: Unsupported value: "Sometimes": '
            'supported values: "Always", "OnFailure", "Never"',
            id="unsupported",
        ),
        pytest.param(
            invalid_pod(containers=[{"name": "a", "image": "i"}, {"name": "a", "image": "i"}]),
            'The Pod "p" is invalid: spec.containers[1].name: Duplicate value: "a"',
            id="duplicate",
        ),
        pytest.param(
            invalid_pod(containers=[{"name": "No_Good", "image": "i"}]),
            'The Pod "p" is invalid: spec.containers[0].name: Invalid value: "No_Good": a lowercase RFC 1123 label',
            id="invalid name",
        ),
        pytest.param(
            bodies.config_map("Capital"),
            'The ConfigMap "Capital" is invalid: metadata.name: Invalid value: "Capital": a lowercase RFC 1123 '
            "subdomain must consist of lower case alphanumeric characters, '-' or '.'",
            id="object name",
        ),
    ],
)
def test_invalid(kubectl: Kubectl, document: Document, message: str) -> None:
    # Old versions check some of it themselves.
    validate = "--validate=false"
    assert kubectl.error("create", validate, "-f", "-", stdin=document).startswith(message)


def test_several_errors_at_once(kubectl: Kubectl) -> None:
    document = invalid_pod(restartPolicy="X", containers=[{"name": "c"}], terminationGracePeriodSeconds=-1)
    lines = kubectl.error("create", "--validate=false", "-f", "-", stdin=document).splitlines()
    assert lines[0].strip() == 'The Pod "p" is invalid:'
    assert all(line.startswith("* spec.") for line in lines[1:])
    assert {line.split(":")[0] for line in lines[1:]} >= {"* spec.restartPolicy", "* spec.containers[0].image"}


@pytest.mark.parametrize(
    ("document", "patch", "field"),
    [
        pytest.param(
            bodies.replica_set("r"), '{"spec":{"selector":{"matchLabels":{"x":"y"}}}}', "spec.", id="selector"
        ),
        pytest.param(bodies.pod("p"), '{"spec":{"hostNetwork":true}}', "pod updates may not change fields", id="pod"),
        pytest.param(bodies.pod("p"), '{"metadata":{"uid":"other"}}', "metadata.uid: Invalid value", id="uid"),
        pytest.param(bodies.config_map("c") | {"immutable": True}, '{"data":{"a":"1"}}', "immutable", id="configmap"),
    ],
)
def test_immutable(kubectl: Kubectl, document: Document, patch: str, field: str) -> None:
    name = kubectl("create", "-f", "-", "-o", "name", stdin=document).strip()
    message = kubectl.error("patch", name, "--type=merge", "-p", patch)
    assert field in message


class TestUnknownFields:
    TYPO = bodies.config_map("c") | {"datta": {}}

    @needs_kubectl(25)
    def test_strict(self, kubectl: Kubectl) -> None:
        assert kubectl.error("apply", "--validate=strict", "-f", "-", stdin=self.TYPO) == (
            'Error from server (BadRequest): error when creating "STDIN": ConfigMap in version "v1" cannot be handled '
            'as a ConfigMap: strict decoding error: unknown field "datta"'
        )

    def test_refused_unless_told_otherwise(self, kubectl: Kubectl) -> None:
        message = kubectl.error("create", "-f", "-", stdin=self.TYPO)
        assert 'unknown field "datta"' in message

    @needs_kubectl(25)
    def test_warning(self, kubectl: Kubectl) -> None:
        answer = kubectl.run("apply", "--validate=warn", "-f", "-", stdin=self.TYPO)
        assert (answer.code, answer.out) == (0, "configmap/c created\n")
        assert answer.err == 'Warning: unknown field "datta"\n'

    def test_ignored(self, kubectl: Kubectl) -> None:
        answer = kubectl.run("apply", "--validate=false", "-f", "-", stdin=self.TYPO)
        assert answer.code == 0
        # Old versions do not tell the server, which then warns.
        assert kubectl_version() < (1, 25) or answer.err == ""
        assert "datta" not in kubectl.get("configmap", "c")

    @needs_kubectl(25)
    def test_deep_down(self, kubectl: Kubectl) -> None:
        document = bodies.claim("c")
        document["spec"]["devices"]["requests"][0]["exactly"]["deviceClas"] = "x"
        message = kubectl.error("apply", "-f", "-", stdin=document)
        assert 'strict decoding error: unknown field "spec.devices.requests[0].exactly.deviceClas"' in message

    def test_wrong_type(self, kubectl: Kubectl) -> None:
        document = bodies.pod("p")
        document["spec"]["containers"] = "none"
        message = kubectl.error("create", "--validate=false", "-f", "-", stdin=document)
        assert "json: cannot unmarshal string into Go struct field PodSpec.spec.containers of type" in message


class TestBadInput:
    def test_bad_yaml(self, kubectl: Kubectl) -> None:
        assert "error parsing STDIN: error converting YAML to JSON" in kubectl.error(
            *("apply", "-f", "-"), stdin="a: [\n"
        )

    def test_no_kind(self, kubectl: Kubectl) -> None:
        message = kubectl.error("apply", "--validate=false", "-f", "-", stdin="apiVersion: v1\n")
        assert "Object 'Kind' is missing" in message

    def test_unknown_kind(self, kubectl: Kubectl) -> None:
        document = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}}
        message = kubectl.error("create", "--validate=false", "-f", "-", stdin=document)
        assert 'no matches for kind "Widget" in version "example.com/v1"' in message

    def test_unknown_resource(self, kubectl: Kubectl) -> None:
        assert kubectl.error("get", "widgets") == 'error: the server doesn\'t have a resource type "widgets"'

    def test_empty_stdin(self, kubectl: Kubectl) -> None:
        assert kubectl.error("apply", "-f", "-") == "error: no objects passed to apply"


class TestNoNode:
    @pytest.fixture
    def pod(self, kubectl: Kubectl) -> Kubectl:
        kubectl("create", "-f", "-", stdin=bodies.pod("p"))
        return kubectl

    @pytest.mark.parametrize("arguments", [("logs", "p"), ("exec", "p", "--", "ls")])
    def test_nowhere_yet(self, pod: Kubectl, arguments: tuple[str, ...]) -> None:
        assert pod.error(*arguments) == "Error from server (BadRequest): pod p does not have a host assigned"

    def test_no_such_container(self, pod: Kubectl) -> None:
        assert "container other is not valid for pod p" in pod.error("logs", "p", "-c", "other")

    def test_no_such_pod(self, pod: Kubectl) -> None:
        assert 'pods "q" not found' in pod.error("logs", "q")
        assert pod.error("exec", "q", "--", "ls") == 'Error from server (NotFound): pods "q" not found'

    def test_no_such_node(self, pod: Kubectl) -> None:
        document = bodies.pod("bound")
        document["spec"]["nodeName"] = "n"
        pod("create", "-f", "-", stdin=document)
        assert pod.error("exec", "bound", "--", "ls") == 'Error from server (NotFound): nodes "n" not found'

    def test_no_metrics(self, kubectl: Kubectl) -> None:
        assert kubectl.error("top", "nodes") == "error: metrics not available yet"


class TestNoServer:
    def test_unknown_context(self, kubectl: Kubectl) -> None:
        message = kubectl.error("--context=nope", "get", "pods")
        assert (
            'context "nope" does not exist' in message or "context was not found for specified context: nope" in message
        )

    def test_nobody_listens(self, kubectl: Kubectl) -> None:
        message = kubectl.error("--server=https://127.0.0.1:1", "get", "pods")
        assert message.splitlines()[-1] == (
            "The connection to the server 127.0.0.1:1 was refused - did you specify the right host or port?"
        )

    def test_server_that_has_stopped(self, tmp_path: Path) -> None:
        with running_server(tmp_path / "data") as server:
            tool = Kubectl(server.environment, "default")
            tool("get", "namespaces")
        message = tool.error("get", "namespaces")
        address = server.url.removeprefix("https://")
        assert message.splitlines()[-1] == (
            f"The connection to the server {address} was refused - did you specify the right host or port?"
        )

    def test_wrong_certificate_authority(self, kubectl: Kubectl, bare_config: Path) -> None:
        bare_config.write_text(
            bare_config.read_text().replace('"insecure-skip-tls-verify": true', '"tls-server-name": ""')
        )
        message = kubectl.error(f"--kubeconfig={bare_config}", "--token=admin-token", "get", "pods")
        assert "x509: certificate signed by unknown authority" in message


def test_version_skew_is_only_a_warning(kubectl: Kubectl) -> None:
    answer = kubectl.run("version")
    assert answer.code == 0
    assert ("exceeds the supported minor version skew" in answer.err) == (27 <= kubectl_version()[1] < 35)
