"""Creates, updates and deletes the Pods and claims of StatefulSets in order, and reports their status."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from dray.api.document import Document, NamespacedName
from dray.api.errors import AlreadyExistsError, APIError
from dray.api.types.apps_v1 import StatefulSet, StatefulSetStatus
from dray.api.types.core_v1 import Pod
from dray.client.controller import Result
from dray.client.errors import ignore_not_found
from dray.client.event_recorder import NORMAL, WARNING
from dray.client.interface import Patch, PatchType
from dray.client.objects import key_of
from dray.client.resources import PERSISTENT_VOLUME_CLAIMS, PODS, STATEFUL_SETS
from dray.controllers.pod_control.ownership import Owner, enqueue_owners
from dray.controllers.pod_control.pod_control import NewPod, PodControl, PodEventTexts
from dray.controllers.pod_control.pod_status import next_available_seconds
from dray.controllers.pod_control.revision_control import RevisionControl
from dray.controllers.pod_control.revisions import History
from dray.controllers.reconciler import ControllerContext, Reconciler, own_key
from dray.controllers.stateful_set import plan
from dray.controllers.stateful_set.pods import (
    KIND,
    REVISION_LABEL,
    claim_name,
    claims_of,
    identity_patch,
    is_member,
    ordinal_of,
    owned_claim,
    owner_of,
    revised_of,
)

_TEXTS: Final = PodEventTexts(
    created="create Pod {pod} in StatefulSet {owner} successful",
    not_created="create Pod {pod} in StatefulSet {owner} failed error: {error}",
    deleted="delete Pod {pod} in StatefulSet {owner} successful",
    not_deleted="delete Pod {pod} in StatefulSet {owner} failed error: {error}",
)


class StatefulSetController(Reconciler[NamespacedName]):
    """Runs the Pods of StatefulSets."""

    name = "statefulset"
    component = "statefulset-controller"
    workers = 5

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._control = PodControl(
            context,
            STATEFUL_SETS,
            self._recorder,
            texts=_TEXTS,
            is_member=lambda owner, pod: is_member(owner.name, pod),
        )
        self._revisions = RevisionControl(context, STATEFUL_SETS)
        self._stateful_sets = context.informers.informer(STATEFUL_SETS)
        self._claims = context.informers.informer(PERSISTENT_VOLUME_CLAIMS)
        enqueue = enqueue_owners(self._stateful_sets, owner_of, self.controller.queue.add)
        # Claims are only read: a change of a claim asks for nothing.
        self.controller.follow(self._claims, lambda _old, _new: None)
        self.controller.watch(self._stateful_sets, own_key, keeps_backoff=True)
        existing = self._stateful_sets.lister.namespaces
        self.controller.follow(self._control.pods, enqueue, needed_while=existing)
        self.controller.follow(self._revisions.revisions, enqueue, needed_while=existing)

    async def reconcile(self, key: NamespacedName) -> Result:
        """Take the next step, and update the status."""
        stateful_set = self._stateful_sets.lister.get_key(key)
        if stateful_set is None:
            return None
        owner = owner_of(stateful_set)
        history = await self._history(owner, stateful_set)
        if history is None:
            return None
        pods = await self._control.claim(owner)
        now = self._clock.now()
        state = plan.make_state(stateful_set, pods, (history.current, *history.old), history.current, now)
        error = await self._write(owner, state, plan.plan_pods(state))
        live = {pod.metadata.labels.get(REVISION_LABEL, "") for pod in pods} | {state.current.metadata.name or ""}
        await self._revisions.delete_surplus(revised_of(stateful_set), history, live)
        await self._report(stateful_set, plan.status_of(state))
        if error is not None:
            raise error
        wait = next_available_seconds(pods, stateful_set.spec.min_ready_seconds or 0, now)
        return self._control.requeue_after(owner, wait)

    async def _history(self, owner: Owner, stateful_set: StatefulSet) -> History | None:
        history = await self._revisions.history(owner, revised_of(stateful_set))
        if history is None:
            count = (stateful_set.status.collision_count or 0) + 1
            await self._report(stateful_set, msgspec.structs.replace(stateful_set.status, collision_count=count))
        return history

    async def _report(self, stateful_set: StatefulSet, status: StatefulSetStatus) -> None:
        if status != stateful_set.status:
            changed = msgspec.structs.replace(stateful_set, status=status)
            await ignore_not_found(self._client.update_status(STATEFUL_SETS, changed))

    # --- Writes. ---

    async def _write(self, owner: Owner, state: plan.State, wanted: plan.Plan) -> APIError | None:
        stateful_set = state.stateful_set
        for ordinal in wanted.pending:
            await self._create_claims(stateful_set, ordinal)
        for pod in wanted.correct:
            await self._correct(stateful_set, pod)
        if stateful_set.spec.volume_claim_templates and stateful_set.metadata.deletion_timestamp is None:
            for ordinal, pod in state.pods.items():
                await self._own_claims(stateful_set, ordinal, pod, condemned=ordinal not in state.ordinals)
        failed = await self._create(owner, stateful_set, wanted.create) if wanted.create else None
        refused = await self._control.delete(stateful_set, wanted.delete) if wanted.delete else None
        return failed or refused

    async def _create(self, owner: Owner, stateful_set: StatefulSet, pods: Sequence[Pod]) -> APIError | None:
        new: list[NewPod] = []
        for pod in pods:
            ordinal = ordinal_of(stateful_set, pod)
            assert ordinal is not None
            await self._create_claims(stateful_set, ordinal)
            new.append(NewPod(pod, ordinal))
        return await self._control.create(owner, stateful_set, new)

    async def _create_claims(self, stateful_set: StatefulSet, ordinal: int) -> None:
        for claim in claims_of(stateful_set, ordinal):
            name, owner = claim["metadata"]["name"], stateful_set.metadata.name
            text = f"create Claim {name} Pod {owner}-{ordinal} in StatefulSet {owner}"
            try:
                await self._client.create(PERSISTENT_VOLUME_CLAIMS, claim)
            except AlreadyExistsError:
                continue
            except APIError as error:
                self._recorder.event(KIND, stateful_set, WARNING, "FailedCreate", f"{text} failed error: {error}")
                raise
            self._recorder.event(KIND, stateful_set, NORMAL, "SuccessfulCreate", f"{text} success")

    async def _own_claims(self, stateful_set: StatefulSet, ordinal: int, pod: Pod, *, condemned: bool) -> None:
        """Give the claims of a Pod the owners with which they are to be deleted."""
        for template in stateful_set.spec.volume_claim_templates:
            name = claim_name(stateful_set, template.metadata.name or "", ordinal)
            namespace = stateful_set.metadata.namespace or ""
            claim = self._claims.lister.get(name, namespace)
            if claim is None and condemned:
                # The informer may lack a claim that was just created, and after the Pod nobody would look again.
                claim = await ignore_not_found(self._client.get(PERSISTENT_VOLUME_CLAIMS, name, namespace))
            changed = owned_claim(claim, stateful_set, pod, condemned=condemned) if claim is not None else None
            if changed is not None:
                await ignore_not_found(self._client.update(PERSISTENT_VOLUME_CLAIMS, changed))

    async def _correct(self, stateful_set: StatefulSet, pod: Pod) -> None:
        ordinal = ordinal_of(stateful_set, pod)
        assert ordinal is not None
        body: Document = identity_patch(pod, ordinal) or {}
        key = key_of(pod)
        await ignore_not_found(self._client.patch(PODS, key.name, key.namespace, Patch(PatchType.MERGE, body)))
