"""`dray apiserver`: an API server with its store, keys and listener."""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
import uuid
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import yaml

from dray.api.document import Document
from dray.api.gate_table import GATES_OF_NEW_FIELDS
from dray.api.pod_security.policy import ConfigurationError, PodSecurityConfiguration
from dray.api.timestamps import format_time
from dray.apiserver.admission.chain import PluginNameError, enabled_plugins
from dray.apiserver.admission.configuration import read_admission_configuration
from dray.apiserver.audit.auditor import Auditor
from dray.apiserver.audit.log import AuditLog, AuditLogSettings
from dray.apiserver.audit.policy import AuditPolicy, PolicyError
from dray.apiserver.authentication.pki import (
    PKI,
    ensure_pki,
    kubelet_tls,
    read_token_file,
    server_context,
    write_kubeconfig,
)
from dray.apiserver.bootstrap import HOOKS, Bootstrap
from dray.apiserver.catalog import Catalog
from dray.apiserver.composition import ServerConfig, running_server
from dray.apiserver.fairness import FairQueue, Limits
from dray.apiserver.handlers.decisions import DecisionSource
from dray.apiserver.handlers.usage import UsageSource
from dray.apiserver.healthz import PostStartHooks
from dray.apiserver.http import Listener
from dray.apiserver.in_process import fill_store
from dray.apiserver.kubelet_client import KubeletClient
from dray.apiserver.kubernetes_service import Advertised, KubernetesService, advertised_host
from dray.apiserver.local_transport import LocalTransport
from dray.apiserver.metrics import RequestMetrics
from dray.apiserver.registry import builtin
from dray.apiserver.registry.served_versions import RuntimeConfig, RuntimeConfigError, parse_runtime_config
from dray.apiserver.request_limiter import RequestLimiter
from dray.apiserver.server import APIServer
from dray.cmd.dashboard import DashboardPages
from dray.cmd.settings import APIServerSettings
from dray.lib.clock import Clock
from dray.lib.ip_addresses import parse_address
from dray.node.agent.machine_info import read_machine
from dray.runtime.descriptors import connections_max, streams_max
from dray.runtime.disk_errors import explained_errors
from dray.runtime.http.server import bind
from dray.runtime.metrics import Metrics
from dray.runtime.settings import SettingsError
from dray.runtime.system import PooledRandom, SystemClock
from dray.runtime.tasks import TaskGroup
from dray.store.interface import Store
from dray.store.state import CompactionPolicy

_ANY_ADDRESS: Final = ("0.0.0.0", "::", "")  # noqa: S104 - compared, not bound


async def open_store(settings: APIServerSettings, group: TaskGroup) -> Store:
    """Open the store of the settings, whose tasks the group supervises; its module is imported only if it is used."""
    policy = CompactionPolicy(age_seconds=settings.compaction_interval)
    if settings.store == "memory":
        from dray.store.memory import MemoryStore

        return MemoryStore(policy)
    if settings.store == "etcd":
        from dray.store.etcd import EtcdStore, TLSFiles

        if not settings.etcd_servers:
            raise SettingsError("--store=etcd needs --etcd-servers, as in --etcd-servers=http://127.0.0.1:2379")
        if bool(settings.etcd_certfile) != bool(settings.etcd_keyfile):
            raise SettingsError("--etcd-certfile and --etcd-keyfile go together")
        if not settings.etcd_cafile:
            check_plain_etcd(settings)
        tls = None
        if settings.etcd_cafile:
            files = (Path(file) if file else None for file in (settings.etcd_certfile, settings.etcd_keyfile))
            tls = TLSFiles(Path(settings.etcd_cafile), *files)
        etcd = await EtcdStore.connect(settings.etcd_servers, prefix=settings.etcd_prefix, tls=tls, policy=policy)
        group.spawn(etcd.supervise(), "etcd store")
        return etcd
    from dray.store.sqlite import SQLiteStore

    has_new_fields = any(settings.feature_gates.enabled(gate) for gate in GATES_OF_NEW_FIELDS)
    return await SQLiteStore.open(Path(settings.data_dir) / "state.db", policy=policy, for_new_fields=has_new_fields)


def check_plain_etcd(settings: APIServerSettings) -> None:
    """Refuse to send the cluster's Secrets to other machines without TLS, unless that is asked for."""
    for endpoint in settings.etcd_servers:
        if endpoint.startswith("https://"):
            raise SettingsError(f"--etcd-servers={endpoint} needs --etcd-cafile, the CA certificate of etcd")
        if not (settings.etcd_insecure or _is_on_this_machine(endpoint)):
            raise SettingsError(
                f"--etcd-servers={endpoint} is another machine, and is reached without TLS: who controls the network "
                "between can read and change all objects, Secrets included. Use https with --etcd-cafile, or accept "
                "that with --etcd-insecure"
            )


def _is_on_this_machine(endpoint: str) -> bool:
    if endpoint.startswith("unix:"):
        return True
    try:
        host = urlsplit(endpoint if "://" in endpoint else f"//{endpoint}").hostname or ""
    except ValueError:
        return False
    address = parse_address(host)
    return host == "localhost" if address is None else address.is_loopback


@dataclass(frozen=True, slots=True)
class Running:
    """A running API server and what belongs to it."""

    server: APIServer
    local: LocalTransport
    # For controllers and the scheduler in this process; see `dray.store.interface.AsynchronousCommit`.
    components: LocalTransport
    store: Store
    pki: PKI
    clock: Clock
    metrics: Metrics
    url: str
    kubeconfig: Path


@asynccontextmanager
async def running(
    settings: APIServerSettings,
    decisions: DecisionSource | None = None,
    contents: Iterable[Document] = (),
    usage: UsageSource | None = None,
) -> AsyncIterator[Running]:
    """Serve for the time of a `with` block, which starts when the first request can be answered.

    If a background task of the server fails, the body is cancelled and the error is raised. The contents are stored
    first, without validation; the store must not have them yet.
    """
    plugins, pod_security, apis = _admission_plugins(settings), _pod_security(settings), _runtime_config(settings)
    clock, metrics = SystemClock(), Metrics()
    data_dir = _make_directory(settings.data_dir)
    advertised = settings.advertise_address or advertised_host(settings.host, read_machine(Path("/")).addresses[0])
    names = (*settings.tls_names, str(ip_network(settings.service_cluster_ip_range)[1]), advertised)
    with explained_errors(data_dir):
        pki = ensure_pki(data_dir, hostname=socket.gethostname(), extra_names=filter(None, names), now=clock.now())
    async with AsyncExitStack() as stack:
        # Entered first and left last: the store and the listener end in good order before their supervisor does.
        group = await stack.enter_async_context(TaskGroup("apiserver process"))
        store = await open_store(settings, group)
        stack.push_async_callback(store.close)
        await _fill(store, contents, clock)
        kubelets = KubeletClient(kubelet_tls(pki, clock.now()))
        # Bound before the server is composed, which publishes its address; it listens when it can answer.
        sockets = bind(settings.host, settings.port)
        for bound in sockets:
            stack.callback(bound.close)
        address = f"{_url_host(settings.host)}:{sockets[0].getsockname()[1]}"
        hooks = PostStartHooks(HOOKS)
        config = ServerConfig(
            store=store,
            endpoints=builtin.endpoints(settings.feature_gates.release),
            clock=clock,
            random_source=PooledRandom(),
            gates=settings.feature_gates,
            runtime_config=apis,
            token_key=pki.token_key,
            new_token_id=lambda: str(uuid.uuid4()),
            service_account_issuer=settings.service_account_issuer,
            address=address,
            service_cluster_ip_range=settings.service_cluster_ip_range,
            static_tokens=read_token_file(Path(settings.token_auth_file)) if settings.token_auth_file else {},
            allow_anonymous=settings.anonymous_auth,
            admission_plugins=plugins,
            pod_security=pod_security,
            log_source=kubelets,
            node_streams=kubelets,
            node_proxy=kubelets,
            pages=DashboardPages(clock),
            decisions=decisions,
            usage=usage,
            metrics=metrics.exposition,
            metrics_registry=metrics,
            hooks=hooks,
            event_ttl_seconds=settings.event_ttl,
            healthcheck_timeout_seconds=settings.etcd_healthcheck_timeout,
            readycheck_timeout_seconds=settings.etcd_readycheck_timeout,
        )
        server = await stack.enter_async_context(running_server(config))
        stack.push_async_callback(kubelets.close)
        local = LocalTransport(server)
        await Bootstrap(local, hooks, pki.authority.certificate.decode()).run()
        own = Advertised(advertised, sockets[0].getsockname()[1], is_one_of_many=store.shared)
        service = KubernetesService(local, clock, own, ip_network(settings.service_cluster_ip_range))
        await service.ensure()
        group.spawn(service.run(), "kubernetes service")
        limits = Limits.for_seats(settings.max_requests_inflight, watches_max=settings.max_watches)
        limiter, connections = RequestLimiter(FairQueue(limits), clock), connections_max(settings.max_connections)
        auditor = _auditor(settings, clock, metrics)
        if auditor is not None:
            group.spawn(auditor.log.run(), "audit log")
        listener = Listener(
            *(server, limiter, RequestMetrics(metrics)),
            connections_max=connections,
            streams_max=streams_max(),
            auditor=auditor,
        )
        stack.push_async_callback(listener.stop)
        group.spawn(listener.supervise(), "listener")
        await listener.start(sockets, server_context(pki))
        url = f"https://{address}"
        with explained_errors(data_dir):
            _write_kubeconfigs(pki, url)
        yield Running(
            server=server,
            local=local,
            components=LocalTransport(server.components),
            store=store,
            pki=pki,
            clock=clock,
            metrics=metrics,
            url=url,
            kubeconfig=data_dir / "kubeconfig",
        )


async def _fill(store: Store, contents: Iterable[Document], clock: Clock) -> None:
    """Store the first objects of a new cluster."""
    if contents:
        await fill_store(store, Catalog(builtin.endpoints()), contents, format_time(clock.now()), PooledRandom())


def _make_directory(name: str) -> Path:
    path = Path(name).resolve()
    with explained_errors(path):
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path


def _admission_plugins(settings: APIServerSettings) -> frozenset[str]:
    try:
        return enabled_plugins(settings.enable_admission_plugins, settings.disable_admission_plugins)
    except PluginNameError as error:
        raise SettingsError(f"--{error}") from error


def _runtime_config(settings: APIServerSettings) -> RuntimeConfig:
    try:
        return parse_runtime_config(settings.runtime_config, builtin.endpoints(), settings.feature_gates.release)
    except RuntimeConfigError as error:
        raise SettingsError(f"--runtime-config: {error}") from error


def _auditor(settings: APIServerSettings, clock: Clock, metrics: Metrics) -> Auditor | None:
    """Return the auditor; without a policy or a log nothing is recorded."""
    if not settings.audit_policy_file or not settings.audit_log_path:
        return None
    try:
        document = yaml.safe_load(Path(settings.audit_policy_file).read_text())
        policy = AuditPolicy(document if isinstance(document, dict) else {})
    except (OSError, yaml.YAMLError, PolicyError) as error:
        raise SettingsError(f"--audit-policy-file: {error}") from error
    log = AuditLog(
        AuditLogSettings(
            settings.audit_log_path,
            settings.audit_log_maxage,
            settings.audit_log_maxbackup,
            settings.audit_log_maxsize,
            drops=settings.audit_log_mode == "batch",
        ),
        metrics,
    )
    try:
        log.open()
    except OSError as error:
        raise SettingsError(f"--audit-log-path: {error}") from error
    return Auditor(policy, log, clock, PooledRandom())


def _pod_security(settings: APIServerSettings) -> PodSecurityConfiguration:
    if not settings.admission_control_config_file:
        return PodSecurityConfiguration()
    try:
        return read_admission_configuration(Path(settings.admission_control_config_file))
    except ConfigurationError as error:
        raise SettingsError(f"--admission-control-config-file: {error}") from error


def _write_kubeconfigs(pki: PKI, url: str) -> None:
    """Write `kubeconfig` for users, and one file for each component that may run as its own process."""
    for name, client in pki.clients.items():
        file = "kubeconfig" if name == "admin" else f"{name}.kubeconfig"
        write_kubeconfig(
            pki.directory.parent / file,
            server_url=url,
            authority=pki.authority.certificate,
            certificate=client.certificate,
            key=client.key,
        )


def _url_host(host: str) -> str:
    if host in _ANY_ADDRESS:
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


async def run(settings: APIServerSettings, stop: asyncio.Event) -> None:
    """Serve until stopped."""
    async with running(settings) as server:
        announce(server)
        await stop.wait()
        await delay_shutdown(server, settings)


async def delay_shutdown(running: Running, settings: APIServerSettings) -> None:
    """Report that the server is not ready, and serve on until load balancers have noticed."""
    running.server.health.shut_down()
    await asyncio.sleep(settings.shutdown_delay_duration)


def announce(running: Running) -> None:
    """Write the line that scripts wait for."""
    sys.stdout.write(f"ready {running.url} kubeconfig {running.kubeconfig}\n")
    sys.stdout.flush()
    # Objects made at start-up live as long as the process: the garbage collector need not look at them.
    gc.freeze()
