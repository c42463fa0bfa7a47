"""Drivers' charts come up unchanged: every object is accepted, and every Pod is ready, on one node with containerd.

All charts share one cluster, which is in a network of its own: their programs listen on all addresses.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dray.api.document import Document, GroupVersion
from dray.api.errors import APIError
from dray.apiserver.authentication import certificates
from dray.client.interface import Client, unstructured
from tests.containerd import needs_containerd, running_containerd
from tests.docker_registry import docker_registry, needs_docker_registry, push
from tests.e2e.charts.image import add_stub
from tests.e2e.charts.render import CERT_MANAGER, CHARTS, Settings, documents, render
from tests.e2e.kubectl.tool import Kubectl, write
from tests.e2e.node.harness import (
    EVENTS,
    LOOK_SECONDS,
    PODS,
    busybox_root,
    client_of,
    is_ready,
)
from tests.mounts import mounting_folder, shared_mounts
from tests.namespaces import needs_namespaces, own_namespaces
from tests.servers import Server, start_server

pytestmark = [needs_containerd, needs_docker_registry, needs_namespaces]
UP_SECONDS_MAX = 90.0
# The labels that the charts select nodes by.
LABELS = {
    "feature.node.kubernetes.io/pci-10de.present": "true",
    "nvidia.com/gpu.present": "true",
    "nvidia.com/mps.capable": "true",
}
# How many Pods a chart has on one node, beside finished ones.
PODS_OF = {"E": 1, "E+": 3, "N": 2, "G": 1, "A": 1, "Q": 1, "F": 1, "D": 1, "P": 2, "P+": 3, "X": 3}
HOUR = timedelta(hours=1)
REGISTRATION = GroupVersion("admissionregistration.k8s.io", "v1")
WEBHOOKS = unstructured(
    REGISTRATION, "validatingwebhookconfigurations", "ValidatingWebhookConfiguration", namespaced=False
)

SECRETS = unstructured(GroupVersion("", "v1"), "secrets", "Secret")
CERTIFICATES = unstructured(GroupVersion("cert-manager.io", "v1"), "certificates", "Certificate")
CLAIMS = unstructured(GroupVersion("resource.k8s.io", "v1"), "resourceclaims", "ResourceClaim")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, str, Path]]:
    """A server with a node, the name of the stub's image, and a folder for the charts' host paths."""
    root = busybox_root(tmp_path_factory.mktemp("image"))
    add_stub(root)
    with (
        own_namespaces(),
        shared_mounts(),
        mounting_folder("dray-charts-") as folder,
        docker_registry(folder) as registry,
        running_containerd(root) as containerd,
    ):
        push(registry, "stub", "1", root, {})
        kubelet = folder / "kubelet"
        endpoint = f"--node-container-runtime-endpoint={containerd.endpoint}"
        flags = ("--node", "--node-runtime=cri", endpoint, f"--node-root-dir={kubelet}", "--store=memory")
        # Several Pods listen on the same port: each needs a network of its own.
        own = ("--node-pod-network=routed", f"--node-cni-conf-dir={containerd.networks}")
        cdi = f"--node-cdi-spec-dirs={folder / 'cdi'}"
        server = start_server(folder / "data", *flags, *own, cdi, new_interpreter=True)
        try:
            yield server, f"{registry}/stub:1", folder
        finally:
            server.stop()
            assert server.process.stdout is not None
            server.process.stdout.close()


@pytest.fixture(scope="module")
def applied(running: tuple[Server, str, Path]) -> list[str]:
    """The lines that kubectl printed for the charts."""
    server, image, folder = running
    settings = Settings(image, str(folder / "kubelet"), str(folder / "host"))
    return apply_all(server.environment, settings, folder)


@pytest.fixture
async def client(running: tuple[Server, str, Path], applied: object) -> AsyncIterator[Client]:
    """A client of the cluster with all charts."""
    client = client_of(running[0])
    yield client
    await client.close()


def apply_all(environment: dict[str, str], settings: Settings, folder: Path) -> list[str]:
    """Apply every chart with strict validation."""
    kubectl = Kubectl(environment, namespace="")
    kubectl("label", "nodes", "--all", *(f"{name}={value}" for name, value in LABELS.items()))
    strict = ("apply", "--validate=strict")
    spaces = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": item.name}} for item in CHARTS.values()]
    kubectl(*strict, "-f", write(folder / "before.json", [*documents(CERT_MANAGER), *spaces]))
    kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=20s")
    files = [write(folder / f"{chart.name}.json", render(short, settings)) for short, chart in CHARTS.items()]
    return kubectl(*strict, *(f"--filename={path}" for path in files)).splitlines()


@pytest.mark.parametrize("short", CHARTS)
def test_a_chart_has_as_many_objects_as_its_original(short: str) -> None:
    assert len(render(short, Settings())) == CHARTS[short].count


def test_every_object_is_accepted(applied: list[str]) -> None:
    assert len(applied) == sum(chart.count for chart in CHARTS.values())
    # Charts of one driver share a DeviceClass.
    assert {line.split()[-1] for line in applied} == {"created", "unchanged"}


async def test_every_pod_is_ready(client: Client) -> None:
    await wait_for_event(client, "FailedMount", 'secret "dra-example-driver-webhook-webhook-cert" not found')
    await issue_certificate(client)
    deadline = time.monotonic() + UP_SECONDS_MAX
    while waiting := [pod for pod in (await client.list(PODS)).items if not is_up(pod)]:
        assert time.monotonic() < deadline, await report(client, waiting)
        await asyncio.sleep(LOOK_SECONDS * 10)
    pods = [pod for pod in (await client.list(PODS)).items if pod["status"]["phase"] == "Running"]
    assert Counter(pod["metadata"]["namespace"] for pod in pods) == {
        chart.name: PODS_OF[short] for short, chart in CHARTS.items()
    }
    restarted = [pod["metadata"]["name"] for pod in pods if any(item["restartCount"] for item in statuses(pod))]
    assert not restarted, await report(client, [pod for pod in pods if pod["metadata"]["name"] in restarted])


async def test_the_webhook_decides_on_claims(client: Client) -> None:
    """After the Pods are up: a claim whose parameters the webhook refuses, and one that it allows."""

    def claim(name: str, strategy: str) -> Document:
        parameters = {"apiVersion": "gpu.example.com/v1", "kind": "GpuConfig", "strategy": strategy}
        config = {"opaque": {"driver": "gpu.example.com", "parameters": parameters}}
        request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com"}}
        return {"metadata": {"name": name}, "spec": {"devices": {"requests": [request], "config": [config]}}}

    deadline = time.monotonic() + UP_SECONDS_MAX
    answer: Document = {}
    while not answer:
        try:
            answer = await client.create(CLAIMS, claim("good", "TimeSlicing"), "default")
        except APIError as error:
            # The Pod is ready; its endpoint may be a moment behind.
            if "no endpoints available" not in error.message or time.monotonic() > deadline:
                raise
            await asyncio.sleep(LOOK_SECONDS)
    with pytest.raises(APIError, match="denied the request: invalid parameters"):
        await client.create(CLAIMS, claim("bad", "invalid"), "default")


async def test_the_runtime_ignores_no_field(client: Client) -> None:
    messages = {item["message"] for item in (await client.list(EVENTS)).items if item["reason"] == "RuntimeLimitation"}
    assert messages == set()


def statuses(pod: Document) -> list[Document]:
    status = pod["status"]
    return [*status.get("containerStatuses", ()), *status.get("initContainerStatuses", ())]


def is_up(pod: Document) -> bool:
    return pod.get("status", {}).get("phase") == "Succeeded" or is_ready(pod)


async def wait_for_event(client: Client, reason: str, text: str) -> None:
    deadline = time.monotonic() + UP_SECONDS_MAX
    while not any(item["reason"] == reason and text in item["message"] for item in (await client.list(EVENTS)).items):
        assert time.monotonic() < deadline, text
        await asyncio.sleep(LOOK_SECONDS)


async def issue_certificate(client: Client) -> None:
    """Do the work of cert-manager: the Secret of each Certificate, and its authority where it is asked for."""
    for certificate in (await client.list(CERTIFICATES)).items:
        name, namespace = certificate["metadata"]["name"], certificate["metadata"]["namespace"]
        now = datetime.fromtimestamp(time.time(), UTC)
        authority = certificates.new_authority(certificates.new_private_key(), now - HOUR)
        pair = certificates.new_server(authority, certificate["spec"]["dnsNames"], now - HOUR)
        data = {"tls.crt": pair.certificate, "tls.key": pair.key, "ca.crt": authority.certificate}
        encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
        secret = {"metadata": {"name": certificate["spec"]["secretName"]}, "type": "kubernetes.io/tls", "data": encoded}
        await client.create(SECRETS, secret, namespace)
        for configuration in (await client.list(WEBHOOKS)).items:
            if configuration["metadata"]["annotations"]["cert-manager.io/inject-ca-from"] == f"{namespace}/{name}":
                for webhook in configuration["webhooks"]:
                    webhook["clientConfig"]["caBundle"] = encoded["ca.crt"]
                await client.update(WEBHOOKS, configuration)


async def report(client: Client, pods: list[Document]) -> str:
    """What is wrong with Pods: the states of their containers and their warnings."""
    events = (await client.list(EVENTS)).items
    lines = []
    for pod in pods:
        name = pod["metadata"]["name"]
        lines.append(f"{name}: {[(item['name'], item['state'], item.get('lastState')) for item in statuses(pod)]}")
        lines += [
            f"  {item['reason']}: {item['message']}"
            for item in events
            if item["involvedObject"]["name"] == name and item["type"] == "Warning"
        ]
    return "\n".join(lines)
