"""The Workload and the PodGroup of a Job, made before its first Pod."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from dray.api.codec import from_document, to_document
from dray.api.document import Document, GroupResource
from dray.api.errors import AlreadyExistsError, APIError, InvalidError, NotFoundError
from dray.api.types.batch_v1 import Job
from dray.api.types.scheduling_v1beta1 import PodGroup, Workload
from dray.client.errors import ignore_not_found
from dray.client.event_recorder import NORMAL, WARNING, EventRecorder
from dray.client.objects import OwnerReference, controller_of, controller_reference
from dray.client.resources import JOBS, POD_GROUPS, WORKLOADS
from dray.controllers.pod_control.pod_templates import hash_text
from dray.controllers.reconciler import ControllerContext

WORKLOAD_CREATED: Final = "WorkloadCreated"
GROUP_CREATED: Final = "PodGroupCreated"
CREATE_FAILED: Final = "FailedWorkloadCreate"
# Of a Job whose owner has a Workload: the template of its group.
TEMPLATE_ANNOTATION: Final = "scheduling.k8s.io/group-template-name"
INVALID: Final = "FailedWorkloadCompilation"
# A template's name is a DNS label.
_TEMPLATE_LENGTH_MAX: Final = 63
_SUFFIX: Final = "-pgt-0"


class JobGroups:
    """Finds or makes the groups of Jobs; others' objects of these kinds are ignored."""

    def __init__(self, context: ControllerContext, recorder: EventRecorder) -> None:
        self._client = context.client
        self._recorder = recorder
        self._groups = context.informers.informer(POD_GROUPS)

    async def group_for(self, job: Job, *, has_pods: bool) -> PodGroup | None:
        """Return the group that new Pods of the Job join; None if the Job has none."""
        template = delegated_template(job)
        if template:
            return await self._delegated_group(job, template, has_pods=has_pods)
        if not is_managed(job):
            return None
        found = await self._find(job, group_name(job))
        if found is not None:
            return await self._follow_count(job, found)
        if has_pods or has_started(job):
            return None
        with self._reported(job):
            workload = await self._create_workload(job)
            return await self._create_group(job, make_group(job, workload))

    async def _delegated_group(self, job: Job, template: str, *, has_pods: bool) -> PodGroup | None:
        """Return the group that the Workload of the Job's owner describes."""
        with self._reported(job):
            workload = await self._workload_of_owner(job)
            found = await self._find(job, delegated_name(job, workload, template))
            if found is not None or has_pods or has_started(job):
                return found
            return await self._create_group(job, make_delegated_group(job, workload, template))

    async def _workload_of_owner(self, job: Job) -> Workload:
        owner = controller_of(job)
        assert owner is not None, "only a Job with an owner delegates"
        for workload in (await self._client.list(WORKLOADS, job.metadata.namespace or "")).items:
            if is_controlled_by(workload, owner):
                return workload
        raise NotFoundError(GroupResource(WORKLOADS.group, WORKLOADS.plural), f"of {owner.kind} {owner.name}")

    @contextmanager
    def _reported(self, job: Job) -> Iterator[None]:
        """Record an event of the Job if a group cannot be made."""
        try:
            yield
        except APIError as failure:
            reason = INVALID if isinstance(failure, InvalidError) else CREATE_FAILED
            self._recorder.event(JOBS.group_version_kind, job, WARNING, reason, failure.message)
            raise

    async def _create_group(self, job: Job, wanted: PodGroup) -> PodGroup:
        group = await self._client.create(POD_GROUPS, wanted)
        text = f"Created pod group {group.metadata.name}"
        self._recorder.event(JOBS.group_version_kind, job, NORMAL, GROUP_CREATED, text)
        return group

    async def _find(self, job: Job, name: str) -> PodGroup | None:
        """Return the group of the Job; the informer may not have one that was just created."""
        namespace = job.metadata.namespace or ""
        group = self._groups.lister.get(name, namespace)
        if group is None:
            group = await ignore_not_found(self._client.get(POD_GROUPS, name, namespace))
        owner = None if group is None else controller_of(group)
        return group if owner is not None and owner.uid == job.metadata.uid else None

    async def _create_workload(self, job: Job) -> Workload:
        wanted = make_workload(job)
        try:
            created = await self._client.create(WORKLOADS, wanted)
        except AlreadyExistsError:
            return await self._client.get(WORKLOADS, wanted.metadata.name or "", job.metadata.namespace or "")
        text = f"Created workload {created.metadata.name}"
        self._recorder.event(JOBS.group_version_kind, job, NORMAL, WORKLOAD_CREATED, text)
        return created

    async def _follow_count(self, job: Job, group: PodGroup) -> PodGroup:
        """Write a changed minCount to both objects."""
        gang, wanted = group.spec.scheduling_policy.gang, min_count(job)
        if gang is None or wanted is None or gang.min_count == wanted:
            return group
        name, namespace = workload_name(job), job.metadata.namespace or ""
        workload = await ignore_not_found(self._client.get(WORKLOADS, name, namespace))
        if workload is not None:
            templates = make_workload(job).spec.pod_group_templates
            spec = msgspec.structs.replace(workload.spec, pod_group_templates=templates)
            await self._client.update(WORKLOADS, msgspec.structs.replace(workload, spec=spec))
        policy = msgspec.structs.replace(
            group.spec.scheduling_policy, gang=msgspec.structs.replace(gang, min_count=wanted)
        )
        spec_of_group = msgspec.structs.replace(group.spec, scheduling_policy=policy)
        return await self._client.update(POD_GROUPS, msgspec.structs.replace(group, spec=spec_of_group))


# --- What is made. Pure. ---


def is_managed(job: Job) -> bool:
    """Return whether the Job gets a group: nobody controls it, and its template names no group."""
    return controller_of(job) is None and job.spec.template.spec.scheduling_group is None


def delegated_template(job: Job) -> str:
    """Return the template of its owner's Workload that the Job names; empty if it has no owner, or names none."""
    if controller_of(job) is None or job.spec.template.spec.scheduling_group is not None:
        return ""
    return (job.metadata.annotations or {}).get(TEMPLATE_ANNOTATION) or ""


def is_controlled_by(workload: Workload, owner: OwnerReference) -> bool:
    """Return whether the Workload belongs to an object."""
    reference = workload.spec.controller_ref
    if reference is None:
        return False
    group = owner.api_version.rpartition("/")[0]
    return (reference.api_group or "", reference.kind, reference.name) == (group, owner.kind, owner.name)


def delegated_name(job: Job, workload: Workload, template: str) -> str:
    """Return the name of the PodGroup of a Job that delegates."""
    return f"{workload.metadata.name}-{template}-{hash_text(f'{job.metadata.uid}/{template}'.encode())}"


def make_delegated_group(job: Job, workload: Workload, template: str) -> PodGroup:
    """Return the PodGroup from a template of the owner's Workload; raises `NotFoundError` if there is no such one."""
    found = next((item for item in workload.spec.pod_group_templates if item.name == template), None)
    if found is None:
        raise NotFoundError(GroupResource(WORKLOADS.group, "podgrouptemplates"), template)
    settings = {name: value for name, value in to_document(found).items() if name != "name"}
    return _group(job, workload, delegated_name(job, workload, template), template, settings)


def has_started(job: Job) -> bool:
    """Return whether the Job has ever been started or suspended."""
    status = job.status
    suspended = any(condition.type == "Suspended" for condition in status.conditions)
    return bool(status.start_time or status.succeeded or status.failed or suspended)


def min_count(job: Job) -> int | None:
    """Return minCount of the Job's gang, by default its parallelism; None with the basic policy."""
    policy = None if job.spec.scheduling is None else job.spec.scheduling.scheduling_policy
    if policy is None or policy.gang is None:
        return None
    parallelism = 1 if job.spec.parallelism is None else job.spec.parallelism
    return policy.gang.min_count or max(1, parallelism)


def workload_name(job: Job) -> str:
    """Return the name of the Job's Workload."""
    return f"{job.metadata.name}-{hash_text((job.metadata.uid or '').encode())}"


def template_name(job: Job) -> str:
    """Return the name of the only template of the Workload."""
    return f"{(job.metadata.name or '')[: _TEMPLATE_LENGTH_MAX - len(_SUFFIX)]}{_SUFFIX}"


def group_name(job: Job) -> str:
    """Return the name of the Job's PodGroup."""
    workload, template = workload_name(job), template_name(job)
    return f"{workload}-{template}-{hash_text(f'{job.metadata.uid}/{template}'.encode())}"


def _settings(job: Job) -> Document:
    """Return what the template and the group have in common."""
    given: Document = {} if job.spec.scheduling is None else to_document(job.spec.scheduling)
    count = min_count(job)
    names = ("schedulingConstraints", "resourceClaims", "disruptionMode")
    settings = {name: given[name] for name in names if name in given}
    settings["schedulingPolicy"] = {"basic": {}} if count is None else {"gang": {"minCount": count}}
    if job.spec.template.spec.priority_class_name:
        settings["priorityClassName"] = job.spec.template.spec.priority_class_name
    return settings


def make_workload(job: Job) -> Workload:
    """Return the Workload, which the Job owns."""
    owner = to_document(controller_reference(JOBS.group_version_kind, job.metadata))
    metadata = {"name": workload_name(job), "namespace": job.metadata.namespace, "ownerReferences": [owner]}
    reference = {"apiGroup": "batch", "kind": "Job", "name": job.metadata.name}
    template = {"name": template_name(job), **_settings(job)}
    return from_document(
        Workload, {"metadata": metadata, "spec": {"controllerRef": reference, "podGroupTemplates": [template]}}
    )


def make_group(job: Job, workload: Workload) -> PodGroup:
    """Return the PodGroup of a Job with a Workload of its own."""
    return _group(job, workload, group_name(job), template_name(job), _settings(job))


def _group(job: Job, workload: Workload, name: str, template: str, settings: Document) -> PodGroup:
    """Return a PodGroup, which the Job controls and the Workload owns."""
    controller = to_document(controller_reference(JOBS.group_version_kind, job.metadata))
    recipe = to_document(controller_reference(WORKLOADS.group_version_kind, workload.metadata)) | {"controller": False}
    metadata = {"name": name, "namespace": job.metadata.namespace, "ownerReferences": [controller, recipe]}
    reference = {"workloadName": workload.metadata.name, "templateName": template}
    return from_document(PodGroup, {"metadata": metadata, "spec": {"workloadRef": reference, **settings}})
