"""Evaluation of a Job's Pod failure policy. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from dray.api.types.batch_v1 import (
    PodFailurePolicy,
    PodFailurePolicyOnExitCodesRequirement,
    PodFailurePolicyOnPodConditionsPattern,
)
from dray.api.types.core_v1 import ContainerStatus, Pod
from dray.controllers.pod_control.pod_status import FAILED

FAIL_JOB: Final = "FailJob"
FAIL_INDEX: Final = "FailIndex"
IGNORE: Final = "Ignore"
COUNT: Final = "Count"


@dataclass(frozen=True, slots=True)
class Decision:
    """The action of the first rule that matches; Count when none does."""

    action: str = COUNT
    # What matched; empty if no rule did.
    message: str = ""

    @property
    def counts(self) -> bool:
        """Whether the failure counts towards the backoff limit."""
        return self.action != IGNORE

    @property
    def matched(self) -> bool:
        """Whether a rule matched."""
        return bool(self.message)


_COUNTED: Final = Decision()


def evaluate(policy: PodFailurePolicy | None, pod: Pod) -> Decision:
    """Return the action of the first rule that matches the Pod."""
    if policy is None or pod.status.phase != FAILED:
        return _COUNTED
    pod_key = f"{pod.metadata.namespace}/{pod.metadata.name}"
    for number, rule in enumerate(policy.rules):
        message = ""
        if rule.on_exit_codes is not None:
            container = _exited(rule.on_exit_codes, pod)
            if container is not None and container.state.terminated is not None:
                code = container.state.terminated.exit_code
                message = f"Container {container.name} for pod {pod_key} failed with exit code {code}"
        else:
            kind = _condition(rule.on_pod_conditions, pod)
            if kind is not None:
                message = f"Pod {pod_key} has condition {kind}"
        if message:
            return Decision(rule.action, f"{message} matching {rule.action} rule at index {number}")
    return _COUNTED


def _exited(wanted: PodFailurePolicyOnExitCodesRequirement, pod: Pod) -> ContainerStatus | None:
    for status in _statuses(pod):
        if wanted.container_name and wanted.container_name != status.name:
            continue
        terminated = status.state.terminated
        if terminated is None or terminated.exit_code == 0:
            continue
        if (terminated.exit_code in wanted.values) is (wanted.operator == "In"):
            return status
    return None


def _statuses(pod: Pod) -> Iterator[ContainerStatus]:
    yield from pod.status.container_statuses
    yield from pod.status.init_container_statuses


def _condition(patterns: tuple[PodFailurePolicyOnPodConditionsPattern, ...], pod: Pod) -> str | None:
    for pattern in patterns:
        for condition in pod.status.conditions:
            if condition.type == pattern.type and condition.status == (pattern.status or "True"):
                return condition.type
    return None
