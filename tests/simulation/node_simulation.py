"""A node's claims and devices: the managers of the agent with a driver and a device plugin, and a crash at any step.

The agent follows the order of calls of `dray.node.resource_manager`. Containers, drivers and the API survive it.
Checked: no device is prepared for two claims or used by two containers, no container starts without what it asked for,
nothing is unprepared under a running container, checkpoints can always be read, and in the end nothing is left.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dray.api.codec import from_document, to_document
from dray.api.document import UID, Document
from dray.api.errors import NotFoundError, ServiceUnavailableError
from dray.api.features import FeatureGates
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import ResourceClaim
from dray.client.resources import RESOURCE_CLAIMS
from dray.node.devices import checkpoint as device_checkpoint
from dray.node.devices.device_manager import DeviceManager, NodePods
from dray.node.dra import checkpoint as claim_checkpoint
from dray.node.dra.dra_manager import DraManager, DraOptions
from dray.node.plugins.handler import Plugin, PluginError
from dray.node.resource_manager import ResourceError
from dray.node.topology.hint_provider import AllocationError
from dray.rpc.dra_services import DEVICE_PLUGIN, DRA_PLUGIN
from dray.runtime.metrics import Metrics
from dray.runtime.tasks import TaskGroup
from dray.sim.replica.virtual_time import LoopClock
from tests.simulation.checkpoint_disk import CheckpointDisk, checkpoint_disk
from tests.simulation.faults import Faults
from tests.simulation.node_plugins import DRIVER, FAULTS, RESOURCE, DevicePlugin, Driver, reachable_plugins

GPUS = [f"gpu-{number}" for number in range(3)]
WIDGETS = [f"widget-{number}" for number in range(4)]
PODS = 12
CONTAINERS = ("init", "main")
QUIET_SECONDS = 90.0
# Steps of a run without faults; a crash can be at any of them.
STEPS_MAX = 600

NODE_FAULTS = {
    # Per step of the agent: a system call of a checkpoint, a call of a driver or plugin, a start of a container.
    "agent_killed": 0.008,
    "power_cut": 0.006,
    "disk_full": 0.01,
    "api_error": 0.05,
    # Per Pod.
    "force_deleted": 0.15,
}


@dataclass(eq=False)
class NodePod:
    """A Pod of the API, with its claim's devices and the containers that run."""

    pod: Pod
    claims: list[str]
    deleted: asyncio.Event = field(default_factory=asyncio.Event)
    # Rejected or finished: no container will start any more.
    failed: bool = False

    @property
    def uid(self) -> str:
        return self.pod.metadata.uid or ""

    @property
    def widgets(self) -> int:
        return int(_container(self, "main").resources.limits.get(RESOURCE, "0"))


class Node:
    """What survives the agent: the API's objects and the running containers."""

    def __init__(self) -> None:
        self.pods: dict[str, NodePod] = {}
        self.claims: dict[str, ResourceClaim] = {}
        self.devices: dict[str, tuple[str, ...]] = {}
        # By Pod and container: the widgets and claims that it runs with.
        self.running: dict[tuple[str, str], tuple[frozenset[str], tuple[str, ...]]] = {}
        self.admitted: set[str] = set()
        self.changed = asyncio.Event()

    def users_of(self, claim_uid: str) -> Collection[str]:
        return sorted(f"{uid}/{name}" for (uid, name), (_, claims) in self.running.items() if claim_uid in claims)

    def running_pods(self) -> set[str]:
        return {uid for uid, _ in self.running}

    # `PodSource`.

    def active(self) -> tuple[Pod, ...]:
        return tuple(item.pod for item in self.pods.values() if not item.failed)

    def all(self) -> tuple[Pod, ...]:
        return self.active()

    def get(self, uid: str) -> Pod | None:
        return self.pods[uid].pod if uid in self.pods else None


class _Claims(DraManager):
    """Without the cleanup of slices, which is none of a Pod's."""

    def _background(self) -> Any:
        return ()


class Agent:
    """One life of the agent."""

    def __init__(self, simulation: NodeSimulation, folder: Path) -> None:
        self._simulation = simulation
        self._node = simulation.node
        clock, metrics = LoopClock(), Metrics()
        gates = FeatureGates.parse("ResourceHealthStatus=false,ResourceHealthStatusMessage=false")
        self.claims = _Claims(simulation, "node", str(folder), clock, metrics, DraOptions(gates=gates))  # type: ignore[arg-type]
        pods = NodePods(
            source=self._node,
            settled=frozenset(self._node.running),
            orphans=self._node.running_pods,
            admitted_before=frozenset(self._node.admitted),
        )
        self.devices = DeviceManager(str(folder), pods, clock, metrics)
        self._workers: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        async with TaskGroup("agent") as group:
            self.devices._group = self.devices.plugin_handler.group = group
            group.spawn(self.claims.run(self._known_pods), "claims")
            group.spawn(self._register(), "plugins")
            group.spawn(self._follow(group), "pods")
            await group.wait(asyncio.Event())

    def _known_pods(self) -> Collection[UID]:
        return [UID(uid) for uid in sorted({*self._node.pods, *self._node.running_pods()})]

    async def _register(self) -> None:
        rng = self._simulation.rng
        await asyncio.sleep(rng.uniform(0.0, 1.0))
        await self.claims.register(Plugin(DRA_PLUGIN, DRIVER, "/driver", ("v1.DRAPlugin",), "/driver-reg"))
        await asyncio.sleep(rng.uniform(0.0, 1.0))
        plugin = Plugin(DEVICE_PLUGIN, RESOURCE, "/plugin", ("v1beta1",), "/plugin-reg")
        while True:
            try:
                return await self.devices.plugin_handler.register(plugin)
            except PluginError:
                await asyncio.sleep(0.5)

    async def _follow(self, group: TaskGroup) -> None:
        """Start a worker for each Pod, and end what force-deleted Pods left."""
        while True:
            self._node.changed.clear()
            for uid, item in sorted(self._node.pods.items()):
                if uid not in self._workers:
                    self._workers[uid] = group.spawn(self._work(item), f"pod {uid}")
            for uid, name in sorted(self._node.running):
                if uid not in self._node.pods and uid not in self._workers:
                    self._simulation.stop(uid, name)
            self.claims.reconcile_soon()
            await self.devices.refresh()
            await self._node.changed.wait()

    async def _work(self, item: NodePod) -> None:
        if await self._admit(item):
            self._node.admitted.add(item.uid)
            await self._start(item)
        await item.deleted.wait()
        for name in CONTAINERS:
            self._simulation.stop(item.uid, name)
        while True:
            try:
                await self.claims.release(item.pod)
                break
            except ResourceError:
                await asyncio.sleep(self._simulation.rng.uniform(0.1, 1.0))
        await self.devices.free(item.uid)
        self._simulation.released(item)

    async def _admit(self, item: NodePod) -> bool:
        await self.devices.refresh(admitting=[item.uid])
        undo = self.devices.undo_point(item.uid)
        try:
            self._check_capacity(item)
            for container in item.pod.spec.containers:
                self.devices.reserve(item.pod, container, None)
            await self.devices.commit(item.pod)
        except AllocationError as error:
            self._simulation.tell(f"{item.uid} rejected: {error}")
            undo()
            await self.devices.free(item.uid)
            item.failed = True
            item.deleted.set()
            return False
        return True

    def _check_capacity(self, item: NodePod) -> None:
        """Refuse a Pod that asks for a resource that the node does not have, as the agent does."""
        allocatable = int(self.devices.node_resources().allocatable.get(RESOURCE, "0"))
        if item.uid not in self._node.admitted and item.widgets > allocatable:
            raise AllocationError(f"OutOf{RESOURCE}")

    async def _start(self, item: NodePod) -> None:
        for name in CONTAINERS:
            while not item.deleted.is_set() and (item.uid, name) not in self._node.running:
                try:
                    await self.claims.prepare(item.pod)
                    await self.devices.prepare(item.pod)
                    claims = self.claims.container_options(item.pod, name)
                    devices = self.devices.container_options(item.pod, name)
                    await self.devices.pre_start(item.pod, name)
                except ResourceError as error:
                    self._simulation.tell(f"{item.uid}/{name} waits: {error}")
                    await asyncio.sleep(self._simulation.rng.uniform(0.1, 1.0))
                    continue
                if item.deleted.is_set():
                    return
                self._simulation.start(item, name, claims.cdi_devices, devices.envs.get("WIDGETS", ""))
        if not item.deleted.is_set():
            await self.claims.prepare_claims(item.pod)


class NodeSimulation:
    """One run of one node. With `crash_at` there is no fault but a crash at that step."""

    def __init__(self, seed: int, *, systematic: bool = False) -> None:
        self._crash_at = seed // 2 % STEPS_MAX + 1 if systematic else 0
        self._power_cut_next = bool(seed % 2)
        if systematic:
            seed //= 2 * STEPS_MAX
            self.rates = Faults(agent_killed=1e-9, power_cut=1e-9)
        else:
            self.rates = Faults(**FAULTS, **NODE_FAULTS)
        self._systematic = systematic
        self.story: list[str] = []
        self.rng = random.Random(seed)
        self.node = Node()
        self._lives = 0
        self._power_cut = False
        self._crashed = asyncio.Event()
        self._disk: CheckpointDisk | None = None
        self._steps = 0
        self._free = list(GPUS)
        self.agent: Agent | None = None
        self._started: set[str] = set()

    async def run(self) -> None:
        """Run to the end; raises `AssertionError` for a broken promise."""
        loop: Any = asyncio.get_running_loop()
        loop.rng = random.Random(self.rng.random())
        faults = self.rates if not self._systematic else Faults(**dict.fromkeys(FAULTS, 0.0))
        self.driver = Driver(self.rng, faults, lambda uid: self.node.devices[uid], self.node.users_of)
        plugin = DevicePlugin(self.rng, faults, WIDGETS)
        with (
            TemporaryDirectory(prefix="dray-simulation-") as root,
            checkpoint_disk(self._current_disk),
            reachable_plugins(self.driver, plugin, self._call_step),
        ):
            async with asyncio.TaskGroup() as group:
                process = group.create_task(self._live(Path(root)))
                await self._use()
                await self._check_quiet()
                process.cancel()

    # --- lives of the agent ---

    async def _live(self, root: Path) -> None:
        previous: CheckpointDisk | None = None
        while True:
            folder = root / f"life-{self._lives}"
            folder.mkdir()
            self._lives += 1
            if previous is not None:
                previous.after_crash(folder, self.rng, power_cut=self._power_cut)
            _check_readable(folder)
            previous = self._disk = CheckpointDisk(folder, self._disk_step)
            self._crashed.clear()
            self.agent = Agent(self, folder)
            running = asyncio.ensure_future(self.agent.run())
            crashed = asyncio.ensure_future(self._crashed.wait())
            try:
                await asyncio.wait({running, crashed}, return_when=asyncio.FIRST_COMPLETED)
                if running.done() and not crashed.done():
                    running.result()
            finally:
                previous.dead = True
                for task in (running, crashed):
                    task.cancel()
                await asyncio.gather(running, crashed, return_exceptions=True)
            self.tell("the agent has crashed")
            await asyncio.sleep(self.rng.uniform(0.0, 2.0))

    def _current_disk(self) -> CheckpointDisk:
        assert self._disk is not None
        return self._disk

    def _crashes(self, what: str) -> bool:
        self._steps += 1
        self.rates.steps += 1
        if self._systematic:
            crash = self._steps == self._crash_at
            if crash:
                self._power_cut = self._power_cut_next
                self.rates.fired["power_cut" if self._power_cut else "agent_killed"] += 1
        else:
            fault = self.rates.choose(("agent_killed", "power_cut"), self.rng)
            self._power_cut = fault == "power_cut" if fault else self._power_cut
            crash = bool(fault)
        if crash:
            self.tell(f"crash at step {self._steps}: {what}")
            self._current_disk().dead = True
            self._crashed.set()
        return crash

    def _disk_step(self, what: str) -> str:
        if self._crashes(what):
            return "crash"
        if not self._systematic and what.startswith("write") and self.rates.happens("disk_full", self.rng):
            return "full"
        return ""

    def _call_step(self, what: str) -> None:
        if self._current_disk().dead or self._crashes(what):
            raise asyncio.CancelledError

    # --- the API, for the agent ---

    async def get(self, resource: object, name: str, namespace: str = "") -> Document:
        """Answer as the API server does; the agent reads nothing else."""
        assert resource == RESOURCE_CLAIMS.unstructured
        self._call_step("get a claim")
        await asyncio.sleep(self.rng.uniform(0.0, 0.01))
        if not self._systematic and self.rates.happens("api_error", self.rng):
            raise ServiceUnavailableError("the API server does not answer")
        claim = self.node.claims.get(name)
        if claim is None:
            raise NotFoundError(RESOURCE_CLAIMS.group_resource, name)
        return to_document(claim)

    # --- containers ---

    def start(self, item: NodePod, name: str, cdi_devices: Sequence[str], widgets: str) -> None:
        self._call_step("start a container")
        uids = tuple(self.node.claims[claim].metadata.uid or "" for claim in item.claims)
        for uid in uids:
            assert uid in self.driver.prepared, f"{item.uid}/{name} starts and claim {uid} is not prepared"
        expected = {f"{DRIVER}/gpu={device}" for uid in uids for device in self.node.devices[uid]}
        assert set(cdi_devices) == expected, f"{item.uid}/{name} starts with {cdi_devices} instead of {expected}"
        given = frozenset(filter(None, widgets.split(",")))
        asked = int(_container(item, name).resources.limits.get(RESOURCE, "0"))
        assert len(given) == asked, f"{item.uid}/{name} starts with {sorted(given)}, asked for {asked}"
        for (uid, other), (held, _) in self.node.running.items():
            shared = given & held
            assert not shared, f"{sorted(shared)} in {item.uid}/{name} and {uid}/{other}"
        self.node.running[item.uid, name] = (given, uids)
        self._started.add(item.uid)
        self.tell(f"{item.uid}/{name} runs with {sorted(given)} and {cdi_devices}")

    def stop(self, uid: str, name: str) -> None:
        if (uid, name) in self.node.running:
            self._call_step("stop a container")
            del self.node.running[uid, name]
            self.tell(f"{uid}/{name} stopped")

    def released(self, item: NodePod) -> None:
        """The agent has reported a final phase of the Pod."""
        self._call_step("update a status")
        if self.node.pods.pop(item.uid, None) is not None:
            for claim in item.claims:
                self.node.claims.pop(claim, None)
        self.tell(f"{item.uid} is gone")

    # --- users ---

    async def _use(self) -> None:
        for number in range(PODS):
            await asyncio.sleep(self.rng.uniform(0.0, 3.0))
            self._create(number)
            if self.rng.random() < 0.6 and self.node.pods:
                self._delete(self.node.pods[self.rng.choice(sorted(self.node.pods))])
        self.rates.on = False

    def _create(self, number: int) -> None:
        uid = f"pod-{number}"
        held = {device for devices in self.driver.prepared.values() for device in devices}
        allocated = {device for name in self.node.claims for device in self.node.devices[_claim_uid(name)]}
        free = [device for device in GPUS if device not in held | allocated]
        claims = []
        if free and self.rng.random() < 0.8:
            name = f"claim-{number}"
            devices = tuple(self.rng.sample(free, self.rng.randint(1, len(free))))
            self.node.devices[_claim_uid(name)] = devices
            self.node.claims[name] = _claim(name, uid, devices)
            claims.append(name)
        wanted = sum(item.widgets for item in self.node.pods.values())
        widgets = self.rng.randint(0, 2) if wanted <= len(WIDGETS) - 2 else 0
        self.node.pods[uid] = NodePod(_pod(uid, claims, widgets), claims)
        self.node.changed.set()
        self.tell(f"{uid} created with {claims} and {widgets} widgets")

    def _delete(self, item: NodePod) -> None:
        forced = not self._systematic and self.rates.happens("force_deleted", self.rng)
        if forced:
            del self.node.pods[item.uid]
            for claim in item.claims:
                self.node.claims.pop(claim, None)
        self.tell(f"{item.uid} {'force-' if forced else ''}deleted")
        item.deleted.set()
        self.node.changed.set()

    async def _check_quiet(self) -> None:
        """Without faults every Pod runs; and when all are deleted, nothing is left."""
        await asyncio.sleep(QUIET_SECONDS)
        waiting = [
            uid
            for uid, item in self.node.pods.items()
            if not item.deleted.is_set() and any((uid, name) not in self.node.running for name in CONTAINERS)
        ]
        assert not waiting, f"{waiting} do not run"
        for item in list(self.node.pods.values()):
            item.deleted.set()
        self.node.changed.set()
        await asyncio.sleep(QUIET_SECONDS)
        assert not self.node.pods, f"{sorted(self.node.pods)} never end"
        assert not self.node.running, f"{sorted(self.node.running)} still run"
        assert not self.driver.prepared, f"{self.driver.prepared} stay prepared"
        assert self.agent is not None
        assert not self.agent.claims.claims(), "claims stay in the agent"
        assigned = list(self.agent.devices._allocator.assignments.all())
        assert not assigned, f"{assigned} stay assigned"
        # A checkpoint that could not be written may be behind; the next agent notices.
        self._crashed.set()
        await asyncio.sleep(QUIET_SECONDS)
        claims, devices = _check_readable(self._current_disk().folder)
        assert not claims, "claims stay in the checkpoint"
        assert not devices, "devices stay in the checkpoint"

    def tell(self, text: str) -> None:
        self.story.append(f"{asyncio.get_running_loop().time():9.4f} {text}")


def _check_readable(folder: Path) -> tuple[Sequence[Any], Sequence[Any]]:
    """Return what the checkpoints contain; raises if one is damaged."""
    claims, devices = folder / claim_checkpoint.FILE_NAME, folder / device_checkpoint.FILE_NAME
    found = claim_checkpoint.decode(claims.read_bytes()) if claims.exists() else ()
    assigned = device_checkpoint.decode(devices.read_bytes()).assigned if devices.exists() else ()
    return found, assigned


def _claim_uid(name: str) -> str:
    return f"uid-{name}"


def _claim(name: str, pod_uid: str, devices: Sequence[str]) -> ResourceClaim:
    results = [{"driver": DRIVER, "pool": "pool", "device": device, "request": "device"} for device in devices]
    return from_document(
        ResourceClaim,
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "default", "uid": _claim_uid(name)},
            "spec": {"devices": {"requests": [{"name": "device", "exactly": {"deviceClassName": "gpu"}}]}},
            "status": {
                "allocation": {"devices": {"results": results}},
                "reservedFor": [{"resource": "pods", "name": pod_uid, "uid": pod_uid}],
            },
        },
    )


def _pod(uid: str, claims: Sequence[str], widgets: int) -> Pod:
    main: dict[str, Any] = {"claims": [{"name": name} for name in claims]}
    if widgets:
        main |= {"limits": {RESOURCE: str(widgets)}, "requests": {RESOURCE: str(widgets)}}
    containers = [
        {"name": "init", "image": "image", "resources": {"claims": [{"name": name} for name in claims]}},
        {"name": "main", "image": "image", "resources": main},
    ]
    return from_document(
        Pod,
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": uid, "namespace": "default", "uid": uid},
            "spec": {
                "containers": containers,
                "resourceClaims": [{"name": name, "resourceClaimName": name} for name in claims],
            },
            "status": {"phase": "Running"},
        },
    )


def _container(item: NodePod, name: str) -> Any:
    return next(container for container in item.pod.spec.containers if container.name == name)
