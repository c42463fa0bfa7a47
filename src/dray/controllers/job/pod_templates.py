"""Pods of a Job. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from dray.api.document import GroupVersionKind
from dray.api.types.batch_v1 import Job
from dray.api.types.core_v1 import Container, EnvVar, EnvVarSource, ObjectFieldSelector, Pod, PodSchedulingGroup
from dray.api.types.scheduling_v1beta1 import PodGroup
from dray.controllers.job.indexes import INDEX
from dray.controllers.pod_control.ownership import Owner, selector_of
from dray.controllers.pod_control.pod_templates import PREFIX_LENGTH_MAX, make_pod, pod_name_prefix, with_labels

KIND: Final = GroupVersionKind("batch", "v1", "Job")
TRACKING: Final = "batch.kubernetes.io/job-tracking"
INDEXED: Final = "Indexed"
NON_INDEXED: Final = "NonIndexed"
INDEX_FAILURES: Final = "batch.kubernetes.io/job-index-failure-count"
INDEX_IGNORED_FAILURES: Final = "batch.kubernetes.io/job-index-ignored-failure-count"
_INDEX_VARIABLE: Final = EnvVar(
    name="JOB_COMPLETION_INDEX",
    value_from=EnvVarSource(field_ref=ObjectFieldSelector(field_path=f"metadata.labels['{INDEX}']")),
)


def owner_of(job: Job) -> Owner:
    """Return the Job as an owner of Pods."""
    return Owner(KIND, job.metadata, selector_of(job.spec.selector))


def is_indexed(job: Job) -> bool:
    """Return whether each completion has its own index."""
    return job.spec.completion_mode == INDEXED


def make_job_pod(
    owner: Owner, job: Job, index: int | None, failures: dict[str, str], group: PodGroup | None = None
) -> Pod:
    """Return a Pod with the tracking finalizer; `failures` are annotations about its predecessors."""
    template = job.spec.template
    prefix, spec = pod_name_prefix(owner.name), template.spec
    annotations = {**template.metadata.annotations, **failures}
    if index is not None:
        annotations[INDEX] = str(index)
        template = with_labels(template, {INDEX: str(index)})
        prefix = f"{owner.name[: PREFIX_LENGTH_MAX - len(str(index)) - 2]}-{index}-"
        spec = msgspec.structs.replace(
            spec,
            hostname=f"{owner.name}-{index}",
            containers=tuple(_with_index(item) for item in spec.containers),
            init_containers=tuple(_with_index(item) for item in spec.init_containers),
        )
    pod = make_pod(owner, template, prefix, spec=spec)
    finalizers = (*(item for item in pod.metadata.finalizers if item != TRACKING), TRACKING)
    metadata = msgspec.structs.replace(pod.metadata, annotations=annotations, finalizers=finalizers)
    if group is not None:
        # Not an owner of the Pod: it stays until its Pods have finished, and would keep them from being deleted.
        member = PodSchedulingGroup(pod_group_name=group.metadata.name)
        pod = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, scheduling_group=member))
    return msgspec.structs.replace(pod, metadata=metadata)


def _with_index(container: Container) -> Container:
    if any(variable.name == _INDEX_VARIABLE.name for variable in container.env):
        return container
    return msgspec.structs.replace(container, env=(*container.env, _INDEX_VARIABLE))
