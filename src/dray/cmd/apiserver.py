"""Wires an API server: store, keys, world, flow and listener; `dray apiserver` runs just this."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dray.apiserver.admission import SWITCHABLE
from dray.apiserver.authentication.authenticator import Authenticator
from dray.apiserver.authentication.pki import (
    PKI,
    ensure_pki,
    kubelet_tls,
    read_token_file,
    server_context,
    write_kubeconfig,
)
from dray.apiserver.authentication.service_accounts import ServiceAccountTokens
from dray.apiserver.authorization.authorizer import Authorizer
from dray.apiserver.authorization.node import NodeAuthorizer
from dray.apiserver.bootstrap import Bootstrap
from dray.apiserver.catalog import Catalog
from dray.apiserver.custom.build import schema_source
from dray.apiserver.custom.reconciler import CustomResources
from dray.apiserver.fairness import FairQueue, Limits
from dray.apiserver.handlers.nonresource import Health, Paths
from dray.apiserver.http import Listener
from dray.apiserver.kubelet_client import KubeletClient
from dray.apiserver.local_transport import LocalTransport
from dray.apiserver.metrics import RequestMetrics
from dray.apiserver.object_cache import ObjectCache, TokenLookup
from dray.apiserver.openapi.documents import OpenAPI
from dray.apiserver.reflector import StoreReflector
from dray.apiserver.registry import builtin
from dray.apiserver.request_limiter import RequestLimiter
from dray.apiserver.server import APIServer
from dray.cmd.dashboard import DashboardPages
from dray.cmd.settings import APIServerSettings
from dray.lib.clock import Clock
from dray.runtime.clock import SystemClock
from dray.runtime.metrics import Metrics
from dray.runtime.randomness import PooledRandom
from dray.runtime.settings import SettingsError
from dray.store.interface import Store
from dray.store.state import CompactionPolicy

_LOG: Final = logging.getLogger("dray.apiserver")
_COMPACTION_CHECK_SECONDS: Final = 5.0


async def open_store(settings: APIServerSettings) -> Store:
    """Open the back end that the settings name; each is imported only when it is used."""
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
        tls = None
        if settings.etcd_cafile:
            files = (Path(file) if file else None for file in (settings.etcd_certfile, settings.etcd_keyfile))
            tls = TLSFiles(Path(settings.etcd_cafile), *files)
        return await EtcdStore.connect(settings.etcd_servers, prefix=settings.etcd_prefix, tls=tls, policy=policy)
    from dray.store.sqlite import SQLiteStore

    return await SQLiteStore.open(Path(settings.data_dir) / "state.db", policy=policy)


@dataclass(slots=True)
class Running:
    """A started API server and what belongs to it."""

    server: APIServer
    local: LocalTransport
    listener: Listener
    store: Store
    pki: PKI
    clock: Clock
    metrics: Metrics
    health: Health
    url: str
    kubeconfig: Path
    tasks: list[asyncio.Task[None]]
    nodes: KubeletClient

    async def stop(self) -> None:
        """End everything; what was acknowledged is on disk."""
        await self.listener.stop()
        await self.nodes.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.store.close()


async def start(settings: APIServerSettings) -> Running:
    """Start serving; returns when the first request can be answered."""
    clock = SystemClock()
    data_dir = _prepare(settings.data_dir)
    pki = ensure_pki(data_dir, hostname=socket.gethostname(), extra_names=settings.tls_names, now=clock.now())
    store = await open_store(settings)
    try:
        return await _start_on(settings, clock, pki, store)
    except BaseException:
        await store.close()
        raise


def _prepare(data_dir: str) -> Path:
    path = Path(data_dir).resolve()
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path


async def _start_on(settings: APIServerSettings, clock: Clock, pki: PKI, store: Store) -> Running:
    metrics = Metrics()
    server, health = build(settings, clock, pki, store, metrics)
    local = LocalTransport(server)
    custom = CustomResources(server.catalog, local, clock)
    server.cache.on_definition, server.settle_definition = custom.observe, custom.settle
    nodes = KubeletClient(kubelet_tls(pki, clock.now()))
    server.subresources.logs = nodes
    server.pages = DashboardPages(local, clock)
    reflector = StoreReflector(store, server.cache, server.documents)
    health.ready["informer-sync"] = reflector.out_of_sync
    await reflector.sync()
    following = asyncio.create_task(reflector.run(), name="store reflector")
    await Bootstrap(local).run()
    limits = Limits(seats=settings.max_requests_inflight, watches_max=settings.max_watches)
    listener = Listener(server, RequestLimiter(FairQueue(limits), clock), RequestMetrics(metrics))
    port = await listener.start(settings.host, settings.port, server_context(pki))
    url = f"https://{_url_host(settings.host)}:{port}"
    server.paths.address = f"{_url_host(settings.host)}:{port}"
    kubeconfig = pki.directory.parent / "kubeconfig"
    _write_kubeconfigs(pki, url)
    tasks = [
        following,
        asyncio.create_task(_compact(store, clock), name="compaction"),
        asyncio.create_task(custom.run(), name="custom resources"),
    ]
    return Running(server, local, listener, store, pki, clock, metrics, health, url, kubeconfig, tasks, nodes)


def _write_kubeconfigs(pki: PKI, url: str) -> None:
    """`kubeconfig` for people, and one for each component that may run as a process of its own."""
    for name, client in pki.clients.items():
        file = "kubeconfig" if name == "admin" else f"{name}.kubeconfig"
        write_kubeconfig(
            pki.directory.parent / file,
            server_url=url,
            authority=pki.authority.certificate,
            certificate=client.certificate,
            key=client.key,
        )


def build(
    settings: APIServerSettings, clock: Clock, pki: PKI, store: Store, metrics: Metrics
) -> tuple[APIServer, Health]:
    """Put the server together; nothing runs yet."""
    cache = ObjectCache()
    catalog = Catalog(builtin.endpoints())
    lookup = TokenLookup(cache)
    tokens = ServiceAccountTokens(
        key=pki.token_key,
        lookup=lookup,
        new_id=lambda: str(uuid.uuid4()),
        issuer=settings.service_account_issuer,
    )
    static = read_token_file(Path(settings.token_auth_file)) if settings.token_auth_file else {}
    authenticator = Authenticator(tokens, static, allow_anonymous=settings.anonymous_auth)
    authorizer = Authorizer(cache.rbac, NodeAuthorizer(cache.nodes))
    health = Health()
    server = APIServer(
        store=store,
        catalog=catalog,
        cache=cache,
        clock=clock,
        gates=settings.feature_gates,
        authenticator=authenticator,
        authorizer=authorizer,
        paths=Paths(catalog, health, tokens, OpenAPI(catalog, schema_source(catalog)), metrics.exposition),
        lookup=lookup,
        random_source=PooledRandom(),
        disabled_plugins=_disabled_plugins(settings),
    )
    return server, health


def _disabled_plugins(settings: APIServerSettings) -> frozenset[str]:
    disabled = frozenset(settings.disable_admission_plugins)
    unknown = sorted(disabled.difference(SWITCHABLE))
    if unknown:
        raise SettingsError(f"--disable-admission-plugins: {', '.join(unknown)} cannot be left out")
    return disabled


async def _compact(store: Store, clock: Clock) -> None:
    """Let the store forget what is old enough, now and then."""
    while True:
        await asyncio.sleep(_COMPACTION_CHECK_SECONDS)
        try:
            await store.maintain(clock.monotonic())
        except Exception:  # noqa: BLE001 - the next round may succeed; serving goes on meanwhile
            _LOG.exception("compaction")


def _url_host(host: str) -> str:
    if host in ("0.0.0.0", "::", ""):  # noqa: S104 - compared, not bound
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


async def run(settings: APIServerSettings, stop: asyncio.Event) -> None:
    """`dray apiserver`: serve until told to stop."""
    running = await start(settings)
    try:
        announce(running)
        await stop.wait()
    finally:
        await running.stop()


def announce(running: Running) -> None:
    """The one line that scripts wait for."""
    sys.stdout.write(f"ready {running.url} kubeconfig {running.kubeconfig}\n")
    sys.stdout.flush()
    # What start-up made stays for good: the collector need not look at it again.
    gc.freeze()
