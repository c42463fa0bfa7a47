"""Seconds of 64 bits and times at the end of the calendar: their sum is beyond all times, and stops nobody."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from dray.api.document import Document
from tests.e2e.apiserver.calls import Caller, calling
from tests.servers import Server, running_server

SECONDS_MAX = 120.0
ENDLESS: Final = (1 << 63) - 1
# Beyond the last time, but not beyond all lengths of time.
LONG: Final = 10**12
LAST: Final = "9999-12-31T23:59:59Z"
CORE, APPS, BATCH = (
    "/api/v1/namespaces/default",
    "/apis/apps/v1/namespaces/default",
    "/apis/batch/v1/namespaces/default",
)
PODS = f"{CORE}/pods"
MERGE = "application/merge-patch+json"
CONTAINERS = [{"name": "c", "image": "i", "command": ["sleep", "1000"]}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    flags = ("--node", "--node-runtime=process", f"--node-root-dir={folder}/node", "--store=memory")
    with running_server(folder, *flags) as server:
        yield server


@pytest.fixture
def api(server: Server) -> Iterator[Caller]:
    with calling(server) as found:
        wait(lambda: found.get(f"{CORE}/serviceaccounts/default").status == 200)
        yield found


def wait(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def create(api: Caller, path: str, name: str, spec: Document) -> None:
    answer = api.call("POST", path, {"metadata": {"name": name}, "spec": spec})
    assert answer.status == 201, answer.body


def start(api: Caller, name: str, **spec: Any) -> None:
    create(api, PODS, name, {"containers": CONTAINERS, **spec})
    wait(lambda: api.get(f"{PODS}/{name}").json()["status"].get("phase") == "Running")


def is_gone(api: Caller, name: str) -> bool:
    return api.get(f"{PODS}/{name}").status == 404


def crashes(server: Server) -> list[str]:
    return [line for line in server.log.read_text().splitlines() if "crashed" in line or "Traceback" in line]


@pytest.mark.parametrize("seconds", [ENDLESS, LONG])
def test_a_pod_with_an_endless_grace_period_can_be_deleted(server: Server, api: Caller, seconds: int) -> None:
    name = f"grace-{seconds}"
    start(api, name, terminationGracePeriodSeconds=seconds)
    deleted = api.call("DELETE", f"{PODS}/{name}")
    assert deleted.status == 200, deleted.body
    again = api.call("DELETE", f"{PODS}/{name}?gracePeriodSeconds=1")
    assert again.status == 200, again.body
    wait(lambda: is_gone(api, name))
    assert crashes(server) == []


@pytest.mark.parametrize("seconds", [ENDLESS, LONG, -ENDLESS])
def test_a_deletion_with_an_endless_grace_period_is_accepted(server: Server, api: Caller, seconds: int) -> None:
    name = f"deleted{seconds}"
    start(api, name, terminationGracePeriodSeconds=1)
    body = {"metadata": {"name": name}, "deleteOptions": {"gracePeriodSeconds": seconds}}
    evicted = api.call("POST", f"{PODS}/{name}/eviction", body)
    assert evicted.status == 201, evicted.body
    assert api.call("DELETE", f"{PODS}/{name}?gracePeriodSeconds={seconds}").status in (200, 404)
    api.call("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")
    wait(lambda: is_gone(api, name))
    assert crashes(server) == []


@pytest.mark.parametrize("query", [f"sinceSeconds={ENDLESS}", f"sinceSeconds={LONG}", f"sinceTime={LAST}"])
def test_logs_since_the_beginning_or_the_end_of_time(api: Caller, query: str) -> None:
    if is_gone(api, "logs"):
        start(api, "logs")
    assert api.get(f"{PODS}/logs/log?{query}").status == 200


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_a_time_that_is_beyond_the_calendar_in_utc_is_refused(api: Caller, text: str) -> None:
    answer = api.call("POST", f"{CORE}/configmaps", {"metadata": {"name": "c", "creationTimestamp": text}})
    assert answer.status == 400, answer.body
    assert f'parsing time "{text}": year out of range' in answer.message


def test_controllers_and_node_go_on_beside_objects_with_endless_times(server: Server, api: Caller) -> None:
    toleration = {"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": ENDLESS}
    start(api, "tolerating", tolerations=[toleration])
    probe = {"exec": {"command": ["true"]}, "initialDelaySeconds": 2**31 - 1, "terminationGracePeriodSeconds": ENDLESS}
    start(api, "probed", containers=[{**CONTAINERS[0], "livenessProbe": probe}])
    start(api, "evicted", terminationGracePeriodSeconds=ENDLESS)
    template = {"spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": ENDLESS, "containers": CONTAINERS}}
    labelled = {"spec": {"containers": CONTAINERS}, "metadata": {"labels": {"app": "a"}}}
    create(api, f"{BATCH}/jobs", "endless", {"activeDeadlineSeconds": ENDLESS, "template": template})
    for number, schedule in enumerate(("* * * * *", "@every 2562047h47m16s")):
        spec = {
            "schedule": schedule,
            "startingDeadlineSeconds": ENDLESS,
            "jobTemplate": {"spec": {"template": template}},
        }
        create(api, f"{BATCH}/cronjobs", f"endless-{number}", spec)
    last = {"lastScheduleTime": LAST, "lastSuccessfulTime": LAST}
    assert api.call("PATCH", f"{BATCH}/cronjobs/endless-0/status", {"status": last}, content_type=MERGE).status == 200
    limits = {"minReadySeconds": 2**31 - 2, "progressDeadlineSeconds": 2**31 - 1}
    create(
        api,
        f"{APPS}/deployments",
        "endless",
        {**limits, "selector": {"matchLabels": {"app": "a"}}, "template": labelled},
    )
    conditions = [{"type": "Ready", "status": "True", "lastTransitionTime": LAST}]
    for pod in api.get(f"{PODS}?labelSelector=app=a").json()["items"]:
        path = f"{PODS}/{pod['metadata']['name']}/status"
        assert api.call("PATCH", path, {"status": {"conditions": conditions}}, content_type=MERGE).status == 200
    (node,) = api.get("/api/v1/nodes").json()["items"]
    taints = [{"key": "k", "effect": "NoExecute"}]
    path = f"/api/v1/nodes/{node['metadata']['name']}"
    assert api.call("PATCH", path, {"spec": {"taints": taints}}, content_type=MERGE).status == 200
    wait(lambda: api.get(f"{PODS}/evicted").json()["metadata"].get("deletionTimestamp"))
    assert api.call("PATCH", path, {"spec": {"taints": None}}, content_type=MERGE).status == 200
    assert "deletionTimestamp" not in api.get(f"{PODS}/tolerating").json()["metadata"]
    # Namespaces end with such Pods in them.
    start(api, "after")
    api.call("DELETE", f"{PODS}/evicted?gracePeriodSeconds=1")
    wait(lambda: is_gone(api, "evicted"))
    assert crashes(server) == []
