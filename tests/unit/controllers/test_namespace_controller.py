"""The namespace and service account controllers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest

from dray.api.document import Document, GroupResource
from dray.api.errors import ForbiddenError, ServiceUnavailableError
from dray.client.controller import Requeue
from dray.client.in_process import in_process_client
from dray.client.interface import ListPage
from dray.client.resources import NAMESPACES
from dray.client.rest import RestClient
from dray.client.shared_informers import SharedInformerFactory
from dray.controllers.namespace.plan import Outcome, plan_conditions
from dray.controllers.namespace.reconciler import NamespaceController
from dray.controllers.reconciler import ControllerContext
from dray.controllers.service_account.plan import plan_namespace
from dray.controllers.service_account.reconciler import RECHECK_SECONDS, ServiceAccountController
from dray.runtime.system import SystemClock
from tests.fake_local_server import FakeLocalServer, fail

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def namespace(name: str) -> Document:
    return {"metadata": {"name": name}, "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - the condition is the server's state
            await asyncio.sleep(0.001)


@asynccontextmanager
async def controlled(
    server: FakeLocalServer,
    make: Callable[[RestClient, SharedInformerFactory], NamespaceController | ServiceAccountController],
) -> AsyncIterator[RestClient]:
    client = in_process_client(server, user="system:kube-controller-manager")
    informers = SharedInformerFactory(client, SystemClock(), random.Random(1))
    controller = make(client, informers)
    tasks = [asyncio.create_task(informers.run()), asyncio.create_task(controller.run())]
    try:
        yield client
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def emptier(client: RestClient, informers: SharedInformerFactory) -> NamespaceController:
    return NamespaceController(ControllerContext(client, informers, SystemClock()))


async def test_a_deleted_namespace_is_emptied_and_goes() -> None:
    server = FakeLocalServer()
    server.put("", "namespaces", namespace("a"))
    for name in ("x", "y"):
        server.put("", "configmaps", {"metadata": {"name": name, "namespace": "a"}})
    server.put("", "configmaps", {"metadata": {"name": "kept", "namespace": "b"}})
    async with controlled(server, emptier) as client:
        await client.delete(NAMESPACES, "a")
        await until(lambda: server.find("namespaces", "a") is None)
    assert [item["metadata"]["name"] for item in server.all("configmaps")] == ["kept"]


async def test_remaining_objects_are_reported_and_waited_for() -> None:
    server = FakeLocalServer()
    server.put("", "namespaces", namespace("a"))
    server.put("", "pods", {"metadata": {"name": "p", "namespace": "a", "finalizers": ["example.com/hold"]}})
    server.put("", "configmaps", {"metadata": {"name": "needed", "namespace": "a"}})

    def conditions() -> dict[str, Document]:
        found = server.find("namespaces", "a") or {}
        return {item["type"]: item for item in found.get("status", {}).get("conditions", ())}

    async with controlled(server, emptier) as client:
        await client.delete(NAMESPACES, "a")
        await until(lambda: "NamespaceContentRemaining" in conditions())
        reported = conditions()
        assert reported["NamespaceContentRemaining"]["message"] == (
            "Some resources are remaining: pods. has 1 resource instances"
        )
        assert reported["NamespaceFinalizersRemaining"]["message"] == (
            "Some content in the namespace has finalizers remaining: example.com/hold in 1 resource instances"
        )
        assert reported["NamespaceDeletionContentFailure"]["status"] == "False"
        # Pods go first: what they need is still there.
        assert server.find("configmaps", "needed", "a")
        server.remove("", "pods", "p", "a")
        await until(lambda: server.find("namespaces", "a") is None)
    assert server.all("configmaps") == []


async def test_failures_are_reported_and_retried() -> None:
    server = FakeLocalServer()
    server.put("", "namespaces", namespace("a"))
    server.put("", "configmaps", {"metadata": {"name": "x", "namespace": "a"}})
    server.before = fail(3, ServiceUnavailableError("not now"), verb="deletecollection")
    async with controlled(server, emptier) as client:
        await client.delete(NAMESPACES, "a")
        await until(lambda: server.find("namespaces", "a") is None)
    versions = [obj for _, _, (_, plural), obj in server.history if plural == "namespaces"]
    reported = [item for obj in versions for item in obj["status"].get("conditions", ())]
    failures = [item for item in reported if item["type"] == "NamespaceDeletionContentFailure"]
    assert failures[0]["reason"] == "ContentDeletionFailed"
    assert "configmaps: not now" in failures[0]["message"]


async def test_a_namespace_stays_while_a_group_cannot_be_discovered() -> None:
    server = FakeLocalServer()
    server.put("", "namespaces", namespace("a"))
    server.put("", "configmaps", {"metadata": {"name": "x", "namespace": "a"}})
    server.put("coordination.k8s.io", "leases", {"metadata": {"name": "hidden", "namespace": "a"}})
    error = ServiceUnavailableError("not now")
    server.before = fail(3, error, path="/apis/coordination.k8s.io/v1")
    async with controlled(server, emptier) as client:
        await client.delete(NAMESPACES, "a")
        await until(lambda: server.find("namespaces", "a") is None)
    assert server.all("leases") == []
    versions = [obj for _, _, (_, plural), obj in server.history if plural == "namespaces"]
    reported = [item for obj in versions for item in obj["status"].get("conditions", ())]
    failures = [item for item in reported if item["type"] == "NamespaceDeletionDiscoveryFailure"]
    assert (failures[0]["status"], failures[0]["reason"]) == ("True", "DiscoveryFailed")
    assert failures[0]["message"] == (
        "Discovery failed for some groups, 1 failing: unable to retrieve the complete list of server APIs: "
        "coordination.k8s.io/v1: not now"
    )


def test_conditions_that_did_not_change_are_not_written() -> None:
    outcome = Outcome(remaining={GroupResource("", "pods"): 2, GroupResource("apps", "deployments"): 1})
    first = plan_conditions((), outcome, NOW)
    assert first is not None
    assert first[3]["message"] == (
        "Some resources are remaining: deployments.apps has 1 resource instances, pods. has 2 resource instances"
    )
    assert plan_conditions(first, outcome, datetime(2026, 1, 2, tzinfo=UTC)) is None
    fewer = plan_conditions(first, Outcome(remaining={GroupResource("", "pods"): 1}), datetime(2026, 1, 2, tzinfo=UTC))
    assert fewer is not None
    # The status stayed True, so the time of its change did too.
    assert fewer[3]["lastTransitionTime"] == "2026-01-01T00:00:00Z"


# --- Service accounts. ---


def furnisher(client: RestClient, informers: SharedInformerFactory) -> ServiceAccountController:
    return ServiceAccountController(ControllerContext(client, informers, SystemClock()), root_ca="PEM")


async def test_namespaces_are_furnished_and_stay_so() -> None:
    server = FakeLocalServer()
    server.put("", "namespaces", namespace("old"))
    async with controlled(server, furnisher) as client:
        await until(lambda: server.find("serviceaccounts", "default", "old"))
        await client.create(NAMESPACES, namespace("new"))
        await until(lambda: server.find("serviceaccounts", "default", "new"))
        await until(lambda: server.find("configmaps", "kube-root-ca.crt", "new"))
        server.remove("", "serviceaccounts", "default", "new")
        await until(lambda: server.find("serviceaccounts", "default", "new"))
        spoiled = {"metadata": {"name": "kube-root-ca.crt", "namespace": "old"}, "data": {"ca.crt": "EVIL"}}
        await until(lambda: server.find("configmaps", "kube-root-ca.crt", "old"))
        server.put("", "configmaps", spoiled)
        await until(lambda: (server.find("configmaps", "kube-root-ca.crt", "old") or {})["data"] == {"ca.crt": "PEM"})


async def test_a_namespace_that_ends_meanwhile_is_left_alone() -> None:
    server = FakeLocalServer()
    server.put("", "namespaces", namespace("a"))
    terminating = ForbiddenError(
        GroupResource("", "serviceaccounts"), "default", "because it is being terminated",
        causes=[{"reason": "NamespaceTerminating"}],
    )  # fmt: skip
    server.before = fail(1, terminating, verb="create", resource="serviceaccounts")
    async with controlled(server, furnisher):
        await until(lambda: server.find("configmaps", "kube-root-ca.crt", "a"))
    creations = [item for item in server.requests if item.verb == "create" and item.resource == "serviceaccounts"]
    assert creations


@pytest.mark.parametrize("given", [None, {"metadata": {"name": "a", "deletionTimestamp": "2026-01-01T00:00:00Z"}}])
def test_nothing_is_planned_for_a_namespace_that_is_gone_or_going(given: Document | None) -> None:
    planned = plan_namespace(given, None, None, "PEM")
    assert (planned.create_service_account, planned.create_config_map, planned.update_config_map) == (None, None, None)


async def test_defaults_that_vanish_before_they_are_observed_are_made_again() -> None:
    server = FakeLocalServer()
    server.put("", "namespaces", namespace("a"))
    client = in_process_client(server, user="system:kube-controller-manager")
    informers = SharedInformerFactory(client, SystemClock(), random.Random(1))
    controller = furnisher(client, informers)
    cache = informers.informer(NAMESPACES)._informer
    cache.start()
    cache.page_received(ListPage((namespace("a"),), "1"))
    assert await controller.reconcile("a") == Requeue(RECHECK_SECONDS)
    server.remove("", "serviceaccounts", "default", "a")
    # No event came: the cache never had it.
    assert await controller.reconcile("a") == Requeue(RECHECK_SECONDS)
    assert server.find("serviceaccounts", "default", "a")
