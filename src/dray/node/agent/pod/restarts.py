"""When a container that ended runs again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from dray.api.types.core_v1 import Container, ContainerRestartRule


def wants_restart(container: Container, pod_policy: str, code: int, *, is_init: bool = False) -> bool:
    """Whether the container is to run again after this exit code."""
    if any(_rule_restarts(rule, code) for rule in container.restart_policy_rules):
        return True
    policy = container.restart_policy or pod_policy
    if policy == "Always" and not is_init:
        return True
    # An ordinary init container that succeeded is done, whatever the policy.
    return policy in ("Always", "OnFailure") and code != 0


def _rule_restarts(rule: ContainerRestartRule, code: int) -> bool:
    if rule.action != "Restart" or rule.exit_codes is None:
        return False
    listed = code in rule.exit_codes.values
    return listed if rule.exit_codes.operator == "In" else not listed


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that double, counted from the moment of failure: the first one is none."""

    first_seconds: float
    max_seconds: float
    # The pause that the next failure must keep; zero before the first restart.
    seconds: float = 0.0
    updated: datetime | None = None

    def ready_at(self, failed: datetime) -> datetime:
        """When to try again after a failure at that time."""
        return failed + timedelta(seconds=self._current(failed))

    def seconds_for(self, failed: datetime) -> float:
        """The pause after a failure at that time."""
        return self._current(failed)

    def after_retry(self, now: datetime) -> Backoff:
        """What holds after trying again."""
        current = self._current(now)
        following = min(current * 2, self.max_seconds) if current else self.first_seconds
        return Backoff(self.first_seconds, self.max_seconds, following, now)

    def _current(self, moment: datetime) -> float:
        # Whoever ran well for twice the longest pause begins anew.
        if self.updated is None or (moment - self.updated).total_seconds() > 2 * self.max_seconds:
            return 0.0
        return self.seconds
