"""Keeps the status of disruption budgets up to date, and takes back announcements of deletions that never came."""

from __future__ import annotations

import logging
from typing import Any, Final

from dray.api.disruption import selector_problem, selects
from dray.api.document import Document, NamespacedName
from dray.api.errors import APIError, ConflictError
from dray.api.types.core_v1 import Pod
from dray.client.controller import Requeue, Result
from dray.client.errors import ignore_not_found
from dray.client.event_recorder import NORMAL, WARNING
from dray.client.interface import Patch, PatchType, WriteOptions
from dray.client.objects import key_of, labels_of
from dray.client.resources import POD_DISRUPTION_BUDGETS, PODS
from dray.controllers.disruption import plan
from dray.controllers.disruption.scales import ControllerScales, ScaleError
from dray.controllers.reconciler import ControllerContext, PodKey, Reconciler, newest, own_key
from dray.runtime.logs import fields

_log = logging.getLogger(__name__)

_BUDGETS: Final = POD_DISRUPTION_BUDGETS.unstructured
_STATUS: Final = WriteOptions(subresource="status")
# A failure may end without an event of the budget or its Pods.
FAILED_SECONDS: Final = 30.0
_UNMANAGED: Final = (
    "Pods selected by this PodDisruptionBudget (selector: {}) were found to be unmanaged. As a result, the status of "
    "the PDB cannot be calculated correctly, which may result in undefined behavior. To account for these pods please "
    'set ".spec.minAvailable" field of the PDB to an integer value.'
)


class DisruptionController(Reconciler[NamespacedName | PodKey]):
    """Counts for budgets; a `NamespacedName` is a budget, a `PodKey` a Pod whose deletion was announced."""

    name = "disruption"
    component = "controllermanager"

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        informer = context.informers.informer
        self._budgets = informer(_BUDGETS)
        self._pods = informer(PODS)
        self._scales = ControllerScales(context.client, context.informers)
        self.controller.watch(self._budgets, own_key)
        self.controller.follow(self._pods, self._enqueue_budgets_of, needed_while=self._budgets.lister.namespaces)
        self.controller.follow(self._pods, self._enqueue_announced)
        for owners in self._scales.informers:
            self.controller.follow(owners, self._owner_changed)

    # --- Event handlers. ---

    def _enqueue_announced(self, _old: Pod | None, new: Pod | None) -> None:
        """Enqueue a Pod whose deletion was announced for the moment when that is stale."""
        if new is not None and new.status.conditions and plan.announced_deletion(new) is not None:
            wait = plan.stale_in_seconds(new, self._clock.now())
            if wait is not None:
                self.controller.queue.add_after(PodKey(key_of(new)), wait)

    def _enqueue_budgets_of(self, old: Pod | None, new: Pod | None) -> None:
        """Enqueue the budgets that select the Pod, as it was or as it is."""
        keys: dict[NamespacedName, None] = {}
        for pod in (old, new):
            for budget in self._budgets_of(pod) if pod is not None else ():
                keys[key_of(budget)] = None
        for key in keys:
            self.controller.queue.add(key)

    def _owner_changed(self, old: Any | None, new: Any | None) -> None:
        """Count again when a controller of Pods comes, goes or is scaled."""
        if old is not None and new is not None and old.spec.replicas == new.spec.replicas:
            return
        for budget in self._budgets.lister.list(newest(old, new).metadata.namespace or ""):
            if plan.needs_scale(budget.get("spec") or {}):
                self.controller.queue.add(key_of(budget))

    def _budgets_of(self, pod: Pod) -> list[Document]:
        labels = labels_of(pod)
        return [item for item in self._budgets.lister.list(pod.metadata.namespace or "") if selects(item, labels)]

    # --- Budgets. ---

    async def reconcile(self, key: NamespacedName | PodKey) -> Result:
        """Write the status of a budget, or take a stale condition of a Pod back."""
        if isinstance(key, PodKey):
            return await self._reset_stale(key.key)
        budget = self._budgets.lister.get_key(key)
        if budget is None:
            return None
        try:
            return await self._sync(budget)
        except ConflictError:
            raise
        except (APIError, ScaleError) as error:
            _log.warning("budget cannot be counted", extra=fields(budget=str(key), error=str(error)))
            status = plan.plan_failed_sync(budget, str(error), self._clock.now())
            await self._write(budget, status)
            return Requeue(FAILED_SECONDS)

    async def _sync(self, budget: Document) -> Result:
        now = self._clock.now()
        spec: Document = budget.get("spec") or {}
        if problem := selector_problem(budget):
            if not plan.has_failed(budget, problem):
                self._event(budget, WARNING, "NoPods", f"Failed to get pods: {problem}")
            raise ScaleError(problem)
        pods = [pod for pod in self._pods.lister.list(key_of(budget).namespace) if selects(budget, labels_of(pod))]
        pods.sort(key=lambda pod: pod.metadata.name or "")
        if not pods:
            self._event(budget, NORMAL, "NoPods", "No matching pods found")
        self._report_several_budgets(budget, pods)
        scale = await self._scale(budget, pods) if plan.needs_scale(spec) else 0
        recorded = (budget.get("status") or {}).get("disruptedPods") or {}
        evicted = plan.plan_evicted(recorded, pods, now)
        for pod in evicted.overdue:
            text = f"Pod was expected by PDB {key_of(budget)} to be deleted but it wasn't"
            self._recorder.event(PODS.group_version_kind, pod, WARNING, "NotDeleted", text)
        status = plan.plan_status(budget, pods, scale, evicted.pending, now)
        if status is not None:
            await self._write(budget, status)
        return Requeue(evicted.recheck_seconds) if evicted.recheck_seconds is not None else None

    async def _scale(self, budget: Document, pods: list[Pod]) -> int:
        try:
            total, unmanaged = await self._scales.total(pods)
        except (APIError, ScaleError) as error:
            text = f"Failed to calculate the number of expected pods: {error}"
            if not plan.has_failed(budget, str(error)):
                self._event(budget, WARNING, "CalculateExpectedPodCountFailed", text)
            raise
        if unmanaged:
            selector = (budget.get("spec") or {}).get("selector") or {}
            self._event(budget, WARNING, "UnmanagedPods", _UNMANAGED.format(_in_go(selector)))
        return total

    def _report_several_budgets(self, budget: Document, pods: list[Pod]) -> None:
        for pod in pods:
            budgets = sorted(key_of(item).name for item in self._budgets_of(pod))
            # Each Pod is reported once, by the first of its budgets.
            if len(budgets) > 1 and budgets[0] == key_of(budget).name:
                text = (
                    f'Pod "{pod.metadata.namespace}"/"{pod.metadata.name}" matches multiple PodDisruptionBudgets.  '
                    f'Chose "{budgets[0]}" arbitrarily.'
                )
                self._recorder.event(PODS.group_version_kind, pod, WARNING, "MultiplePodDisruptionBudgets", text)

    async def _write(self, budget: Document, status: Document) -> None:
        if status != budget.get("status"):
            await ignore_not_found(self._client.update_status(_BUDGETS, {**budget, "status": status}))

    def _event(self, budget: Document, event_type: str, reason: str, message: str) -> None:
        self._recorder.event(_BUDGETS.group_version_kind, budget, event_type, reason, message)

    # --- Pods. ---

    async def _reset_stale(self, key: NamespacedName) -> Result:
        pod = self._pods.lister.get_key(key)
        now = self._clock.now()
        wait = plan.stale_in_seconds(pod, now) if pod is not None else None
        if pod is None or wait is None:
            return None
        if wait > 0:
            return Requeue(wait)
        body = Patch(PatchType.STRATEGIC, plan.reset_patch(pod, now))
        await ignore_not_found(self._client.patch(PODS, key.name, key.namespace, body, _STATUS))
        return None


def _in_go(selector: Document) -> str:
    """Return a label selector as Kubernetes prints it in its events."""
    labels = "".join(f"{key}: {value}," for key, value in sorted((selector.get("matchLabels") or {}).items()))
    expressions = "".join(
        f"LabelSelectorRequirement{{Key:{item.get('key', '')},Operator:{item.get('operator', '')},"
        f"Values:[{' '.join(item.get('values') or ())}],}},"
        for item in selector.get("matchExpressions") or ()
    )
    return (
        f"&LabelSelector{{MatchLabels:map[string]string{{{labels}}},"
        f"MatchExpressions:[]LabelSelectorRequirement{{{expressions}}},}}"
    )
