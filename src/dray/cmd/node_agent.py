"""The composition root of the node agent: builds its components from the settings, and starts them.

The order of construction follows the dependencies: the Pods, the resource managers that read them, the workers that
use the managers.
"""

from __future__ import annotations

import json
import logging
import os
import random
import ssl
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import orjson

from dray.api.document import Document
from dray.api.persistent_volumes import VOLUMES_FOLDER
from dray.apiserver.kubelet_client import FINGERPRINT_ANNOTATION
from dray.client.credentials import ClientCertificate
from dray.client.event_recorder import WARNING, EventRecorder, ObjectReference, Source
from dray.client.informer import Selection
from dray.client.interface import Patch, PatchType
from dray.client.resources import NODES, PODS, SERVICES
from dray.client.shared_informers import SharedInformerFactory
from dray.client.skipped_objects import SkippedObjects, summary
from dray.cmd.certificate_tool import new_local_serving
from dray.cmd.kubelet_configuration import kubelet_configuration
from dray.cmd.node_certificates import NodeCertificates
from dray.cmd.node_identity import NodeIdentity, serving_context
from dray.cmd.node_managers import NodeContext, NodeManagers
from dray.cmd.settings import NodeSettings
from dray.lib.clock import Clock
from dray.node.agent.dependencies import ContainerStartMetrics, Dependencies, NodeInfo
from dray.node.agent.kubelet_authorization import KubeletAuthorizer
from dray.node.agent.kubelet_server import KubeletServer
from dray.node.agent.local_volumes import LocalVolumes
from dray.node.agent.machine_info import read_machine
from dray.node.agent.node_object import NodeSpec, declared_features, parse_labels, parse_taints, reported_images
from dray.node.agent.node_registration import NodeRegistration, ReportTimes
from dray.node.agent.pod.environment import DownwardContext
from dray.node.agent.pod.timing import Timing
from dray.node.agent.pod_manager import PodManager
from dray.node.agent.pod_setup import LocalPodSetup
from dray.node.agent.pod_workers import PodWorkers
from dray.node.agent.probes.prober import Prober
from dray.node.agent.service_variables import NodeServices
from dray.node.agent.stats.sampler import INTERVAL_SECONDS_MIN, StatsSampler
from dray.node.agent.status_manager import StatusManager
from dray.node.cdi.cache import CdiCache
from dray.node.network.commands import missing_tools
from dray.node.network.pod_network import RoutedNetwork
from dray.node.network.service_network import NetworkParts, ServiceNetwork
from dray.node.runtimes.image_references import Keyring, read_keyring
from dray.node.runtimes.runtime import Runtime
from dray.node.streams.handlers import StreamHandlers
from dray.runtime.descriptors import streams_max
from dray.runtime.health import HealthChecks
from dray.runtime.http.health import health_routes, metrics_page, serve_health
from dray.runtime.http.requests import Request
from dray.runtime.http.router import Reply
from dray.runtime.logs import fields
from dray.runtime.settings import SettingsError
from dray.runtime.tasks import ChildTasks, TaskGroup

_log = logging.getLogger(__name__)

COMPONENT: Final = "kubelet"
# The folder of volumes that are provisioned on the node.
VOLUMES: Final = "volumes"
# How often the images of the node are looked at.
IMAGES_SECONDS: Final = 60.0
# The layout that drivers and plugins expect.
_FOLDERS: Final = (
    ("plugins_registry", 0o755),
    ("plugins", 0o750),
    ("device-plugins", 0o750),
    ("pod-resources", 0o750),
    ("pods", 0o750),
    (VOLUMES, 0o750),
    ("logs", 0o750),
)


class NodeAgent:
    """The node agent. Its owner calls `start`, and `stop` when the group has ended."""

    def __init__(self, context: NodeContext, identity: NodeIdentity, certificate: ClientCertificate) -> None:
        settings, client, clock = context.settings, context.client, context.clock
        self._context = context
        self._identity = identity
        self._certificate = certificate
        self._recorder = EventRecorder(client, clock, Source(COMPONENT, context.name))
        self._runtime = make_runtime(settings, context.name, context.root, clock)
        self._pods = PodManager()
        self.managers = NodeManagers(context, self._pods)
        self._registration = NodeRegistration(
            client,
            clock,
            _node_spec(context, identity, self._runtime),
            self.managers.node_resources,
            times=ReportTimes(settings.node_lease_duration_seconds, settings.node_status_report_frequency),
            is_new_node=self.managers.is_new_node,
        )
        jitter = random.Random()  # noqa: S311 - spreads load
        skipped = SkippedObjects(client, clock, context.metrics, COMPONENT)
        self._informers = SharedInformerFactory(client, clock, jitter, skipped)
        self._tasks = ChildTasks("node agent")
        # Of the HTTPS server, once it listens.
        self._port = settings.port
        self._service_network = self._make_service_network()
        pod_setup = LocalPodSetup(client, clock, context.root, self._downward_context, self._services())
        # Not the informers above: other clusters do not let nodes read volumes, which must not make the agent unready.
        self._local_volumes = LocalVolumes(
            client,
            clock,
            SharedInformerFactory(client, clock, jitter),
            context.name,
            context.root / VOLUMES,
            pod_setup.used_volumes,
        )
        topology_manager = self.managers.container_manager.manager
        self.workers = PodWorkers(
            self._node_info,
            self._pods,
            Dependencies(
                clock=clock,
                tasks=self._tasks,
                runtime=self._runtime,
                pod_setup=pod_setup,
                status_manager=StatusManager(client, clock),
                recorder=self._recorder,
                prober=Prober(self._runtime),
                managers=self.managers.all,
                timing=_timing(settings),
                health_checks=(topology_manager.check_health,),
                effective_allocatable=topology_manager.effective_allocatable,
                refresh_node=self._registration.refresh,
                cpusets=self.managers.cpusets,
                start_metrics=ContainerStartMetrics(context.metrics),
            ),
        )
        self._assigned = self._informers.informer(PODS, Selection(field_selector=f"spec.nodeName={context.name}"))
        self.health = HealthChecks()
        self.health.add("informer-sync", self._informers.out_of_sync)
        self.health.add_note("decodable-objects", lambda: summary(skipped.names()))
        self.health.add("node-status", self._registration.node_health)
        self.health.add("node-lease", self._registration.lease_health)
        self._stats = StatsSampler(
            node_name=context.name,
            root=context.root,
            pods=self._pods,
            runtime=self._runtime,
            clock=clock,
            interval_seconds=_stats_interval(settings),
        )
        self._server = KubeletServer(
            self._pods,
            clock,
            pod_setup.log_root,
            KubeletAuthorizer(client, clock, context.name).checked,
            {
                **health_routes(self.health),
                **self._stats.routes,
                "/metrics": metrics_page(context.metrics.exposition),
                "/configz": self._configuration,
            },
            StreamHandlers(self._pods, self._runtime, streams_max()).routes,
        )
        self.managers.subscribe(self._resources_changed, self.workers.retry_now, self._warn)

    def _make_service_network(self) -> ServiceNetwork | None:
        context = self._context
        own = make_network(context.settings, context.root)
        if own is None:
            return None
        network = ServiceNetwork(
            NetworkParts(
                client=context.client,
                informers=self._informers,
                clock=context.clock,
                tasks=self._tasks,
                node_name=context.name,
                api_server=_api_server(self._identity),
                network=own,
            )
        )
        network.on_condition = lambda: self._registration.set_conditions((network.condition(),))
        return network

    def _services(self) -> NodeServices:
        informer = self._informers.informer(SERVICES)
        writes_files = self._runtime.name != "process"
        own = self._service_network
        configured = self._context.settings.cluster_dns
        return NodeServices(
            informer,
            informer.lister.list,
            _api_server(self._identity),
            lambda: self._service_network is not None and self._service_network.is_in_force,
            lambda: (configured or (own.dns_servers if own is not None else ())) if writes_files else None,
        )

    async def start(self, group: TaskGroup) -> int:
        """Start everything in the group and register the Node; return the port of the HTTPS server."""
        settings = self._context.settings
        group.spawn(self._tasks.supervise(), "pod workers")
        await self.workers.start()
        self.managers.recover()
        self.managers.spawn(group)
        await self._serve_health(group)
        tls = serving_context(self._identity)
        port = self._port = await self._server.start(settings.host, settings.port, tls)
        self._registration.set_endpoint(port, f"{self._runtime.name}://{self._runtime.version}")
        await self._registration.register()
        for work, name in (
            (self._serve(), "HTTPS server"),
            (self._recorder.run(), "events"),
            (self.workers.report_statuses(), "pod statuses"),
            (self._registration.run(), "node status"),
            (self._registration.renew_lease(), "node lease"),
            (self.workers.refresh_volumes(), "volumes"),
            (self.workers.reconcile_cpusets(), "cpusets"),
            (self._watch_pods(), "pods"),
            (self._report_images(), "images"),
            (self._stats.run(), "stats"),
            (self._runtime.collect_images(self._warn), "image garbage collection"),
            (self._local_volumes.run(), "local volumes"),
        ):
            group.spawn(work, name)
        if self._service_network is not None:
            group.spawn(self._service_network.run(), "service network")
        await self._rotate_certificates(group, tls)
        return port

    async def _rotate_certificates(self, group: TaskGroup, tls: ssl.SSLContext) -> None:
        """Renew the certificates that the cluster can sign; those of files are their owner's."""
        context, settings, identity = self._context, self._context.settings, self._identity
        certificates = NodeCertificates(context.client, context.clock, context.name)
        if settings.rotate_certificates and self._certificate.certificate and identity.kubeconfig:
            await certificates.rotate_client(group, self._certificate, Path(identity.kubeconfig))
        if settings.rotate_server_certificates and not settings.tls_cert_file:
            names = (context.name, *self._registration.spec.machine.addresses)
            if identity.fingerprint:
                # A certificate that is not signed by the cluster is replaced at once.
                obtain, signed = partial(certificates.obtain_serving, names), None
            else:
                obtain = partial(new_local_serving, settings.data_dir, context.name, names)
                signed = identity.serving.certificate
            await certificates.rotate_serving(group, tls, obtain, signed, self._trust_authority)

    async def _trust_authority(self) -> None:
        """Let clients verify the serving certificate by the cluster's authority, not by its fingerprint."""
        if self._identity.fingerprint:
            patch: Document = {"metadata": {"annotations": {FINGERPRINT_ANNOTATION: None}}}
            await self._context.client.patch(NODES, self._context.name, "", Patch(PatchType.MERGE, patch))

    async def stop(self) -> None:
        """Stop the Pod workers and the runtime; containers keep running."""
        await self.workers.stop()

    async def _serve_health(self, group: TaskGroup) -> None:
        """Serve health checks over plain HTTP; as in kubelet, a port that is in use does not stop the agent."""
        settings = self._context.settings
        if not settings.healthz_port:
            return
        host, port = settings.healthz_bind_address, settings.healthz_port
        try:
            await serve_health(group, host, port, self._context.metrics.exposition, self.health)
        except OSError as error:
            _log.error("health checks are not served", extra=fields(address=f"{host}:{port}", error=str(error)))

    def _resources_changed(self, uids: Sequence[str]) -> None:
        if uids:
            self.workers.resources_changed(uids)
        else:
            self._registration.resources_changed()

    def _node_info(self) -> NodeInfo:
        node = self._registration
        return NodeInfo(self._context.name, node.spec.machine.addresses, node.labels, node.allocatable)

    def _downward_context(self) -> DownwardContext:
        node = self._registration
        machine = node.spec.machine
        return DownwardContext(
            self._context.name, machine.addresses, (), node.allocatable, memory_bytes=machine.memory_bytes
        )

    async def _configuration(self, _request: Request) -> Reply:
        document = {"kubeletconfig": kubelet_configuration(self._context.settings, self._port)}
        return Reply(orjson.dumps(document), content_type="application/json")

    async def _serve(self) -> None:
        try:
            await self._server.supervise()
        finally:
            await self._server.stop()

    def _warn(self, reason: str, message: str) -> None:
        """Record a Warning event about the node."""
        name = self._context.name
        self._recorder.event_for(ObjectReference(NODES.group_version_kind, "", name, name), WARNING, reason, message)

    async def _report_images(self) -> None:
        while True:
            images = await self._runtime.images()
            self._registration.set_images(reported_images((image.names, image.size) for image in images))
            await self._context.clock.sleep(IMAGES_SECONDS)

    async def _watch_pods(self) -> None:
        self._assigned.add_handler(self.workers.pod_changed)
        async with TaskGroup("pods") as group:
            group.spawn(self._informers.run(), "informers")
            await self._assigned.wait_for_sync()
            self.workers.pods_synced()
            await group.wait()


def make_root(path: str) -> Path:
    """Return the agent's root folder, with the folders that drivers and plugins expect."""
    root = Path(path).resolve()
    try:
        for name, mode in _FOLDERS:
            (root / name).mkdir(parents=True, exist_ok=True, mode=mode)
    except PermissionError as error:
        raise SettingsError(f"--root-dir: cannot write to {root}: run as root or name another folder") from error
    return root


def make_network(settings: NodeSettings, root: Path) -> RoutedNetwork | None:
    """Return the network of Pods that the agent configures, if the settings ask for one."""
    if settings.pod_network != "routed":
        return None
    if settings.runtime != "cri" or os.geteuid() != 0:
        raise SettingsError(f"--pod-network={settings.pod_network} needs root and --runtime=cri")
    if missing := missing_tools():
        raise SettingsError(f"--pod-network={settings.pod_network} needs {', '.join(missing)}")
    return RoutedNetwork(root / "network", Path(settings.cni_conf_dir))


def make_runtime(settings: NodeSettings, name: str, root: Path, clock: Clock) -> Runtime:
    """Return the container runtime that the settings name; the other runtime is not imported."""
    cdi = CdiCache(settings.cdi_spec_dirs)
    if settings.runtime == "cri":
        from dray.node.runtimes.cri.runtime import CriRuntime, CriSettings

        own = CriSettings(
            endpoint=settings.container_runtime_endpoint,
            node_name=name,
            root=root,
            shares_network=settings.pod_network == "host",
            has_network=settings.pod_network != "auto",
            keyring=read_registry_config(settings.registry_config),
            pulls_max=settings.max_parallel_image_pulls,
        )
        return CriRuntime(own, clock, cdi)
    from dray.node.runtimes.process.runtime import ProcessRuntime

    return ProcessRuntime(root / "containers", clock, cdi)


def read_registry_config(path: str) -> Keyring:
    """Return the node's credentials for registries."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8")) if path else {}
        if not isinstance(document, dict):
            raise SettingsError(f"--registry-config: {path}: not a Docker configuration file")
    except (OSError, ValueError) as error:
        raise SettingsError(f"--registry-config: {error}") from error
    return read_keyring([document])


def _stats_interval(settings: NodeSettings) -> float:
    if settings.housekeeping_interval < INTERVAL_SECONDS_MIN:
        raise SettingsError(f"--housekeeping-interval: must be at least {INTERVAL_SECONDS_MIN}s")
    return settings.housekeeping_interval


def _timing(settings: NodeSettings) -> Timing:
    return replace(
        Timing(),
        restart_backoff=settings.container_restart_backoff,
        restart_backoff_max=settings.max_container_restart_period,
        start_retry=min(Timing().start_retry, settings.container_restart_backoff),
    )


def _node_spec(context: NodeContext, identity: NodeIdentity, runtime: Runtime) -> NodeSpec:
    settings = context.settings
    try:
        labels, taints = parse_labels(settings.node_labels), parse_taints(settings.register_with_taints)
    except ValueError as error:
        raise SettingsError(str(error)) from error
    return NodeSpec(
        name=context.name,
        machine=read_machine(context.root, hostname=settings.node_name, address=settings.node_ip),
        runtime_version=f"{runtime.name}://{runtime.version}",
        labels=labels,
        annotations={
            FINGERPRINT_ANNOTATION: identity.fingerprint,
            VOLUMES_FOLDER: str(context.root / VOLUMES),
        },
        taints=taints,
        pods_max=settings.max_pods,
        declared_features=declared_features(settings.feature_gates),
    )


def _api_server(identity: NodeIdentity) -> tuple[str, int]:
    """Return host and port of the API server."""
    parts = urlsplit(identity.access.server)
    return parts.hostname or "", parts.port or 443
