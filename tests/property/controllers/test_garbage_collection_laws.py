"""Random ownership, circles included: exactly what lost all its owners goes, and everything that must go does."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from dray.api.document import Document, GroupVersion
from dray.client.in_process import in_process_client
from dray.client.interface import DeleteOptions, PropagationPolicy, unstructured
from dray.client.resources import PODS as WHOLE_PODS
from dray.client.shared_informers import SharedInformerFactory
from dray.controllers.garbage_collector.reconciler import GarbageCollector
from dray.controllers.reconciler import ControllerContext
from dray.runtime.system import SystemClock
from tests.fake_local_server import FakeLocalServer

PODS = unstructured(GroupVersion("", "v1"), "pods", "Pod")
NAMES = "abcdef"


@dataclass(frozen=True)
class Ownership:
    """Edges (dependent, owner, blocks), and what is deleted how."""

    edges: frozenset[tuple[str, str, bool]]
    deleted: str
    policy: PropagationPolicy

    def owners(self, name: str) -> set[str]:
        return {owner for dependent, owner, _ in self.edges if dependent == name}

    def gone(self) -> set[str]:
        """The slow and simple algorithm: objects whose owners are all gone are deleted."""
        gone = {self.deleted}
        if self.policy is PropagationPolicy.ORPHAN:
            return gone
        while True:
            more = {name for name in NAMES if self.owners(name) and self.owners(name) <= gone} - gone
            if not more:
                return gone
            gone |= more


@st.composite
def ownerships(draw: st.DrawFn) -> Ownership:
    pairs = draw(st.sets(st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)), max_size=10))
    edges = frozenset(
        (dependent, owner, draw(st.booleans())) for dependent, owner in sorted(pairs) if dependent != owner
    )
    return Ownership(edges, draw(st.sampled_from(NAMES)), draw(st.sampled_from(PropagationPolicy)))


def build(server: FakeLocalServer, ownership: Ownership) -> None:
    for name in NAMES:
        references = [
            {"apiVersion": "v1", "kind": "Pod", "name": owner, "uid": f"uid-{owner}", "blockOwnerDeletion": blocks}
            for dependent, owner, blocks in sorted(ownership.edges)
            if dependent == name
        ]
        metadata: Document = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
        if references:
            metadata["ownerReferences"] = references
        server.put("", "pods", {"metadata": metadata})


def state(server: FakeLocalServer) -> dict[str, set[str]]:
    return {
        item["metadata"]["name"]: {owner["name"] for owner in item["metadata"].get("ownerReferences") or ()}
        for item in server.all("pods")
    }


def followed(server: FakeLocalServer) -> bool:
    return any(item.verb == "watch" and item.resource == "pods" for item in server.requests)


async def collect(ownership: Ownership, *, shared: bool) -> None:
    server = FakeLocalServer()
    build(server, ownership)
    gone = ownership.gone()
    expected = {name: ownership.owners(name) - gone for name in NAMES if name not in gone}
    client, clock = in_process_client(server, user="test"), SystemClock()
    informers = SharedInformerFactory(client, clock, random.Random(1))
    collector = GarbageCollector(ControllerContext(client, informers, clock), shared=(WHOLE_PODS,) if shared else ())
    tasks = [asyncio.create_task(informers.run()), asyncio.create_task(collector.run())]
    try:
        async with asyncio.timeout(30):
            while not followed(server):  # noqa: ASYNC110 - the condition is the server's state
                await asyncio.sleep(0)
            options = DeleteOptions(propagation_policy=ownership.policy)
            await client.delete(PODS, ownership.deleted, "default", options)
            while state(server) != expected:  # noqa: ASYNC110 - the condition is the server's state
                await asyncio.sleep(0)
        # And nothing more happens.
        for _ in range(200):
            await asyncio.sleep(0)
    except TimeoutError:
        pass
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert state(server) == expected


@settings(max_examples=150, deadline=None)
@given(ownership=ownerships(), shared=st.booleans())
def test_exactly_what_lost_all_its_owners_goes(ownership: Ownership, *, shared: bool) -> None:
    asyncio.run(collect(ownership, shared=shared))
