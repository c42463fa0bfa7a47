"""Variables of containers, and files of volumes that show API objects."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dray.api.types.core_v1 import ConfigMap, Secret, ServiceAccountTokenProjection
from dray.node.agent.pod.container_spec import VolumeFolder, security_of, volume_mounts
from dray.node.agent.pod.environment import ConfigError, DownwardContext, Sources, environment, expand, referenced
from dray.node.agent.volume_content import File, references, render_volume, token_requests
from dray.node.runtimes.runtime import BindMount
from tests.unit.node.agent.builders import a_container, a_volume, container, pod

AROUND = DownwardContext(
    "n1",
    ("10.0.0.1",),
    ("10.1.0.1", "fd00::1"),
    {"cpu": "4", "memory": "8Gi"},
    {"KUBERNETES_SERVICE_HOST": "10.0.0.9", "DB_HOST": "x"},
)
SOURCES = Sources(
    {"cm": msgspec.convert({"metadata": {"name": "cm"}, "data": {"k": "v", "bad key": "x"}}, ConfigMap)},
    {"s": msgspec.convert({"metadata": {"name": "s"}, "data": {"password": "c2VjcmV0"}}, Secret)},
)
LABELLED = {"labels": {"app": "web", "b": 'q"'}, "annotations": {"note": "hi"}}


def env(*variables: dict[str, Any], **fields: Any) -> dict[str, str]:
    subject = a_container(env=list(variables), **fields)
    return environment(pod(metadata=LABELLED, enableServiceLinks=False), subject, SOURCES, AROUND)


def value_from(**origin: Any) -> dict[str, Any]:
    return {"name": "X", "valueFrom": origin}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("metadata.name", "p"),
        ("metadata.namespace", "ns"),
        ("metadata.uid", "uid-1"),
        ("metadata.labels['app']", "web"),
        ("metadata.annotations['note']", "hi"),
        ("metadata.labels['none']", ""),
        ("spec.nodeName", "n1"),
        ("status.hostIP", "10.0.0.1"),
        ("status.podIP", "10.1.0.1"),
        ("status.podIPs", "10.1.0.1,fd00::1"),
        ("metadata.labels", 'app="web"\nb="q\\""'),
    ],
)
def test_fields_of_the_pod(path: str, expected: str) -> None:
    assert env(value_from(fieldRef={"fieldPath": path}))["X"] == expected


@pytest.mark.parametrize(
    ("resource", "divisor", "expected"),
    [
        ("limits.cpu", None, "2"),
        ("limits.cpu", "1m", "1500"),
        ("requests.memory", "1Mi", "64"),
        ("limits.memory", "1Gi", "8"),
        ("requests.cpu", None, "0"),
    ],
    ids=["rounded up", "in thousandths", "in mebibytes", "the node's when not set", "nothing asked for"],
)
def test_resources_in_units_of_the_divisor(resource: str, divisor: str | None, expected: str) -> None:
    resources = {"limits": {"cpu": "1500m"}, "requests": {"memory": "64Mi"}}
    selector = {"resource": resource, **({"divisor": divisor} if divisor else {})}
    assert env(value_from(resourceFieldRef=selector), resources=resources)["X"] == expected


def test_config_maps_and_secrets() -> None:
    keyed = value_from(configMapKeyRef={"name": "cm", "key": "k"})
    assert env(keyed)["X"] == "v"
    assert env(value_from(secretKeyRef={"name": "s", "key": "password"}))["X"] == "secret"
    whole = env(envFrom=[{"prefix": "P_", "configMapRef": {"name": "cm"}}, {"secretRef": {"name": "s"}}])
    assert whole["P_k"] == "v"
    assert whole["password"] == "secret"
    # What cannot be the name of a variable is left out.
    assert "P_bad key" not in whole


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        (value_from(configMapKeyRef={"name": "no", "key": "k"}), 'configmap "no" not found'),
        (value_from(secretKeyRef={"name": "no", "key": "k"}), 'secret "no" not found'),
        (value_from(configMapKeyRef={"name": "cm", "key": "no"}), "couldn't find key no in ConfigMap ns/cm"),
        (value_from(secretKeyRef={"name": "s", "key": "no"}), "couldn't find key no in Secret ns/s"),
    ],
)
def test_what_is_missing_is_said_in_kubelets_words(variable: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        env(variable)
    assert str(caught.value) == message


def test_optional_references_may_be_missing() -> None:
    assert "X" not in env(value_from(secretKeyRef={"name": "no", "key": "k", "optional": True}))
    assert env(envFrom=[{"configMapRef": {"name": "no", "optional": True}}]).keys() == {
        "KUBERNETES_SERVICE_HOST",
        "DB_HOST",
    }


def test_the_variables_of_services_are_in_the_environment() -> None:
    assert env() == {"KUBERNETES_SERVICE_HOST": "10.0.0.9", "DB_HOST": "x"}
    # The container's own win.
    assert env({"name": "DB_HOST", "value": "y"})["DB_HOST"] == "y"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("$(A)-$(B)", "1-2"), ("$(NO)", "$(NO)"), ("$$(A)", "$(A)"), ("$A", "$A"), ("$", "$"), ("$(A", "$(A")],
)
def test_references_between_variables(text: str, expected: str) -> None:
    assert expand(text, {"A": "1", "B": "2"}) == expected


def test_variables_see_those_before_them() -> None:
    found = env({"name": "A", "value": "1"}, {"name": "B", "value": "$(A)$(C)"}, {"name": "C", "value": "3"})
    assert found["B"] == "1$(C)"


def test_what_must_be_read_first_is_known() -> None:
    subject = a_container(
        env=[value_from(secretKeyRef={"name": "s", "key": "k"})], envFrom=[{"configMapRef": {"name": "cm"}}]
    )
    assert set(referenced(subject)) == {("configmap", "cm"), ("secret", "s")}


# --- Volumes. ---


def files(**volume: Any) -> dict[str, File]:
    tokens = {ServiceAccountTokenProjection(path="token"): "jwt"}
    return render_volume(pod(metadata=LABELLED), a_volume(**volume), SOURCES, tokens, AROUND)


def test_config_map_and_secret_volumes() -> None:
    assert files(configMap={"name": "cm"})["k"] == File(b"v", 0o644)
    items = [{"key": "password", "path": "deep/p", "mode": 0o400}]
    assert files(secret={"secretName": "s", "defaultMode": 0o600, "items": items}) == {"deep/p": File(b"secret", 0o400)}
    assert files(configMap={"name": "no", "optional": True}) == {}
    with pytest.raises(ConfigError, match="references non-existent config key: no"):
        files(configMap={"name": "cm", "items": [{"key": "no", "path": "x"}]})


@pytest.mark.parametrize(("context", "mode"), [({}, 0o644), ({"runAsUser": 1000}, 0o644), ({"fsGroup": 2000}, 0o600)])
def test_every_user_of_the_pod_can_read_its_token(context: dict[str, int], mode: int) -> None:
    """Also the user of an image, which the Pod does not name; with a group, the file gets it, and mode 0640."""
    own = pod(metadata=LABELLED, securityContext=context)
    volume = a_volume(projected={"sources": [{"serviceAccountToken": {"path": "token"}}]})
    tokens = {ServiceAccountTokenProjection(path="token"): "jwt"}
    assert render_volume(own, volume, SOURCES, tokens, AROUND) == {"token": File(b"jwt", mode)}


def test_projected_volumes_put_all_sources_together() -> None:
    sources = [
        {"serviceAccountToken": {"path": "token"}},
        {"configMap": {"name": "cm", "items": [{"key": "k", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
    ]
    found = files(projected={"sources": sources})
    assert found == {"token": File(b"jwt", 0o644), "ca.crt": File(b"v", 0o644), "namespace": File(b"ns", 0o644)}
    volume = a_volume(projected={"sources": sources})
    assert list(references(volume)) == [("configmap", "cm")]
    assert [item.path for item in token_requests(volume)] == ["token"]


def test_a_token_can_be_read_by_a_pod_that_is_not_root() -> None:
    tokens = {ServiceAccountTokenProjection(path="token"): "jwt"}
    volume = a_volume(projected={"sources": [{"serviceAccountToken": {"path": "token"}}]})
    found = render_volume(pod(securityContext={"runAsUser": 1000}), volume, SOURCES, tokens, AROUND)
    assert found["token"].mode == 0o644


# --- What the runtime receives. ---


def test_mounts_of_parts_of_volumes() -> None:
    mounts = [
        {"name": "v", "mountPath": "/data", "readOnly": True},
        {"name": "v", "mountPath": "/part", "subPathExpr": "$(A)/x"},
    ]
    found = volume_mounts(a_container(volumeMounts=mounts), {"v": VolumeFolder("/host/v")}, {"A": "one"})
    assert found == [
        BindMount("/host/v", "/data", read_only=True, volume="v"),
        BindMount("/host/v/one/x", "/part", volume="v", root="/host/v"),
    ]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ({"subPath": "../y"}, "unable to provision SubPath `../y`: must not contain '..'"),
        ({"subPath": "/y"}, "error SubPath `/y` must not be an absolute path"),
        ({"subPathExpr": "$(UP)/y"}, "unable to provision SubPath `../y`: must not contain '..'"),
        ({"subPathExpr": "$(TOP)"}, "error SubPath `/` must not be an absolute path"),
        ({"subPathExpr": "$(B)/$$(NO)/$(A)/$(B)/$(EMPTY)/$(UP)"}, "missing value for A, B, EMPTY"),
    ],
)
def test_a_subpath_must_stay_inside_its_volume(path: dict[str, str], message: str) -> None:
    container = a_container(volumeMounts=[{"name": "v", "mountPath": "/x", **path}])
    with pytest.raises(ConfigError) as caught:
        volume_mounts(container, {"v": VolumeFolder("/v")}, {"UP": "..", "TOP": "/", "EMPTY": ""})
    assert str(caught.value) == message


def test_volumes_that_the_agent_writes_are_mounted_read_only() -> None:
    container = a_container(volumeMounts=[{"name": "v", "mountPath": "/x", "readOnly": False}])
    (mount,) = volume_mounts(container, {"v": VolumeFolder("/v", read_only=True)}, {})
    assert mount.read_only


def test_a_containers_user_wins_over_the_pods() -> None:
    subject = pod(
        container("a", securityContext={"runAsUser": 7}),
        securityContext={"runAsUser": 5, "runAsGroup": 6, "fsGroup": 9, "supplementalGroups": [8]},
    )
    found = security_of(subject, subject.spec.containers[0])
    assert (found.user, found.group, found.supplemental_groups) == (7, 6, (8, 9))


def test_root_that_must_not_be() -> None:
    subject = pod(securityContext={"runAsNonRoot": True, "runAsUser": 0})
    with pytest.raises(ConfigError, match="runAsUser breaks non-root policy"):
        security_of(subject, subject.spec.containers[0])
