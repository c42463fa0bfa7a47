"""The life of a Pod, event by event."""

from __future__ import annotations

from typing import get_args

import pytest

from dray.node.agent.pod.events import (
    Admit,
    Admitted,
    CleanUp,
    ContainerExited,
    ContainerStarted,
    DeletePod,
    Event,
    MustFail,
    PodAdded,
    PodRemoved,
    PodUpdated,
    PostStartFinished,
    Prepare,
    Prepared,
    PrepareFailed,
    ProbeKind,
    ProbeResultChanged,
    RecordEvent,
    Rejected,
    Release,
    Released,
    ReleaseFailed,
    RemoveContainer,
    RetryNow,
    RunPostStart,
    StartContainer,
    StartFailed,
    StartProbes,
    StopContainer,
    TimerFired,
)
from dray.node.agent.pod.machine import NEXT_STAGE, PodMachine, Stage, Trigger, UnexpectedEventError
from dray.node.agent.pod.status import pod_phase
from dray.node.resource_manager import Rejection
from tests.unit.node.agent.builders import START, Life, container, kinds, names, pod, record

DELETED = {"deletionTimestamp": "2026-01-01T00:00:30Z", "deletionGracePeriodSeconds": 30}
SIDECAR = container("side", restartPolicy="Always")


def event_reasons(life: Life) -> list[str]:
    return [action.reason for action in life.done if isinstance(action, RecordEvent)]


# --- The tables. ---

SOME_EVENTS: dict[type[Event], Event] = {
    type(event): event
    for event in (
        PodAdded(),
        PodUpdated(pod()),
        PodRemoved(),
        Admitted(),
        Rejected(Rejection("OutOfcpu", "not enough")),
        Prepared(),
        PrepareFailed("FailedMount", "not found"),
        ContainerStarted(record()),
        StartFailed("a", "ErrImagePull", "not found"),
        ContainerExited(record(code=0)),
        PostStartFinished("a", "a-0"),
        ProbeResultChanged("a", "a-0", ProbeKind.LIVENESS, healthy=True),
        Released(),
        ReleaseFailed("FailedUnprepareDynamicResources", "not registered"),
        MustFail(Rejection("UnhealthyDevice", "device 0")),
        RetryNow(),
        TimerFired(),
    )
}


@pytest.mark.parametrize("stage", Stage)
@pytest.mark.parametrize("kind", get_args(Event))
def test_each_stage_handles_an_event_or_refuses_it(stage: Stage, kind: type[Event]) -> None:
    machine = PodMachine(pod(), now=START)
    machine.stage = stage
    if (stage, kind) in PodMachine.HANDLERS:
        machine.handle(SOME_EVENTS[kind], START)
        assert machine.stage >= stage
    else:
        with pytest.raises(UnexpectedEventError, match=f"{kind.__name__} for pod uid-1 in {stage.name}"):
            machine.handle(SOME_EVENTS[kind], START)
        assert machine.stage is stage


def test_no_event_is_known_to_the_table_alone() -> None:
    assert {kind for _, kind in PodMachine.HANDLERS} == set(get_args(Event))
    assert not any(stage is Stage.REMOVED for stage, _ in PodMachine.HANDLERS)


def test_a_pod_never_returns_to_an_earlier_stage_and_every_stage_is_reached() -> None:
    assert all(after > before for (before, _), after in NEXT_STAGE.items())
    assert set(NEXT_STAGE.values()) == set(Stage) - {Stage.ADMITTING}
    assert {trigger for _, trigger in NEXT_STAGE} == set(Trigger)


# --- Beginning. ---


def test_a_pod_is_admitted_then_prepared_then_started() -> None:
    life = Life(pod(container("a"), container("b")))
    assert kinds(life.tell(PodAdded())) == ["Admit"]
    assert kinds(life.tell(PodAdded())) == []
    actions = life.running()
    assert Admit() not in actions
    assert Prepare() in life.done
    assert names(actions, StartContainer) == ["a", "b"]


def test_a_rejected_pod_gives_back_what_it_had_from_before_and_has_failed() -> None:
    life = Life(pod())
    life.tell(PodAdded())
    # Claims may have been prepared for it before the agent was killed.
    assert Release() in life.tell(Rejected(Rejection("OutOfcpu", "no room")))
    assert event_reasons(life) == ["OutOfcpu"]
    assert not life.machine.admitted
    life.tell(Released())
    assert life.machine.stage is Stage.TERMINATED


def test_a_rejected_pod_whose_containers_run_holds_what_they_use_until_they_have_ended() -> None:
    life = Life(pod(), record("a"))
    life.tell(PodAdded())
    assert life.machine.awaits_readmission
    actions = life.tell(Rejected(Rejection("UnexpectedAdmissionError", "no devices")))
    assert names(actions, StopContainer) == ["a"]
    assert life.machine.admitted
    assert "Release" in kinds(life.exited())
    assert not life.machine.admitted


def test_a_device_that_breaks_during_admission_takes_nothing_back_yet() -> None:
    life = Life(pod())
    life.tell(PodAdded())
    assert life.tell(MustFail(Rejection("UnhealthyDevice", "gone"))) == []
    life.tell(Admitted())
    assert "Release" in kinds(life.tell(MustFail(Rejection("UnhealthyDevice", "gone"))))


def test_a_pod_starts_when_missing_objects_arrive() -> None:
    life = Life(pod())
    life.tell(PodAdded())
    life.tell(Admitted())
    life.tell(PrepareFailed("FailedPrepareDynamicResources", "DRA driver is not registered"))
    assert kinds(life.tell(RetryNow(), 0.1)) == ["Prepare"]
    # While it is being prepared there is nothing to hasten.
    assert life.tell(RetryNow(), 0.2) == []
    life.tell(PodRemoved(), 0.3)
    life.tell(ReleaseFailed("FailedUnprepareDynamicResources", "not yet"), 0.4)
    assert kinds(life.tell(RetryNow(), 0.5)) == ["Release"]


@pytest.mark.behaviour("SP-116")
def test_a_failed_preparation_is_reported_and_retried_before_containers_start() -> None:
    life = Life(pod())
    life.tell(PodAdded())
    life.tell(Admitted())
    life.tell(PrepareFailed("FailedPrepareDynamicResources", "not yet"))
    assert event_reasons(life) == ["FailedPrepareDynamicResources"]
    assert names(life.done, StartContainer) == []
    assert life.machine.wake_at is not None
    actions = life.tell(TimerFired(), 2.0)
    assert kinds(actions) == ["Prepare"]
    assert names(life.tell(Prepared()), StartContainer) == ["a"]


# --- Restarts. ---


@pytest.mark.parametrize(
    ("policy", "code", "again"),
    [
        ("Always", 0, True),
        ("Always", 1, True),
        ("OnFailure", 0, False),
        ("OnFailure", 1, True),
        ("Never", 0, False),
        ("Never", 1, False),
    ],
)
def test_the_restart_policy_decides(policy: str, code: int, again: bool) -> None:
    life = Life(pod(restartPolicy=policy))
    life.running()
    life.started()
    actions = life.exited(code=code, now=1.0)
    assert (names(actions, StartContainer) == ["a"]) is again
    assert (life.machine.stage is Stage.RUNNING) is again


def test_pauses_before_restarts_double_and_the_first_is_none() -> None:
    life = Life(pod())
    life.running()
    now, pauses = 0.0, []
    for attempt in range(8):
        life.started(attempt=attempt, now=now)
        actions = life.exited(attempt=attempt, code=1, now=now)
        if names(actions, StartContainer):
            pauses.append(0.0)
            continue
        assert life.machine.wake_at is not None
        pause = (life.machine.wake_at - record(started=now).started_at).total_seconds()
        pauses.append(pause)
        assert names(life.tell(TimerFired(), now + pause - 0.1), StartContainer) == []
        now += pause
        assert names(life.tell(TimerFired(), now), StartContainer) == ["a"]
    assert pauses == [0, 10, 20, 40, 80, 160, 300, 300]


def test_a_long_healthy_run_begins_the_pauses_anew() -> None:
    life = Life(pod())
    life.running()
    life.started()
    life.exited(code=1, now=1.0)
    life.started(attempt=1, now=1.0)
    assert names(life.exited(attempt=1, code=1, now=2000.0), StartContainer) == ["a"]


def test_waiting_says_for_how_long() -> None:
    life = Life(pod())
    life.running()
    life.started()
    life.exited(code=1, now=1.0)
    life.started(attempt=1, now=1.0)
    life.exited(attempt=1, code=1, now=2.0)
    state = life.machine.containers.by_name["a"]
    assert state.waiting is not None
    assert state.waiting.reason == "CrashLoopBackOff"
    assert state.waiting.message == "back-off 10s restarting failed container=a pod=p_ns(uid-1)"
    assert event_reasons(life).count("BackOff") == 1


def test_only_the_last_two_runs_are_kept() -> None:
    life = Life(pod())
    life.running()
    for attempt in range(3):
        life.started(attempt=attempt, now=700.0 * attempt)
        life.exited(attempt=attempt, code=1, now=700.0 * attempt)
        life.tell(TimerFired(), 700.0 * attempt + 400)
    removed = [action.record.attempt for action in life.done if isinstance(action, RemoveContainer)]
    assert removed == [0]


@pytest.mark.parametrize(("operator", "code", "again"), [("In", 42, True), ("In", 1, False), ("NotIn", 1, True)])
def test_a_rule_may_restart_what_the_policy_would_not(operator: str, code: int, again: bool) -> None:
    rules = [{"action": "Restart", "exitCodes": {"operator": operator, "values": [42]}}]
    life = Life(pod(container("a", restartPolicy="Never", restartPolicyRules=rules), restartPolicy="Never"))
    life.running()
    life.started()
    assert bool(names(life.exited(code=code, now=1.0), StartContainer)) is again


def test_an_image_that_cannot_be_had_is_tried_again_with_growing_pauses() -> None:
    life = Life(pod())
    life.running()
    life.tell(StartFailed("a", "ErrImagePull", "no registry"))
    state = life.machine.containers.by_name["a"]
    assert state.waiting is not None
    assert state.waiting.reason == "ErrImagePull"
    assert names(life.tell(TimerFired(), 10.0), StartContainer) == ["a"]
    life.tell(StartFailed("a", "ErrImagePull", "no registry"))
    assert state.waiting.reason == "ImagePullBackOff"
    assert names(life.tell(TimerFired(), 29.0), StartContainer) == []
    assert names(life.tell(TimerFired(), 30.0), StartContainer) == ["a"]


def test_a_missing_configuration_is_waited_for_even_without_restarts() -> None:
    life = Life(pod(restartPolicy="Never"))
    life.running()
    life.tell(StartFailed("a", "CreateContainerConfigError", 'configmap "x" not found', ""))
    assert life.machine.stage is Stage.RUNNING
    assert names(life.tell(TimerFired(), 10.0), StartContainer) == ["a"]


@pytest.mark.behaviour("DP-51")
def test_a_container_that_waits_for_its_plugin_starts_as_soon_as_it_is_there() -> None:
    life = Life(pod(container("a"), container("b")))
    life.running()
    life.tell(StartFailed("a", "CreateContainerConfigError", "waiting for the device plugin of x.com/foo", ""))
    life.tell(StartFailed("b", "ErrImagePull", "no such image"))
    assert names(life.tell(RetryNow(), 1.0), StartContainer) == ["a"]
    # It is being started, and nothing else waits for a plugin.
    assert life.tell(RetryNow(), 2.0) == []


@pytest.mark.behaviour("DP-47")
def test_init_containers_that_will_not_run_again() -> None:
    subject = pod(initContainers=[container("i"), container("j"), SIDECAR])
    assert Life(subject).machine.completed_init_containers == ()
    assert Life(subject, record("i", code=0)).machine.completed_init_containers == ("i",)
    assert Life(subject, record("i", code=1)).machine.completed_init_containers == ()
    # A container has run: whatever became of the records, initialization is over.
    after = Life(subject, record("a", code=1)).machine
    assert after.completed_init_containers == ("i", "j")
    assert after.awaits_readmission


def test_a_program_that_cannot_start_counts_as_a_run() -> None:
    life = Life(pod(restartPolicy="Never"))
    life.running()
    life.exited(code=128)
    assert life.machine.stage is Stage.RELEASING


def test_a_new_image_restarts_the_container_whatever_the_policy() -> None:
    life = Life(pod(restartPolicy="Never"))
    life.running()
    life.started()
    changed = pod(container("a", image="other"), restartPolicy="Never")
    assert names(life.tell(PodUpdated(changed)), StopContainer) == ["a"]
    assert names(life.exited(code=143, now=1.0), StartContainer) == ["a"]


# --- Init containers and sidecars. ---


def test_init_containers_run_one_after_the_other() -> None:
    life = Life(pod(container("a"), initContainers=[container("i1"), container("i2")]))
    assert names(life.running(), StartContainer) == ["i1"]
    life.started("i1")
    assert names(life.exited("i1"), StartContainer) == ["i2"]
    life.started("i2")
    assert names(life.exited("i2"), StartContainer) == ["a"]


def test_a_failing_init_container_fails_the_pod_only_without_restarts() -> None:
    never = Life(pod(container("a"), initContainers=[container("i1")], restartPolicy="Never"))
    never.running()
    never.started("i1")
    never.exited("i1", code=1)
    assert never.machine.stage is Stage.RELEASING
    always = Life(pod(container("a"), initContainers=[container("i1")]))
    always.running()
    always.started("i1")
    assert names(always.exited("i1", code=1, now=1.0), StartContainer) == ["i1"]


def test_a_sidecar_must_have_started_before_the_next_begins() -> None:
    probe = {"exec": {"command": ["true"]}}
    life = Life(pod(container("a"), initContainers=[{**SIDECAR, "startupProbe": probe}]))
    assert names(life.running(), StartContainer) == ["side"]
    assert names(life.started("side"), StartContainer) == []
    actions = life.tell(ProbeResultChanged("side", "side-0", ProbeKind.STARTUP, healthy=True))
    assert names(actions, StartContainer) == ["a"]


def test_a_sidecar_is_restarted_while_others_run_and_does_not_keep_the_pod() -> None:
    life = Life(pod(container("a"), initContainers=[SIDECAR], restartPolicy="Never"))
    life.running()
    life.started("side")
    life.started("a")
    assert names(life.exited("side", code=0, now=1.0), StartContainer) == ["side"]
    life.started("side", attempt=1)
    actions = life.exited("a", now=2.0)
    assert names(actions, StopContainer) == ["side"]
    assert kinds(life.exited("side", attempt=1, code=143)) == ["Release"]


def test_sidecars_end_last_and_in_reverse() -> None:
    life = Life(pod(container("a"), initContainers=[SIDECAR, {**SIDECAR, "name": "side2"}]))
    life.running()
    life.started("side")
    life.started("side2")
    life.started("a")
    deleted = pod(container("a"), initContainers=[SIDECAR, {**SIDECAR, "name": "side2"}], metadata=DELETED)
    assert names(life.tell(PodUpdated(deleted)), StopContainer) == ["a"]
    assert names(life.exited("a", code=143, now=5.0), StopContainer) == ["side2"]
    actions = life.exited("side2", code=143, now=29.5)
    assert names(actions, StopContainer) == ["side"]
    # Half a second is left of the grace; a sidecar gets at least two.
    assert [action.grace_seconds for action in actions if isinstance(action, StopContainer)] == [2.0]


# --- Hooks and probes. ---


def test_a_container_is_not_running_before_its_hook_is_through() -> None:
    hooked = container("a", lifecycle={"postStart": {"exec": {"command": ["true"]}}})
    life = Life(pod(hooked))
    life.running()
    actions = life.started()
    assert names(actions, RunPostStart) == ["a"]
    assert names(actions, StartProbes) == []
    assert not life.machine.containers.by_name["a"].running
    assert names(life.tell(PostStartFinished("a", "a-0")), StartProbes) == ["a"]
    assert life.machine.containers.by_name["a"].running


def test_a_failed_hook_ends_the_container() -> None:
    hooked = container("a", lifecycle={"postStart": {"exec": {"command": ["false"]}}})
    life = Life(pod(hooked))
    life.running()
    life.started()
    actions = life.tell(PostStartFinished("a", "a-0", "PostStartHook failed: 1"))
    assert names(actions, StopContainer) == ["a"]
    assert "FailedPostStartHook" in event_reasons(life)


def test_a_failed_liveness_probe_ends_the_container_with_the_probes_own_grace() -> None:
    probe = {"exec": {"command": ["false"]}, "terminationGracePeriodSeconds": 1}
    life = Life(pod(container("a", livenessProbe=probe)))
    life.running()
    life.started()
    actions = life.tell(ProbeResultChanged("a", "a-0", ProbeKind.LIVENESS, healthy=False))
    assert [action.grace_seconds for action in actions if isinstance(action, StopContainer)] == [1.0]
    assert names(life.tell(ProbeResultChanged("a", "a-0", ProbeKind.LIVENESS, healthy=False)), StopContainer) == []
    assert names(life.exited(code=137, now=1.0), StartContainer) == ["a"]


def test_a_probe_of_an_earlier_run_says_nothing() -> None:
    life = Life(pod(container("a", livenessProbe={"exec": {"command": ["false"]}})))
    life.running()
    life.started()
    life.exited(code=1, now=1.0)
    life.started(attempt=1, now=1.0)
    assert life.tell(ProbeResultChanged("a", "a-0", ProbeKind.LIVENESS, healthy=False)) == []


def test_readiness_follows_its_probe() -> None:
    life = Life(pod(container("a", readinessProbe={"exec": {"command": ["true"]}})))
    life.running()
    life.started()
    state = life.machine.containers.by_name["a"]
    assert not state.ready
    life.tell(ProbeResultChanged("a", "a-0", ProbeKind.READINESS, healthy=True))
    assert state.ready
    life.tell(ProbeResultChanged("a", "a-0", ProbeKind.READINESS, healthy=False))
    assert not state.ready


# --- The end. ---


@pytest.mark.behaviour("SP-117", "CL-43")
def test_devices_are_given_back_when_all_has_stopped_and_before_the_end() -> None:
    life = Life(pod(restartPolicy="Never"))
    life.running()
    life.started()
    assert kinds(life.exited()) == ["Release"]
    assert life.machine.stage is Stage.RELEASING
    life.tell(ReleaseFailed("FailedUnprepareDynamicResources", "driver away"))
    assert life.machine.stage is Stage.RELEASING
    assert kinds(life.tell(TimerFired(), 60.0)) == ["Release"]
    life.tell(Released())
    assert life.machine.stage is Stage.TERMINATED


@pytest.mark.behaviour("CL-45")
def test_a_deleted_pod_is_stopped_released_and_only_then_removed() -> None:
    life = Life(pod())
    life.running()
    life.started()
    actions = life.tell(PodUpdated(pod(metadata=DELETED)))
    assert [action.grace_seconds for action in actions if isinstance(action, StopContainer)] == [30.0]
    assert kinds(life.exited(code=143, now=1.0)) == ["Release"]
    assert DeletePod() not in life.done
    assert kinds(life.tell(Released())) == ["DeletePod"]
    assert kinds(life.tell(PodRemoved())) == ["CleanUp"]
    assert life.machine.stage is Stage.REMOVED


def test_a_shorter_grace_hurries_what_is_under_way() -> None:
    life = Life(pod())
    life.running()
    life.started()
    life.tell(PodUpdated(pod(metadata=DELETED)))
    hurried = pod(metadata={**DELETED, "deletionGracePeriodSeconds": 0})
    actions = life.tell(PodUpdated(hurried), 1.0)
    assert [action.grace_seconds for action in actions if isinstance(action, StopContainer)] == [0.0]


def test_a_container_that_is_starting_is_stopped_when_it_has_started() -> None:
    life = Life(pod())
    life.running()
    assert names(life.tell(PodUpdated(pod(metadata=DELETED))), StopContainer) == []
    assert names(life.started(), StopContainer) == ["a"]


def test_a_pod_that_vanished_is_stopped_with_its_own_grace_and_forgotten() -> None:
    life = Life(pod(terminationGracePeriodSeconds=7))
    life.running()
    life.started()
    actions = life.tell(PodRemoved())
    assert [action.grace_seconds for action in actions if isinstance(action, StopContainer)] == [7.0]
    life.exited(code=143)
    assert kinds(life.tell(Released())) == ["CleanUp"]
    assert CleanUp() in life.done


def test_a_deadline_ends_the_pod() -> None:
    life = Life(pod(activeDeadlineSeconds=5))
    life.running()
    life.started()
    assert names(life.tell(TimerFired(), 4.9), StopContainer) == []
    assert life.machine.wake_at == record(started=5.0).started_at
    assert names(life.tell(TimerFired(), 5.0), StopContainer) == ["a"]
    assert life.machine.failure is not None
    assert life.machine.failure.reason == "DeadlineExceeded"


def test_a_broken_device_fails_the_pod() -> None:
    life = Life(pod())
    life.running()
    life.started()
    actions = life.tell(MustFail(Rejection("DeviceFailure", "gone")))
    assert names(actions, StopContainer) == ["a"]
    assert kinds(life.exited(code=143)) == ["Release"]


# --- After a restart of the agent. ---


def test_running_containers_are_adopted_not_started_again() -> None:
    life = Life(pod(), record("a", attempt=3))
    actions = life.running()
    assert names(actions, StartContainer) == []
    assert names(actions, StartProbes) == ["a"]
    assert names(life.exited(attempt=3, code=1, now=9.0), StartContainer) == ["a"]
    assert [action.attempt for action in life.done if isinstance(action, StartContainer)] == [4]


def test_adoption_does_not_run_init_containers_again() -> None:
    life = Life(pod(container("a"), initContainers=[container("i1")]), record("a"))
    assert names(life.running(), StartContainer) == []


def test_what_ended_meanwhile_is_judged_as_if_seen() -> None:
    life = Life(pod(restartPolicy="Never"), record("a", code=3))
    # There is nothing to be admitted for: that its plugin is away must not change how it ended.
    assert kinds(life.tell(PodAdded())) == ["Release"]
    life.tell(Released())
    assert life.machine.stage is Stage.TERMINATED
    assert life.machine.failure is None


def test_what_ended_meanwhile_and_runs_again_is_admitted_first() -> None:
    life = Life(pod(restartPolicy="Always"), record("a", code=3))
    assert kinds(life.tell(PodAdded())) == ["Admit"]


def test_a_finished_pod_stays_finished_and_is_only_cleaned_up() -> None:
    life = Life(pod(status={"phase": "Succeeded"}), record("a", code=0))
    assert kinds(life.tell(PodAdded())) == ["Release"]
    life.tell(Released())
    assert life.machine.was_terminal
    assert names(life.done, StartContainer) == []


@pytest.mark.behaviour("EX-43")
def test_an_ephemeral_container_is_started_once_and_changes_nothing_else() -> None:
    life = Life(pod(container("a"), restartPolicy="Always"))
    life.running()
    life.started("a")
    extra = pod(container("a"), restartPolicy="Always", ephemeralContainers=[container("d")])
    assert StartContainer("d", 0) in life.tell(PodUpdated(extra))
    assert not any(isinstance(action, StartContainer) for action in life.started("d"))
    actions = life.exited("d", code=1)
    assert not any(isinstance(action, StartContainer) for action in actions)
    assert life.machine.stage is Stage.RUNNING
    assert not any(isinstance(action, StartContainer) for action in life.tell(PodUpdated(extra), now=1000.0))
    assert pod_phase(life.machine) == "Running"
