"""A cluster as a test sees it: plain calls that block, while everything runs in a thread of its own."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, overload

from dray.api.document import Document
from dray.client.interface import ListOptions
from dray.cmd.testing.conditions import DELETED, Condition
from dray.cmd.testing.drivers import DriverProcess, RunningDriver, RunningPlugin
from dray.cmd.testing.manifests import Source, read_manifests
from dray.cmd.testing.requests import Requests, WaitError
from dray.cmd.testing.stack import ClusterOptions, Stack, make_folder, remove_folder
from dray.cmd.testing.threads import LoopThread
from dray.driver import Driver
from dray.driver.device_plugin import DevicePlugin
from dray.rpc.pb.podresources.v1 import api_pb2
from dray.rpc.pb.podresources.v1.api_pb2_grpc import PodResourcesListerStub
from dray.rpc.sockets import connect

TIMEOUT_SECONDS: Final = 30.0
LOOK_SECONDS: Final = 0.01
KUBECTL_SECONDS_MAX: Final = 60.0


class KubectlMissingError(Exception):
    """There is no kubectl on the PATH."""


class Cluster:
    """API server, controllers, scheduler and a node agent; made by `running_cluster` or the fixture `cluster`.

    Calls block and may be made from any thread but the cluster's own, in which drivers of the SDK run. In an async
    test await the same calls on `aio`, so that the test's own event loop goes on meanwhile.
    """

    def __init__(self, thread: LoopThread, stack: Stack) -> None:
        self._thread = thread
        self._stack = stack
        self._drivers: list[RunningDriver | RunningPlugin | DriverProcess] = []
        self._requests = Requests(stack, self._outputs)
        self.aio: Any = AsyncCalls(self)

    # --- Where things are. ---

    @property
    def kubeconfig(self) -> Path:
        """An administrator's, for kubectl and any client."""
        return self._stack.running.kubeconfig

    @property
    def server(self) -> str:
        """The API server's URL."""
        return self._stack.running.url

    @property
    def node_name(self) -> str:
        """The name of the node whose agent runs here."""
        return self._stack.options.node_name

    @property
    def folder(self) -> Path:
        """All of the cluster's files; gone with it."""
        return self._stack.folder

    @property
    def root_dir(self) -> Path:
        """What is `/var/lib/kubelet` on a real node."""
        return self._stack.root

    @property
    def plugins_dir(self) -> Path:
        """Where drivers keep their own sockets, in a folder each."""
        return self._stack.root / "plugins"

    @property
    def registry_dir(self) -> Path:
        """Where drivers put their registration sockets."""
        return self._stack.root / "plugins_registry"

    @property
    def device_plugins_dir(self) -> Path:
        """Where device plugins find `kubelet.sock`."""
        return self._stack.root / "device-plugins"

    @property
    def pod_resources_socket(self) -> Path:
        """Where PodResources is served."""
        return self._stack.root / "pod-resources" / "kubelet.sock"

    @property
    def cdi_dir(self) -> Path:
        """Where drivers write their CDI specs."""
        return self._stack.cdi

    @property
    def environment(self) -> dict[str, str]:
        """For programs that are to use this cluster: KUBECONFIG, NODE_NAME, and the folders for drivers of the SDK."""
        return {
            **os.environ,
            "KUBECONFIG": str(self.kubeconfig),
            "KUBECACHEDIR": str(self.folder / "kube-cache"),
            "NODE_NAME": self.node_name,
            "DRAY_ROOT_DIR": str(self.root_dir),
            "DRAY_CDI_DIR": str(self.cdi_dir),
        }

    # --- Objects. ---

    def apply(self, source: Source, *, namespace: str = "default") -> Sequence[Document]:
        """Create or change objects: a document, several, YAML text, a file, or a folder of files."""
        return self._thread.call(self._requests.apply(read_manifests(source), namespace))

    def get(self, target: str, *, namespace: str = "default") -> Document:
        """One object, as `pod/x` or `deviceclass/y`."""
        return self._thread.call(self._requests.get(target, namespace))

    def list(self, kind: str, *, namespace: str = "", labels: str = "", fields: str = "") -> Sequence[Document]:
        """Every object of a kind; the empty namespace means all of them."""
        return self._thread.call(self._requests.list(kind, namespace, ListOptions(labels, fields)))

    def delete(
        self,
        target: str,
        *,
        namespace: str = "default",
        grace_seconds: int | None = None,
        timeout: float = TIMEOUT_SECONDS,
    ) -> None:
        """Delete an object and wait until it has gone."""
        self._thread.call(self._requests.delete(target, namespace, grace_seconds))
        self.wait_for(target, DELETED, namespace=namespace, timeout=timeout)

    def wait_for(
        self, target: str, condition: Condition, *, timeout: float = TIMEOUT_SECONDS, namespace: str = "default"
    ) -> Document:
        """The object as soon as it is as wanted; a `WaitError` otherwise, which says why.

        The condition is a phase (`Running`), the type of a condition that must be true (`Ready`), one of `exists`,
        `deleted`, `allocated`, `reserved`, or a function of the object.
        """
        __tracebackhide__ = True
        outcome = self._thread.call(self._requests.wait_for(target, condition, namespace, timeout))
        if isinstance(outcome, WaitError):
            raise outcome
        return outcome

    def explain(self, target: str, *, namespace: str = "default") -> str:
        """What is known about why an object is as it is: status, claims, events, drivers, outputs."""
        return self._thread.call(self._requests.explain(target, namespace))

    def logs(
        self,
        pod: str,
        *,
        container: str = "",
        previous: bool = False,
        tail: int | None = None,
        namespace: str = "default",
    ) -> str:
        """What a container has written."""
        query = {"container": container} if container else {}
        if previous:
            query["previous"] = "true"
        if tail is not None:
            query["tailLines"] = str(tail)
        return self._thread.call(self._requests.logs(pod, namespace, query))

    def events(self, name: str = "", *, namespace: str = "default") -> Sequence[Document]:
        """Events of the namespace, or of the object of that name; the last one last."""
        return self._thread.call(self._requests.events(name, namespace))

    def slices(self, driver: str = "") -> Sequence[Document]:
        """ResourceSlices, of one driver if it is named."""
        return self.list("resourceslices", fields=f"spec.driver={driver}" if driver else "")

    def claims(self, *, namespace: str = "default") -> Sequence[Document]:
        """ResourceClaims of a namespace."""
        return self.list("resourceclaims", namespace=namespace)

    def pod_resources(self) -> Sequence[api_pb2.PodResources]:
        """What PodResources says of every Pod of the node."""
        return self._thread.call(self._pod_resources())

    def kubectl(self, *arguments: str, stdin: str = "") -> str:
        """Run kubectl and give its output."""
        program = shutil.which("kubectl")
        if program is None:
            raise KubectlMissingError("there is no kubectl on the PATH")
        done = subprocess.run(  # noqa: S603 - the test's own command
            [program, *arguments],
            env=self.environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=KUBECTL_SECONDS_MAX,
            check=False,
        )
        if done.returncode:
            raise AssertionError(f"kubectl {' '.join(arguments)} ended with {done.returncode}: {done.stderr}")
        return done.stdout

    # --- Nodes. ---

    def nodes(self, count: int) -> Sequence[str]:
        """Add simulated nodes, which run any Pod in memory; their names."""
        return self._thread.call(self._stack.add_nodes(count))

    def stop_node(self) -> None:
        """Stop the node agent; its containers and all drivers run on."""
        self._thread.call(self._stack.stop_node())

    def start_node(self) -> None:
        """Start the node agent again."""
        self._thread.call(self._stack.start_node())

    def restart_node(self) -> None:
        """Restart the node agent, as an update of kubelet would."""
        self.stop_node()
        self.start_node()

    def registered_drivers(self) -> Sequence[str]:
        """Names of the DRA drivers that the node agent uses."""
        return self._thread.call(self._registered_names())

    # --- Drivers. ---

    @overload
    def run_driver(
        self, driver: Driver, *, wait: bool = ..., timeout: float = ..., **options: Any
    ) -> RunningDriver: ...

    @overload
    def run_driver(
        self, driver: Sequence[str], *, wait: bool = ..., timeout: float = ..., **options: Any
    ) -> DriverProcess: ...

    def run_driver(
        self, driver: Driver | Sequence[str], *, wait: bool = True, timeout: float = TIMEOUT_SECONDS, **options: Any
    ) -> RunningDriver | DriverProcess:
        """Run a DRA driver until the cluster ends: one of the SDK in this process, or any command.

        A driver of the SDK takes the fields of `dray.driver.Options`. A command gets `environment`, and may name
        `{root}`, `{plugins}`, `{registry}`, `{cdi}`, `{kubeconfig}` and `{node}`. Returns when the node agent has
        registered it, unless told not to wait.
        """
        known = self._thread.call(self._registered())
        running: RunningDriver | DriverProcess
        if isinstance(driver, Driver):
            running = RunningDriver(self._thread, self._stack, driver, options)
        else:
            running = self._process(driver)
        self._drivers.append(running)
        running.start()
        if wait:
            self._until(lambda: self._is_new(running, known), running.check, timeout, "the driver was not registered")
        return running

    @overload
    def device_plugin(
        self, plugin: DevicePlugin, *, resource: str = ..., timeout: float = ..., **options: Any
    ) -> RunningPlugin: ...

    @overload
    def device_plugin(
        self, plugin: Sequence[str], *, resource: str = ..., timeout: float = ..., **options: Any
    ) -> DriverProcess: ...

    def device_plugin(
        self,
        plugin: DevicePlugin | Sequence[str],
        *,
        resource: str = "",
        timeout: float = TIMEOUT_SECONDS,
        **options: Any,
    ) -> RunningPlugin | DriverProcess:
        """Run a device plugin, of the SDK or any command; returns when the node has its resource.

        Of a command the resource's name must be told, or nothing is waited for.
        """
        running: RunningPlugin | DriverProcess
        if isinstance(plugin, DevicePlugin):
            running = RunningPlugin(self._thread, self._stack, plugin, options)
            resource = resource or plugin.resource_name
        else:
            running = self._process(plugin)
        self._drivers.append(running)
        running.start()
        if resource:
            what = f"node {self.node_name} did not get {resource}"
            self._until(lambda: self._has_resource(resource), running.check, timeout, what)
        return running

    def close(self) -> None:
        """End everything and remove its files."""
        for driver in reversed(self._drivers):
            driver.stop()
        self._thread.call(self._close())
        remove_folder(self.folder)

    # --- Parts. ---

    def _process(self, command: Sequence[str]) -> DriverProcess:
        places = {
            "root": self.root_dir,
            "plugins": self.plugins_dir,
            "registry": self.registry_dir,
            "device_plugins": self.device_plugins_dir,
            "cdi": self.cdi_dir,
            "kubeconfig": self.kubeconfig,
            "node": self.node_name,
        }
        words = [command] if isinstance(command, str) else command
        log = self.folder / f"driver-{len(self._drivers)}.log"
        return DriverProcess([word.format(**places) for word in words], self.environment, log)

    def _outputs(self) -> dict[str, str]:
        """What drivers have said, by name."""
        names = [type(item).__name__ for item in self._drivers]
        return {
            f"{name} {number}": item.output
            for number, (name, item) in enumerate(zip(names, self._drivers, strict=True))
            if not isinstance(item, RunningPlugin)
        }

    def _until(self, condition: Callable[[], Any], check: Callable[[], None], timeout: float, what: str) -> None:
        async def wait() -> bool:
            try:
                async with asyncio.timeout(timeout):
                    while not await condition():
                        check()
                        await asyncio.sleep(LOOK_SECONDS)
            except TimeoutError:
                return False
            return True

        if not self._thread.call(wait()):
            told = "\n".join(f"output of {name}:\n{text}" for name, text in self._outputs().items() if text)
            raise WaitError(f"{what} within {timeout:g} s\n{told}")

    async def _registered(self) -> frozenset[tuple[str, int]]:
        """Registered sockets, and which appearance of each."""
        node = self._stack.node
        if node is None:
            return frozenset()
        # The agent looks once a second by itself; a test need not wait for that.
        node.agent.managers.plugins.rescan()
        return frozenset((plugin.socket_path, id(plugin)) for plugin in node.agent.managers.plugins.plugins)

    async def _registered_names(self) -> Sequence[str]:
        return self._stack.node.drivers() if self._stack.node is not None else []

    async def _is_new(self, running: RunningDriver | DriverProcess, known: frozenset[tuple[str, int]]) -> bool:
        found = await self._registered() - known
        return running.registered if isinstance(running, RunningDriver) else bool(found)

    async def _has_resource(self, resource: str) -> bool:
        node = await self._requests.get(f"node/{self.node_name}", "")
        return int(((node.get("status") or {}).get("allocatable") or {}).get(resource, "0")) > 0

    async def _pod_resources(self) -> Sequence[api_pb2.PodResources]:
        async with connect(str(self.pod_resources_socket)) as channel:
            answer = await PodResourcesListerStub(channel).List(api_pb2.ListPodResourcesRequest())
        return list(answer.pod_resources)

    async def _close(self) -> None:
        await self._requests.close()
        await self._stack.stop()


class AsyncCalls:
    """Every method of a cluster as a coroutine, for asyncio, and for trio by way of anyio."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """The method of that name, run in a thread."""
        method = getattr(self._cluster, name)

        async def call(*arguments: Any, **keywords: Any) -> Any:
            def work() -> Any:
                return method(*arguments, **keywords)

            # Only whoever has loaded anyio can be in trio's loop.
            if "anyio" in sys.modules:
                from anyio import to_thread

                return await to_thread.run_sync(work)
            return await asyncio.to_thread(work)

        return call


@contextmanager
def running_cluster(options: ClusterOptions | None = None, thread: LoopThread | None = None) -> Iterator[Cluster]:
    """A cluster for the time of a `with` block."""
    own = thread or LoopThread()
    folder = make_folder()
    stack = Stack(options or ClusterOptions(), folder)
    try:
        own.call(stack.start())
        cluster = Cluster(own, stack)
        try:
            yield cluster
        finally:
            cluster.close()
    finally:
        remove_folder(folder)
        if thread is None:
            own.close()
