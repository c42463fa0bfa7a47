"""Composes and runs an API server; every process that has one, and every test, uses this."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from ipaddress import ip_network
from typing import TYPE_CHECKING, Final

import orjson

from dray.api.document import GroupResource, NamespacedName
from dray.api.features import FeatureGates
from dray.api.pod_security.policy import PodSecurityConfiguration
from dray.api.schema.model import StructType
from dray.apiserver.admission.certificates import CertificateApproval, CertificateSigning
from dray.apiserver.admission.chain import AdmissionChain
from dray.apiserver.admission.limit_ranger import LimitRanger
from dray.apiserver.admission.namespace_lifecycle import NamespaceLifecycle
from dray.apiserver.admission.node_features import NodeDeclaredFeatureValidator
from dray.apiserver.admission.nodes import NodeRestriction, TaintNodesByCondition
from dray.apiserver.admission.order import PLUGIN_ORDER
from dray.apiserver.admission.placement import PodTopologyLabels, RuntimeClass
from dray.apiserver.admission.pod_groups import PodGroupProtection
from dray.apiserver.admission.pod_resize import PodResizeValidator
from dray.apiserver.admission.pod_security import PodSecurity
from dray.apiserver.admission.pod_security_metrics import PodSecurityMetrics
from dray.apiserver.admission.pods import DefaultTolerationSeconds, ServiceAccount
from dray.apiserver.admission.priority import Priority
from dray.apiserver.admission.resource_quota import QuotaEvaluator, ResourceQuota
from dray.apiserver.admission.services import ServiceAllocation
from dray.apiserver.admission.storage import DefaultStorageClass, StorageObjectInUseProtection
from dray.apiserver.allocation_writer import AllocationWriter
from dray.apiserver.authentication.authenticator import Authenticator
from dray.apiserver.authentication.service_accounts import ServiceAccountTokens
from dray.apiserver.authorization.authorizer import Authorizer
from dray.apiserver.authorization.node import NodeAuthorizer
from dray.apiserver.call import Call, Result
from dray.apiserver.catalog import Catalog
from dray.apiserver.custom.build import schema_source
from dray.apiserver.custom.reconciler import CustomResourceController, ServedDefinitions
from dray.apiserver.document_cache import DocumentCache
from dray.apiserver.endpoint import Endpoint
from dray.apiserver.event_expiry import EventExpiry
from dray.apiserver.handlers.backend import Backend
from dray.apiserver.handlers.decisions import DecisionSource
from dray.apiserver.handlers.nonresource import NonResourceHandler, NonResourceParts
from dray.apiserver.handlers.subresources.pods import LogSource
from dray.apiserver.handlers.subresources.proxy import NodeProxy
from dray.apiserver.handlers.subresources.streams import NodeStreams
from dray.apiserver.handlers.usage import UsageSource
from dray.apiserver.healthz import PROBE_TIMEOUT_SECONDS, HealthChecks, PostStartHooks, store_checks
from dray.apiserver.ip_addresses import IPAddressRecords, IPAddressRepair
from dray.apiserver.local_transport import LocalTransport
from dray.apiserver.object_cache import (
    ADMISSION_GROUP,
    CACHED_RESOURCES,
    CLAIMS,
    DEFINITIONS,
    PODS,
    SLICES,
    ObjectCache,
    TokenLookup,
)
from dray.apiserver.object_lookup import ObjectLookup
from dray.apiserver.openapi.documents import OpenAPI
from dray.apiserver.pod_grace import PodGrace
from dray.apiserver.reflector import StoreReflector, resource_prefix
from dray.apiserver.registry.served_versions import RuntimeConfig, is_served
from dray.apiserver.request import UserInfo
from dray.apiserver.server import APIServer, ServerParts, UIPages
from dray.apiserver.service_addresses import SERVICE_CLUSTER_IP_RANGE, ServiceAddresses
from dray.client.in_process import in_process_client
from dray.client.informer import SkippedListener
from dray.client.interface import Undecodable, unstructured
from dray.client.skipped_objects import SkippedObjects
from dray.lib.clock import Clock
from dray.runtime.metrics import Metrics
from dray.runtime.tasks import ChildTasks, TaskGroup
from dray.store.interface import Store, StoreError

if TYPE_CHECKING:
    from dray.apiserver.admission.configured import ConfiguredAdmission

_LOG: Final = logging.getLogger("dray.apiserver")
_COMPACTION_CHECK_SECONDS: Final = 5.0
# Steps of the start that end when the object cache has been filled, by their names in kube-apiserver.
_OWN_HOOKS: Final = ("generic-apiserver-start-informers", "crd-informer-synced")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """What differs between API servers."""

    store: Store
    endpoints: Iterable[Endpoint]
    clock: Clock
    random_source: random.Random
    gates: FeatureGates
    runtime_config: RuntimeConfig = field(default_factory=RuntimeConfig)
    # Private key (PEM) that signs service account tokens.
    token_key: bytes
    new_token_id: Callable[[], str]
    service_account_issuer: str
    # Host and port that clients reach the server by.
    address: str
    # The addresses of Services.
    service_cluster_ip_range: str = SERVICE_CLUSTER_IP_RANGE
    static_tokens: Mapping[bytes, UserInfo] = field(default_factory=dict)
    allow_anonymous: bool = False
    # Names of enabled admission plugins.
    admission_plugins: frozenset[str] = frozenset(PLUGIN_ORDER)
    pod_security: PodSecurityConfiguration = field(default_factory=PodSecurityConfiguration)
    log_source: LogSource | None = None
    node_streams: NodeStreams | None = None
    node_proxy: NodeProxy | None = None
    pages: UIPages | None = None
    # The decisions of a scheduler in the same process.
    decisions: DecisionSource | None = None
    # The history of usage that the same process records.
    usage: UsageSource | None = None
    metrics: Callable[[], bytes] = lambda: b""
    # Where admission plugins count.
    metrics_registry: Metrics = field(default_factory=Metrics)
    # Whether old revisions are removed from the store.
    compaction: bool = True
    # How long Events are kept after their last write; 0 means for ever.
    event_ttl_seconds: float = 0.0
    # Steps of the start that the caller finishes.
    hooks: PostStartHooks = field(default_factory=PostStartHooks)
    # Deadlines of the checks `etcd` and `etcd-readiness`.
    healthcheck_timeout_seconds: float = PROBE_TIMEOUT_SECONDS
    readycheck_timeout_seconds: float = PROBE_TIMEOUT_SECONDS


@asynccontextmanager
async def running_server(config: ServerConfig) -> AsyncIterator[APIServer]:
    """Run an API server, whose store belongs to the caller.

    The body starts when the first request can be answered. If a background task fails, the body is cancelled and the
    error is raised.
    """
    catalog = Catalog(item for item in config.endpoints if is_served(item, config.gates, config.runtime_config))
    addresses = ServiceAddresses(ip_network(config.service_cluster_ip_range), config.random_source)
    records = IPAddressRecords(config.store, config.clock, config.random_source)
    repair = IPAddressRepair(records, addresses, config.clock)
    # Imported lazily: CEL is slow to import.
    from dray.apiserver.admission.configured import ConfiguredAdmission
    from dray.apiserver.custom.conversion import ConversionMetrics, ConversionParts, ConversionWebhook

    configured = ConfiguredAdmission(catalog, config.store, config.clock, config.random_source)
    conversion = ConversionParts(
        configured.client, ConversionMetrics(config.metrics_registry), config.clock, config.random_source
    )
    definitions = ServedDefinitions(
        catalog, config.clock, lambda definition, schemas: ConversionWebhook(definition, schemas, conversion)
    )
    cache = ObjectCache(definitions.observe, addresses.observe, configured.observe)
    documents = DocumentCache()
    stored = {endpoint.resource: endpoint for endpoint in catalog.storage_endpoints()}
    reflector = StoreReflector(config.store, cache, documents, partial(_struct_of, stored))
    tasks = ChildTasks("apiserver requests")
    tokens = ServiceAccountTokens(
        key=config.token_key,
        lookup=TokenLookup(cache),
        new_id=config.new_token_id,
        issuer=config.service_account_issuer,
    )
    nonresource = NonResourceParts(
        catalog=catalog,
        health=_health(config, reflector),
        tokens=tokens,
        openapi=OpenAPI(catalog, schema_source(catalog)),
        metrics=config.metrics,
        address=config.address,
        release=config.gates.release,
    )

    async def settle_admission(call: Call, endpoint: Endpoint, _: Result) -> None:
        if call.info.verb not in ("get", "list", "watch"):
            await reflector.refresh(endpoint.resource)
            await configured.policy_status.settle()

    parts = ServerParts(
        backend=_backend(config, cache, documents, tasks, ServiceAllocation(addresses, records), configured),
        catalog=catalog,
        authenticator=Authenticator(
            tokens,
            config.static_tokens,
            allow_anonymous=config.allow_anonymous,
            bootstrap_tokens=cache.bootstrap_tokens,
        ),
        nonresource=NonResourceHandler(nonresource),
        tasks=tasks,
        settle={
            DEFINITIONS: definitions.settle_write,
            **{resource: settle_admission for resource in stored if resource.group == ADMISSION_GROUP},
        },
        log_source=config.log_source,
        node_streams=config.node_streams,
        node_proxy=config.node_proxy,
        pages=config.pages,
        decisions=config.decisions,
        usage=config.usage,
    )
    server = APIServer(parts, _component_server(parts))
    skipped = _report_skipped(config, reflector, stored, server)
    controller = CustomResourceController(definitions, config.store, LocalTransport(server), config.clock)
    await reflector.sync()
    config.hooks.finish(*_OWN_HOOKS)
    async with TaskGroup("apiserver") as group:
        group.spawn(reflector.run(), "store reflector")
        group.spawn(skipped.run(), "events of skipped objects")
        group.spawn(tasks.supervise(), "requests")
        group.spawn(controller.run(), "custom resources")
        group.spawn(configured.policy_status.run(LocalTransport(server)), "status of policies")
        group.spawn(repair.run(LocalTransport(server)), "IP addresses")
        _spawn_housekeeping(group, config)
        try:
            yield server
        finally:
            await configured.close()


def _spawn_housekeeping(group: TaskGroup, config: ServerConfig) -> None:
    if config.compaction:
        group.spawn(_compact(config.store, config.clock), "compaction")
    if config.event_ttl_seconds:
        expiry = EventExpiry(config.store, config.clock, config.random_source, config.event_ttl_seconds)
        group.spawn(expiry.run(), "event expiry")


def _struct_of(stored: Mapping[GroupResource, Endpoint], resource: GroupResource) -> StructType | None:
    """Return the type of a resource as it is stored; None if an emulated release serves it in no version."""
    return stored[resource].struct if resource in stored else None


def _report_skipped(
    config: ServerConfig, reflector: StoreReflector, stored: Mapping[GroupResource, Endpoint], server: APIServer
) -> SkippedObjects:
    """Report the objects that the server itself does not heed because they have not the form of their kind."""
    client = in_process_client(
        LocalTransport(server), user="system:apiserver", groups=("system:masters",), user_agent="kube-apiserver"
    )
    skipped = SkippedObjects(client, config.clock, config.metrics_registry, "kube-apiserver")
    listeners: dict[GroupResource, SkippedListener] = {}
    for resource in CACHED_RESOURCES:
        if resource in stored:
            definition, gvk = stored[resource].definition, stored[resource].gvk
            kind = unstructured(gvk.group_version, resource.resource, gvk.kind, namespaced=definition.namespaced)
            listeners[resource] = skipped.listener(kind)

    def report(resource: GroupResource, key: NamespacedName, item: Undecodable | None) -> None:
        if (listener := listeners.get(resource)) is not None:
            listener(key, item)

    reflector.on_skipped = report
    server.health.skipped["kube-apiserver"] = skipped.names
    return skipped


def _health(config: ServerConfig, reflector: StoreReflector) -> HealthChecks:
    config.hooks.add(*_OWN_HOOKS)
    store, store_readiness = store_checks(
        config.store,
        config.clock,
        health_seconds=config.healthcheck_timeout_seconds,
        readiness_seconds=config.readycheck_timeout_seconds,
    )
    return HealthChecks(
        store=store, store_readiness=store_readiness, out_of_sync=reflector.out_of_sync, hooks=config.hooks
    )


def _backend(
    config: ServerConfig,
    cache: ObjectCache,
    documents: DocumentCache,
    tasks: ChildTasks,
    service_allocation: ServiceAllocation,
    configured: ConfiguredAdmission,
) -> Backend:
    # What a write refers to may not be committed yet, if only it is before the write.
    objects = ObjectLookup(config.store.with_asynchronous_commit() or config.store, cache)
    evaluator = QuotaEvaluator(config.store, cache, config.gates, config.clock, tasks)
    authorizer = Authorizer(cache.rbac, NodeAuthorizer(cache.nodes))
    plugins = (
        NamespaceLifecycle(objects),
        LimitRanger(cache),
        ServiceAccount(objects, config.clock, config.random_source),
        NodeRestriction(cache.nodes, authorizer.authorize),
        TaintNodesByCondition(),
        PodSecurity(
            objects, config.store, config.clock, config.pod_security, PodSecurityMetrics(config.metrics_registry)
        ),
        Priority(cache, objects),
        PodGroupProtection(),
        DefaultTolerationSeconds(),
        DefaultStorageClass(cache),
        StorageObjectInUseProtection(),
        RuntimeClass(objects),
        CertificateApproval(lambda attributes: authorizer.authorize(attributes).allowed),
        CertificateSigning(lambda attributes: authorizer.authorize(attributes).allowed),
        PodTopologyLabels(objects),
        NodeDeclaredFeatureValidator(objects, config.gates),
        PodResizeValidator(objects),
        *configured.plugins(objects, authorizer.authorize, config.metrics_registry),
        ResourceQuota(cache, evaluator),
    )
    return Backend(
        store=config.store,
        clock=config.clock,
        gates=config.gates,
        cache=cache,
        objects=objects,
        documents=documents,
        admission=AdmissionChain(
            plugins,
            config.admission_plugins,
            (service_allocation, configured.param_access(authorizer.authorize)),
        ),
        writers={CLAIMS: AllocationWriter(config.store, cache.devices, config.clock)},
        least_graces={PODS: PodGrace(config.store).least_seconds},
        authorizer=authorizer,
        random=config.random_source,
    )


def _component_server(parts: ServerParts) -> APIServer | None:
    """Return the server for components of this process, on a store with asynchronous commit; None if it has none."""
    backend = parts.backend
    store = backend.store.with_asynchronous_commit()
    if store is None:
        return None
    ledger = backend.cache.devices
    allocations = AllocationWriter(store, ledger, backend.clock)

    def roll_back(revision: int) -> None:
        allocations.roll_back(revision, store.committed)
        # At once, so that no allocation is checked against slices that could not be stored; the reflector lists later.
        ledger.replace_slices(orjson.loads(entry.value) for entry in store.committed_under(resource_prefix(SLICES)))

    store.on_roll_back(roll_back)
    graces = {PODS: PodGrace(store).least_seconds}
    backend = replace(backend, store=store, writers={CLAIMS: allocations}, least_graces=graces)
    return APIServer(replace(parts, backend=backend))


async def _compact(store: Store, clock: Clock) -> None:
    """Remove revisions that are old enough, from time to time."""
    while True:
        await asyncio.sleep(_COMPACTION_CHECK_SECONDS)
        try:
            await store.maintain(clock.monotonic())
        except StoreError as error:
            # Serving goes on; the next round may succeed.
            _LOG.warning("cannot compact the store: %s", error)
