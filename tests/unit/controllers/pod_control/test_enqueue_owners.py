"""Who has work when a Pod changes."""

from __future__ import annotations

import random
from typing import Any

import pytest

from dray.api.document import GroupVersionKind, NamespacedName
from dray.api.selectors import LabelSelector
from dray.api.types.apps_v1 import ReplicaSet, ReplicaSetSpec
from dray.api.types.core_v1 import Pod
from dray.api.types.meta_v1 import ObjectMeta, OwnerReference
from dray.client.informer import Informer
from dray.client.interface import ListPage
from dray.client.resources import REPLICA_SETS
from dray.client.shared_informers import EVERYTHING, SharedInformer
from dray.controllers.pod_control.ownership import Owner, enqueue_owners, gone_uid
from tests.unit.controllers.pod_control.pods import pod

KIND = GroupVersionKind("apps", "v1", "ReplicaSet")
WEB, DATABASE = {"app": "web"}, {"app": "database"}


def replica_set(name: str, namespace: str = "team", *, uid: str = "") -> ReplicaSet:
    metadata = ObjectMeta(name=name, namespace=namespace, uid=uid or f"uid-{name}", labels={"app": name})
    return ReplicaSet(metadata=metadata, spec=ReplicaSetSpec())


def owner_of(item: ReplicaSet) -> Owner | None:
    """The selector is the owner's own label; the retired one adopts nothing."""
    if item.metadata.name == "retired":
        return None
    return Owner(KIND, item.metadata, LabelSelector.from_labels(item.metadata.labels))


def held_by(name: str, kind: str = "ReplicaSet", labels: dict[str, str] | None = None) -> Pod:
    reference = OwnerReference(api_version="apps/v1", kind=kind, name=name, uid="u", controller=True)
    return Pod(metadata=ObjectMeta(name="p", namespace="team", labels=labels or {}, owner_references=(reference,)))


def owned_by(name: str, labels: dict[str, str]) -> Pod:
    reference = OwnerReference(api_version="apps/v1", kind="ReplicaSet", name=name, uid="u")
    return Pod(metadata=ObjectMeta(name="p", namespace="team", labels=labels, owner_references=(reference,)))


@pytest.mark.parametrize(
    ("old", "new", "woken"),
    [
        pytest.param(None, held_by("web"), ["web"], id="its controller has a new one"),
        pytest.param(held_by("web"), None, ["web"], id="one is gone"),
        pytest.param(held_by("web"), held_by("database"), ["web", "database"], id="it changed hands"),
        pytest.param(None, held_by("web", kind="DaemonSet"), [], id="a controller of another kind"),
        pytest.param(None, pod(labels=WEB), ["web"], id="an orphan that one could adopt"),
        pytest.param(None, pod(labels={"app": "retired"}), [], id="an orphan of one that adopts no more"),
        pytest.param(None, pod(), [], id="an orphan that matches no owner"),
        pytest.param(pod(labels=WEB), pod(labels=WEB, phase="Failed"), [], id="an orphan that stays as it is"),
        pytest.param(pod(labels=WEB), pod(labels=DATABASE), ["database"], id="an orphan with other labels"),
        pytest.param(held_by("web", labels=WEB), pod(labels=WEB), ["web", "web"], id="one that was let go"),
        pytest.param(None, owned_by("web", labels=WEB), ["web"], id="an orphan with an owner that is no controller"),
        pytest.param(pod(labels=WEB), owned_by("web", labels=WEB), [], id="an orphan that got such an owner"),
    ],
)
def test_who_is_woken(old: Pod | None, new: Pod | None, woken: list[str]) -> None:
    unused: Any = None
    informer: Informer[ReplicaSet] = Informer(EVERYTHING, random.Random(0))
    owners = SharedInformer(unused, REPLICA_SETS, informer, unused)
    informer.start()
    # The one of another namespace could adopt nothing here.
    sets = [replica_set("web"), replica_set("database"), replica_set("retired"), replica_set("web", "elsewhere")]
    informer.page_received(ListPage(sets, "1"))
    keys: list[NamespacedName] = []
    enqueue_owners(owners, owner_of, keys.append)(old, new)
    assert keys == [NamespacedName("team", name) for name in woken]


@pytest.mark.parametrize(
    ("old", "new", "gone"),
    [
        (None, replica_set("web"), None),
        (replica_set("web"), replica_set("web"), None),
        (replica_set("web"), None, "uid-web"),
        (replica_set("web", uid="first"), replica_set("web", uid="second"), "first"),
    ],
    ids=["new", "changed", "deleted", "replaced"],
)
def test_who_is_gone(old: ReplicaSet | None, new: ReplicaSet | None, gone: str | None) -> None:
    assert gone_uid(old, new) == gone
