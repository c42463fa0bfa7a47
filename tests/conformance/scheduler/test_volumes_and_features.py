"""VolumeBinding with bound volumes, VolumeRestrictions, and NodeDeclaredFeatures (kube-scheduler 1.36)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dray.api.types.core_v1 import Node
from dray.framework.events import (
    ASSIGNED_POD,
    NODE,
    PERSISTENT_VOLUME_CLAIM,
    UNSCHEDULED_POD,
    Action,
    ClusterEvent,
    Hint,
)
from dray.framework.node_info import NodeInfo
from dray.framework.pod_info import PodInfo
from dray.framework.status import SUCCESS, Code
from dray.scheduler.plugins.node_declared_features import NodeDeclaredFeatures
from dray.scheduler.plugins.volume_binding import VolumeBinding
from dray.scheduler.plugins.volume_restrictions import VolumeRestrictions
from tests.unit.scheduler.builders import container, handle, node, node_info, pod, pod_info, state

NODES = [node_info("a", labels={"zone": "a"}), node_info("b", labels={"zone": "b"})]
USES: dict[str, Any] = {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}
EPHEMERAL: dict[str, Any] = {"volumes": [{"name": "v", "ephemeral": {}}]}


def claim(name: str = "c", *, volume: str = "pv", phase: str = "Bound", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"volumeName": volume, **spec},
        "status": {"phase": phase},
    }


def volume(zone: str = "", kind: str = "local") -> dict[str, Any]:
    spec: dict[str, Any] = {kind: {}}
    if zone:
        term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]}
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [term]}}
    return {"metadata": {"name": "pv"}, "spec": spec}


def answers(spec: Any, claims: Any = (), volumes: Any = (), *, lenient: bool = False) -> Any:
    """The rejection before any node, or that of each rejected node."""
    plugin = VolumeBinding(
        {}, handle(*NODES, persistentvolumeclaims=claims, persistentvolumes=volumes), lenient=lenient
    )
    info = pod_info("p", **spec)
    attempt = state(info)
    _, status = plugin.pre_filter(attempt, info.pod)
    if status.code is Code.SKIP:
        return {}
    if not status.is_success:
        assert status.code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE
        return status.message
    found = {item.name: plugin.filter(attempt, info.pod, item) for item in NODES}
    assert all(item is SUCCESS or item.code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE for item in found.values())
    return {name: item.message for name, item in found.items() if item is not SUCCESS}


DELETED = claim() | {"metadata": {"name": "c", "namespace": "default", "deletionTimestamp": "2026-01-01T00:00:00Z"}}
NO_AFFINITY = "node(s) didn't match PersistentVolume's node affinity"
NO_VOLUME = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"


@pytest.mark.behaviour("SC-04", "SC-05", "SC-06")
@pytest.mark.parametrize(
    ("spec", "claims", "volumes", "expected"),
    [
        ({}, [], [], {}),
        ({"volumes": [{"name": "v", "emptyDir": {}}]}, [], [], {}),
        (USES, [], [], 'persistentvolumeclaim "c" not found'),
        (
            EPHEMERAL,
            [],
            [],
            'waiting for ephemeral volume controller to create the persistentvolumeclaim "p-v"',
        ),
        (
            USES,
            [claim(phase="Lost")],
            [],
            'persistentvolumeclaim "c" bound to non-existent persistentvolume "pv"',
        ),
        (USES, [DELETED], [volume()], 'persistentvolumeclaim "c" is being deleted'),
        (USES, [claim(volume="", phase="Pending")], [], "pod has unbound immediate PersistentVolumeClaims"),
        (USES, [claim()], [volume()], {}),
        (USES, [claim()], [volume("a")], {"b": NO_AFFINITY}),
        (USES, [claim()], [volume("a", "hostPath")], {"b": NO_AFFINITY}),
        (USES, [claim()], [], {"a": NO_VOLUME, "b": NO_VOLUME}),
        (EPHEMERAL, [claim("p-v")], [volume("b")], {"a": NO_AFFINITY}),
        (
            USES,
            [claim()],
            [volume("a", "csi")],
            'persistentvolumeclaim "c": only local and hostPath volumes are supported by this scheduler',
        ),
        (USES, [claim(accessModes=["ReadWriteOncePod"])], [volume()], {}),
    ],
)
def test_volumes(spec: Any, claims: Any, volumes: Any, expected: Any) -> None:
    assert answers(spec, claims, volumes) == expected


DELAYED = {"metadata": {"name": "local"}, "volumeBindingMode": "WaitForFirstConsumer"}
NONE_AVAILABLE = "node(s) didn't find available persistent volumes to bind"


def available(name: str, zone: str, size: str) -> dict[str, Any]:
    found = volume(zone)
    found["spec"] |= {"storageClassName": "local", "capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"]}
    return found | {"metadata": {"name": name}, "status": {"phase": "Available"}}


def waiting(name: str, size: str = "1Gi") -> dict[str, Any]:
    resources = {"requests": {"storage": size}}
    found = claim(name, volume="", phase="Pending", storageClassName="local", resources=resources)
    found["metadata"]["uid"] = f"uid-{name}"
    return found


@pytest.mark.behaviour("SC-06")
def test_reserved_volumes_are_kept_from_other_claims() -> None:
    volumes = [available("small", "a", "1Gi"), available("large", "a", "9Gi"), available("other", "b", "1Mi")]
    parts = handle(
        *NODES,
        persistentvolumeclaims=[waiting("c"), waiting("d")],
        persistentvolumes=volumes,
        storageclasses=[DELAYED],
    )
    plugin = VolumeBinding({}, parts)

    def place(name: str) -> tuple[Any, dict[str, str]]:
        info = pod_info(name, volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": name}}])
        attempt = state(info)
        assert plugin.pre_filter(attempt, info.pod)[1].is_success
        return attempt, {item.name: plugin.filter(attempt, info.pod, item).message for item in NODES}

    def chosen(attempt: Any) -> list[str]:
        return [item["metadata"]["name"] for _, item in attempt["VolumeBinding"].chosen["a"]]

    first, found = place("c")
    assert found == {"a": "", "b": NONE_AVAILABLE}
    assert chosen(first) == ["small"]
    plugin.reserve(first, pod(), "a")
    second, _ = place("d")
    assert chosen(second) == ["large"]
    plugin.reserve(second, pod(), "a")
    third, found = place("c")
    # What is reserved for the claim itself is its own.
    assert chosen(third) == ["small"]
    plugin.unreserve(first, pod(), "a")
    plugin.unreserve(second, pod(), "a")
    assert chosen(place("d")[0]) == ["small"]


LOCAL = DELAYED | {"provisioner": "dray.dev/local"}


@pytest.mark.behaviour("ST-43")
@pytest.mark.parametrize(
    ("selected", "mode", "storage_class", "fits"),
    [
        ("", "Filesystem", LOCAL, ["b"]),
        ("b", "Filesystem", LOCAL, ["b"]),
        ("a", "Filesystem", LOCAL, []),
        ("", "Block", LOCAL, []),
        ("", "Filesystem", DELAYED | {"provisioner": "csi.example.com"}, []),
        ("", "Filesystem", DELAYED, []),
    ],
)
def test_a_volume_can_be_provisioned_on_nodes_that_have_a_folder_for_it(
    selected: str, mode: str, storage_class: Any, fits: list[str]
) -> None:
    wanted = waiting("c")
    wanted["spec"]["volumeMode"] = mode
    if selected:
        wanted["metadata"]["annotations"] = {"volume.kubernetes.io/selected-node": selected}
    plain, able = node("a"), node("b")
    metadata = msgspec.structs.replace(able.metadata, annotations={"dray.dev/local-volumes": "/volumes"})
    nodes = [NodeInfo(plain), NodeInfo(msgspec.structs.replace(able, metadata=metadata))]
    parts = handle(*nodes, persistentvolumeclaims=[wanted], persistentvolumes=[], storageclasses=[storage_class])
    plugin, info = VolumeBinding({}, parts), pod_info("p", **USES)
    attempt = state(info)
    assert plugin.pre_filter(attempt, info.pod)[1].is_success
    found = {item.name: plugin.filter(attempt, info.pod, item) for item in nodes}
    assert [name for name, status in found.items() if status is SUCCESS] == fits
    assert all(status.message == NONE_AVAILABLE for name, status in found.items() if name not in fits)


def test_a_lenient_plugin_evaluates_what_it_can() -> None:
    assert answers(USES, [claim()], [volume("a", "csi")], lenient=True) == {"b": NO_AFFINITY}
    assert answers(USES, [claim(volume="", phase="Pending")], [], lenient=True) == {}


@pytest.mark.behaviour("SC-05")
@pytest.mark.parametrize(("name", "wakes"), [("c", True), ("other", False)])
def test_a_change_of_the_pods_own_claim_requeues_it(name: str, wakes: bool) -> None:
    event = ClusterEvent(PERSISTENT_VOLUME_CLAIM, Action.UPDATE)
    registered = [item for item in VolumeBinding({}, handle()).events_to_register() if item.event.covers(event)]
    assert [item.hint is None or item.hint(pod(**USES), None, claim(name)) is Hint.QUEUE for item in registered] == [
        wakes
    ]


# --- Claims that one Pod may use. ---

IN_USE = (
    "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod"
)


def exclusive_attempt(mode: str, others: list[PodInfo], spec: Any) -> tuple[VolumeRestrictions, Any, list[NodeInfo]]:
    nodes = [node_info("a", pods=others), node_info("b")]
    parts = handle(*nodes, persistentvolumeclaims=[claim(accessModes=[mode]), claim("p-v", accessModes=[mode])])
    plugin, info = VolumeRestrictions(parts), pod_info("p", **spec)
    attempt = state(info)
    _, status = plugin.pre_filter(attempt, info.pod)
    return plugin, None if status.code is Code.SKIP else attempt, nodes


@pytest.mark.behaviour("ST-43", "SC-06")
@pytest.mark.parametrize(
    ("mode", "spec", "other", "namespace", "expected"),
    [
        ("ReadWriteOncePod", USES, USES, "default", IN_USE),
        ("ReadWriteOncePod", USES, USES, "elsewhere", ""),
        ("ReadWriteOncePod", USES, {}, "default", ""),
        ("ReadWriteOncePod", EPHEMERAL, USES, "default", ""),
        ("ReadWriteOnce", USES, USES, "default", None),
        ("ReadWriteOncePod", {}, USES, "default", None),
    ],
)
def test_a_claim_of_one_pod_is_used_by_one_pod(
    mode: str, spec: Any, other: Any, namespace: str, expected: str | None
) -> None:
    plugin, attempt, nodes = exclusive_attempt(mode, [pod_info("q", namespace=namespace, **other)], spec)
    if expected is None:
        assert attempt is None
        return
    assert {plugin.filter(attempt, pod(), item).message for item in nodes} == {expected}


@pytest.mark.behaviour("ST-43")
def test_preemption_frees_a_claim_of_one_pod() -> None:
    user = pod_info("q", **USES)
    plugin, attempt, (first, _) = exclusive_attempt("ReadWriteOncePod", [user], USES)
    copy = attempt.clone()
    plugin.remove_pod(copy, pod(), user, first)
    assert plugin.filter(copy, pod(), first) is SUCCESS
    plugin.add_pod(copy, pod(), user, first)
    assert plugin.filter(copy, pod(), first).code is Code.UNSCHEDULABLE
    assert plugin.filter(attempt, pod(), first).code is Code.UNSCHEDULABLE


@pytest.mark.behaviour("ST-43")
def test_the_users_of_claims_follow_the_snapshot() -> None:
    """One view for all attempts: a Pod that is gone counts no more."""
    user = pod_info("q", **USES)
    nodes = [node_info("a", pods=[user])]
    parts = handle(*nodes, persistentvolumeclaims=[claim(accessModes=["ReadWriteOncePod"])])
    plugin, info = VolumeRestrictions(parts), pod_info("p", **USES)

    def found() -> Any:
        attempt = state(info)
        plugin.pre_filter(attempt, info.pod)
        return plugin.filter(attempt, info.pod, parts.snapshot.nodes[0]).message

    assert found() == IN_USE
    parts.snapshot.replace(nodes[0].without_pod(user.uid))
    assert found() == ""


@pytest.mark.behaviour("ST-43")
@pytest.mark.parametrize(("other", "wakes"), [(USES, True), ({}, False)])
def test_the_end_of_a_pod_with_the_claim_requeues_others(other: Any, wakes: bool) -> None:
    event = ClusterEvent(ASSIGNED_POD, Action.DELETE)
    plugin = VolumeRestrictions(handle())
    (registered,) = [item for item in plugin.events_to_register() if item.event.covers(event)]
    assert registered.hint is not None
    assert (registered.hint(pod(**USES), pod("q", **other), None) is Hint.QUEUE) is wakes


# --- Declared features. ---

RESTARTS: dict[str, Any] = {"containers": [container(restartPolicyRules=[{"action": "RestartAllContainers"}])]}
HOST_USERS: dict[str, Any] = {"hostNetwork": True, "hostUsers": False}
MOUNT: dict[str, Any] = {"name": "v", "mountPath": "/v", "bindMountOptions": ["noexec"]}
MOUNT_OPTIONS: dict[str, Any] = {"initContainers": [container(volumeMounts=[MOUNT])]}


def declaring(*features: str) -> Node:
    plain = node("n")
    return msgspec.structs.replace(plain, status=msgspec.structs.replace(plain.status, declared_features=features))


@pytest.mark.behaviour("SC-07", "N-111")
@pytest.mark.parametrize(
    ("spec", "features", "fits"),
    [
        ({}, (), True),
        ({"hostNetwork": True}, (), True),
        (RESTARTS, (), False),
        (RESTARTS, ("RestartAllContainersOnContainerExits",), True),
        (HOST_USERS, ("RestartAllContainersOnContainerExits",), False),
        (HOST_USERS, ("A", "UserNamespacesHostNetworkSupport"), True),
        (RESTARTS | HOST_USERS, ("UserNamespacesHostNetworkSupport",), False),
        (MOUNT_OPTIONS, ("RestartAllContainersOnContainerExits",), False),
        (MOUNT_OPTIONS, ("VolumeBindMountOptions",), True),
    ],
)
def test_declared_features(spec: Any, features: tuple[str, ...], fits: bool) -> None:
    plugin, info = NodeDeclaredFeatures(), pod_info(**spec)
    attempt = state(info)
    _, status = plugin.pre_filter(attempt, info.pod)
    if status.code is Code.SKIP:
        assert fits
        return
    found = plugin.filter(attempt, info.pod, NodeInfo(declaring(*features)))
    assert (found is SUCCESS) is fits
    if not fits:
        assert (found.code, found.message) == (
            Code.UNSCHEDULABLE_AND_UNRESOLVABLE,
            "node(s) didn't match Pod's required features",
        )


@pytest.mark.behaviour("SC-07")
@pytest.mark.parametrize(
    ("resource", "action", "old", "new", "wakes"),
    [
        (NODE, Action.ADD, None, declaring("RestartAllContainersOnContainerExits"), True),
        (NODE, Action.ADD, None, declaring(), False),
        (NODE, Action.UPDATE_OTHER, declaring(), declaring("RestartAllContainersOnContainerExits"), True),
        (
            NODE,
            Action.UPDATE_OTHER,
            declaring("RestartAllContainersOnContainerExits"),
            declaring("RestartAllContainersOnContainerExits", "X"),
            False,
        ),
        (UNSCHEDULED_POD, Action.UPDATE_OTHER, pod(**RESTARTS), pod(), True),
        (UNSCHEDULED_POD, Action.UPDATE_OTHER, pod(), pod(), False),
    ],
)
def test_feature_hints(resource: str, action: Action, old: Any, new: Any, wakes: bool) -> None:
    event = ClusterEvent(resource, action)
    registered = [item for item in NodeDeclaredFeatures().events_to_register() if item.event.covers(event)]
    assert [item.hint is not None and item.hint(pod(**RESTARTS), old, new) is Hint.QUEUE for item in registered] == [
        wakes
    ]
