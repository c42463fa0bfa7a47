"""The claims of PodGroups: created from templates, and reserved for a group until it is gone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from dray.api.document import NamespacedName
from dray.api.errors import APIError, InternalError
from dray.api.pod_claims import PodClaim
from dray.api.pod_groups import group_key_of, is_group_reference
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import ResourceClaim, ResourceClaimConsumerReference, ResourceClaimTemplate
from dray.api.types.scheduling_v1beta1 import PodGroup
from dray.client.errors import ignore_not_found
from dray.client.event_recorder import WARNING, EventRecorder
from dray.client.interface import Patch, PatchType, WriteOptions
from dray.client.objects import key_of
from dray.client.resources import CLASSIC_CLAIMS, POD_GROUPS, RESOURCE_CLAIMS, FieldManager
from dray.client.shared_informers import SharedInformer
from dray.controllers.claim_control import CREATION_FAILED
from dray.controllers.claim_problems import Problem
from dray.controllers.reconciler import ControllerContext
from dray.controllers.resource_claim import group_plan
from dray.controllers.resource_claim.group_plan import GROUP_CLAIMS, GROUPS, Membership
from dray.controllers.resource_claim.plan import make_claim

_CLAIMS_BY_GROUP: Final = "reserved-groups"
_BY_TEMPLATE: Final = "claim-templates"
_CLASSIC: Final = "DRAControlPlaneController"
_APPLY: Final = WriteOptions(field_manager=FieldManager.RESOURCE_CLAIM, force=True, subresource="status")


class GroupClaims:
    """The part of the claim controller that knows PodGroups; without the gate it knows none."""

    def __init__(
        self,
        context: ControllerContext,
        claims: SharedInformer[ResourceClaim],
        recorder: EventRecorder,
        create: Callable[[ResourceClaim], Awaitable[str]],
    ) -> None:
        self._client = context.client
        self._gates = context.gates
        self._claims = claims
        self._recorder = recorder
        self._create = create
        self.enabled: Final = self._gates.enabled(GROUPS)
        self._manages_claims: Final = self.enabled and self._gates.enabled(GROUP_CLAIMS)
        if self.enabled:
            self.groups = context.informers.informer(POD_GROUPS, indexes={_BY_TEMPLATE: _template_index})
            claims.add_index(_CLAIMS_BY_GROUP, group_plan.reserved_groups)
        self._classic = context.informers.informer(CLASSIC_CLAIMS) if self._has_classic_claims() else None

    def _has_classic_claims(self) -> bool:
        return self._manages_claims and self._gates.enabled(_CLASSIC)

    # --- Lookups. ---

    def membership(self, pod: Pod) -> Membership | None:
        """Return the Pod's group; None if it is in no group."""
        key = group_key_of(pod)
        if key is None:
            return None
        return Membership(pod, self.groups.lister.get_key(key) if self.enabled else None, self._gates)

    def claims_reserved_for(self, key: NamespacedName) -> tuple[ResourceClaim, ...]:
        """Return the claims that are reserved for a group."""
        return self._claims.lister.by_index(_CLAIMS_BY_GROUP, key)

    def with_template(self, template: ResourceClaimTemplate) -> tuple[PodGroup, ...]:
        """Return the groups that need claims from a template."""
        return self.groups.lister.by_index(_BY_TEMPLATE, key_of(template)) if self._manages_claims else ()

    def is_gone(self, namespace: str, user: ResourceClaimConsumerReference) -> bool:
        """Return whether a consumer of a claim is a group that the cache does not have."""
        return self._manages_claims and is_group_reference(user) and not self._is_cached(user, namespace)

    def _is_cached(self, user: ResourceClaimConsumerReference, namespace: str) -> bool:
        group = self.groups.lister.get(user.name, namespace)
        return group is not None and group.metadata.uid == user.uid

    async def confirmed_gone(self, claim: ResourceClaim) -> Callable[[ResourceClaimConsumerReference], bool]:
        """Return a function that tells the same, confirmed by live reads of the groups that the cache does not have."""
        namespace = claim.metadata.namespace or ""
        gone: set[str] = set()
        for user in filter(partial(self.is_gone, namespace), claim.status.reserved_for):
            live = await ignore_not_found(self._client.get(POD_GROUPS, user.name, namespace))
            if live is None or live.metadata.uid != user.uid:
                gone.add(user.uid)
        return lambda user: user.uid in gone

    def needs_work(self, group: PodGroup) -> bool:
        """Return whether reconciling the group could do something."""
        if not self._manages_claims:
            return False
        namespace = group.metadata.namespace or ""
        missing = group_plan.entries_without_claim(group, lambda name: self._claims.lister.get(name, namespace))
        return bool(missing or self._classic_entries(group))

    # --- Creating. ---

    async def reconcile(
        self,
        key: NamespacedName,
        find: Callable[[NamespacedName], ResourceClaim | None],
        owned: Callable[[PodGroup], tuple[ResourceClaim, ...]],
        find_template: Callable[[str], ResourceClaimTemplate | None],
    ) -> None:
        """Create the claims of a group, and record their names in its status."""
        group = self.groups.lister.get_key(key)
        if group is None or not self._manages_claims:
            return
        missing = await self._missing(group, lambda name: find(NamespacedName(key.namespace, name)))
        named: dict[str, str] = {}
        problems = [Problem(name, _not_classic(claim), is_final=True) for name, claim in self._classic_entries(group)]
        for entry in missing:
            existing = group_plan.find_generated(group, entry.entry, owned(group))
            made = existing or make_claim(group, entry, find_template(entry.template), self._gates)
            if isinstance(made, ResourceClaim):
                made = await self._try_to_create(entry.entry, made)
            if isinstance(made, Problem):
                problems.append(made)
            else:
                named[entry.entry] = made
        if named:
            patch = Patch(PatchType.APPLY, group_plan.status_patch(group, named))
            await self._client.patch(POD_GROUPS, key.name, key.namespace, patch, _APPLY)
        self._report(group, problems)

    async def _missing(self, group: PodGroup, find: Callable[[str], ResourceClaim | None]) -> list[PodClaim]:
        """Return the entries without a claim; claims that the cache lacks are looked for by live reads."""
        live: dict[str, ResourceClaim | None] = {}
        namespace = group.metadata.namespace or ""
        for entry in group_plan.entries_without_claim(group, find):
            if entry.claim_name is not None:
                found = await ignore_not_found(self._client.get(RESOURCE_CLAIMS, entry.claim_name, namespace))
                live[entry.claim_name] = found
        return group_plan.entries_without_claim(group, lambda name: live[name] if name in live else find(name))

    async def _try_to_create(self, entry: str, claim: ResourceClaim) -> str | Problem:
        try:
            return await self._create(claim)
        except APIError as error:
            return Problem(entry, error.message)

    def _report(self, group: PodGroup, problems: list[Problem]) -> None:
        """Emit the events; raises if trying again may help."""
        texts = [f"PodGroupResourceClaim {problem.entry}: {problem.message}" for problem in problems]
        for text in texts:
            self._recorder.event(POD_GROUPS.group_version_kind, group, WARNING, CREATION_FAILED, text)
        if not all(problem.is_final for problem in problems):
            raise InternalError(f"pod group {key_of(group)}: " + "; ".join(texts))

    def _classic_entries(self, group: PodGroup) -> list[tuple[str, str]]:
        """Return the entries that name a claim which only cdi.k8s.io has, and their claims."""
        if self._classic is None:
            return []
        namespace = group.metadata.namespace or ""
        named = ((entry.name, entry.resource_claim_name) for entry in group.spec.resource_claims)
        return [
            (name, claim)
            for name, claim in named
            if claim is not None
            and self._claims.lister.get(claim, namespace) is None
            and self._classic.lister.get(claim, namespace) is not None
        ]


def _not_classic(claim: str) -> str:
    return f'resourceclaim "{claim}" exists in cdi.k8s.io only; such a claim cannot belong to a PodGroup'


def _template_index(group: Any) -> list[NamespacedName]:
    namespace = group.metadata.namespace or ""
    return [NamespacedName(namespace, name) for name in group_plan.template_names_of(group)]
