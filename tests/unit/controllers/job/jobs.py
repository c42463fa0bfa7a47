"""Jobs and their Pods in one line each."""

from __future__ import annotations

from typing import Any

import msgspec

from dray.api.types.batch_v1 import Job, JobSpec, JobStatus
from dray.api.types.core_v1 import ContainerState, ContainerStateTerminated, ContainerStatus, Pod, PodCondition
from dray.api.types.meta_v1 import ObjectMeta
from dray.controllers.job.indexes import INDEX
from dray.controllers.job.pod_templates import INDEX_FAILURES, TRACKING
from tests.unit.controllers.pod_control.pods import NOW, ago, pod


def job(status: dict[str, Any] | None = None, *, deleting: bool = False, **spec: Any) -> Job:
    document = {"parallelism": 2, "completions": 4, "backoffLimit": 6, **spec}
    return Job(
        metadata=ObjectMeta(
            name="job", namespace="team", uid="u1", generation=1, deletion_timestamp=NOW if deleting else None
        ),
        spec=msgspec.convert(document, JobSpec),
        status=msgspec.convert({"startTime": ago(60), **(status or {})}, JobStatus),
    )


def worker(
    name: str, phase: str = "Running", *, index: int | None = None, held: bool = True, failures: int = 0, **more: Any
) -> Pod:
    annotations = {} if index is None else {INDEX: str(index), INDEX_FAILURES: str(failures)}
    return pod(name, phase=phase, annotations=annotations, finalizers=(TRACKING,) if held else (), owner="u1", **more)


def ended(name: str, code: int, *conditions: str, **more: Any) -> Pod:
    made = worker(name, "Failed", **more)
    state = ContainerState(terminated=ContainerStateTerminated(exit_code=code, finished_at=ago(5)))
    status = msgspec.structs.replace(
        made.status,
        container_statuses=(ContainerStatus(name="c", state=state),),
        conditions=tuple(PodCondition(type=kind, status="True") for kind in conditions),
    )
    return msgspec.structs.replace(made, status=status)
