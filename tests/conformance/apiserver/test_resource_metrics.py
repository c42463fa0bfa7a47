"""metrics.k8s.io without an agent that answers: discovery, verbs, rights and refusals."""

from __future__ import annotations

import pytest

from dray.api.document import GroupVersion
from dray.api.errors import MethodNotAllowedError, NotFoundError, ServiceUnavailableError
from dray.apiserver.authorization import bootstrap_roles
from dray.apiserver.discovery import api_resource_list
from tests.local_server import Local

GROUP = "metrics.k8s.io/v1beta1"


@pytest.mark.behaviour("EX-47")
async def test_discovery(api: Local) -> None:
    found = api_resource_list(GroupVersion("metrics.k8s.io", "v1beta1"), api.running.server.catalog.endpoints())
    rows = [(item["name"], item["singularName"], item["namespaced"], item["kind"]) for item in found["resources"]]
    assert rows == [("nodes", "", False, "NodeMetrics"), ("pods", "", True, "PodMetrics")]
    assert all(item["verbs"] == ["get", "list"] for item in found["resources"])


@pytest.mark.behaviour("EX-47")
async def test_nodes_that_do_not_answer(api: Local) -> None:
    assert (await api.request("list", f"{GROUP}/pods@default"))["items"] == []
    listing = await api.request("list", f"{GROUP}/nodes")
    assert (listing["kind"], listing["items"]) == ("NodeMetricsList", [])
    with pytest.raises(NotFoundError, match=r'nodes.metrics.k8s.io "n" not found'):
        await api.request("get", f"{GROUP}/nodes/n")
    await api.request("create", "core/v1/nodes", {"metadata": {"name": "n"}})
    for verb, path in (("list", "nodes"), ("get", "nodes/n")):
        with pytest.raises(ServiceUnavailableError):
            await api.request(verb, f"{GROUP}/{path}")
    with pytest.raises(MethodNotAllowedError):
        await api.request("delete", f"{GROUP}/nodes/n")
    with pytest.raises(MethodNotAllowedError):
        await api.request("create", f"{GROUP}/nodes", {"metadata": {"name": "m"}})


@pytest.mark.behaviour("EX-47")
def test_the_role_of_readers_is_part_of_view_edit_and_admin() -> None:
    name = "system:aggregated-metrics-reader"
    assert bootstrap_roles.AGGREGATED_LABELS[name] == ("admin", "edit", "view")
    (rule,) = bootstrap_roles.CLUSTER_ROLES[name]
    assert rule["resources"] == ["nodes", "pods"]
    assert rule["verbs"] == ["get", "list", "watch"]
