"""The cluster of a test: blocking calls, while the cluster runs in its own thread."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, overload

from dray.api.document import Document
from dray.client.interface import ListOptions
from dray.cmd.short_folder import make_folder, remove_folder
from dray.cmd.testing.conditions import DELETED, Condition
from dray.cmd.testing.drivers import DriverProcess, RunningDriver, RunningPlugin
from dray.cmd.testing.manifests import Source, read_manifests
from dray.cmd.testing.requests import Requests, WaitError
from dray.cmd.testing.stack import ClusterOptions, Stack
from dray.cmd.testing.threads import EventLoopThread
from dray.driver import Driver
from dray.driver.device_plugin import DevicePlugin
from dray.rpc.pb.podresources.v1 import api_pb2
from dray.rpc.pb.podresources.v1.api_pb2_grpc import PodResourcesListerStub
from dray.rpc.sockets import connect

TIMEOUT_SECONDS: Final = 30.0
POLL_SECONDS: Final = 0.01
KUBECTL_SECONDS_MAX: Final = 60.0


class KubectlMissingError(Exception):
    """kubectl is not on the PATH."""


class Cluster:
    """API server, controllers, scheduler and a node agent; created by `running_cluster` or the fixture `cluster`.

    Calls block. They may be made from any thread except the cluster's own, in which drivers of the SDK run. In an async
    test await the same calls on `aio`, so that the test's event loop is not blocked.
    """

    def __init__(self, thread: EventLoopThread, stack: Stack) -> None:
        self._thread = thread
        self._stack = stack
        self._drivers: list[RunningDriver | RunningPlugin | DriverProcess] = []
        self._requests = Requests(stack, self._outputs)
        self.aio: Any = AsyncCalls(self)

    # --- Paths and addresses. ---

    @property
    def kubeconfig(self) -> Path:
        """Return the administrator's kubeconfig, for kubectl and any client."""
        return self._stack.running.kubeconfig

    @property
    def server(self) -> str:
        """Return the API server's URL."""
        return self._stack.running.url

    @property
    def node_name(self) -> str:
        """Return the name of the node whose agent runs in the cluster."""
        return self._stack.options.node_name

    @property
    def folder(self) -> Path:
        """Return the directory of the cluster's files; it is removed with the cluster."""
        return self._stack.folder

    @property
    def root_dir(self) -> Path:
        """Return the directory that is `/var/lib/kubelet` on a real node."""
        return self._stack.root

    @property
    def plugins_dir(self) -> Path:
        """Return the directory of drivers' own sockets, with a subdirectory for each driver."""
        return self._stack.root / "plugins"

    @property
    def registry_dir(self) -> Path:
        """Return the directory of registration sockets."""
        return self._stack.root / "plugins_registry"

    @property
    def device_plugins_dir(self) -> Path:
        """Return the directory of `kubelet.sock`, for device plugins."""
        return self._stack.root / "device-plugins"

    @property
    def pod_resources_socket(self) -> Path:
        """Return the path of the PodResources socket."""
        return self._stack.root / "pod-resources" / "kubelet.sock"

    @property
    def cdi_dir(self) -> Path:
        """Return the directory of CDI specs."""
        return self._stack.cdi

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment for programs that use this cluster: KUBECONFIG, NODE_NAME, and SDK directories."""
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
        """Apply objects: a document, several documents, YAML text, a file, or a directory of files."""
        return self._thread.call(self._requests.apply(read_manifests(source), namespace))

    def get(self, target: str, *, namespace: str = "default") -> Document:
        """Return an object, named as `pod/x` or `deviceclass/y`."""
        return self._thread.call(self._requests.get(target, namespace))

    def list(self, kind: str, *, namespace: str = "", labels: str = "", fields: str = "") -> Sequence[Document]:
        """List the objects of a kind; the empty namespace means all namespaces."""
        return self._thread.call(self._requests.list(kind, namespace, ListOptions(labels, fields)))

    def delete(
        self,
        target: str,
        *,
        namespace: str = "default",
        grace_seconds: int | None = None,
        timeout: float = TIMEOUT_SECONDS,
    ) -> None:
        """Delete an object and wait until it is gone."""
        self._thread.call(self._requests.delete(target, namespace, grace_seconds))
        self.wait_for(target, DELETED, namespace=namespace, timeout=timeout)

    def wait_for(
        self, target: str, condition: Condition, *, timeout: float = TIMEOUT_SECONDS, namespace: str = "default"
    ) -> Document:
        """Wait until the object meets the condition and return it; raises `WaitError` with a diagnosis.

        The condition is a phase (`Running`), the type of a condition that must be true (`Ready`), one of `exists`,
        `deleted`, `allocated`, `reserved`, or a function of the object.
        """
        __tracebackhide__ = True
        outcome = self._thread.call(self._requests.wait_for(target, condition, namespace, timeout))
        if isinstance(outcome, WaitError):
            raise outcome
        return outcome

    def explain(self, target: str, *, namespace: str = "default") -> str:
        """Return a diagnosis of an object: status, claims, events, drivers, outputs."""
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
        """Return the log of a container."""
        query = {"container": container} if container else {}
        if previous:
            query["previous"] = "true"
        if tail is not None:
            query["tailLines"] = str(tail)
        return self._thread.call(self._requests.logs(pod, namespace, query))

    def events(self, name: str = "", *, namespace: str = "default") -> Sequence[Document]:
        """Return the Events of the namespace, or of the named object, oldest first."""
        return self._thread.call(self._requests.events(name, namespace))

    def slices(self, driver: str = "") -> Sequence[Document]:
        """List ResourceSlices, optionally of one driver."""
        return self.list("resourceslices", fields=f"spec.driver={driver}" if driver else "")

    def claims(self, *, namespace: str = "default") -> Sequence[Document]:
        """List the ResourceClaims of a namespace."""
        return self.list("resourceclaims", namespace=namespace)

    def pod_resources(self) -> Sequence[api_pb2.PodResources]:
        """List the PodResources of the node."""
        return self._thread.call(self._pod_resources())

    def kubectl(self, *arguments: str, stdin: str = "") -> str:
        """Run kubectl and return its output."""
        program = shutil.which("kubectl")
        if program is None:
            raise KubectlMissingError("kubectl is not on the PATH")
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
            raise AssertionError(f"kubectl {' '.join(arguments)} exited with code {done.returncode}: {done.stderr}")
        return done.stdout

    # --- Nodes. ---

    def nodes(self, count: int) -> Sequence[str]:
        """Add simulated nodes, which run any Pod in memory; return their names."""
        return self._thread.call(self._stack.add_nodes(count))

    def stop_node(self) -> None:
        """Stop the node agent; its containers and all drivers keep running."""
        self._thread.call(self._stack.stop_node())

    def start_node(self) -> None:
        """Start the node agent again."""
        self._thread.call(self._stack.start_node())

    def restart_node(self) -> None:
        """Restart the node agent, as an update of kubelet does."""
        self.stop_node()
        self.start_node()

    def registered_drivers(self) -> Sequence[str]:
        """Return the names of the DRA drivers registered with the node agent."""
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
        """Run a DRA driver until the cluster stops: one of the SDK in this process, or any command.

        A driver of the SDK takes the fields of `dray.driver.Options`. A command gets `environment`, and may contain
        `{root}`, `{plugins}`, `{registry}`, `{cdi}`, `{kubeconfig}` and `{node}`. Returns when the node agent has
        registered the driver, unless `wait` is false.
        """
        previous = self._thread.call(self._registered())
        running: RunningDriver | DriverProcess
        if isinstance(driver, Driver):
            running = RunningDriver(self._thread, self._stack, driver, options)
        else:
            running = self._process(driver)
        self._drivers.append(running)
        running.start()
        if wait:
            self._wait_until(
                lambda: self._is_registered(running, previous), running.check, timeout, "the driver was not registered"
            )
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

        For a command, `resource` must be given; without it the call does not wait.
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
            what = f"node {self.node_name} has no {resource}"
            self._wait_until(lambda: self._has_resource(resource), running.check, timeout, what)
        return running

    def close(self) -> None:
        """Stop everything and remove the files; raise the error of a driver that crashed."""
        with ExitStack() as stack:
            stack.callback(remove_folder, self.folder)
            stack.callback(lambda: self._thread.call(self._close()))
            for driver in self._drivers:
                stack.callback(driver.stop)

    # --- Parts. ---

    def _process(self, command: Sequence[str]) -> DriverProcess:
        values = {
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
        return DriverProcess([word.format(**values) for word in words], self.environment, log)

    def _outputs(self) -> dict[str, str]:
        """Return the outputs of drivers by name."""
        names = [type(item).__name__ for item in self._drivers]
        return {
            f"{name} {number}": item.output
            for number, (name, item) in enumerate(zip(names, self._drivers, strict=True))
            if not isinstance(item, RunningPlugin)
        }

    def _wait_until(self, condition: Callable[[], Any], check: Callable[[], None], timeout: float, what: str) -> None:
        async def wait() -> bool:
            try:
                async with asyncio.timeout(timeout):
                    while not await condition():
                        check()
                        await asyncio.sleep(POLL_SECONDS)
            except TimeoutError:
                return False
            return True

        if not self._thread.call(wait()):
            outputs = "\n".join(f"output of {name}:\n{text}" for name, text in self._outputs().items() if text)
            raise WaitError(f"{what} within {timeout:g} s\n{outputs}")

    async def _registered(self) -> frozenset[tuple[str, int]]:
        """Return the registered sockets, and an identity that changes with every registration."""
        node = self._stack.node
        if node is None:
            return frozenset()
        # The agent itself scans once a second; a test should not wait for that.
        node.agent.managers.plugins.rescan()
        return frozenset((plugin.socket_path, id(plugin)) for plugin in node.agent.managers.plugins.plugins)

    async def _registered_names(self) -> Sequence[str]:
        return self._stack.node.drivers() if self._stack.node is not None else []

    async def _is_registered(
        self, running: RunningDriver | DriverProcess, previous: frozenset[tuple[str, int]]
    ) -> bool:
        new = await self._registered() - previous
        return running.registered if isinstance(running, RunningDriver) else bool(new)

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
    """Every method of a cluster as a coroutine, for asyncio, and for trio with anyio."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return the method of that name, run in a thread."""
        method = getattr(self._cluster, name)

        async def call(*arguments: Any, **keywords: Any) -> Any:
            def work() -> Any:
                return method(*arguments, **keywords)

            # A test in trio's event loop has imported anyio.
            if "anyio" in sys.modules:
                from anyio import to_thread

                return await to_thread.run_sync(work)
            return await asyncio.to_thread(work)

        return call


@contextmanager
def running_cluster(options: ClusterOptions | None = None, thread: EventLoopThread | None = None) -> Iterator[Cluster]:
    """Run a cluster for the time of a `with` block."""
    own = thread or EventLoopThread()
    folder = make_folder()
    try:
        cluster = Cluster(own, own.call(Stack.start(options or ClusterOptions(), folder)))
        try:
            yield cluster
        finally:
            cluster.close()
    finally:
        remove_folder(folder)
        if thread is None:
            own.close()
