"""Answers ResourcePoolStatusRequests once, and deletes old ones."""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from dray.allocator.taints import TaintRule
from dray.api.defaults.resource import POOL_LIMIT_DEFAULT
from dray.api.devices import results_of
from dray.api.document import Document, NamespacedName
from dray.api.errors import APIError
from dray.api.features import FeatureGates
from dray.api.timestamps import format_time, parse_time
from dray.api.types.resource_v1 import ResourceClaim, ResourceSlice
from dray.client.controller import Requeue, Result
from dray.client.errors import ignore_not_found
from dray.client.interface import DeleteOptions
from dray.client.objects import key_of
from dray.client.resources import (
    DEVICE_TAINT_RULES,
    RESOURCE_CLAIMS,
    RESOURCE_POOL_STATUS_REQUESTS,
    RESOURCE_SLICES,
)
from dray.client.shared_informers import SharedInformer
from dray.controllers.reconciler import ControllerContext, Reconciler
from dray.controllers.resource_pool_status import pools, summaries
from dray.controllers.resource_pool_status.pools import Pool
from dray.runtime.logs import fields
from dray.runtime.metrics import Metrics, exponential_buckets

_log = logging.getLogger(__name__)

# The pauses before an incomplete pool is looked at again; after the last one the request stays pending.
RETRY_SECONDS: Final = (1.0, 2.0, 4.0, 8.0, 16.0)
CLEAN_UP_SECONDS: Final = 600.0
DONE_KEPT_SECONDS: Final = 3600.0
PENDING_KEPT_SECONDS: Final = 86400.0

_PREFIX: Final = "resourcepoolstatusrequest_controller_"
_BY_DRIVER: Final = "driver"
_TYPES_GATE: Final = "DRAPartitionableDevicesType"


class ResourcePoolStatusRequestController(Reconciler[NamespacedName]):
    """Counts the devices of the pools that a request is about, and writes its status."""

    name = "resourcepoolstatusrequest"

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        informers, metrics = context.informers, context.metrics or Metrics()
        self._gates = context.gates
        self._requests = informers.informer(RESOURCE_POOL_STATUS_REQUESTS)
        self._slices = informers.informer(RESOURCE_SLICES, indexes={_BY_DRIVER: _driver})
        self._claims = informers.informer(RESOURCE_CLAIMS, indexes={_BY_DRIVER: _drivers})
        self._rules: SharedInformer[Document] | None = None
        if context.gates.enabled("DRADeviceTaintRules"):
            self._rules = informers.informer(DEVICE_TAINT_RULES)
        self.controller.follow(self._requests, self._request_changed)
        # Uid of a request -> how often a pool of it was incomplete.
        self._tries: dict[str, int] = {}
        labels = ("driver_name",)
        self._processed = metrics.counter(
            f"{_PREFIX}requests_processed_total", "Requests processed, failed ones included", labels
        )
        self._failures = metrics.counter(f"{_PREFIX}request_processing_errors_total", "Requests that failed", labels)
        self._seconds = metrics.histogram(
            f"{_PREFIX}request_processing_duration_seconds",
            "Time to process a request, in seconds",
            labels,
            buckets=exponential_buckets(start=0.001, factor=2, count=15),
        )

    def background_tasks(self) -> Mapping[str, Coroutine[Any, Any, None]]:
        """Delete old requests beside the worker."""
        return {"pool status clean-up": self._clean_up()}

    def _request_changed(self, old: Document | None, new: Document | None) -> None:
        if new is None:
            self._tries.pop((old or {}).get("metadata", {}).get("uid", ""), None)
        elif new.get("status") is None:
            self.controller.queue.add(key_of(new))

    async def reconcile(self, key: NamespacedName) -> Result:
        """Answer a request that has no answer; one about an incomplete pool is looked at again, five times."""
        request = self._requests.lister.get_key(key)
        if request is None or request.get("status") is not None:
            return None
        uid, driver = request["metadata"]["uid"], request["spec"]["driver"]
        start = self._clock.monotonic()
        try:
            found = self._pools(request)
            missing = [pool for pool in found if not pool.is_complete]
            tries = self._tries.get(uid, 0)
            if missing and tries < len(RETRY_SECONDS):
                self._tries[uid] = tries + 1
                return Requeue(RETRY_SECONDS[tries])
            if missing:
                text = pools.incomplete(missing[0])["validationError"]
                _log.warning("pool status request stays pending", extra=fields(request=key.name, reason=text))
                return None
            status = self._answer(request, found)
        except ValueError as error:
            # A slice or claim with an amount that cannot be read.
            self._failures.labels(driver).inc()
            status = failed(str(error), self._clock.now())
        await self._write(request, status)
        self._tries.pop(uid, None)
        self._processed.labels(driver).inc()
        self._seconds.labels(driver).observe(self._clock.monotonic() - start)
        return None

    def _pools(self, request: Document) -> list[Pool]:
        """Return the pools that the request matches."""
        spec = request["spec"]
        slices: Iterable[ResourceSlice] = self._slices.lister.by_index(_BY_DRIVER, spec["driver"])
        return pools.pools_of(slices, spec["driver"], spec.get("poolName"))

    def _answer(self, request: Document, found: list[Pool]) -> Document:
        driver = request["spec"]["driver"]
        used = pools.consumption(self._claims.lister.by_index(_BY_DRIVER, driver), driver)
        rules = [] if self._rules is None else [TaintRule.from_document(rule) for rule in self._rules.lister.list()]
        limit = request["spec"].get("limit") or POOL_LIMIT_DEFAULT
        default = request["spec"].get("defaultPartitionTypeAttribute")
        answers = [pool_status(pool, used.get(pool.name) or {}, rules, default, self._gates) for pool in found[:limit]]
        return completed(answers, len(found), self._clock.now())

    async def _write(self, request: Document, status: Document) -> None:
        try:
            await ignore_not_found(
                self._client.update_status(RESOURCE_POOL_STATUS_REQUESTS, {**request, "status": status})
            )
        except APIError:
            self._failures.labels(request["spec"]["driver"]).inc()
            raise

    async def _clean_up(self) -> None:
        while True:
            await self._clock.sleep(CLEAN_UP_SECONDS)
            for request in self._requests.lister.list():
                if is_outdated(request, self._clock.now()):
                    await self._delete(request)

    async def _delete(self, request: Document) -> None:
        name, options = request["metadata"]["name"], DeleteOptions(uid=request["metadata"]["uid"])
        try:
            await ignore_not_found(self._client.delete(RESOURCE_POOL_STATUS_REQUESTS, name, "", options))
        except APIError as error:
            # Tried again at the next clean-up.
            _log.warning("cannot delete pool status request", extra=fields(request=name, error=str(error)))


def _driver(item: ResourceSlice) -> tuple[str, ...]:
    return (item.spec.driver,)


def _drivers(claim: ResourceClaim) -> tuple[str, ...]:
    return tuple({result.driver for result in results_of(claim.status.allocation)})


def pool_status(
    pool: Pool, used: pools.Consumption, rules: list[TaintRule], default_attribute: str | None, gates: FeatureGates
) -> Document:
    """Return the answer about one complete pool; a view that cannot be given is left out, with its error."""
    answer = pools.identity(pool) | pools.counts(pool, used, rules)
    try:
        if shares := summaries.shareable_summary(pool, used):
            answer["shareableSummary"] = shares
        if gates.enabled(_TYPES_GATE) and (types := summaries.partition_summary(pool, used, default_attribute)):
            answer["partitionSummary"] = types
    except summaries.SummaryError as error:
        answer["validationError"] = pools.shortened(str(error))
    return answer


def completed(answers: list[Document], matching: int, now: datetime) -> Document:
    """Return the status of a request that is answered."""
    errors = sum("validationError" in answer for answer in answers)
    message = f"Calculated status for {len(answers)} pools" + (f" ({errors} incomplete)" if errors else "")
    status: Document = {"poolCount": matching, "conditions": [_condition("Complete", message, now)]}
    return {**status, "pools": answers} if answers else status


def failed(error: str, now: datetime) -> Document:
    """Return the status of a request that cannot be answered."""
    return {"poolCount": 0, "conditions": [_condition("Failed", pools.shortened(error), now)]}


def _condition(kind: str, message: str, now: datetime) -> Document:
    reason = "CalculationComplete" if kind == "Complete" else "CalculationFailed"
    return {
        "type": kind,
        "status": "True",
        "reason": reason,
        "message": message,
        "lastTransitionTime": format_time(now),
    }


def is_outdated(request: Document, now: datetime) -> bool:
    """Return whether a request is deleted: an hour after its answer, or a day after its creation without one."""
    conditions = (request.get("status") or {}).get("conditions") or ()
    done = next((item["lastTransitionTime"] for item in conditions if item.get("lastTransitionTime")), None)
    since, seconds = (
        (done, DONE_KEPT_SECONDS)
        if done
        else (
            request["metadata"].get("creationTimestamp"),
            PENDING_KEPT_SECONDS,
        )
    )
    return since is not None and now - parse_time(since) >= timedelta(seconds=seconds)
