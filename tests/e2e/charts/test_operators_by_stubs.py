"""cert-manager issues a certificate, node-feature-discovery labels a node: their charts, with stubs for the programs.

`HELM` names a helm of version 4, `CHARTS` a folder with the charts. All objects are the charts' own, with one
exception: their webhooks are called by URL, since the Pods of a simulated node run no program. The stubs have the
identities of the charts' service accounts, so that they can do what the charts' roles permit and nothing else.
"""

from __future__ import annotations

import base64
import http.server
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import pytest

from dray.api.document import Document
from dray.apiserver.authentication import certificates
from dray.runtime.system import SystemClock
from tests.e2e.apiserver.calls import Answer, Caller, calling
from tests.e2e.charts.release import wait
from tests.e2e.charts.test_releases import (
    CHARTS,
    definitions,
    delete_definitions,
    finishing_jobs,
    helm,
    needs_helm,
    own_namespace,
)
from tests.e2e.kubectl.tool import Kubectl
from tests.servers import Server, running_server

MERGE: Final = "application/merge-patch+json"
CERT_MANAGER: Final = "/apis/cert-manager.io/v1"
FEATURES: Final = "/apis/nfd.k8s-sigs.io/v1alpha1"
HOUR: Final = timedelta(hours=1)

pytestmark = [needs_helm, pytest.mark.skipif(CHARTS is None, reason="CHARTS names no folder of charts")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("stubs")
    with running_server(folder, "--nodes=2", "--store=memory") as server, finishing_jobs(server):
        yield server


@contextmanager
def installed(server: Server, caller: Caller, name: str, *values: str) -> Iterator[str]:
    """The chart in a namespace of its own, and nothing of it afterwards."""
    assert CHARTS is not None
    defined = definitions(caller)
    with own_namespace(server, name) as namespace:
        own = (f"--namespace={namespace}", "--timeout=120s")
        helm(server, "install", "release", str(CHARTS / name), *own, "--wait=watcher", *values)
        yield namespace
        helm(server, "uninstall", "release", *own)
        delete_definitions(caller, definitions(caller) - defined)


@contextmanager
def acting_as(server: Server, admin: Caller, namespace: str, account: str) -> Iterator[Caller]:
    """A caller with a token of a chart's service account."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 600}}
    answer = admin.call("POST", path, body)
    with calling(server, answer.json()["status"]["token"]) as caller:
        yield caller


def ok(answer: Answer) -> Any:
    assert answer.status in (HTTPStatus.OK, HTTPStatus.CREATED), answer.body
    return answer.json()


# --- cert-manager.


def review(path: str, request: Document) -> Document:
    """What cert-manager's webhook decides: it records who requests, and refuses what has no issuer."""
    found = request["object"]
    if path == "/mutate":
        user = request["userInfo"]
        names = {"username": user["username"], "groups": user.get("groups", []), "uid": user.get("uid", "")}
        patch = [{"op": "add", "path": f"/spec/{name}", "value": value} for name, value in names.items()]
        encoded = base64.b64encode(json.dumps(patch).encode()).decode()
        return {"allowed": True, "patchType": "JSONPatch", "patch": encoded}
    if found and found["kind"] == "Certificate" and not found["spec"]["issuerRef"].get("name"):
        return {"allowed": False, "status": {"message": "spec.issuerRef.name: Required value: must be specified"}}
    return {"allowed": True}


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers reviews."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        made = review(self.path.partition("?")[0], body["request"])
        answer = json.dumps({**body, "request": None, "response": {"uid": body["request"]["uid"], **made}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_arguments: object) -> None:
        pass


@contextmanager
def webhook(folder: Path, authority: certificates.KeyPair, now: datetime) -> Iterator[str]:
    """A server of reviews on loopback; gives its URL."""
    pair = certificates.new_server(authority, ("127.0.0.1",), now - HOUR)
    (folder / "crt").write_bytes(pair.certificate)
    (folder / "key").write_bytes(pair.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "crt", folder / "key")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as hook:
        hook.socket = context.wrap_socket(hook.socket, server_side=True)
        thread = threading.Thread(target=hook.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"https://127.0.0.1:{hook.server_address[1]}"
        finally:
            hook.shutdown()
            thread.join()


def inject_authority(injector: Caller, url: str, authority: bytes) -> None:
    """What cainjector does, and the URL in place of the Service."""
    for kind in ("mutating", "validating"):
        path = f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations/release-cert-manager-webhook"
        found = ok(injector.get(path))
        for hook in found["webhooks"]:
            place = hook["clientConfig"].pop("service")["path"]
            hook["clientConfig"] |= {"caBundle": base64.b64encode(authority).decode(), "url": f"{url}{place}"}
        ok(injector.call("PUT", path, found))


def condition(kind: str, reason: str) -> Document:
    now = SystemClock().now().strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"type": kind, "status": "True", "reason": reason, "message": reason, "lastTransitionTime": now}


def set_status(controller: Caller, path: str, **status: Any) -> Document:
    made: Document = ok(controller.call("PATCH", f"{path}/status", {"status": status}, content_type=MERGE))
    return made


def issue(controller: Caller, authority: certificates.KeyPair, namespace: str, name: str, now: datetime) -> None:
    """What the controllers of cert-manager do for one Certificate: request, approval, signature, Secret, status."""
    place = f"{CERT_MANAGER}/namespaces/{namespace}"
    certificate = ok(controller.get(f"{place}/certificates/{name}"))
    issuer = f"{place}/issuers/{certificate['spec']['issuerRef']['name']}"
    set_status(controller, issuer, conditions=[condition("Ready", "KeyPairVerified")])
    key = certificates.new_private_key()
    names = certificate["spec"]["dnsNames"]
    owner: Document = {"apiVersion": "cert-manager.io/v1", "kind": "Certificate", "name": name}
    owner |= {"uid": certificate["metadata"]["uid"], "controller": True, "blockOwnerDeletion": True}
    spec = {
        "request": base64.b64encode(certificates.new_request(key, certificates.Identity(names[0]), names)).decode(),
        "issuerRef": certificate["spec"]["issuerRef"],
    }
    request = {"apiVersion": "cert-manager.io/v1", "kind": "CertificateRequest", "spec": spec}
    metadata = {"name": f"{name}-1", "ownerReferences": [owner]}
    made = ok(controller.call("POST", f"{place}/certificaterequests", request | {"metadata": metadata}))
    assert made["spec"]["username"] == "system:serviceaccount:cert-manager:release-cert-manager"
    path = f"{place}/certificaterequests/{name}-1"
    approved = condition("Approved", "cert-manager.io")
    set_status(controller, path, conditions=[approved])
    pair = certificates.new_server(authority, tuple(names), now - HOUR)
    signed = base64.b64encode(pair.certificate).decode()
    set_status(controller, path, conditions=[approved, condition("Ready", "Issued")], certificate=signed)
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "metadata": {"name": certificate["spec"]["secretName"]},
        "data": {
            "tls.crt": signed,
            "tls.key": base64.b64encode(pair.key).decode(),
            "ca.crt": base64.b64encode(authority.certificate).decode(),
        },
    }
    ok(controller.call("POST", f"/api/v1/namespaces/{namespace}/secrets", secret))
    ready = condition("Ready", "Ready") | {"observedGeneration": certificate["metadata"]["generation"]}
    after = now + timedelta(days=90)
    set_status(
        controller,
        f"{place}/certificates/{name}",
        conditions=[ready],
        revision=1,
        notAfter=after.strftime("%Y-%m-%dT%H:%M:%SZ"),
    )


def test_cert_manager_issues_a_certificate(server: Server, caller: Caller, tmp_path: Path) -> None:
    now = SystemClock().now()
    authority = certificates.new_authority(certificates.new_private_key(), now - HOUR, "stub")
    values = ("--set=crds.enabled=true", "--set=startupapicheck.enabled=false", "--set=crds.keep=false")
    kubectl = Kubectl(server.environment, namespace="default")
    with (
        installed(server, caller, "cert-manager", *values) as namespace,
        webhook(tmp_path, authority, now) as url,
        acting_as(server, caller, namespace, "release-cert-manager-cainjector") as injector,
        acting_as(server, caller, namespace, "release-cert-manager") as controller,
    ):
        issuer = {"apiVersion": "cert-manager.io/v1", "kind": "Issuer", "metadata": {"name": "ca"}}
        issuer["spec"] = {"ca": {"secretName": "ca"}}
        # Nobody answers for the chart's webhook yet, which is to fail closed.
        refused = kubectl.run("apply", "-f", "-", stdin=issuer)
        assert refused.code == 1
        assert 'failed calling webhook "webhook.cert-manager.io"' in refused.err
        inject_authority(injector, url, authority.certificate)
        kubectl("apply", "-f", "-", stdin=issuer)
        spec = {"secretName": "web-tls", "dnsNames": ["web.example.com"], "issuerRef": {"name": "ca", "kind": "Issuer"}}
        certificate = {"apiVersion": "cert-manager.io/v1", "kind": "Certificate", "metadata": {"name": "web"}}
        # What the webhook refuses, and what the definition does.
        nameless = certificate | {"spec": spec | {"issuerRef": {"name": ""}}}
        assert "issuerRef.name: Required value" in kubectl.run("apply", "-f", "-", stdin=nameless).err
        odd = certificate | {"spec": spec | {"privateKey": {"algorithm": "ROT13"}}}
        assert 'supported values: "RSA", "ECDSA", "Ed25519"' in kubectl.run("apply", "-f", "-", stdin=odd).err
        kubectl("apply", "-f", "-", stdin=certificate | {"spec": spec})
        # The roles of the chart do not let its controllers do anything else.
        assert injector.get(f"{CERT_MANAGER}/issuers").status == HTTPStatus.FORBIDDEN
        issue(controller, authority, "default", "web", now)
        kubectl("wait", "--for=condition=Ready", "--timeout=10s", "certificate/web", "issuer/ca")
        assert kubectl("get", "certificates", "--no-headers").split()[:3] == ["web", "True", "web-tls"]
        found = json.loads(kubectl("get", "secret", "web-tls", "-o", "json"))
        assert found["type"] == "kubernetes.io/tls"
        names = certificates.server_names(base64.b64decode(found["data"]["tls.crt"]))
        assert names == {"web.example.com"}
        # The request goes with its owner.
        kubectl("delete", "certificate", "web")
        requests = f"{CERT_MANAGER}/namespaces/default/certificaterequests"
        wait(lambda: not caller.get(requests).json()["items"])
        kubectl("delete", "issuer/ca", "secret/web-tls")


# --- node-feature-discovery.


def worker(caller: Caller, namespace: str, node: str) -> None:
    """What the worker on a node finds."""
    features = {
        "flags": {"cpu.cpuid": {"elements": {"avx2": {}}}},
        "attributes": {"kernel.version": {"elements": {"full": "6.12.1", "major": "6"}}},
        "instances": {"pci.device": {"elements": [{"attributes": {"vendor": "10de", "class": "0302"}}]}},
    }
    metadata = {"name": node, "labels": {"nfd.node.kubernetes.io/node-name": node}}
    document = {"apiVersion": "nfd.k8s-sigs.io/v1alpha1", "kind": "NodeFeature", "metadata": metadata}
    ok(
        caller.call(
            "POST", f"{FEATURES}/namespaces/{namespace}/nodefeatures", document | {"spec": {"features": features}}
        )
    )


OPERATORS: Final[dict[str, Callable[[str | None, list[str]], bool]]] = {
    "Exists": lambda value, _wanted: value is not None,
    "In": lambda value, wanted: value in wanted,
    "Gt": lambda value, wanted: value is not None and int(value) > int(wanted[0]),
}


def is_matched(matcher: Document, features: Document) -> bool:
    """Whether features match as NodeFeatureRules say, for the operators above."""
    name, tests = matcher["feature"], matcher.get("matchExpressions") or {}
    for kind in ("flags", "attributes"):
        if name in features.get(kind, {}):
            elements = features[kind][name]["elements"]
            values = {key: value if isinstance(value, str) else "" for key, value in elements.items()}
            return all(OPERATORS[test["op"]](values.get(key), test.get("value", [])) for key, test in tests.items())
    return any(
        all(OPERATORS[test["op"]](item["attributes"].get(key), test.get("value", [])) for key, test in tests.items())
        for item in features.get("instances", {}).get(name, {}).get("elements", ())
    )


def label(master: Caller) -> None:
    """What the master does with all NodeFeatures and NodeFeatureRules."""
    rules = ok(master.get(f"{FEATURES}/nodefeaturerules"))["items"]
    for feature in ok(master.get(f"{FEATURES}/nodefeatures"))["items"]:
        labels: dict[str, str] = {}
        for rule in (rule for document in rules for rule in document["spec"]["rules"]):
            if all(is_matched(matcher, feature["spec"]["features"]) for matcher in rule["matchFeatures"]):
                labels |= rule["labels"]
        node = feature["metadata"]["labels"]["nfd.node.kubernetes.io/node-name"]
        annotation = {"nfd.node.kubernetes.io/feature-labels": ",".join(sorted(labels))}
        patch = {"metadata": {"labels": labels, "annotations": annotation}}
        ok(master.call("PATCH", f"/api/v1/nodes/{node}", patch, content_type=MERGE))


def collect(collector: Caller) -> None:
    """What the garbage collector does: remove NodeFeatures of nodes that are gone."""
    nodes = {node["metadata"]["name"] for node in ok(collector.get("/api/v1/nodes"))["items"]}
    for feature in ok(collector.get(f"{FEATURES}/nodefeatures"))["items"]:
        metadata = feature["metadata"]
        if metadata["name"] not in nodes:
            ok(
                collector.call(
                    "DELETE", f"{FEATURES}/namespaces/{metadata['namespace']}/nodefeatures/{metadata['name']}"
                )
            )


def rule(name: str, *matchers: Document, **labels: str) -> Document:
    named = {f"example.com/{key}": value for key, value in labels.items()}
    rules = [{"name": name, "labels": named, "matchFeatures": list(matchers)}]
    document = {"apiVersion": "nfd.k8s-sigs.io/v1alpha1", "kind": "NodeFeatureRule", "metadata": {"name": name}}
    return document | {"spec": {"rules": rules}}


def test_node_feature_discovery_labels_a_node(server: Server, caller: Caller) -> None:
    kubectl = Kubectl(server.environment, namespace="default")
    with installed(server, caller, "node-feature-discovery") as namespace:
        act = partial(acting_as, server, caller, namespace)
        nodes = sorted(item["metadata"]["name"] for item in caller.get("/api/v1/nodes").json()["items"])
        pci = {"feature": "pci.device", "matchExpressions": {"vendor": {"op": "In", "value": ["10de"]}}}
        kernel = {"feature": "kernel.version", "matchExpressions": {"major": {"op": "Gt", "value": ["5"]}}}
        flag = {"feature": "cpu.cpuid", "matchExpressions": {"AMX": {"op": "Exists"}}}
        kubectl("apply", "-f", "-", stdin=rule("gpu", pci, kernel, gpu="true"))
        kubectl("apply", "-f", "-", stdin=rule("matrix", flag, matrix="true"))
        broken = rule("broken", {"feature": "cpu.cpuid", "matchExpressions": {"AMX": {"op": "Maybe"}}}, x="y")
        assert 'Unsupported value: "Maybe"' in kubectl.run("apply", "-f", "-", stdin=broken).err
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "wants-gpu"},
            "spec": {"nodeSelector": {"example.com/gpu": "true"}, "containers": [{"name": "c", "image": "i"}]},
        }
        kubectl("apply", "-f", "-", stdin=pod)
        with act("release-node-feature-discovery-worker") as each:
            worker(each, namespace, nodes[0])
            # Workers may not see those of others.
            assert each.get(f"{FEATURES}/nodefeatures").status == HTTPStatus.FORBIDDEN
        with act("release-node-feature-discovery") as master:
            label(master)
        labels = caller.get(f"/api/v1/nodes/{nodes[0]}").json()["metadata"]["labels"]
        assert labels["example.com/gpu"] == "true"
        assert "example.com/matrix" not in labels
        kubectl("wait", "--for=jsonpath={.status.phase}=Running", "--timeout=30s", "pod/wants-gpu")
        assert kubectl("get", "pod", "wants-gpu", "-o", "jsonpath={.spec.nodeName}") == nodes[0]
        with act("release-node-feature-discovery-worker") as each:
            worker(each, namespace, "gone")
        with act("release-node-feature-discovery-gc") as collector:
            collect(collector)
        left = kubectl("get", "nodefeatures", "-A", "-o", "jsonpath={.items[*].metadata.name}")
        assert left == nodes[0]
        kubectl("delete", "pod", "wants-gpu", "--grace-period=0", "--force")
        kubectl("delete", "nodefeaturerules", "--all")
