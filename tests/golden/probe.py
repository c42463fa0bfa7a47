"""Sends a fixed list of requests to an API server and records the answers.

Run as `python -m tests.golden.probe URL OUT`. The server must accept two static bearer tokens: `admin-token`, in the
group system:masters, and `alice-token`, for a user without rights. `kube-apiserver-1.36.4.jsonl` has the answers of
kube-apiserver 1.36.4 to the same requests.
"""

from __future__ import annotations

import copy
import http.client
import json
import ssl
import sys
import time
import urllib.parse
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

NAMESPACE: Final = "golden"
RESOURCE_V1: Final = "/apis/resource.k8s.io/v1"
CLAIMS: Final = f"{RESOURCE_V1}/namespaces/{NAMESPACE}/resourceclaims"
PODS: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"
CONFIG_MAPS: Final = f"/api/v1/namespaces/{NAMESPACE}/configmaps"

TABLE: Final = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
AGGREGATED_DISCOVERY: Final = ",".join(
    (
        "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
        "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList",
        "application/json",
    )
)
MERGE_PATCH: Final = "application/merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"

RECORDED_HEADERS: Final = frozenset(
    {
        "allow",
        "cache-control",
        "content-encoding",
        "content-type",
        "etag",
        "location",
        "retry-after",
        "warning",
        "www-authenticate",
        "x-content-type-options",
    }
)
BODY_CHARACTERS_MAX: Final = 20_000
WAIT_SECONDS_MAX: Final = 20.0

Document = dict[str, Any]
# The status, the decoded JSON body if it is JSON, and the bytes.
Answer = tuple[int, Any, bytes]


class Probe:
    """A connection to the server under test; writes one JSON line per recorded answer."""

    def __init__(self, url: str, out: Path) -> None:
        self._url = urllib.parse.urlparse(url)
        self._connection = self._connect()
        self._out = out.open("w")

    def close(self) -> None:
        """Close the connection and the file."""
        self._connection.close()
        self._out.close()

    def send(
        self,
        name: str,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str | None = "application/json",
        accept: str | None = "application/json",
        token: str | None = "admin-token",
        stream_seconds: float = 0,
        headers: Mapping[str, str] | None = None,
        record: bool = True,
    ) -> Answer:
        """Send one request; with `stream_seconds`, read until the server ends the answer or that time has passed."""
        sent = {"Accept": accept} if accept else {}
        if token:
            sent["Authorization"] = f"Bearer {token}"
        if body is not None and not isinstance(body, str | bytes):
            body = json.dumps(body)
        if body is not None and content_type:
            sent["Content-Type"] = content_type
        sent.update(headers or {})
        started = time.monotonic()
        connection = self._connect() if stream_seconds else self._connection
        connection.request(method, path, body, sent)
        response = connection.getresponse()
        data = _read_stream(connection, response, stream_seconds) if stream_seconds else response.read()
        if record:
            kept = {key: value for key, value in response.getheaders() if key.lower() in RECORDED_HEADERS}
            answer = {"name": name, "method": method, "path": path, "status": response.status, "headers": kept}
            seconds = round(time.monotonic() - started, 2)
            answer |= {"body": _text(data)[:BODY_CHARACTERS_MAX], "len": len(data), "secs": seconds}
            self._out.write(json.dumps(answer) + "\n")
        return response.status, _json(data), data

    def wait(self, accepts: Callable[[Answer], bool], path: str, token: str = "admin-token") -> None:
        """Get the path, without recording, until the answer is accepted; after the time limit, go on regardless."""
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while not accepts(self.send("wait", "GET", path, token=token, record=False)) and time.monotonic() < deadline:
            time.sleep(0.05)

    def _connect(self) -> http.client.HTTPConnection:
        host = self._url.hostname or ""
        if self._url.scheme != "https":
            return http.client.HTTPConnection(host, self._url.port, timeout=40)
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return http.client.HTTPSConnection(host, self._url.port, context=context, timeout=40)


def _read_stream(connection: http.client.HTTPConnection, response: http.client.HTTPResponse, seconds: float) -> bytes:
    data = b""
    if connection.sock is not None:
        connection.sock.settimeout(seconds)
    with suppress(OSError, http.client.HTTPException):
        while part := response.read1(65536):
            data += part
    connection.close()
    return data


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return repr(data[:300])


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return None


def claim(name: str, **metadata: Any) -> Document:
    """Return a ResourceClaim with one request."""
    exactly = {"deviceClassName": "gpu.example.com"}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, **metadata},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }


def pod(name: str, **spec: Any) -> Document:
    """Return a Pod with one container."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "automountServiceAccountToken": False,
            "containers": [{"name": "c", "image": "pause"}],
            **spec,
        },
    }


def config_map(name: str, **fields: Any) -> Document:
    """Return a ConfigMap."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, **fields}


def create_namespace(probe: Probe) -> None:
    """Create the namespace and wait for its service account."""
    send = probe.send
    send(
        "setup-ns",
        "POST",
        "/api/v1/namespaces",
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
    )
    probe.wait(lambda answer: answer[0] == 200, f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default")


def probe_paths(probe: Probe) -> None:
    """Request non-resource paths, discovery and OpenAPI."""
    send = probe.send
    for path in (
        "/",
        "/healthz",
        "/livez",
        "/readyz",
        "/readyz?verbose",
        "/version",
        "/version/",
        "/api",
        "/api/",
        "/apis",
        "/apis/",
        "/apis/resource.k8s.io",
        "/api/v1",
        RESOURCE_V1,
        "/apis/resource.k8s.io/v1beta1",
        "/apis/resource.k8s.io/v1beta2",
        "/apis/nope",
        "/apis/nope/v1",
        "/apis/resource.k8s.io/v9",
        "/nope",
        "/.well-known/openid-configuration",
        "/openid/v1/jwks",
        "/metrics",
    ):
        send("get " + path, "GET", path)
    send("aggdisc-api", "GET", "/api", accept=AGGREGATED_DISCOVERY)
    send("aggdisc-apis", "GET", "/apis", accept=AGGREGATED_DISCOVERY)
    send(
        "aggdisc-apis-v2beta1",
        "GET",
        "/apis",
        accept="application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList",
    )
    send("openapi-v3", "GET", "/openapi/v3")
    send("openapi-v3-resource", "GET", "/openapi/v3/apis/resource.k8s.io/v1", record=False)
    send("openapi-v2-json", "GET", "/openapi/v2", record=False)


def probe_authentication(probe: Probe) -> None:
    """Send missing, wrong and insufficient credentials, and impersonate."""
    send = probe.send
    send("anon", "GET", PODS, token=None)
    send("badtoken", "GET", PODS, token="bad")
    send("forbidden", "GET", PODS, token="alice-token")
    send("forbidden-name", "GET", PODS + "/x", token="alice-token")
    send("forbidden-create", "POST", CLAIMS, claim("x"), token="alice-token")
    send("forbidden-nonresource", "GET", "/metrics", token="alice-token")
    send("anon-version", "GET", "/version", token=None)
    send("anon-healthz", "GET", "/healthz", token=None)
    send("impersonate", "GET", PODS, headers={"Impersonate-User": "bob"})
    send("impersonate-groups", "GET", PODS, headers={"Impersonate-User": "bob", "Impersonate-Group": "system:masters"})


def probe_create(probe: Probe) -> None:
    """Create valid and invalid objects in every content type."""
    send = probe.send
    send("create", "POST", CLAIMS, claim("c1", labels={"a": "b"}))
    send("create-dup", "POST", CLAIMS, claim("c1"))
    send("create-generatename", "POST", CLAIMS, {**claim("x"), "metadata": {"generateName": "g-"}})
    send("create-noname", "POST", CLAIMS, {**claim("x"), "metadata": {}})
    send("create-badname", "POST", CLAIMS, claim("Bad_Name"))
    send("create-ns-mismatch", "POST", CLAIMS, claim("x", namespace="other"))
    send("create-missing-ns", "POST", f"{RESOURCE_V1}/namespaces/nonens/resourceclaims", claim("x"))
    send("create-no-gvk", "POST", CLAIMS, {"metadata": {"name": "nogvk"}, "spec": claim("x")["spec"]})
    send("create-wrong-kind", "POST", CLAIMS, config_map("x"))
    send("create-wrong-version", "POST", CLAIMS, {**claim("x"), "apiVersion": "resource.k8s.io/v1beta1"})
    send("create-badjson", "POST", CLAIMS, '{"a":')
    send("create-empty", "POST", CLAIMS, "")
    send(
        "create-yaml",
        "POST",
        CONFIG_MAPS,
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: y1\n",
        content_type="application/yaml",
    )
    send("create-no-content-type", "POST", CONFIG_MAPS, config_map("nct"), content_type=None)
    send("create-bad-content-type", "POST", CONFIG_MAPS, config_map("x"), content_type="text/plain")
    send("bad-accept", "GET", CONFIG_MAPS, accept="text/html")
    send("accept-star", "GET", CONFIG_MAPS + "/y1", accept="*/*")
    send("accept-none", "GET", CONFIG_MAPS + "/y1", accept=None)
    send("accept-yaml", "GET", CONFIG_MAPS + "/y1", accept="application/yaml")
    send("accept-list-fallback", "GET", CONFIG_MAPS + "/y1", accept="application/foo, application/json")
    send("accept-cbor", "GET", CONFIG_MAPS + "/y1", accept="application/cbor")
    send("create-unknown-strict", "POST", CONFIG_MAPS + "?fieldValidation=Strict", config_map("s1", dataa={}))
    send("create-unknown-warn", "POST", CONFIG_MAPS + "?fieldValidation=Warn", config_map("s2", dataa={}))
    send("create-unknown-default", "POST", CONFIG_MAPS, config_map("s3", dataa={}))
    send("create-unknown-ignore", "POST", CONFIG_MAPS + "?fieldValidation=Ignore", config_map("s4", dataa={}))
    send(
        "create-dupfield-strict",
        "POST",
        CONFIG_MAPS + "?fieldValidation=Strict",
        '{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"s5"},"data":{"a":"1"},"data":{"a":"2"}}',
    )
    send("fieldvalidation-bad", "POST", CONFIG_MAPS + "?fieldValidation=Foo", config_map("s6"))
    send("create-type-mismatch", "POST", CONFIG_MAPS, config_map("s7", data={"a": 1}))
    send("dryrun", "POST", CONFIG_MAPS + "?dryRun=All", config_map("dr"))
    send("dryrun-bad", "POST", CONFIG_MAPS + "?dryRun=Foo", config_map("dr"))
    send("dryrun-notstored", "GET", CONFIG_MAPS + "/dr")
    send(
        "create-with-rv", "POST", CONFIG_MAPS, {**config_map("rv"), "metadata": {"name": "rv", "resourceVersion": "5"}}
    )
    send(
        "create-with-uid",
        "POST",
        CONFIG_MAPS,
        {
            **config_map("uid"),
            "metadata": {"name": "uid", "uid": "abc", "creationTimestamp": "2000-01-01T00:00:00Z", "generation": 7},
        },
    )
    send(
        "create-invalid-label",
        "POST",
        CONFIG_MAPS,
        {**config_map("il"), "metadata": {"name": "il", "labels": {"a b": "c"}}},
    )
    send("create-too-large", "POST", CONFIG_MAPS, config_map("big", data={"a": "x" * 1100000}))
    send("create-413", "POST", CONFIG_MAPS, config_map("big", data={"a": "x" * 3300000}))
    send(
        "create-claim-bad-cel",
        "POST",
        CLAIMS,
        {
            **claim("badcel"),
            "spec": {
                "devices": {
                    "requests": [
                        {
                            "name": "gpu",
                            "exactly": {
                                "deviceClassName": "gpu.example.com",
                                "selectors": [{"cel": {"expression": "device.foo("}}],
                            },
                        }
                    ]
                }
            },
        },
    )
    send(
        "create-claim-two-errors",
        "POST",
        CLAIMS,
        {**claim("e2"), "spec": {"devices": {"requests": [{"name": "G PU"}]}}},
    )


def probe_methods(probe: Probe) -> None:
    """Use methods that a path does not support."""
    send = probe.send
    send("405-post-item", "POST", CLAIMS + "/c1", claim("c1"))
    send("405-put-collection", "PUT", CLAIMS, claim("c1"))
    send("405-patch-collection", "PATCH", CLAIMS, "{}", content_type="application/merge-patch+json")
    send("404-subresource", "GET", CLAIMS + "/c1/nope")
    send("post-status", "POST", CLAIMS + "/c1/status", claim("c1"))
    send("head", "HEAD", CLAIMS + "/c1")
    send("options", "OPTIONS", CLAIMS)
    send(
        "create-cluster-in-ns",
        "POST",
        f"{RESOURCE_V1}/namespaces/{NAMESPACE}/deviceclasses",
        {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "x"}, "spec": {}},
    )
    send("create-namespaced-no-ns", "POST", RESOURCE_V1 + "/resourceclaims", claim("x"))


def probe_reads(probe: Probe) -> None:
    """Get and list with versions, pages, selectors and every representation."""
    send = probe.send
    _, _stored, _ = send("get", "GET", CLAIMS + "/c1")
    send("get-missing", "GET", CLAIMS + "/nope")
    send("get-missing-ns", "GET", f"{RESOURCE_V1}/namespaces/nonens/resourceclaims/x")
    send("list-missing-ns", "GET", f"{RESOURCE_V1}/namespaces/nonens/resourceclaims")
    _, listed, _ = send("list", "GET", CLAIMS)
    version = listed["metadata"]["resourceVersion"] if listed else "1"
    send("list-all-ns", "GET", RESOURCE_V1 + "/resourceclaims?limit=1")
    _, page, _ = send("list-limit", "GET", CLAIMS + "?limit=1")
    continue_token = (page or {}).get("metadata", {}).get("continue", "")
    send("list-continue", "GET", CLAIMS + "?limit=1&continue=" + continue_token)
    send("list-continue-bad", "GET", CLAIMS + "?limit=1&continue=abc")
    send("list-continue-with-rv", "GET", CLAIMS + f"?limit=1&continue={continue_token}&resourceVersion=1")
    send("list-limit-neg", "GET", CLAIMS + "?limit=-1")
    send("list-limit-nan", "GET", CLAIMS + "?limit=x")
    send("list-rv0", "GET", CLAIMS + "?resourceVersion=0")
    send("list-rv0-limit", "GET", CLAIMS + "?resourceVersion=0&limit=1")
    send("list-rv-exact", "GET", CLAIMS + f"?resourceVersion={version}&resourceVersionMatch=Exact")
    send("list-rv-nolder", "GET", CLAIMS + f"?resourceVersion={version}&resourceVersionMatch=NotOlderThan")
    send("list-rv-future", "GET", CLAIMS + "?resourceVersion=99999999")
    send("list-rv-bad", "GET", CLAIMS + "?resourceVersion=abc")
    send("list-rvmatch-norv", "GET", CLAIMS + "?resourceVersionMatch=Exact")
    send("list-rvmatch-bad", "GET", CLAIMS + "?resourceVersion=1&resourceVersionMatch=Foo")
    send("list-exact-0", "GET", CLAIMS + "?resourceVersion=0&resourceVersionMatch=Exact")
    send("list-sendinitial", "GET", CLAIMS + "?sendInitialEvents=true")
    send("get-rv-future", "GET", CLAIMS + "/c1?resourceVersion=99999999")
    for q in ("a=b", "a%3D%3Db", "a!%3Db", "a", "!a", "a in (b,c)", "a notin (b)", "a=b,c", "a=b,"):
        send("labelsel " + q, "GET", CLAIMS + "?limit=1&labelSelector=" + urllib.parse.quote(q, safe="%"))
    send("labelsel-bad", "GET", CLAIMS + "?labelSelector=" + urllib.parse.quote("a=b=c"))
    send("fieldsel-name", "GET", CLAIMS + "?fieldSelector=metadata.name%3Dc1")
    send("fieldsel-trailing-comma", "GET", CLAIMS + "?fieldSelector=metadata.name%3Dc1%2C")
    send(
        "fieldsel-ns",
        "GET",
        RESOURCE_V1 + "/resourceclaims?fieldSelector=metadata.namespace%3D" + NAMESPACE + "&limit=1",
    )
    send("fieldsel-unsupported", "GET", CLAIMS + "?fieldSelector=spec.foo%3Dx")
    send("fieldsel-bad", "GET", CLAIMS + "?fieldSelector=a%3D%3D%3D")
    send("fieldsel-neq", "GET", CLAIMS + "?fieldSelector=metadata.name!%3Dc1&limit=1")
    send("fieldsel-slices", "GET", RESOURCE_V1 + "/resourceslices?fieldSelector=spec.driver%3Dx,spec.nodeName%3Dy")
    send(
        "fieldsel-pods",
        "GET",
        PODS + "?fieldSelector=spec.nodeName%3D,status.phase!%3DRunning,spec.schedulerName%3Dx,"
        "spec.restartPolicy%3DAlways,status.podIP%3D,status.nominatedNodeName%3D",
    )
    send(
        "fieldsel-events",
        "GET",
        f"/api/v1/namespaces/{NAMESPACE}/events?fieldSelector=involvedObject.kind%3DPod,involvedObject.uid%3Dx,reason%3Dx,type%3DNormal,source%3Dx,reportingComponent%3Dx",
    )
    send("table-list", "GET", CLAIMS + "?limit=1", accept=TABLE)
    send("table-get", "GET", CLAIMS + "/c1", accept=TABLE)
    send("table-includeObject-None", "GET", CLAIMS + "/c1?includeObject=None", accept=TABLE)
    send("table-includeObject-Object", "GET", CLAIMS + "/c1?includeObject=Object", accept=TABLE)
    send("table-includeObject-bad", "GET", CLAIMS + "/c1?includeObject=Foo", accept=TABLE)
    send("table-only-v1beta1", "GET", CLAIMS + "/c1", accept="application/json;as=Table;v=v1beta1;g=meta.k8s.io")
    send("table-bad-version", "GET", CLAIMS + "/c1", accept="application/json;as=Table;v=v9;g=meta.k8s.io")
    for k, p in (
        ("deviceclasses", RESOURCE_V1 + "/deviceclasses"),
        ("claimtemplates", f"{RESOURCE_V1}/namespaces/{NAMESPACE}/resourceclaimtemplates"),
        ("slices", RESOURCE_V1 + "/resourceslices"),
        ("taintrules", "/apis/resource.k8s.io/v1beta2/devicetaintrules"),
        ("pods", PODS),
        ("nodes", "/api/v1/nodes"),
        ("ns", "/api/v1/namespaces"),
        ("events", f"/api/v1/namespaces/{NAMESPACE}/events"),
        ("quotas", f"/api/v1/namespaces/{NAMESPACE}/resourcequotas"),
        ("cm", CONFIG_MAPS),
        ("sa", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"),
        ("secrets", f"/api/v1/namespaces/{NAMESPACE}/secrets"),
        ("deploy", f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"),
        ("rs", f"/apis/apps/v1/namespaces/{NAMESPACE}/replicasets"),
        ("ds", f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets"),
        ("jobs", f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"),
        ("leases", f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"),
        ("crds", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"),
        ("roles", f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/roles"),
        ("rolebindings", f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/rolebindings"),
        ("clusterroles", "/apis/rbac.authorization.k8s.io/v1/clusterroles"),
    ):
        send("tablecols " + k, "GET", p + "?limit=1", accept=TABLE)
    send("pom-get", "GET", CLAIMS + "/c1", accept="application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io")
    send(
        "pom-list",
        "GET",
        CLAIMS + "?limit=1",
        accept="application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
    )
    send("pretty", "GET", CLAIMS + "/c1?pretty=true")
    send("v1beta1-get", "GET", f"/apis/resource.k8s.io/v1beta1/namespaces/{NAMESPACE}/resourceclaims/c1")
    send("v1beta2-get", "GET", f"/apis/resource.k8s.io/v1beta2/namespaces/{NAMESPACE}/resourceclaims/c1")
    send("pb-get", "GET", CLAIMS + "/c1", accept="application/vnd.kubernetes.protobuf")
    send("gzip-list", "GET", CLAIMS, headers={"Accept-Encoding": "gzip"})


def probe_update(probe: Probe) -> None:
    """Replace objects and their status."""
    send = probe.send
    _, stored, _ = send("get-before-put", "GET", CLAIMS + "/c1", record=False)
    sent = copy.deepcopy(stored)
    sent["metadata"]["labels"] = {"n": "1"}
    send("put", "PUT", CLAIMS + "/c1", sent)
    send("put-stale", "PUT", CLAIMS + "/c1", sent)
    sent.get("metadata").pop("resourceVersion")
    send("put-no-rv", "PUT", CLAIMS + "/c1", sent)
    send("put-name-mismatch", "PUT", CLAIMS + "/c2", sent)
    send("put-missing", "PUT", CLAIMS + "/zz", claim("zz"))
    sent["metadata"]["uid"] = "11111111-1111-1111-1111-111111111111"
    send("put-wrong-uid", "PUT", CLAIMS + "/c1", sent)
    sent["metadata"].pop("uid")
    other_spec = copy.deepcopy(sent)
    other_spec["spec"]["devices"]["requests"][0]["name"] = "other"
    send("put-immutable-spec", "PUT", CLAIMS + "/c1", other_spec)
    send("put-noop", "PUT", CLAIMS + "/c1", sent)
    send("put-bad-rv", "PUT", CLAIMS + "/c1", {**sent, "metadata": {**sent["metadata"], "resourceVersion": "abc"}})
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
    send(
        "put-create-lease",
        "PUT",
        leases + "/l1",
        {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": "l1", "namespace": NAMESPACE},
            "spec": {},
        },
    )
    status = copy.deepcopy(sent)
    status["status"] = {"reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]}
    send("put-status-reserved-unallocated", "PUT", CLAIMS + "/c1/status", status)
    status["status"] = {}
    status["metadata"]["labels"] = {"ignored": "?"}
    send("put-status", "PUT", CLAIMS + "/c1/status", status)
    allocated = {
        "allocation": {
            "devices": {"results": [{"request": "gpu", "driver": "gpu.example.com", "pool": "p", "device": "d0"}]}
        },
        "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}],
    }
    status["status"] = allocated
    send("put-status-alloc", "PUT", CLAIMS + "/c1/status", status)
    status["status"] = {
        "allocation": {
            "devices": {"results": [{"request": "gpu", "driver": "gpu.example.com", "pool": "p", "device": "d1"}]}
        }
    }
    send("put-status-alloc-change", "PUT", CLAIMS + "/c1/status", status)
    status["status"] = {}
    send("put-status-dealloc", "PUT", CLAIMS + "/c1/status", status)


def probe_patch(probe: Probe) -> None:
    """Send every kind of patch, and server-side apply."""
    send = probe.send
    send("patch-merge", "PATCH", CLAIMS + "/c1", {"metadata": {"labels": {"m": "1"}}}, content_type=MERGE_PATCH)
    send("patch-merge-null", "PATCH", CLAIMS + "/c1", {"metadata": {"labels": {"m": None}}}, content_type=MERGE_PATCH)
    send("patch-merge-bad", "PATCH", CLAIMS + "/c1", "{", content_type=MERGE_PATCH)
    send("patch-merge-array", "PATCH", CLAIMS + "/c1", "[]", content_type=MERGE_PATCH)
    send("patch-missing", "PATCH", CLAIMS + "/nope", "{}", content_type=MERGE_PATCH)
    send("patch-noop", "PATCH", CLAIMS + "/c1", "{}", content_type=MERGE_PATCH)
    send(
        "patch-rv-stale",
        "PATCH",
        CLAIMS + "/c1",
        {"metadata": {"resourceVersion": "1", "labels": {"q": "r"}}},
        content_type=MERGE_PATCH,
    )
    send("patch-name", "PATCH", CLAIMS + "/c1", {"metadata": {"name": "other"}}, content_type=MERGE_PATCH)
    send("patch-unknown-strict", "PATCH", CLAIMS + "/c1?fieldValidation=Strict", {"foo": 1}, content_type=MERGE_PATCH)
    send(
        "patch-json",
        "PATCH",
        CLAIMS + "/c1",
        [{"op": "add", "path": "/metadata/annotations", "value": {"x": "y"}}],
        content_type=JSON_PATCH,
    )
    send(
        "patch-json-test-fail",
        "PATCH",
        CLAIMS + "/c1",
        [{"op": "test", "path": "/metadata/annotations/x", "value": "z"}],
        content_type=JSON_PATCH,
    )
    send(
        "patch-json-missing-path",
        "PATCH",
        CLAIMS + "/c1",
        [{"op": "remove", "path": "/metadata/nope/x"}],
        content_type=JSON_PATCH,
    )
    send("patch-json-bad", "PATCH", CLAIMS + "/c1", {"a": 1}, content_type=JSON_PATCH)
    send(
        "patch-json-escape",
        "PATCH",
        CLAIMS + "/c1",
        [{"op": "add", "path": "/metadata/annotations/example.com~1k", "value": "v"}],
        content_type=JSON_PATCH,
    )
    send("patch-strategic", "PATCH", CLAIMS + "/c1", {"metadata": {"labels": {"s": "1"}}}, content_type=STRATEGIC_PATCH)
    send("patch-none-ct", "PATCH", CLAIMS + "/c1", "{}", content_type=None)
    send("patch-json-ct", "PATCH", CLAIMS + "/c1", "{}", content_type="application/json")
    send("patch-bad-ct", "PATCH", CLAIMS + "/c1", "{}", content_type="application/foo")
    send("p-create", "POST", PODS, pod("p1"))
    send(
        "patch-smp-list-merge",
        "PATCH",
        PODS + "/p1",
        {"spec": {"containers": [{"name": "c", "image": "pause:2"}]}},
        content_type=STRATEGIC_PATCH,
    )
    send(
        "patch-smp-delete-directive",
        "PATCH",
        PODS + "/p1",
        {"metadata": {"finalizers": ["example.com/x"]}},
        content_type=STRATEGIC_PATCH,
    )
    send(
        "patch-smp-$deleteFromPrimitiveList",
        "PATCH",
        PODS + "/p1",
        {"metadata": {"$deleteFromPrimitiveList/finalizers": ["example.com/x"]}},
        content_type=STRATEGIC_PATCH,
    )
    send(
        "patch-smp-bad-directive",
        "PATCH",
        PODS + "/p1",
        {"metadata": {"labels": {"$patch": "foo"}}},
        content_type=STRATEGIC_PATCH,
    )
    send("patch-status-merge", "PATCH", PODS + "/p1/status", {"status": {"phase": "Running"}}, content_type=MERGE_PATCH)
    send("patch-pod-immutable", "PATCH", PODS + "/p1", {"spec": {"nodeName": "n1"}}, content_type=MERGE_PATCH)
    applied = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "a1", "labels": {"k": "1"}},
        "spec": claim("x")["spec"],
    }
    send("ssa-no-manager", "PATCH", CLAIMS + "/a1", applied, content_type=APPLY_PATCH)
    send("ssa-create", "PATCH", CLAIMS + "/a1?fieldManager=m1", applied, content_type=APPLY_PATCH)
    send("ssa-same", "PATCH", CLAIMS + "/a1?fieldManager=m1", applied, content_type=APPLY_PATCH)
    changed = copy.deepcopy(applied)
    changed["metadata"]["labels"]["k"] = "2"
    send("ssa-conflict", "PATCH", CLAIMS + "/a1?fieldManager=m2", changed, content_type=APPLY_PATCH)
    send("ssa-force", "PATCH", CLAIMS + "/a1?fieldManager=m2&force=true", changed, content_type=APPLY_PATCH)
    without_labels = copy.deepcopy(changed)
    del without_labels["metadata"]["labels"]
    send("ssa-remove-owned", "PATCH", CLAIMS + "/a1?fieldManager=m2", without_labels, content_type=APPLY_PATCH)
    send("ssa-no-gvk", "PATCH", CLAIMS + "/a1?fieldManager=m1", {"metadata": {"name": "a1"}}, content_type=APPLY_PATCH)
    send(
        "ssa-name-mismatch",
        "PATCH",
        CLAIMS + "/a1?fieldManager=m1",
        {**applied, "metadata": {"name": "zz"}},
        content_type=APPLY_PATCH,
    )
    send(
        "ssa-managedfields",
        "PATCH",
        CLAIMS + "/a1?fieldManager=m1",
        {
            **applied,
            "metadata": {
                "name": "a1",
                "managedFields": [
                    {"manager": "x", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {}}
                ],
            },
        },
        content_type=APPLY_PATCH,
    )
    send(
        "ssa-yaml",
        "PATCH",
        CONFIG_MAPS + "/ssay?fieldManager=m1",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: ssay}\ndata: {a: b}\n",
        content_type=APPLY_PATCH,
    )
    send("force-on-merge", "PATCH", CLAIMS + "/c1?force=true", "{}", content_type=MERGE_PATCH)
    send(
        "ssa-status",
        "PATCH",
        CLAIMS + "/a1/status?fieldManager=m3",
        {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "a1"}, "status": {}},
        content_type=APPLY_PATCH,
    )
    send("ssa-unknown-field", "PATCH", CLAIMS + "/a1?fieldManager=m1", {**applied, "foo": 1}, content_type=APPLY_PATCH)


def probe_subresources(probe: Probe) -> None:
    """Bind, evict, read logs, review access and request tokens."""
    send = probe.send
    send("p2", "POST", PODS, pod("p2", schedulerName="none"))
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "p2"},
        "target": {"kind": "Node", "name": "n1"},
    }
    send("bind", "POST", PODS + "/p2/binding", binding)
    send("bind-again", "POST", PODS + "/p2/binding", binding)
    send("bind-missing", "POST", PODS + "/zz/binding", {**binding, "metadata": {"name": "zz"}})
    send("bind-old-style", "POST", f"/api/v1/namespaces/{NAMESPACE}/bindings", {**binding, "metadata": {"name": "p1"}})
    send("bound-pod", "GET", PODS + "/p2")
    send("log-nonode", "GET", PODS + "/p2/log")
    send("log-missing", "GET", PODS + "/zz/log")
    send("log-bad-container", "GET", PODS + "/p2/log?container=zz")
    send("log-bad-tail", "GET", PODS + "/p2/log?tailLines=-1")
    send(
        "evict",
        "POST",
        PODS + "/p1/eviction",
        {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p1"}},
    )
    send(
        "ssar",
        "POST",
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {"verb": "get", "resource": "pods", "namespace": NAMESPACE}},
        },
    )
    send(
        "ssar-denied",
        "POST",
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}},
        },
        token="alice-token",
    )
    send(
        "sar",
        "POST",
        "/apis/authorization.k8s.io/v1/subjectaccessreviews",
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": "alice", "groups": ["devs"], "nonResourceAttributes": {"verb": "get", "path": "/metrics"}},
        },
    )
    send(
        "lsar",
        "POST",
        f"/apis/authorization.k8s.io/v1/namespaces/{NAMESPACE}/localsubjectaccessreviews",
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "LocalSubjectAccessReview",
            "metadata": {"namespace": NAMESPACE},
            "spec": {
                "user": "alice",
                "resourceAttributes": {"verb": "get", "resource": "pods", "namespace": NAMESPACE},
            },
        },
    )
    send(
        "sar-empty",
        "POST",
        "/apis/authorization.k8s.io/v1/subjectaccessreviews",
        {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {}},
    )
    send(
        "rules",
        "POST",
        "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews",
        {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": {"namespace": NAMESPACE}},
        token="alice-token",
    )
    send(
        "ssr",
        "POST",
        "/apis/authentication.k8s.io/v1/selfsubjectreviews",
        {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"},
    )
    send(
        "tokenreview",
        "POST",
        "/apis/authentication.k8s.io/v1/tokenreviews",
        {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": "alice-token"}},
    )
    send(
        "tokenreview-bad",
        "POST",
        "/apis/authentication.k8s.io/v1/tokenreviews",
        {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": "zzz"}},
    )
    _, token_request, _ = send(
        "tokenrequest",
        "POST",
        f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default/token",
        {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 600}},
    )
    if token_request and token_request.get("status"):
        send(
            "sa-token-use",
            "POST",
            "/apis/authentication.k8s.io/v1/selfsubjectreviews",
            {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"},
            token=token_request["status"]["token"],
        )


def probe_rbac(probe: Probe) -> None:
    """Grant one verb and use it."""
    send = probe.send
    send(
        "role",
        "POST",
        f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/roles",
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": {"name": "r"},
            "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}],
        },
    )
    send(
        "rolebinding",
        "POST",
        f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/rolebindings",
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "rb"},
            "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "alice"}],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"},
        },
    )
    probe.wait(lambda answer: answer[0] == 200, f"{PODS}/p2", token="alice-token")
    send("alice-get-allowed", "GET", PODS + "/p2", token="alice-token")
    send("alice-list-denied", "GET", PODS, token="alice-token")


def probe_quota(probe: Probe) -> None:
    """Exceed a quota."""
    send = probe.send
    send(
        "quota",
        "POST",
        f"/api/v1/namespaces/{NAMESPACE}/resourcequotas",
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "q"},
            "spec": {
                "hard": {
                    "count/resourceclaims.resource.k8s.io": "1",
                    "gpu.example.com.deviceclass.resource.k8s.io/devices": "1",
                }
            },
        },
    )
    probe.wait(
        lambda answer: "used" in ((answer[1] or {}).get("status") or {}),
        f"/api/v1/namespaces/{NAMESPACE}/resourcequotas/q",
    )
    send("quota-exceeded", "POST", CLAIMS, claim("q1"))
    send("quota-status", "GET", f"/api/v1/namespaces/{NAMESPACE}/resourcequotas/q")
    send("quota-del", "DELETE", f"/api/v1/namespaces/{NAMESPACE}/resourcequotas/q")


def probe_watch(probe: Probe) -> None:
    """Watch in every form and replay events."""
    send = probe.send
    send("watch-no-rv", "GET", CLAIMS + "?watch=true&timeoutSeconds=1", stream_seconds=3)
    send("watch-rv0", "GET", CLAIMS + "?watch=true&resourceVersion=0&timeoutSeconds=1&limit=1", stream_seconds=3)
    send(
        "watch-initial",
        "GET",
        CLAIMS + "?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
        "&timeoutSeconds=1",
        stream_seconds=3,
    )
    send(
        "watch-norv-bookmarks",
        "GET",
        CLAIMS + "?watch=true&allowWatchBookmarks=true&timeoutSeconds=1",
        stream_seconds=3,
    )
    send(
        "watch-sendinitial-nomatch",
        "GET",
        CLAIMS + "?watch=true&sendInitialEvents=true&timeoutSeconds=1",
        stream_seconds=3,
    )
    send("watch-rv-bad", "GET", CLAIMS + "?watch=true&resourceVersion=abc&timeoutSeconds=1", stream_seconds=3)
    send("watch-rv-future", "GET", CLAIMS + "?watch=true&resourceVersion=99999999&timeoutSeconds=1", stream_seconds=5)
    send(
        "watch-table",
        "GET",
        CLAIMS + "?watch=true&timeoutSeconds=1&fieldSelector=metadata.name%3Dc1",
        accept=TABLE,
        stream_seconds=3,
    )
    send(
        "watch-pom",
        "GET",
        CLAIMS + "?watch=true&timeoutSeconds=1&fieldSelector=metadata.name%3Dc1",
        accept="application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
        stream_seconds=3,
    )
    send(
        "watch-old-path",
        "GET",
        f"{RESOURCE_V1}/watch/namespaces/{NAMESPACE}/resourceclaims?timeoutSeconds=1",
        stream_seconds=3,
    )
    send(
        "watch-pb",
        "GET",
        CLAIMS + "?watch=true&timeoutSeconds=1&fieldSelector=metadata.name%3Dc1",
        accept="application/vnd.kubernetes.protobuf",
        stream_seconds=3,
    )
    _, listed, _ = send("rv", "GET", CLAIMS, record=False)
    version = listed["metadata"]["resourceVersion"]
    send("evt-add", "POST", CLAIMS, claim("w1", labels={"w": "1"}), record=False)
    send(
        "evt-unlabel",
        "PATCH",
        CLAIMS + "/w1",
        {"metadata": {"labels": {"w": "2"}}},
        content_type=MERGE_PATCH,
        record=False,
    )
    send(
        "evt-relabel",
        "PATCH",
        CLAIMS + "/w1",
        {"metadata": {"labels": {"w": "1"}}},
        content_type=MERGE_PATCH,
        record=False,
    )
    send("evt-del", "DELETE", CLAIMS + "/w1", record=False)
    send("watch-replay", "GET", CLAIMS + f"?watch=true&resourceVersion={version}&timeoutSeconds=1", stream_seconds=3)
    send(
        "watch-replay-selector",
        "GET",
        CLAIMS + f"?watch=true&resourceVersion={version}&labelSelector=w%3D1&timeoutSeconds=1",
        stream_seconds=3,
    )


def probe_delete(probe: Probe) -> None:
    """Delete with preconditions, finalizers and propagation policies."""
    send = probe.send
    send("delete", "DELETE", CLAIMS + "/c1")
    send("delete-missing", "DELETE", CLAIMS + "/c1")
    send(
        "delete-precond-uid",
        "DELETE",
        CLAIMS + "/a1",
        {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": "zzz"}},
    )
    send(
        "delete-precond-rv",
        "DELETE",
        CLAIMS + "/a1",
        {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"resourceVersion": "1"}},
    )
    send("delete-dryrun", "DELETE", CLAIMS + "/a1?dryRun=All")
    send("delete-bad-propagation", "DELETE", CLAIMS + "/a1?propagationPolicy=Foo")
    send(
        "delete-orphan-and-policy",
        "DELETE",
        CLAIMS + "/a1",
        {"orphanDependents": True, "propagationPolicy": "Background"},
    )
    send("fin-create", "POST", CLAIMS, claim("f1", finalizers=["example.com/hold"]))
    send("fin-delete", "DELETE", CLAIMS + "/f1")
    send("fin-delete-again", "DELETE", CLAIMS + "/f1")
    send(
        "fin-add-while-deleting",
        "PATCH",
        CLAIMS + "/f1",
        {"metadata": {"finalizers": ["example.com/hold", "example.com/new"]}},
        content_type=MERGE_PATCH,
    )
    send("fin-remove", "PATCH", CLAIMS + "/f1", {"metadata": {"finalizers": None}}, content_type=MERGE_PATCH)
    send("fin-gone", "GET", CLAIMS + "/f1")
    send("fg-create", "POST", CLAIMS, claim("f2"))
    send("fg-delete", "DELETE", CLAIMS + "/f2?propagationPolicy=Foreground")
    send("fg-after", "GET", CLAIMS + "/f2")
    send("pod-del-graceful", "DELETE", PODS + "/p2")
    send("pod-del-graceful-get", "GET", PODS + "/p2")
    send("pod-del-force", "DELETE", PODS + "/p2?gracePeriodSeconds=0")
    send("pod-del-force-get", "GET", PODS + "/p2")
    send("cm-delete-status", "DELETE", CONFIG_MAPS + "/y1")
    send("delete-collection", "DELETE", CONFIG_MAPS + "?labelSelector=zz%3Dy")
    send("delete-collection-all", "DELETE", CONFIG_MAPS)


def probe_custom_resources(probe: Probe) -> None:
    """Define a custom resource and use it."""
    send = probe.send
    crd = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "gadgets.golden.example.com"},
        "spec": {
            "group": "golden.example.com",
            "scope": "Namespaced",
            "names": {
                "plural": "gadgets",
                "singular": "gadget",
                "kind": "Gadget",
                "shortNames": ["gd"],
                "categories": ["all"],
            },
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "subresources": {
                        "status": {},
                        "scale": {"specReplicasPath": ".spec.n", "statusReplicasPath": ".status.n"},
                    },
                    "selectableFields": [{"jsonPath": ".spec.color"}],
                    "additionalPrinterColumns": [{"name": "N", "type": "integer", "jsonPath": ".spec.n"}],
                    "schema": {
                        "openAPIV3Schema": {
                            "type": "object",
                            "properties": {
                                "spec": {
                                    "type": "object",
                                    "properties": {
                                        "n": {"type": "integer", "default": 3, "maximum": 10},
                                        "color": {"type": "string"},
                                    },
                                    "x-kubernetes-validations": [{"rule": "self.n != 7", "message": "no sevens"}],
                                },
                                "status": {"type": "object", "properties": {"n": {"type": "integer"}}},
                            },
                        }
                    },
                }
            ],
        },
    }
    send("crd-create", "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
    send(
        "crd-invalid",
        "POST",
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        {**crd, "metadata": {"name": "wrong"}},
    )
    probe.wait(_is_established, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gadgets.golden.example.com")
    send("crd-get", "GET", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gadgets.golden.example.com")
    probe.wait(lambda answer: answer[0] == 200, "/apis/golden.example.com/v1")
    gadgets = f"/apis/golden.example.com/v1/namespaces/{NAMESPACE}/gadgets"

    def gadget(name: str, **spec: Any) -> dict[str, Any]:
        return {"apiVersion": "golden.example.com/v1", "kind": "Gadget", "metadata": {"name": name}, "spec": spec}

    send("crd-disc", "GET", "/apis/golden.example.com/v1")
    send("cr-create", "POST", gadgets, gadget("g1", color="red"))
    send("cr-prune", "POST", gadgets, gadget("g2", zzz=1))
    send("cr-strict", "POST", gadgets + "?fieldValidation=Strict", gadget("g3", zzz=1))
    send("cr-invalid", "POST", gadgets, gadget("g4", n="x"))
    send("cr-max", "POST", gadgets, gadget("g5", n=11))
    send("cr-cel", "POST", gadgets, gadget("g6", n=7))
    send("cr-fieldsel", "GET", gadgets + "?fieldSelector=spec.color%3Dred")
    send("cr-smp", "PATCH", gadgets + "/g1", "{}", content_type=STRATEGIC_PATCH)
    send("cr-ssa", "PATCH", gadgets + "/g1?fieldManager=x&force=true", gadget("g1", n=4), content_type=APPLY_PATCH)
    send("cr-scale", "GET", gadgets + "/g1/scale")
    send("cr-scale-patch", "PATCH", gadgets + "/g1/scale", {"spec": {"replicas": 5}}, content_type=MERGE_PATCH)
    send("cr-status-ignores-spec", "PUT", gadgets + "/g1/status", {**gadget("g1", n=9), "status": {"n": 1}})
    send("cr-table", "GET", gadgets, accept=TABLE)
    send("cr-pb", "GET", gadgets + "/g1", accept="application/vnd.kubernetes.protobuf")
    send("cr-pb-fallback", "GET", gadgets + "/g1", accept="application/vnd.kubernetes.protobuf,application/json")
    send("crd-delete", "DELETE", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gadgets.golden.example.com")


def probe_namespace_deletion(probe: Probe) -> None:
    """Delete the namespace and try to create in it."""
    send = probe.send
    send("ns-delete", "DELETE", "/api/v1/namespaces/" + NAMESPACE)
    send("ns-create-in-terminating", "POST", CONFIG_MAPS, config_map("late"))
    send("ns-delete-again", "DELETE", "/api/v1/namespaces/" + NAMESPACE)
    send("ns-delete-default", "DELETE", "/api/v1/namespaces/default")
    send("ns-delete-kube-system", "DELETE", "/api/v1/namespaces/kube-system")


def _is_established(answer: Answer) -> bool:
    conditions = ((answer[1] or {}).get("status") or {}).get("conditions", ())
    return any(item["type"] == "Established" and item["status"] == "True" for item in conditions)


SECTIONS: Final = (
    create_namespace,
    probe_paths,
    probe_authentication,
    probe_create,
    probe_methods,
    probe_reads,
    probe_update,
    probe_patch,
    probe_subresources,
    probe_rbac,
    probe_quota,
    probe_watch,
    probe_delete,
    probe_custom_resources,
    probe_namespace_deletion,
)


def main(url: str, out: str) -> None:
    """Send everything, in order: later sections use objects of earlier ones."""
    probe = Probe(url, Path(out))
    try:
        for section in SECTIONS:
            section(probe)
    finally:
        probe.close()


if __name__ == "__main__":
    main(*sys.argv[1:3])
