"""The Pods API of a real agent: a local client sees a Pod come, run and go."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dray.api.document import Document, GroupVersionKind
from dray.api.protobuf.decode import decode_message
from dray.api.schema import load
from dray.rpc.pb.pods.v1alpha1 import api_pb2 as pb
from dray.rpc.pb.pods.v1alpha1.api_pb2_grpc import PodsStub
from dray.rpc.sockets import connect
from tests.e2e.node.harness import Agent, Cluster, shell

WATCH_SECONDS_MAX = 120.0


@pytest.fixture(scope="module")
def runtime() -> str:
    return "process"


def decoded(body: bytes) -> Document:
    pod_type = load.kind_type(GroupVersionKind("", "v1", "Pod"))
    assert pod_type is not None
    return decode_message(body, pod_type)


@pytest.mark.behaviour("N-140")
async def test_a_pod_comes_runs_and_goes(cluster: Cluster, agent: Agent) -> None:
    async with connect(str(agent.root / "pods-api" / "pods-api.sock")) as channel:
        client = PodsStub(channel)
        watch = client.WatchPods(pb.WatchPodsRequest(), wait_for_ready=True)
        while (await watch.read()).type != pb.INITIAL_SYNC_COMPLETE:
            pass
        made = await cluster.run("p", shell("a", 'trap "exit 0" TERM; while true; do sleep 0.05; done'))
        uid = made["metadata"]["uid"]
        seen = await events_until(watch, uid, lambda event, pod: pod.get("status", {}).get("phase") == "Running")
        assert seen[0].type == pb.ADDED
        answer = await client.GetPod(pb.GetPodRequest(podUID=uid))
        assert decoded(answer.pod)["status"]["containerStatuses"][0]["state"]["running"]
        await cluster.delete("p", grace_seconds=1)
        seen = await events_until(watch, uid, lambda event, pod: event.type == pb.DELETED)
        assert decoded(seen[-1].pod)["metadata"]["name"] == "p"
        answer = await client.ListPods(pb.ListPodsRequest())
        assert uid not in [decoded(body)["metadata"]["uid"] for body in answer.pods]
        watch.cancel()


async def events_until(watch: Any, uid: str, condition: Any) -> list[pb.WatchPodsEvent]:
    """Return the events of one Pod up to the first for which the condition holds."""
    seen = []
    async with asyncio.timeout(WATCH_SECONDS_MAX):
        while True:
            event = await watch.read()
            pod = decoded(event.pod)
            if pod["metadata"]["uid"] == uid:
                seen.append(event)
                if condition(event, pod):
                    return seen
