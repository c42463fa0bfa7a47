"""The controllers that delete and count, with every fault between them and the API server, from one seed.

Garbage collector, namespaces, quotas, time to live of Jobs, service accounts and aggregated roles share a process that
crashes. Whatever happens to requests, events and this process: they delete an object only if its owners are gone, its
namespace is going or its time is over, and a namespace goes only when it is empty.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from typing import Any

from dray.api.document import Document, GroupVersion
from dray.api.errors import APIError, NotFoundError
from dray.api.timestamps import format_time, parse_time
from dray.client.in_process import InProcessTransport
from dray.client.interface import (
    DeleteOptions,
    LocalRequest,
    Patch,
    PatchType,
    PropagationPolicy,
    Resource,
    WatchBatch,
    unstructured,
)
from dray.client.rest import RestClient
from dray.client.shared_informers import SharedInformerFactory
from dray.controllers.cluster_role_aggregation import ClusterRoleAggregationController
from dray.controllers.garbage_collector.reconciler import GarbageCollector
from dray.controllers.namespace.reconciler import NamespaceController
from dray.controllers.reconciler import ControllerContext
from dray.controllers.resource_quota.reconciler import ResourceQuotaController
from dray.controllers.service_account.reconciler import ServiceAccountController
from dray.controllers.ttl_after_finished import TTLAfterFinishedController
from dray.lib.clock import Clock
from dray.sim.replica.virtual_time import LoopClock
from tests.in_process_server import in_process_server
from tests.simulation.network import LATE_SECONDS_MAX, FaultRates
from tests.simulation.processes import Process

CORE = GroupVersion("", "v1")
PODS = unstructured(CORE, "pods", "Pod")
NAMESPACES = unstructured(CORE, "namespaces", "Namespace", namespaced=False)
CONFIG_MAPS = unstructured(CORE, "configmaps", "ConfigMap")
SECRETS = unstructured(CORE, "secrets", "Secret")
SERVICE_ACCOUNTS = unstructured(CORE, "serviceaccounts", "ServiceAccount")
QUOTAS = unstructured(CORE, "resourcequotas", "ResourceQuota")
JOBS = unstructured(GroupVersion("batch", "v1"), "jobs", "Job")
ROLES = unstructured(GroupVersion("rbac.authorization.k8s.io", "v1"), "clusterroles", "ClusterRole", namespaced=False)
# The kinds that the user creates or the controllers do, and that may have owners.
CONTENT = (PODS, CONFIG_MAPS, SECRETS, SERVICE_ACCOUNTS, QUOTAS, JOBS)

TEAM = "team"
# The process whose writes are judged.
CONTROLLERS = "controllers"
ROOT_CA = "certificate"
HELD = "example.com/held"
FOREGROUND = "foregroundDeletion"
ACTIONS = 60
# A key that failed often is retried after up to 1,000 s.
SETTLE_SECONDS = 2400.0
OBJECTS_MAX = 25
_ACTIONS = (
    *("own", "own", "own", "disown", "delete", "delete", "plain", "pod", "job", "extend"),
    *("namespace", "namespace", "release", "account", "role", "crash"),
)
_MASTERS = ("system:masters",)
_POLICIES = tuple(PropagationPolicy)


def controllers(client: RestClient, rng: random.Random, clock: Clock) -> list[Coroutine[Any, Any, Any]]:
    """One life of the process."""
    informers = SharedInformerFactory(client, clock, rng)
    context = ControllerContext(client, informers, clock, rng=rng)
    parts = (
        GarbageCollector(context),
        NamespaceController(context),
        ResourceQuotaController(context),
        TTLAfterFinishedController(context),
        ServiceAccountController(context, root_ca=ROOT_CA),
        ClusterRoleAggregationController(context),
    )
    return [informers.run(), *(part.run() for part in parts)]


class JudgingServer:
    """The API server; what the controllers delete is judged by what was there just before."""

    def __init__(self, inner: Any, simulation: HousekeepingSimulation) -> None:
        self._inner = inner
        self._simulation = simulation

    async def handle(self, request: LocalRequest) -> Document:
        judged = request.user_agent == CONTROLLERS and request.verb in ("delete", "deletecollection", "update")
        objection = await self._simulation.objection(request) if judged else ""
        answer: Document = await self._inner.handle(request)
        if request.verb not in ("get", "list", "watch") and request.resource != "events":
            self._simulation.note(request)
        if objection and self._simulation.violation is None:
            # Not raised here: the sender of the request would log it and go on.
            self._simulation.violation = AssertionError(objection)
        return answer

    async def watch(self, request: LocalRequest) -> AsyncIterator[WatchBatch]:
        stream: AsyncIterator[WatchBatch] = await self._inner.watch(request)
        return stream


class HousekeepingSimulation:
    """`rng` is the only randomness, the loop the only clock."""

    def __init__(self, seed: int, *, rates: FaultRates | None = None, actions: int = ACTIONS) -> None:
        self._rng = random.Random(seed)
        self.rates = rates or FaultRates(crash=0.05)
        self._actions = actions
        self.story = self.rates.story
        self.violation: AssertionError | None = None
        # With a wrong time of day nothing is known of when a Job's time is over.
        self._times_are_right = not self.rates.clock_jump
        self._number = 0
        self._resources = {resource.plural: resource for resource in CONTENT}
        # Namespace -> when it went.
        self._gone_at: dict[str, float] = {}

    def _fork(self) -> random.Random:
        return random.Random(self._rng.random())

    async def run(self) -> None:
        async with AsyncExitStack() as stack:
            inner = await stack.enter_async_context(in_process_server(LoopClock(), self._fork(), TEAM))
            server = JudgingServer(inner, self)
            self.eyes, self.user = self._client(inner, "eyes"), self._client(server, "user")
            self.process = Process(CONTROLLERS, controllers, server, self._fork(), self.rates)
            self.process.start()
            try:
                await self._create_objects()
                await self._run_workload()
                await self._stop_faults()
            finally:
                if self.process.alive:
                    await self.process.end()

    def _client(self, server: Any, name: str) -> RestClient:
        return RestClient(InProcessTransport(server, user=name, groups=_MASTERS, user_agent=name))

    # --- The user. ---

    async def _create_objects(self) -> None:
        hard = {"count/configmaps": "100", "count/secrets": "100", "pods": "100"}
        await self.user.create(QUOTAS, _new("quota", TEAM, spec={"hard": hard}))
        selector = {"matchLabels": {"aggregate": "yes"}}
        await self.user.create(
            ROLES, {"metadata": {"name": "sum"}, "aggregationRule": {"clusterRoleSelectors": [selector]}, "rules": []}
        )

    async def _run_workload(self) -> None:
        for _ in range(self._actions):
            await asyncio.sleep(self._rng.uniform(0.0, 3.0))
            self._raise_violation()
            try:
                await self._step()
            except APIError as refusal:
                self.story.append(f"          user: {refusal}")

    async def _step(self) -> None:
        action = self._rng.choice(_ACTIONS)
        if action == "crash":
            if self.rates.crash:
                self.process.crash()
        else:
            await getattr(self, f"_{action}")()

    async def _own(self) -> None:
        """Create an object with one or two owners; now and then one that blocks them, or that is held."""
        owners = await self._objects(TEAM, CONFIG_MAPS, SECRETS)
        if len(owners) > OBJECTS_MAX or not owners:
            await self._plain()
            return
        chosen = self._rng.sample(owners, min(len(owners), self._rng.choice((1, 1, 2))))
        references = [_reference(item, blocks=self._rng.random() < 0.5) for item in chosen]
        finalizers = [HELD] if self._rng.random() < 0.1 else []
        resource = self._rng.choice((CONFIG_MAPS, SECRETS))
        await self.user.create(resource, _new(self._name(), TEAM, ownerReferences=references, finalizers=finalizers))

    async def _disown(self) -> None:
        """Give an object to an owner that lives; it may be about to be collected."""
        objects = await self._objects(TEAM, CONFIG_MAPS, SECRETS)
        owned = [item for item in objects if item["metadata"].get("ownerReferences")]
        if not owned or len(objects) < 2:
            return
        child = self._rng.choice(owned)
        parent = self._rng.choice([item for item in objects if item is not child])
        metadata = {"ownerReferences": [_reference(parent, blocks=False)], "uid": child["metadata"]["uid"]}
        await self._patch(child, {"metadata": metadata})

    async def _delete(self) -> None:
        objects = await self._objects(TEAM, CONFIG_MAPS, SECRETS, PODS)
        if not objects:
            return
        chosen = self._rng.choice(objects)
        options = DeleteOptions(propagation_policy=self._rng.choice(_POLICIES), grace_period_seconds=0)
        name = chosen["metadata"]["name"]
        await self.user.delete(_resource(chosen), name, TEAM, options)
        if self._rng.random() < 0.3 and chosen["kind"] != "Pod":
            # Another object of the same name: nobody may take it for the owner that was.
            await self.user.create(_resource(chosen), _new(name, TEAM))

    async def _plain(self) -> None:
        await self.user.create(self._rng.choice((CONFIG_MAPS, SECRETS)), _new(self._name(), TEAM))

    async def _pod(self) -> None:
        spec = {"containers": [{"name": "c", "image": "i"}], "terminationGracePeriodSeconds": 0}
        await self.user.create(PODS, _new(self._name(), TEAM, spec=spec))

    async def _job(self) -> None:
        """Create a Job that ends at once; its Pod's controller is not part of the run."""
        template = {"spec": {"containers": [{"name": "c", "image": "i"}], "restartPolicy": "Never"}}
        spec = {"ttlSecondsAfterFinished": self._rng.randint(0, 60), "template": template}
        job = await self.user.create(JOBS, _new(self._name(), TEAM, spec=spec))
        now = format_time(LoopClock().now())
        conditions = [
            {"type": kind, "status": "True", "lastTransitionTime": now, "lastProbeTime": now}
            for kind in ("SuccessCriteriaMet", "Complete")
        ]
        status = {"conditions": conditions, "startTime": now, "completionTime": now, "succeeded": 1}
        await self.user.update_status(JOBS, {**job, "status": status})

    async def _extend(self) -> None:
        """Give the Job that expires next more time; the controllers may not have seen it when the old time is over."""
        jobs = [item for item in await self._objects(TEAM, JOBS) if not item["metadata"].get("deletionTimestamp")]
        if jobs:
            first = min(jobs, key=lambda job: (_expiry(job), job["metadata"]["name"]))
            await asyncio.sleep(max((_expiry(first) - LoopClock().now()).total_seconds() - 0.5, 0.0))
            await self._patch(first, {"spec": {"ttlSecondsAfterFinished": self._rng.randint(60, 90)}})

    async def _namespace(self) -> None:
        """Create a namespace with content, or delete it."""
        name = self._rng.choice(("blue", "green"))
        namespace = await self._read(NAMESPACES, name)
        if namespace is not None:
            await self._fill(name)
            if self._rng.random() < 0.6:
                await self.user.delete(NAMESPACES, name)
        elif asyncio.get_running_loop().time() - self._gone_at.get(name, -1e9) > 2 * LATE_SECONDS_MAX:
            # A deletion of all objects of a namespace has no precondition: one that is under way must be over.
            await self.user.create(NAMESPACES, {"metadata": {"name": name}})
            await self._fill(name)

    async def _fill(self, namespace: str) -> None:
        owner = await self.user.create(CONFIG_MAPS, _new(self._name(), namespace))
        reference = _reference(owner, blocks=self._rng.random() < 0.5)
        finalizers = [HELD] if self._rng.random() < 0.3 else []
        body = _new(self._name(), namespace, ownerReferences=[reference], finalizers=finalizers)
        await self.user.create(SECRETS, body)

    async def _release(self) -> None:
        """Remove the finalizers that hold objects."""
        for item in [document for resource in CONTENT for document in await self._objects("", resource)]:
            finalizers = item["metadata"].get("finalizers") or []
            if HELD in finalizers:
                kept = [name for name in finalizers if name != HELD]
                version = item["metadata"]["resourceVersion"]
                await self._patch(item, {"metadata": {"finalizers": kept or None, "resourceVersion": version}})

    async def _account(self) -> None:
        namespace = self._rng.choice((TEAM, "blue", "green"))
        await self.user.delete(SERVICE_ACCOUNTS, "default", namespace)

    async def _role(self) -> None:
        name = self._rng.choice(("read", "write"))
        rules = [{"apiGroups": [""], "resources": [self._rng.choice(("pods", "secrets", "nodes"))], "verbs": ["get"]}]
        if await self._read(ROLES, name) is None:
            metadata = {"name": name, "labels": {"aggregate": "yes"}}
            await self.user.create(ROLES, {"metadata": metadata, "rules": rules})
        elif self._rng.random() < 0.3:
            await self.user.delete(ROLES, name)
        else:
            await self.user.patch(ROLES, name, "", Patch(PatchType.MERGE, {"rules": rules}))

    def _name(self) -> str:
        self._number += 1
        return f"object-{self._number}"

    async def _patch(self, document: Document, body: Document) -> None:
        metadata = document["metadata"]
        await self.user.patch(
            _resource(document), metadata["name"], metadata["namespace"], Patch(PatchType.MERGE, body)
        )

    # --- Reading. ---

    async def _read(self, resource: Resource[Document], name: str, namespace: str = "") -> Document | None:
        try:
            return await self.eyes.get(resource, name, namespace)
        except NotFoundError:
            return None

    async def _objects(self, namespace: str, *resources: Resource[Document]) -> list[Document]:
        found: list[Document] = []
        for resource in resources:
            kind = {"kind": resource.kind, "apiVersion": resource.group_version.api_version}
            items = (await self.eyes.list(resource, namespace)).items
            found += [{**item, **kind} for item in items if item["metadata"]["name"] != "kube-root-ca.crt"]
        return found

    # --- What must hold at every write. ---

    def note(self, request: LocalRequest) -> None:
        place = "/".join(part for part in (request.namespace, request.resource, request.name) if part)
        name = (request.body or {}).get("metadata", {}).get("name", "") if isinstance(request.body, dict) else ""
        time = asyncio.get_running_loop().time()
        self.story.append(f"{time:9.3f} {request.user_agent:12} {request.verb:7} {place} {request.subresource} {name}")

    def _raise_violation(self) -> None:
        if self.violation is not None:
            raise self.violation

    async def objection(self, request: LocalRequest) -> str:
        """Return what is wrong with a write of the controllers if it succeeds now; empty if nothing is."""
        if request.verb == "update":
            return await self._objection_to_end(request) if request.subresource == "finalize" else ""
        return await self._objection_to_deletion(request) if request.resource in self._resources else ""

    async def _objection_to_deletion(self, request: LocalRequest) -> str:
        namespace = await self._read(NAMESPACES, request.namespace)
        if namespace is None or namespace["metadata"].get("deletionTimestamp"):
            self.rates.paths["namespace emptied"] += 1
            return ""
        if request.verb == "deletecollection":
            return f"all {request.resource} of {request.namespace} are deleted, and the namespace is not"
        document = await self._read(self._resources[request.resource], request.name, request.namespace)
        preconditions = request.body.get("preconditions") or {} if isinstance(request.body, dict) else {}
        if document is None or preconditions.get("uid", document["metadata"]["uid"]) != document["metadata"]["uid"]:
            return ""
        if request.resource == "jobs" and not document["metadata"].get("ownerReferences"):
            return self._objection_to_job(document)
        return await self._objection_to_collection(request.resource, document, preconditions)

    async def _objection_to_end(self, request: LocalRequest) -> str:
        left = [_label(item) for resource in CONTENT for item in await self._objects(request.name, resource)]
        self._gone_at[request.name] = asyncio.get_running_loop().time()
        self.rates.paths["namespace finalized"] += 1
        return f"namespace {request.name} goes with {left}" if left else ""

    def _objection_to_job(self, job: Document) -> str:
        self.rates.paths["job expired"] += 1
        if not job["status"].get("completionTime"):
            return f"Job {job['metadata']['name']} is deleted and has not ended"
        early = self._times_are_right and LoopClock().now() < _expiry(job)
        return f"Job {job['metadata']['name']} is deleted before its time" if early else ""

    async def _objection_to_collection(self, plural: str, document: Document, preconditions: Document) -> str:
        self.rates.paths["dependent collected"] += 1
        metadata = document["metadata"]
        version = preconditions.get("resourceVersion", metadata["resourceVersion"])
        references = metadata.get("ownerReferences") or ()
        if metadata.get("deletionTimestamp") or version != metadata["resourceVersion"]:
            # Already on its way, or refused.
            return ""
        alive = [item["name"] for item in references if await self._lives(item, metadata["namespace"])]
        if references and not alive:
            return ""
        return f"{plural}/{metadata['name']} is collected although {alive or 'it has no owner'} lives"

    async def _lives(self, reference: Document, namespace: str) -> bool:
        """Whether the owner exists, and does not wait for its dependents to go."""
        resource = next(item for item in CONTENT if item.kind == reference["kind"])
        owner = await self._read(resource, reference["name"], namespace)
        if owner is None or owner["metadata"]["uid"] != reference["uid"]:
            return False
        going = owner["metadata"].get("deletionTimestamp")
        return not (going and FOREGROUND in (owner["metadata"].get("finalizers") or ()))

    # --- What must hold when everything is quiet. ---

    async def _stop_faults(self) -> None:
        self.rates.on = False
        await asyncio.sleep(SETTLE_SECONDS / 2)
        await self._release()
        await asyncio.sleep(SETTLE_SECONDS / 2)
        self._raise_violation()
        assert self.process.alive
        assert not self.process.failures(), self.process.failures()
        await self._check_owners()
        await self._check_namespaces()
        await self._check_quota()
        await self._check_roles()
        await self._check_orphans()

    async def _check_owners(self) -> None:
        for item in [document for resource in CONTENT for document in await self._objects("", resource)]:
            metadata = item["metadata"]
            assert not metadata.get("deletionTimestamp"), f"{_label(item)} is still being deleted"
            for reference in metadata.get("ownerReferences") or ():
                assert await self._lives(reference, metadata["namespace"]), f"{_label(item)} outlives {reference}"
        jobs = await self._objects(TEAM, JOBS) if self._times_are_right else ()
        assert not jobs, "Jobs outlive their time"

    async def _check_namespaces(self) -> None:
        names = set()
        for namespace in (await self.eyes.list(NAMESPACES)).items:
            name = namespace["metadata"]["name"]
            names.add(name)
            assert not namespace["metadata"].get("deletionTimestamp"), f"namespace {name} is still being deleted"
            assert await self._read(SERVICE_ACCOUNTS, "default", name), f"{name} has no service account"
            bundle = await self._read(CONFIG_MAPS, "kube-root-ca.crt", name)
            assert bundle is not None, f"{name} has no certificate"
            assert bundle["data"] == {"ca.crt": ROOT_CA}, name
        for resource in CONTENT:
            items = (await self.eyes.list(resource)).items
            strays = [item["metadata"]["name"] for item in items if item["metadata"]["namespace"] not in names]
            assert not strays, f"{resource.plural} without a namespace: {strays}"

    async def _check_quota(self) -> None:
        used = (await self.eyes.get(QUOTAS, "quota", TEAM))["status"]["used"]
        counts = Counter(item["kind"] for item in await self._objects(TEAM, PODS, SECRETS))
        config_maps = len((await self.eyes.list(CONFIG_MAPS, TEAM)).items)
        expected = {"count/configmaps": config_maps, "count/secrets": counts["Secret"], "pods": counts["Pod"]}
        assert {name: int(amount) for name, amount in used.items()} == expected, used

    async def _check_roles(self) -> None:
        rules: list[Document] = []
        for role in sorted((await self.eyes.list(ROLES)).items, key=lambda item: str(item["metadata"]["name"])):
            if role["metadata"].get("labels"):
                rules += [rule for rule in role["rules"] if rule not in rules]
        total = await self.eyes.get(ROLES, "sum")
        assert (total.get("rules") or []) == rules, total

    async def _check_orphans(self) -> None:
        """Without faults, orphans stay, and an owner that waits for its dependents goes after them."""
        owners = {}
        for policy in _POLICIES:
            owner = await self.user.create(CONFIG_MAPS, _new(f"last-{policy.lower()}", TEAM))
            child = _new(f"child-{policy.lower()}", TEAM, ownerReferences=[_reference(owner, blocks=True)])
            await self.user.create(SECRETS, child)
            owners[policy] = owner["metadata"]["name"]
        await asyncio.sleep(10)
        for policy, name in owners.items():
            await self.user.delete(CONFIG_MAPS, name, TEAM, DeleteOptions(propagation_policy=policy))
        await asyncio.sleep(60)
        left = {item["metadata"]["name"] for item in await self._objects(TEAM, CONFIG_MAPS, SECRETS)}
        assert {name for name in left if name.startswith(("last-", "child-"))} == {"child-orphan"}, left


def _new(name: str, namespace: str, *, spec: Document | None = None, **metadata: Any) -> Document:
    document: Document = {"metadata": {"name": name, "namespace": namespace, **metadata}}
    return document if spec is None else {**document, "spec": spec}


def _reference(owner: Document, *, blocks: bool) -> Document:
    metadata = owner["metadata"]
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        "blockOwnerDeletion": blocks,
    }


def _resource(document: Document) -> Resource[Document]:
    return next(item for item in CONTENT if item.kind == document["kind"])


def _expiry(job: Document) -> datetime:
    created = job["metadata"]["creationTimestamp"]
    ttl = timedelta(seconds=job["spec"]["ttlSecondsAfterFinished"])
    return parse_time(job["status"].get("completionTime", created)) + ttl


def _label(document: Document) -> str:
    return f"{document['kind']} {document['metadata']['namespace']}/{document['metadata']['name']}"
