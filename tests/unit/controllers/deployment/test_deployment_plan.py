"""Sizes, revisions and conditions of a Deployment, decided without a server."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from dray.api.types.apps_v1 import (
    Deployment,
    DeploymentSpec,
    DeploymentStatus,
    DeploymentStrategy,
    ReplicaSet,
    ReplicaSetSpec,
    ReplicaSetStatus,
    RollingUpdateDeployment,
)
from dray.api.types.core_v1 import Container, EnvVar, PodSpec, PodTemplateSpec
from dray.api.types.meta_v1 import LabelSelector, ObjectMeta
from dray.controllers.deployment import conditions as cond
from dray.controllers.deployment import plan, revisions, scaling, strategy
from dray.controllers.deployment.rollout import Create, Rollout, Update
from dray.controllers.pod_control.replicas import scaled_value
from tests.unit.controllers.pod_control.pods import NOW, ago

WEB = {"app": "web"}


def template(image: str, **labels: str) -> PodTemplateSpec:
    return PodTemplateSpec(
        metadata=ObjectMeta(labels={**WEB, **labels}),
        spec=PodSpec(containers=(Container(name="c", image=image),)),
    )


def deployment(replicas: int = 10, image: str = "new", **spec: Any) -> Deployment:
    surge, unavailable = spec.pop("surge", 3), spec.pop("unavailable", 2)
    rolling = RollingUpdateDeployment(max_surge=surge, max_unavailable=unavailable)
    spec.setdefault("strategy", DeploymentStrategy(type="RollingUpdate", rolling_update=rolling))
    return Deployment(
        metadata=ObjectMeta(
            name="web",
            namespace="team",
            uid="u1",
            generation=1,
            annotations={"kubectl.kubernetes.io/last-applied-configuration": "{}", "team": "x"},
        ),
        spec=DeploymentSpec(
            replicas=replicas,
            selector=LabelSelector(match_labels=WEB),
            template=template(image),
            **{"progress_deadline_seconds": 600, "revision_history_limit": 10, **spec},
        ),
        status=DeploymentStatus(observed_generation=1),
    )


def replica_set(
    name: str,
    size: int,
    *,
    available: int | None = None,
    revision: str = "1",
    noted: tuple[int, int] | None = None,
    age: float = 100.0,
    image: str = "",
) -> ReplicaSet:
    """Named after its image; `noted` are the Deployment's sizes in its annotations."""
    annotations = {revisions.REVISION: revision}
    if noted is not None:
        annotations |= {revisions.DESIRED_REPLICAS: str(noted[0]), revisions.MAX_REPLICAS: str(noted[1])}
    return ReplicaSet(
        metadata=ObjectMeta(
            name=name, namespace="team", uid=f"uid-{name}", creation_timestamp=ago(age), annotations=annotations
        ),
        spec=ReplicaSetSpec(replicas=size, template=template(image or name, **{revisions.HASH_LABEL: name})),
        status=ReplicaSetStatus(
            replicas=size, available_replicas=size if available is None else available, observed_generation=0
        ),
    )


def draft_of(item: Deployment, *sets: ReplicaSet) -> Rollout:
    return Rollout(item, sets, revisions.find_new(item, sets))


def sizes(rollout: Rollout) -> dict[str, int]:
    return {item.metadata.name or "": strategy.replicas_of(item) for item in rollout.all}


@pytest.mark.parametrize(
    ("value", "total", "up", "down"),
    [(3, 10, 3, 3), (None, 10, 0, 0), ("25%", 10, 3, 2), ("0%", 10, 0, 0), ("100%", 7, 7, 7), ("1%", 1, 1, 0)],
)
def test_scaled(value: int | str | None, total: int, up: int, down: int) -> None:
    assert (scaled_value(value, total, round_up=True), scaled_value(value, total, round_up=False)) == (up, down)


@pytest.mark.parametrize(
    ("replicas", "surge", "unavailable", "expected"),
    [
        (10, "25%", "25%", (3, 2)),
        (1, "25%", "25%", (1, 0)),
        (10, 0, "1%", (0, 1)),
        (0, "25%", "25%", (0, 0)),
        (2, 1, 5, (1, 2)),
    ],
)
def test_bounds(replicas: int, surge: int | str, unavailable: int | str, expected: tuple[int, int]) -> None:
    item = deployment(replicas, surge=surge, unavailable=unavailable)
    assert (strategy.max_surge(item), strategy.max_unavailable(item)) == expected


@pytest.mark.parametrize(
    ("wanted", "old", "new", "after"),
    [
        pytest.param(10, 10, 0, 3, id="only the surge"),
        pytest.param(10, 5, 5, 8, id="room again"),
        pytest.param(10, 2, 9, 10, id="not more than wanted"),
        pytest.param(10, 13, 0, 0, id="no room"),
        pytest.param(10, 0, 12, 10, id="too large"),
    ],
)
def test_growing(wanted: int, old: int, new: int, after: int) -> None:
    rollout = draft_of(deployment(wanted), replica_set("old", old), replica_set("new", new))
    assert scaling.grow_new(rollout) is (after != new)
    assert sizes(rollout)["new"] == after


@pytest.mark.parametrize(
    ("old", "available", "new", "new_available", "after"),
    [
        pytest.param(10, 10, 0, 0, 8, id="what may be missing"),
        pytest.param(10, 10, 3, 0, 8, id="new ones that are not available do not count"),
        pytest.param(8, 8, 5, 3, 5, id="as many as became available"),
        pytest.param(10, 8, 0, 0, 8, id="of no use: first to go"),
        pytest.param(8, 8, 5, 0, 8, id="nothing to spare"),
        pytest.param(0, 0, 10, 10, 0, id="done"),
    ],
)
def test_shrinking(old: int, available: int, new: int, new_available: int, after: int) -> None:
    rollout = draft_of(
        deployment(10), replica_set("old", old, available=available), replica_set("new", new, available=new_available)
    )
    assert scaling.shrink_old(rollout) is (after != old)
    assert sizes(rollout)["old"] == after


def test_the_oldest_shrink_first() -> None:
    rollout = draft_of(
        deployment(10),
        replica_set("older", 4, age=300.0),
        replica_set("old", 4, age=200.0),
        replica_set("new", 5),
    )
    assert scaling.shrink_old(rollout)
    assert sizes(rollout) == {"older": 0, "old": 3, "new": 5}


@pytest.mark.parametrize(
    ("wanted", "before", "after"),
    [
        pytest.param(15, {"a": 8, "new": 5}, {"a": 11, "new": 7}, id="growing"),
        pytest.param(5, {"a": 8, "new": 5}, {"a": 5, "new": 3}, id="shrinking"),
        pytest.param(0, {"a": 8, "new": 5}, {"a": 0, "new": 0}, id="to nothing"),
        pytest.param(11, {"a": 5, "b": 5, "new": 3}, {"a": 5, "b": 6, "new": 3}, id="what rounding leaves"),
        pytest.param(9, {"a": 5, "b": 5, "new": 3}, {"a": 4, "b": 5, "new": 3}, id="the oldest shrinks first"),
    ],
)
def test_sharing_out(wanted: int, before: dict[str, int], after: dict[str, int]) -> None:
    ages = {"a": 300.0, "b": 200.0, "new": 100.0}
    sets = [replica_set(name, size, noted=(10, 13), age=ages[name]) for name, size in before.items()]
    rollout = draft_of(deployment(wanted), *sets)
    assert scaling.is_scaling(rollout)
    scaling.scale(rollout)
    assert sizes(rollout) == after
    assert not scaling.is_scaling(rollout)


def test_a_full_new_set_empties_the_others() -> None:
    rollout = draft_of(deployment(10), replica_set("old", 2), replica_set("new", 10, noted=(10, 13)))
    scaling.scale(rollout)
    assert sizes(rollout) == {"old": 0, "new": 10}


def test_the_first_plan_creates() -> None:
    item = deployment(4)
    result = plan.plan_deployment(item, [], lambda _: False, NOW)
    (write,) = result.write
    assert isinstance(write, Create)
    made = write.replica_set
    assert (made.spec.replicas, made.metadata.annotations) == (
        4,
        {
            "team": "x",
            revisions.REVISION: "1",
            revisions.DESIRED_REPLICAS: "4",
            revisions.MAX_REPLICAS: "7",
        },
    )
    assert write.messages == (f"Scaled up replica set {made.metadata.name} from 0 to 4",)
    assert result.report is not None
    assert result.report.metadata.annotations[revisions.REVISION] == "1"
    reasons = [(state.type, state.reason) for state in result.report.status.conditions]
    assert reasons == [("Progressing", "NewReplicaSetCreated"), ("Available", "MinimumReplicasUnavailable")]


def test_the_old_set_of_a_rollback_is_renumbered_in_one_write() -> None:
    old, new = replica_set("old", 10, revision="2"), replica_set("new", 0, revision="1", noted=(10, 13))
    result = plan.plan_deployment(deployment(10), [old, new], lambda _: False, NOW)
    writes = {write.replica_set.metadata.name: write for write in result.write}
    assert isinstance(writes["new"], Update)
    changed = writes["new"].replica_set
    assert changed.metadata.annotations[revisions.REVISION] == "3"
    assert changed.metadata.annotations[revisions.REVISION_HISTORY] == "1"
    assert (changed.spec.replicas, writes["new"].messages) == (3, ("Scaled up replica set new from 0 to 3",))
    # What was created in this step is not available: the old one keeps what must be available.
    assert "old" not in writes


def test_a_settled_deployment_needs_nothing() -> None:
    item = deployment(2)
    new = replica_set("new", 2, noted=(2, 5))
    for _ in range(3):
        result = plan.plan_deployment(item, [new], lambda _: False, NOW)
        for write in result.write:
            new = write.replica_set
        item = result.report or item
    assert (result.write, result.delete, result.report, result.requeue_seconds) == ((), (), None, None)
    state = cond.find(item.status.conditions, cond.PROGRESSING)
    assert state is not None
    assert state.reason == cond.NEW_AVAILABLE


@pytest.mark.parametrize(("running", "size"), [(True, 0), (False, 4)])
def test_recreate_waits_for_the_last_pod(running: bool, size: int) -> None:
    item = deployment(4, strategy=DeploymentStrategy(type="Recreate"))
    result = plan.plan_deployment(item, [replica_set("old", 0)], lambda _: running, NOW)
    assert sum(write.replica_set.spec.replicas or 0 for write in result.write) == size


def test_history_goes_by_number_and_spares_what_has_pods() -> None:
    item = deployment(1, revision_history_limit=1)
    old = [
        replica_set("a", 0, revision="10", age=900.0),
        replica_set("b", 0, revision="2"),
        replica_set("c", 0, revision="3"),
        replica_set("d", 1, revision="1"),
    ]
    assert [item.metadata.name for item in revisions.surplus_history(item, old)] == ["b", "c"]
    unlimited = deployment(1, revision_history_limit=2**31 - 1)
    assert revisions.surplus_history(unlimited, old) == []


def test_a_long_history_forgets_its_beginning() -> None:
    numbers = ",".join(str(number) for number in range(1000, 1400))
    assert len(numbers) < revisions.HISTORY_LENGTH_MAX
    item = replica_set("new", 1, revision="1400")
    annotations = {**item.metadata.annotations, revisions.REVISION_HISTORY: numbers}
    changed = revisions.as_revision(deployment(), revisions.with_annotations(item, annotations), 1401)
    history = changed.metadata.annotations[revisions.REVISION_HISTORY]
    assert len(history) <= revisions.HISTORY_LENGTH_MAX
    assert history.startswith("1001,")
    assert history.endswith(",1400")


def test_the_deadline() -> None:
    item = deployment(1, progress_deadline_seconds=30)
    state = cond.condition(cond.PROGRESSING, cond.TRUE, cond.CREATED, "m", NOW)
    item = msgspec.structs.replace(item, status=DeploymentStatus(conditions=(state,), unavailable_replicas=1))
    new = replica_set("new", 1, available=0)
    idle = msgspec.structs.replace(new, status=ReplicaSetStatus(replicas=0))

    def at(seconds: float) -> tuple[str | None, float | None]:
        now = NOW + timedelta(seconds=seconds)
        status = cond.with_progress(item, cond.count(item, (state,), [idle], idle, now), [idle], idle, now)
        found = cond.find(status.conditions, cond.PROGRESSING)
        assert found is not None
        return found.reason, cond.deadline_check_seconds(item, status, now)

    assert at(10) == ("NewReplicaSetCreated", 21.0)
    assert at(31) == ("ProgressDeadlineExceeded", None)


def test_conditions_keep_their_times() -> None:
    first = cond.condition(cond.AVAILABLE, cond.TRUE, "a", "m", NOW)
    same = cond.condition(cond.AVAILABLE, cond.TRUE, "a", "other", NOW + timedelta(seconds=5))
    assert cond.put((first,), same) == (first,)
    reason = cond.condition(cond.AVAILABLE, cond.TRUE, "b", "m", NOW + timedelta(seconds=5))
    (kept,) = cond.put((first,), reason)
    assert (kept.reason, kept.last_transition_time) == ("b", first.last_transition_time)


@pytest.mark.parametrize(
    ("paused", "reason", "expected"),
    [
        (True, "ReplicaSetUpdated", "DeploymentPaused"),
        (True, "ProgressDeadlineExceeded", "ProgressDeadlineExceeded"),
        (False, "DeploymentPaused", "DeploymentResumed"),
        (False, "ReplicaSetUpdated", "ReplicaSetUpdated"),
    ],
)
def test_pausing(paused: bool, reason: str, expected: str) -> None:
    before = (cond.condition(cond.PROGRESSING, cond.TRUE, reason, "m", NOW),)
    (after,) = cond.with_pause(deployment(paused=paused), before, NOW)
    assert after.reason == expected


def test_failed_creation_and_collision() -> None:
    item = deployment()
    report = plan.after_failed_creation(item, plan.creation_failure("web-x", "no"), NOW)
    assert report is not None
    (state,) = report.status.conditions
    assert (state.status, state.reason, state.message) == (
        "False",
        "ReplicaSetCreateError",
        'Failed to create new replica set "web-x": no',
    )
    names = set()
    for _ in range(3):
        names.add(revisions.make_replica_set(item, 1).metadata.name)
        item = plan.after_collision(item)
    assert len(names) == 3
    assert item.status.collision_count == 3


def with_env(spec: PodTemplateSpec, value: str | None) -> PodTemplateSpec:
    containers = tuple(
        msgspec.structs.replace(item, env=(EnvVar(name="X", value=value),)) for item in spec.spec.containers
    )
    return msgspec.structs.replace(spec, spec=msgspec.structs.replace(spec.spec, containers=containers))


def test_templates_that_mean_the_same_are_the_same() -> None:
    """A store of an earlier release may have an empty text in the one, and nothing in the other."""
    item = deployment()
    item = msgspec.structs.replace(
        item, spec=msgspec.structs.replace(item.spec, template=with_env(template("new"), ""))
    )
    same = replica_set("new", 10)
    same = msgspec.structs.replace(
        same, spec=msgspec.structs.replace(same.spec, template=with_env(same.spec.template, None))
    )
    other = msgspec.structs.replace(
        same, spec=msgspec.structs.replace(same.spec, template=with_env(same.spec.template, "x"))
    )
    assert revisions.find_new(item, [same]) is same
    assert revisions.find_new(item, [other]) is None


def test_an_own_set_with_the_name_of_the_new_one_is_a_collision() -> None:
    item = deployment()
    name = revisions.make_replica_set(item, 1).metadata.name
    assert name is not None
    for strategy_type in ("RollingUpdate", "Recreate"):
        spec = msgspec.structs.replace(item.spec, strategy=DeploymentStrategy(type=strategy_type))
        changed = msgspec.structs.replace(item, spec=spec)
        wanted = plan.plan_deployment(changed, [replica_set(name, 0, image="old")], lambda _: False, NOW)
        assert not wanted.write
        assert wanted.report is not None
        assert wanted.report.status.collision_count == 1
