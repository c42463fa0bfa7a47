"""No device is used twice while hardware moves between a device plugin and a DRA driver, and classes change."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from dray.allocator import Allocations, Allocator, Inventory
from dray.api.codec import from_document
from dray.api.extended_resources import ClassResources
from dray.api.types.meta_v1 import ObjectMeta
from dray.api.types.resource_v1 import DeviceClass, DeviceClassSpec, ResourceClaim, ResourceClaimStatus, ResourceSlice
from dray.framework.cycle_state import CycleState
from dray.framework.node_info import NodeInfo
from dray.framework.pod_info import PodInfo
from dray.framework.resources import pod_requests
from dray.scheduler.plugins.dynamic_resources.extended_resources import needs_of, plan_requests
from dray.scheduler.plugins.dynamic_resources.pod_state import ClaimsOfPod, PodState, Variant
from dray.scheduler.plugins.dynamic_resources.variants import Variants, extended_names
from dray.scheduler.plugins.node_resources_fit import NodeResourcesFit
from tests.unit.scheduler.builders import container, handle, node, pod

GPU = "example.com/gpu"
CARDS = 3
STEPS = 50
NODES = ("n0", "n1")
CLASSES = ("a", "b")
START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Cluster:
    """Nodes with CARDS cards each, managed by the device plugin, by the DRA driver, or by neither."""

    inventory: Inventory = field(default_factory=Inventory)
    allocations: Allocations = field(default_factory=Allocations)
    resources: ClassResources = field(default_factory=ClassResources)
    nodes: dict[str, NodeInfo] = field(default_factory=dict)
    claims: dict[str, ResourceClaim] = field(default_factory=dict)
    count: int = 0

    def __post_init__(self) -> None:
        self.allocator = Allocator(self.inventory, self.allocations)
        self.variants = Variants(self.resources, self.allocator.usage, enabled=True)
        given_to_plugins = handle()
        given_to_plugins.extended_resources.register(self)
        self.fit = NodeResourcesFit({}, given_to_plugins)
        for name in NODES:
            self.nodes[name] = NodeInfo(node(name))

    def serves_resource(self, name: str) -> bool:
        return self.variants.serves(name)

    def device_usage(self, node: NodeInfo, name: str) -> tuple[int, int]:
        device_class = self.resources.class_of(name)
        return (0, 0) if device_class is None else self.allocator.usage(node.node, device_class)

    # --- Hardware. ---

    def hand_over(self, name: str, owner: str) -> None:
        """Move the cards from one owner to another, never to two at once."""
        amounts = {"cpu": "4", "memory": "8Gi", "pods": "1000"}
        if owner == "plugin":
            amounts[GPU] = str(CARDS)
        self.nodes[name] = self.nodes[name].with_node(node(name, allocatable=amounts))
        self.inventory.remove_slice(name)
        if owner == "driver":
            pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
            devices = [{"name": f"card-{number}"} for number in range(CARDS)]
            spec = {"driver": "d", "nodeName": name, "pool": pool, "devices": devices}
            self.inventory.apply_slice(from_document(ResourceSlice, {"metadata": {"name": name}, "spec": spec}))

    def set_class(self, name: str, resource: str | None, second: int) -> None:
        metadata = ObjectMeta(name=name, creation_timestamp=START + timedelta(seconds=second))
        made = DeviceClass(metadata=metadata, spec=DeviceClassSpec(extended_resource_name=resource))
        self.inventory.apply_class(made)
        self.resources.apply(made)

    def remove_class(self, name: str) -> None:
        self.inventory.remove_class(name)
        self.resources.remove(name)

    # --- Pods. ---

    def place(self, resource: str, count: int) -> None:
        self.count += 1
        made = pod(f"p{self.count}", containers=[container({resource: str(count)})])
        info = PodInfo(made)
        state = CycleState(info)
        self.fit.pre_filter(state, made)
        names = extended_names(info.requests)
        names = names if any(map(self.variants.serves, names)) else ()
        own = self.variants.state_of(ClaimsOfPod.of(made, (), self.variants.requests_of(made, names)))
        for name, place in self.nodes.items():
            if self.fit.filter(state, made, place).is_success and self._take(own, info, name):
                return

    def _take(self, own: PodState, info: PodInfo, name: str) -> bool:
        place = self.nodes[name]
        variant = self.variants.variant(own, place) if own.claims.extended.needs else own.results.plain
        if variant.rejection is not None:
            return False
        if variant.count:
            found = self.allocator.allocate(place.node, variant.claims).allocations
            if found is None:
                return False
            self._write(variant, info.uid, found[0])
        self.nodes[name] = place.with_pod(info.on_node(name, variant.wanted.resources))
        return True

    def _write(self, variant: Variant, uid: str, allocation: object) -> None:
        claim = variant.claims[0]
        status = ResourceClaimStatus(allocation=allocation)  # type: ignore[arg-type]
        self.claims[uid] = msgspec.structs.replace(claim, status=status)
        self.allocations.apply_claim(self.claims[uid])

    def end(self, number: int) -> None:
        every = [(name, uid) for name, place in self.nodes.items() for uid in place.pods]
        if every:
            name, uid = every[number % len(every)]
            self.nodes[name] = self.nodes[name].without_pod(uid)
            claim = self.claims.pop(uid, None)
            if claim is not None:
                self.allocations.remove_claim(claim)

    # --- What must hold. ---

    def check(self) -> None:
        held = [
            (result.pool, result.device)
            for claim in self.claims.values()
            if claim.status.allocation is not None
            for result in claim.status.allocation.devices.results
        ]
        assert len(held) == len(set(held)), "a device in two claims"
        for name, place in self.nodes.items():
            of_plugin = place.requested.scalars.get(GPU, 0)
            of_driver = sum(pool == name for pool, _ in held)
            assert of_plugin + of_driver <= CARDS, f"{name}: {of_plugin} of the plugin, {of_driver} of the driver"
            served = sum(place.device_requested.scalars.values())
            assert served == of_driver, "what Pods have of devices is what their claims hold"


def step(cluster: Cluster, rng: random.Random, second: int) -> None:
    """Something happens; mostly Pods come, since only they can use too much."""
    match rng.choices(("pod", "end", "hand over", "class", "class gone"), (10, 4, 3, 1, 1))[0]:
        case "pod":
            cluster.place(GPU, rng.choice((1, 1, 2)))
        case "end":
            cluster.end(rng.randrange(50))
        case "hand over":
            cluster.hand_over(rng.choice(NODES), rng.choice(("plugin", "driver", "driver", "")))
        case "class":
            cluster.set_class(rng.choice(CLASSES), rng.choice((GPU, GPU, None)), second)
        case _:
            cluster.remove_class(rng.choice(CLASSES))


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32))
def test_devices_in_use_never_exceed_devices_there_are(seed: int) -> None:
    rng = random.Random(seed)
    cluster = Cluster()
    cluster.set_class("a", GPU, 0)
    cluster.hand_over("n0", "plugin")
    for second in range(STEPS):
        step(cluster, rng, second)
        cluster.check()


AMOUNT = st.integers(0, 4)


@settings(max_examples=300, deadline=None)
@given(st.lists(AMOUNT, max_size=4), st.lists(st.tuples(AMOUNT, st.booleans()), max_size=4))
def test_requests_are_as_many_as_the_busiest_moment_needs(regular: list[int], init: list[tuple[int, bool]]) -> None:
    containers = [container({GPU: str(count)}) | {"name": f"c{number}"} for number, count in enumerate(regular)]
    inits = [
        container({GPU: str(count)}) | {"name": f"i{number}"} | ({"restartPolicy": "Always"} if lasting else {})
        for number, (count, lasting) in enumerate(init)
    ]
    made = pod(containers=containers or [container()], initContainers=inits)
    wanted = plan_requests(needs_of(made), ((GPU, "gpu"),))
    assert wanted.device_count == pod_requests(made).get(GPU, 0)
    sizes = {request.name: request.exactly.count or 0 for request in wanted.requests if request.exactly is not None}
    for item in (*containers, *inits):
        mapped = [mapping.request_name for mapping in wanted.mappings if mapping.container_name == item["name"]]
        assert len(mapped) == len(set(mapped))
        assert sum(sizes[name] for name in mapped) >= int(item["resources"]["requests"][GPU])
