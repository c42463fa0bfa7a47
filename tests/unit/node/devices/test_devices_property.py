"""Under any order of events, no device is in two containers at once, and none is lost.

The machine records the devices that running containers have. A container starts only once its devices are in the
checkpoint; a crash loses everything but the checkpoint and the running containers.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dray.api.types.core_v1 import Pod
from dray.node.devices.allocator import (
    AllocationRequest,
    AskPreference,
    CallAllocate,
    DeviceAllocator,
    Nothing,
    Refused,
)
from dray.node.devices.assignments import AssignmentKey, container_request
from dray.node.devices.checkpoint import Written, decode, encode, sample
from dray.node.devices.inventory import Device, Inventory, Session
from dray.node.topology.containers import containers_of, is_ordinary_init, reusable
from tests.unit.node.devices.builders import FOO, container, pod, sidecar

IDS = tuple(f"d{number}" for number in range(5))
PODS = tuple(f"u{number}" for number in range(4))
SHAPES = {
    "one": lambda uid: pod(uid, [container("a", {FOO: 1})]),
    "two": lambda uid: pod(uid, [container("a", {FOO: 1}), container("b", {FOO: 2})]),
    "init": lambda uid: pod(uid, [container("a", {FOO: 2})], [container("i", {FOO: 2}), container("j", {FOO: 1})]),
    "sidecar": lambda uid: pod(
        uid, [container("a", {FOO: 1})], [container("i", {FOO: 2}), sidecar("s", {FOO: 1}), container("j", {FOO: 1})]
    ),
}


class DeviceAllocatorMachine(RuleBasedStateMachine):
    """One node, its plugin and its Pods."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.saved = b""
        self.written = Written()
        self.book = DeviceAllocator(Inventory(300))
        # Of the connected plugins, oldest first; during a rolling update there are two.
        self.sessions: list[Session] = []
        self.registrations = 0
        self.pods: dict[str, Pod] = {}
        # What really runs, by Pod and container.
        self.running: dict[tuple[str, str], frozenset[str]] = {}
        self.ran_before: frozenset[tuple[str, str]] = frozenset()
        self.calls: list[tuple[CallAllocate, AssignmentKey]] = []

    @initialize()
    def begin(self) -> None:
        self.save()
        self.plugin_up(frozenset(IDS))

    # --- The plugin. ---

    @precondition(lambda self: len(self.sessions) < 2)
    @rule(healthy=st.frozensets(st.sampled_from(IDS)))
    def plugin_up(self, healthy: frozenset[str]) -> None:
        self.registrations += 1
        self.sessions.append(self.book.inventory.opened(FOO, f"foo-{self.registrations}.sock"))
        self.plugin_lists(healthy, 1)

    @precondition(lambda self: self.sessions)
    @rule(healthy=st.frozensets(st.sampled_from(IDS)), which=st.sampled_from([0, 1]))
    def plugin_lists(self, healthy: frozenset[str], which: int) -> None:
        session = self.sessions[-which]
        self.book.inventory.update_devices(FOO, session, [Device(name, name in healthy) for name in IDS])
        self.save()

    @precondition(lambda self: self.sessions)
    @rule(which=st.sampled_from([0, 1]))
    def plugin_down(self, which: int) -> None:
        self.book.inventory.closed(FOO, self.sessions.pop(-which), self.now)

    @rule(seconds=st.sampled_from([1.0, 400.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.book.inventory.expire(self.now)

    # --- Pods. ---

    @rule(uid=st.sampled_from(PODS), shape=st.sampled_from(sorted(SHAPES)))
    def admit(self, uid: str, shape: str) -> None:
        if uid in self.pods:
            return
        self.pods[uid] = SHAPES[shape](uid)
        self.admit_again(uid)

    def admit_again(self, uid: str) -> None:
        item = self.pods[uid]
        for one in containers_of(item):
            for resource, amount in container_request(item, one, self.book.knows).items():
                slot = AssignmentKey(uid, one.name, resource)
                spare = reusable(item, one.name, lambda name: self.held(uid, name))
                need = AllocationRequest(slot, amount, spare, (uid, one.name) in self.ran_before)
                step = self.book.begin(need, None, asks=lambda _path: True)
                if isinstance(step, AskPreference):
                    step = self.book.begin(need, None, asks=lambda _path: True, preference=step.question.available[-1:])
                if isinstance(step, Refused):
                    self.remove(uid)
                    return
                if isinstance(step, Nothing):
                    continue
                assert isinstance(step, CallAllocate)
                assert len(step.ids) == amount
                assert self.book.succeeded(step.ticket, b"")
        self.save()
        for one in containers_of(item):
            if not is_ordinary_init(item, one.name) and (uid, one.name) not in self.running:
                self.running[uid, one.name] = self.held(uid, one.name)

    @rule(uid=st.sampled_from(PODS), fails=st.booleans(), freed=st.booleans())
    def slow_allocation(self, uid: str, fails: bool, freed: bool) -> None:
        """An Allocate during which the Pod may go away."""
        if uid in self.pods:
            return
        step = self.book.begin(AllocationRequest(AssignmentKey(uid, "a", FOO), 1), None, asks=lambda _path: False)
        if not isinstance(step, CallAllocate):
            return
        self.check()
        if freed:
            self.book.free_pod(uid)
        if fails:
            self.book.failed(step.ticket)
        else:
            assert self.book.succeeded(step.ticket, b"") is not freed
        self.book.free_pod(uid)

    @rule(uid=st.sampled_from(PODS))
    def remove(self, uid: str) -> None:
        """All containers have stopped; the Pod is released."""
        self.vanish(uid)
        self.book.free_pod(uid)
        self.save()

    @rule(uid=st.sampled_from(PODS), saved=st.booleans())
    def crash_while_removing(self, uid: str, saved: bool) -> None:
        self.vanish(uid)
        self.book.free_pod(uid)
        if saved:
            self.save()
        self.restart()

    def vanish(self, uid: str) -> None:
        self.pods.pop(uid, None)
        for key in [key for key in self.running if key[0] == uid]:
            del self.running[key]

    # --- The agent. ---

    def save(self) -> None:
        names = {name: self.book.inventory.healthy(name) for name in self.book.inventory.resources}
        state = sample(self.book.assignments.all(), names)
        self.saved = encode(state, self.written)
        assert self.saved == encode(state)

    @rule()
    def restart(self) -> None:
        """Kill -9 and start: Pods that still exist are admitted again, the rest is freed."""
        saved = decode(self.saved)
        inventory = Inventory(300)
        inventory.restore(saved.registered, self.now)
        self.book = DeviceAllocator(inventory, saved.assigned)
        self.sessions = []
        self.ran_before = frozenset(self.running)
        for uid in sorted(self.pods):
            self.admit_again(uid)
        for uid in self.book.assignments.pod_uids():
            if uid not in self.pods:
                self.book.free_pod(uid)
        self.save()

    def held(self, uid: str, name: str) -> frozenset[str]:
        found = self.book.assignments.get(AssignmentKey(uid, name, FOO))
        return frozenset() if found is None else found.ids

    # --- What must hold. ---

    @invariant()
    def check_indices(self) -> None:
        """What is kept beside the assignments is what these say."""
        kept = self.book.assignments
        items = list(kept.all())
        assert items == sorted(items, key=lambda item: item[0])
        assert kept.pod_uids() == tuple(sorted({slot.pod_uid for slot, _ in items}))
        assert kept.resources() == {slot.resource for slot, _ in items}
        assert kept.in_use(FOO) == {name for slot, held in items if slot.resource == FOO for name in held.ids}

    @invariant()
    def check(self) -> None:
        used = [name for ids in self.running.values() for name in ids]
        assert len(used) == len(set(used)), f"in two containers: {self.running}"
        assert self.book.in_use(FOO) >= set(used), "in use, but free to others"
        for (uid, name), ids in self.running.items():
            assert ids == self.held(uid, name), "a running container's devices changed"

    def teardown(self) -> None:
        for uid in PODS:
            self.remove(uid)
        self.restart()
        self.plugin_up(frozenset(IDS))
        assert self.book.free(FOO) == set(IDS), "lost"


DeviceAllocatorMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestDevices = DeviceAllocatorMachine.TestCase
TestDevices.pytestmark = []  # type: ignore[attr-defined] # pytest reads it
