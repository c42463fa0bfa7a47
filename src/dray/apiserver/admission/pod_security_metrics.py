"""The metrics of PodSecurity, under kube-apiserver's names."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from dray.api.pod_security.policy import LATEST, LevelVersion
from dray.apiserver.admission.plugin import AdmissionAttributes
from dray.apiserver.object_cache import NAMESPACES, PODS
from dray.runtime.metrics import Counter, Metrics

# The version that the server behaves like; policies of later ones are counted together.
_MINOR: Final = 36
_REQUEST: Final = ("request_operation", "resource", "subresource")


class PodSecurityMetrics:
    """Counts evaluations, exemptions and errors."""

    def __init__(self, metrics: Metrics) -> None:
        self._evaluations = metrics.counter(
            "pod_security_evaluations_total",
            "Number of policy evaluations that occurred, not counting ignored or exempt requests.",
            ("decision", "policy_level", "policy_version", "mode", *_REQUEST),
        )
        self._exemptions = metrics.counter(
            "pod_security_exemptions_total",
            "Number of exempt requests, not counting ignored or out of scope requests.",
            _REQUEST,
        )
        self._errors = metrics.counter(
            "pod_security_errors_total",
            "Number of errors preventing normal evaluation. Non-fatal errors may result in the latest restricted "
            "profile being used for evaluation.",
            ("fatal", *_REQUEST),
        )
        # Finding a counter by its labels costs more than counting with it.
        self._found: dict[tuple[Hashable, ...], Counter] = {}

    def evaluated(self, mode: str, policy: LevelVersion, attributes: AdmissionAttributes, *, allowed: bool) -> None:
        """Count an evaluation; those of the audited and warned policies only if they are violated."""
        minor = policy.minor if policy.minor <= _MINOR or policy.minor == LATEST else _MINOR + 1
        key = (allowed, policy.level, minor, mode, attributes.operation, attributes.resource, attributes.subresource)
        counter = self._found.get(key)
        if counter is None:
            decision = "allow" if allowed else "deny"
            labels = (decision, policy.level.value, _version(policy), mode, *_request(attributes))
            counter = self._found[key] = self._evaluations.labels(*labels)
        counter.inc()

    def exempted(self, attributes: AdmissionAttributes) -> None:
        """Count a request that no policy applies to."""
        self._exemptions.labels(*_request(attributes)).inc()

    def failed(self, attributes: AdmissionAttributes, *, fatal: bool) -> None:
        """Count a request whose namespace has a malformed policy, or that could not be evaluated."""
        self._errors.labels(str(fatal).lower(), *_request(attributes)).inc()


def _version(policy: LevelVersion) -> str:
    if policy.minor == LATEST:
        return "latest"
    return "future" if policy.minor > _MINOR else f"v1.{policy.minor}"


def _request(attributes: AdmissionAttributes) -> tuple[str, str, str]:
    kinds = {PODS: "pod", NAMESPACES: "namespace"}
    return attributes.operation.lower(), kinds.get(attributes.resource, "controller"), attributes.subresource
