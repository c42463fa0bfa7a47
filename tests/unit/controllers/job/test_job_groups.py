"""The Workload and the PodGroup of a Job, and the rules of `spec.scheduling`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from dray.api.codec import from_document, to_document
from dray.api.document import Document, GroupResource
from dray.api.errors import APIError, InternalError, InvalidError, NotFoundError
from dray.api.field_errors import Path
from dray.api.types.batch_v1 import Job
from dray.api.validation.batch_v1 import validate_job_update
from dray.api.validation.scheduling_v1beta1 import (
    validate_job_scheduling,
    validate_job_scheduling_update,
    validate_pod_group,
    validate_workload,
)
from dray.controllers.job.job_groups import (
    JobGroups,
    group_name,
    has_started,
    is_managed,
    make_group,
    make_workload,
    min_count,
    template_name,
    workload_name,
)
from dray.controllers.job.pod_templates import make_job_pod, owner_of
from tests.unit.scheduler.builders import FakeInformers

AT = Path("spec").child("scheduling")
GANG: Document = {"schedulingPolicy": {"gang": {}}}


def job(scheduling: Document | None = None, *, parallelism: int = 3, **more: Any) -> Job:
    spec: Document = {
        "parallelism": parallelism,
        "template": {"spec": {"containers": [{"name": "c", "image": "i"}], **more.pop("pod", {})}},
    }
    if scheduling is not None:
        spec["scheduling"] = scheduling
    metadata = {"name": "train", "namespace": "default", "uid": "u1", **more.pop("metadata", {})}
    return from_document(Job, {"metadata": metadata, "spec": spec, "status": more.pop("status", {})})


@pytest.mark.behaviour("GW-66")
def test_names_and_owners() -> None:
    given = job(GANG, pod={"priorityClassName": "high"})
    workload = make_workload(given)
    assert workload.metadata.name == workload_name(given)
    assert (workload.metadata.name or "").startswith("train-")
    assert workload_name(job(metadata={"uid": "u2"})) != workload_name(given)
    assert [item.name for item in workload.spec.pod_group_templates] == ["train-pgt-0"]
    assert len(template_name(job(metadata={"name": "x" * 63}))) == 63
    reference = workload.spec.controller_ref
    assert reference is not None
    assert (reference.api_group, reference.kind, reference.name) == ("batch", "Job", "train")
    group = make_group(given, workload)
    assert group.metadata.name == group_name(given)
    assert (group.metadata.name or "").startswith(f"{workload_name(given)}-train-pgt-0-")
    assert [(item.kind, bool(item.controller)) for item in group.metadata.owner_references] == [
        ("Job", True),
        ("Workload", False),
    ]
    assert group.spec.priority_class_name == "high"
    assert not validate_workload(to_document(workload))
    assert not validate_pod_group(to_document(group))
    pod = make_job_pod(owner_of(given), given, None, {}, group)
    assert pod.spec.scheduling_group is not None
    assert pod.spec.scheduling_group.pod_group_name == group.metadata.name
    assert [item.kind for item in pod.metadata.owner_references] == ["Job"]


@pytest.mark.behaviour("GW-67")
@pytest.mark.parametrize(
    ("scheduling", "parallelism", "expected"),
    [
        (None, 3, None),
        ({"schedulingPolicy": {"basic": {}}}, 3, None),
        (GANG, 3, 3),
        (GANG, 0, 1),
        ({"schedulingPolicy": {"gang": {"minCount": 2}}}, 3, 2),
    ],
)
def test_the_count_of_a_gang(scheduling: Document | None, parallelism: int, expected: int | None) -> None:
    given = job(scheduling, parallelism=parallelism)
    assert min_count(given) == expected
    gang = make_group(given, make_workload(given)).spec.scheduling_policy.gang
    assert (None if gang is None else gang.min_count) == expected


@pytest.mark.behaviour("GW-65")
def test_which_jobs_get_a_group() -> None:
    assert is_managed(job())
    assert not has_started(job())
    owner = {"apiVersion": "batch/v1", "kind": "CronJob", "name": "c", "uid": "c", "controller": True}
    assert not is_managed(job(metadata={"ownerReferences": [owner]}))
    assert not is_managed(job(pod={"schedulingGroup": {"podGroupName": "mine"}}))
    for status in (
        {"startTime": "2026-01-01T00:00:00Z"},
        {"succeeded": 1},
        {"failed": 1},
        {"conditions": [{"type": "Suspended", "status": "True"}]},
    ):
        assert has_started(job(status=status))


@pytest.mark.behaviour("GW-67")
def test_validation() -> None:
    assert not validate_job_scheduling(GANG, 3, AT)
    assert not validate_job_scheduling({}, 3, AT)
    found = validate_job_scheduling({"schedulingPolicy": {"gang": {"minCount": 4}}}, 3, AT)
    path = "spec.scheduling.schedulingPolicy.gang.minCount"
    assert [str(item) for item in found] == [f"{path}: Invalid value: 4: must not be greater than parallelism (3)"]
    found = validate_job_scheduling({"schedulingPolicy": {"gang": {"minCount": 0}}}, 3, AT)
    assert [str(item) for item in found] == [f"{path}: Invalid value: 0: must be greater than or equal to 1"]
    changed = {"schedulingPolicy": {"gang": {"minCount": 2}}}
    assert not validate_job_scheduling_update(changed, GANG, AT)
    found = validate_job_scheduling_update({"schedulingPolicy": {"basic": {}}}, GANG, AT)
    fixed = (
        "the basic/gang policy variant is immutable after creation; only schedulingPolicy.gang.minCount may be updated"
    )
    assert [item.detail for item in found] == [fixed]
    found = validate_job_scheduling_update(GANG | {"disruptionMode": {"all": {}}}, GANG, AT)
    assert [item.detail for item in found] == ["field is immutable"]
    old = to_document(job(GANG))
    new = to_document(job({"schedulingPolicy": {"basic": {}}}))
    assert any(fixed in str(item) for item in validate_job_update(new, old))


@pytest.mark.behaviour("GW-68")
@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (InvalidError("scheduling.k8s.io", "Workload", "train-x", []), "FailedWorkloadCompilation"),
        (InternalError("oops"), "FailedWorkloadCreate"),
    ],
)
async def test_an_event_of_the_job_says_why_there_is_no_group(failure: APIError, reason: str) -> None:
    events: list[tuple[str, str, str]] = []

    class Recorder:
        def event(self, _kind: Any, about: Job, kind: str, reason: str, message: str) -> None:
            assert about.metadata.name == "train"
            events.append((kind, reason, message))

    class Failing:
        async def get(self, *_arguments: object) -> Any:
            raise NotFoundError(GroupResource("scheduling.k8s.io", "podgroups"), "x")

        async def create(self, *_arguments: object) -> Any:
            raise failure

    context: Any = SimpleNamespace(client=Failing(), informers=FakeInformers({}))
    with pytest.raises(type(failure)):
        await JobGroups(context, cast(Any, Recorder())).group_for(job(GANG), has_pods=False)
    assert events == [("Warning", reason, failure.message)]
