"""The official `kubernetes` Python client: typed, dynamic and custom-object calls."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes import client, config, dynamic, utils, watch
from kubernetes.client import ApiException

from tests.e2e.clients import bodies
from tests.servers import Server

pytestmark = [
    # The library still calls HTTPResponse.getheaders, which urllib3 deprecates, and leaves sockets to the collector.
    pytest.mark.filterwarnings("ignore::DeprecationWarning:kubernetes.*"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:urllib3.*"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def api(server: Server) -> Iterator[client.ApiClient]:
    with config.new_client_from_config(str(server.kubeconfig)) as found:
        yield found


def test_version_and_discovery(api: client.ApiClient) -> None:
    assert client.VersionApi(api).get_code().git_version.startswith("v1.37")
    groups = {group.name for group in client.ApisApi(api).get_api_versions().groups}
    assert {"apps", "batch", "resource.k8s.io", "rbac.authorization.k8s.io"} <= groups
    kinds = {resource.kind for resource in client.ResourceV1Api(api).get_api_resources().resources}
    assert {"ResourceClaim", "ResourceClaimTemplate", "DeviceClass", "ResourceSlice"} <= kinds


def test_pod_from_create_to_delete(api: client.ApiClient, namespace: str) -> None:
    core = client.CoreV1Api(api)
    made = core.create_namespaced_pod(
        namespace,
        client.V1Pod(
            metadata=client.V1ObjectMeta(generate_name="web-", labels={"app": "web"}),
            spec=client.V1PodSpec(containers=[client.V1Container(name="main", image="busybox")]),
        ),
    )
    assert made.metadata.name.startswith("web-")
    assert made.status.phase == "Pending"
    assert made.spec.dns_policy == "ClusterFirst"
    assert core.read_namespaced_pod(made.metadata.name, namespace).metadata.uid == made.metadata.uid
    assert [pod.metadata.name for pod in core.list_namespaced_pod(namespace, label_selector="app=web").items] == [
        made.metadata.name
    ]
    found = core.list_pod_for_all_namespaces(field_selector=f"metadata.namespace={namespace}").items
    assert [pod.metadata.uid for pod in found] == [made.metadata.uid]
    gone = core.delete_namespaced_pod(made.metadata.name, namespace, grace_period_seconds=0)
    assert gone.metadata.uid == made.metadata.uid
    with pytest.raises(ApiException) as refused:
        core.read_namespaced_pod(made.metadata.name, namespace)
    assert (refused.value.status, refused.value.reason) == (404, "Not Found")
    assert f'pods \\"{made.metadata.name}\\" not found' in refused.value.body


def test_device_kinds_typed(api: client.ApiClient, namespace: str) -> None:
    resource = client.ResourceV1Api(api)
    resource.create_device_class(bodies.device_class("typed-gpu"))
    resource.create_resource_slice(bodies.resource_slice("typed-slice"))
    claim = client.ResourceV1ResourceClaim(
        api_version="resource.k8s.io/v1",
        kind="ResourceClaim",
        metadata=client.V1ObjectMeta(name="claim"),
        spec=client.V1ResourceClaimSpec(
            devices=client.V1DeviceClaim(
                requests=[
                    client.V1DeviceRequest(
                        name="gpu", exactly=client.V1ExactDeviceRequest(device_class_name="typed-gpu")
                    )
                ]
            )
        ),
    )
    made = resource.create_namespaced_resource_claim(namespace, claim)
    assert made.spec.devices.requests[0].exactly.allocation_mode == "ExactCount"
    assert made.spec.devices.requests[0].exactly.count == 1
    assert [item.spec.driver for item in resource.list_resource_slice(field_selector="spec.nodeName=node-1").items] == [
        "gpu.example.com"
    ]
    patched = resource.patch_namespaced_resource_claim_status("claim", namespace, {"status": bodies.allocation()})
    assert patched.status.allocation.devices.results[0].device == "gpu-0"
    assert patched.status.allocation.node_selector.node_selector_terms[0].match_fields[0].values == ["node-1"]
    resource.delete_namespaced_resource_claim("claim", namespace)
    resource.delete_resource_slice("typed-slice")
    resource.delete_device_class("typed-gpu")
    assert not resource.list_device_class().items


def test_update_needs_the_latest_version(api: client.ApiClient, namespace: str) -> None:
    core = client.CoreV1Api(api)
    first = core.create_namespaced_config_map(namespace, bodies.config_map("settings", a="1"))
    second = core.replace_namespaced_config_map("settings", namespace, {**bodies.config_map("settings", a="2")})
    assert int(second.metadata.resource_version) > int(first.metadata.resource_version)
    first.data = {"a": "3"}
    with pytest.raises(ApiException) as refused:
        core.replace_namespaced_config_map("settings", namespace, first)
    assert refused.value.status == 409
    assert "the object has been modified" in refused.value.body


@pytest.mark.parametrize(
    ("content_type", "patch"),
    [
        pytest.param("application/merge-patch+json", {"data": {"a": None, "b": "2"}}, id="merge"),
        pytest.param("application/strategic-merge-patch+json", {"data": {"a": None, "b": "2"}}, id="strategic"),
        pytest.param(
            "application/json-patch+json",
            [{"op": "remove", "path": "/data/a"}, {"op": "add", "path": "/data/b", "value": "2"}],
            id="json",
        ),
    ],
)
def test_patch_types(api: client.ApiClient, namespace: str, content_type: str, patch: Any) -> None:
    core = client.CoreV1Api(api)
    core.create_namespaced_config_map(namespace, bodies.config_map("settings", a="1", c="3"))
    answer = core.patch_namespaced_config_map("settings", namespace, patch, _content_type=content_type)
    assert answer.data == {"b": "2", "c": "3"}


def test_library_chosen_patches(api: client.ApiClient, namespace: str) -> None:
    apps = client.AppsV1Api(api)
    containers = [{"name": "main", "image": "one"}]
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": containers}}
    apps.create_namespaced_deployment(
        namespace,
        {"metadata": {"name": "web"}, "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": template}},
    )
    sidecar = {"spec": {"template": {"spec": {"containers": [{"name": "sidecar", "image": "two"}]}}}}
    patched = apps.patch_namespaced_deployment("web", namespace, sidecar)
    # A strategic merge joins containers by name; a merge patch would have replaced the list.
    assert {item.name for item in patched.spec.template.spec.containers} == {"main", "sidecar"}
    patched = apps.patch_namespaced_deployment(
        "web", namespace, [{"op": "replace", "path": "/spec/replicas", "value": 3}]
    )
    assert patched.spec.replicas == 3
    assert apps.read_namespaced_deployment_scale("web", namespace).spec.replicas == 3
    assert apps.patch_namespaced_deployment_scale("web", namespace, {"spec": {"replicas": 5}}).spec.replicas == 5


def test_pages(api: client.ApiClient, namespace: str) -> None:
    core = client.CoreV1Api(api)
    names = [f"settings-{number:02}" for number in range(25)]
    for name in names:
        core.create_namespaced_config_map(namespace, bodies.config_map(name, n=name))
    page = core.list_namespaced_config_map(namespace, limit=10)
    assert page.metadata.remaining_item_count
    # Created behind the first page's back: later pages show the moment of the first.
    core.create_namespaced_config_map(namespace, bodies.config_map("settings-99"))
    found, pages = list(page.items), 1
    while page.metadata._continue:
        page = core.list_namespaced_config_map(namespace, limit=10, _continue=page.metadata._continue)
        found, pages = [*found, *page.items], pages + 1
    assert pages == 3
    found_names = [item.metadata.name for item in found]
    assert [name for name in found_names if name.startswith("settings-")] == names


def test_watch_resumes_without_gaps(api: client.ApiClient, namespace: str) -> None:
    core = client.CoreV1Api(api)
    start = core.list_namespaced_config_map(namespace).metadata.resource_version
    for number in range(6):
        core.create_namespaced_config_map(namespace, bodies.config_map(f"settings-{number}"))
    core.delete_namespaced_config_map("settings-0", namespace)
    seen: list[tuple[str, str]] = []
    version = start
    # Each round takes at most two events and drops the connection; others' ConfigMaps of the namespace count too.
    while len(seen) < 7:
        stream = watch.Watch()
        for event in stream.stream(
            core.list_namespaced_config_map, namespace, resource_version=version, timeout_seconds=20
        ):
            name = event["object"].metadata.name
            version = event["object"].metadata.resource_version
            if name.startswith("settings-"):
                seen.append((event["type"], name))
            if len(seen) % 2 == 0 or len(seen) == 7:
                stream.stop()
                break
    assert seen == [*(("ADDED", f"settings-{number}") for number in range(6)), ("DELETED", "settings-0")]


def test_watch_sees_what_another_thread_writes(api: client.ApiClient, server: Server) -> None:
    resource = client.ResourceV1Api(api)
    start = resource.list_resource_slice().metadata.resource_version

    def write() -> None:
        with config.new_client_from_config(str(server.kubeconfig)) as other:
            slices = client.ResourceV1Api(other)
            slices.create_resource_slice(bodies.resource_slice("watched"))
            slices.patch_resource_slice("watched", {"metadata": {"labels": {"a": "b"}}})
            slices.delete_resource_slice("watched")

    writer = threading.Thread(target=write)
    writer.start()
    seen = []
    stream = watch.Watch()
    # Not claims: the library's watch looks for a model `V1ResourceClaim`, which it has under another name.
    for event in stream.stream(resource.list_resource_slice, resource_version=start, timeout_seconds=20):
        seen.append(event["type"])
        if event["type"] == "DELETED":
            stream.stop()
    writer.join()
    assert seen == ["ADDED", "MODIFIED", "DELETED"]


def test_dynamic_client(api: client.ApiClient, namespace: str) -> None:
    found = dynamic.DynamicClient(api)
    claims = found.resources.get(api_version="resource.k8s.io/v1", kind="ResourceClaim")
    made = claims.create(body=bodies.resource_claim("claim"), namespace=namespace)
    assert made.spec.devices.requests[0].exactly.count == 1
    assert [item.metadata.name for item in claims.get(namespace=namespace).items] == ["claim"]
    merged = claims.patch(
        name="claim",
        namespace=namespace,
        body={"metadata": {"labels": {"a": "b"}}},
        content_type="application/merge-patch+json",
    )
    assert merged.metadata.labels.a == "b"
    events = claims.watch(namespace=namespace, resource_version="0", timeout=1)
    assert [(event["type"], event["object"].metadata.name) for event in events] == [("ADDED", "claim")]
    claims.delete(name="claim", namespace=namespace)
    with pytest.raises(dynamic.exceptions.NotFoundError):
        claims.get(name="claim", namespace=namespace)


def test_dynamic_server_side_apply(api: client.ApiClient, namespace: str) -> None:
    maps = dynamic.DynamicClient(api).resources.get(api_version="v1", kind="ConfigMap")
    first = maps.server_side_apply(
        body=bodies.config_map("settings", a="1"), namespace=namespace, name="settings", field_manager="one"
    )
    assert first.metadata.managedFields[0].manager == "one"
    other = bodies.config_map("settings", a="2")
    with pytest.raises(dynamic.exceptions.ConflictError) as refused:
        maps.server_side_apply(body=other, namespace=namespace, name="settings", field_manager="two")
    assert 'conflict with "one": .data.a' in refused.value.summary()
    forced = maps.server_side_apply(
        body=other, namespace=namespace, name="settings", field_manager="two", force_conflicts=True
    )
    assert forced.data.a == "2"


def test_create_from_a_document(api: client.ApiClient, namespace: str) -> None:
    utils.create_from_dict(api, bodies.config_map("settings", a="1"), namespace=namespace)
    assert client.CoreV1Api(api).read_namespaced_config_map("settings", namespace).data == {"a": "1"}


def test_access_review_and_token(api: client.ApiClient, server: Server, namespace: str) -> None:
    review = client.AuthorizationV1Api(api).create_self_subject_access_review(
        {"spec": {"resourceAttributes": {"verb": "create", "resource": "pods", "namespace": namespace}}}
    )
    assert review.status.allowed
    core = client.CoreV1Api(api)
    core.create_namespaced_service_account(namespace, {"metadata": {"name": "robot"}})
    token = core.create_namespaced_service_account_token(
        "robot", namespace, {"spec": {"expirationSeconds": 600, "audiences": []}}
    ).status.token
    settings = client.Configuration()
    settings.host, settings.ssl_ca_cert = server.url, api.configuration.ssl_ca_cert
    settings.api_key = {"authorization": f"Bearer {token}"}
    with client.ApiClient(settings) as robot:
        who = client.AuthenticationV1Api(robot).create_self_subject_review({})
        assert who.status.user_info.username == f"system:serviceaccount:{namespace}:robot"
        with pytest.raises(ApiException) as refused:
            client.CoreV1Api(robot).list_namespaced_secret(namespace)
        assert refused.value.status == 403


def test_delete_collection(api: client.ApiClient, namespace: str) -> None:
    resource = client.ResourceV1Api(api)
    for number in range(3):
        body = bodies.resource_claim(f"claim-{number}")
        body["metadata"]["labels"] = {"keep": "no" if number else "yes"}
        resource.create_namespaced_resource_claim(namespace, body)
    resource.delete_collection_namespaced_resource_claim(namespace, label_selector="keep=no")
    assert [item.metadata.name for item in resource.list_namespaced_resource_claim(namespace).items] == ["claim-0"]


def test_custom_objects(api: client.ApiClient, namespace: str) -> None:
    schema = {
        "type": "object",
        "properties": {
            "spec": {"type": "object", "properties": {"size": {"type": "integer", "maximum": 5, "default": 1}}}
        },
    }
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}},
    }
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "gadgets.clients.example.com"},
        "spec": {
            "group": "clients.example.com",
            "scope": "Namespaced",
            "names": {"plural": "gadgets", "singular": "gadget", "kind": "Gadget", "listKind": "GadgetList"},
            "versions": [version],
        },
    }
    extensions = client.ApiextensionsV1Api(api)
    start = extensions.create_custom_resource_definition(definition).metadata.resource_version
    stream = watch.Watch()
    for event in stream.stream(
        extensions.list_custom_resource_definition,
        resource_version=start,
        field_selector="metadata.name=gadgets.clients.example.com",
        timeout_seconds=20,
    ):
        if any(
            item.type == "Established" and item.status == "True" for item in event["object"].status.conditions or ()
        ):
            stream.stop()
    place = ("clients.example.com", "v1", namespace, "gadgets")
    custom = client.CustomObjectsApi(api)
    body = {"apiVersion": "clients.example.com/v1", "kind": "Gadget", "metadata": {"name": "one"}, "spec": {}}
    made = custom.create_namespaced_custom_object(*place, body)
    assert made["spec"] == {"size": 1}
    patched = custom.patch_namespaced_custom_object(*place, "one", {"spec": {"size": 3}})
    assert patched["spec"] == {"size": 3}
    with pytest.raises(ApiException) as refused:
        custom.patch_namespaced_custom_object(*place, "one", {"spec": {"size": 9}})
    assert refused.value.status == 422
    assert "spec.size" in refused.value.body
    custom.patch_namespaced_custom_object_status(*place, "one", {"status": {"seen": True}})
    assert [item["metadata"]["name"] for item in custom.list_namespaced_custom_object(*place)["items"]] == ["one"]
    gadgets = dynamic.DynamicClient(api).resources.get(api_version="clients.example.com/v1", kind="Gadget")
    assert gadgets.get(name="one", namespace=namespace).spec.size == 3
    custom.delete_namespaced_custom_object(*place, "one")
    extensions.delete_custom_resource_definition("gadgets.clients.example.com")
