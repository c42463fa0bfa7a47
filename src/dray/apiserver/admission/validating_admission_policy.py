"""ValidatingAdmissionPolicy: refuses writes that violate a bound policy, warns of them, or annotates their audit."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from dray.api.document import Document, GroupResource
from dray.api.errors import ForbiddenError
from dray.apiserver.admission.match_cache import ConfiguredPlugin
from dray.apiserver.admission.matching import Equivalents, own_labels
from dray.apiserver.admission.plugin import AdmissionAttributes, Undo
from dray.apiserver.admission.policies import Binding, BoundPolicy, PolicySource, Verdict, Violation, status_code
from dray.apiserver.admission.policy_index import PolicyIndex
from dray.apiserver.admission.policy_metrics import PolicyMetrics
from dray.apiserver.admission.policy_params import ParamsError, PolicyParams
from dray.apiserver.admission.review import object_for, review_request, served_object, shown_name
from dray.apiserver.authorization.rbac import Decision
from dray.apiserver.endpoint import Endpoint
from dray.apiserver.object_cache import NAMESPACES
from dray.apiserver.object_lookup import ObjectLookup
from dray.apiserver.request import Attributes, UserInfo
from dray.cel.admission import LazyValues, namespace_value
from dray.cel.library.authorization import AccessDecision, AccessRequest, Ask, AuthorizerValue, ResourceCheck

_FAILURES: Final = "validation.policy.admission.k8s.io/validation_failure"
_SERVICE_ACCOUNTS: Final = "system:serviceaccounts"

# A policy without parameters is evaluated once.
_NO_PARAMS: Final = (None,)

Authorize = Callable[[Attributes], Decision]


class PolicyDenialError(ForbiddenError):
    """A write that a policy denies; the reason is that of the validation."""

    def __init__(self, resource: GroupResource, name: str, message: str, reason: str) -> None:
        super().__init__(resource, name, message, causes=[{"message": message}])
        self.code, self.reason = status_code(reason), reason


class _Outcome(msgspec.Struct):
    """What all policies say about one write."""

    # The first denial decides; all policies are evaluated, for their warnings and annotations.
    denial: tuple[str, str] | None = None
    failures: list[Document] = msgspec.field(default_factory=list)
    annotations: dict[str, list[str]] = msgspec.field(default_factory=dict)

    def deny(self, policy: str, binding: str, message: str, reason: str = "Invalid") -> None:
        if self.denial is None:
            bound = f" with binding '{binding}'" if binding else ""
            self.denial = f"ValidatingAdmissionPolicy '{policy}'{bound} denied request: {message}", reason


class ValidatingAdmissionPolicy(ConfiguredPlugin[BoundPolicy]):
    """Evaluates the policies that are bound to a write."""

    name = "ValidatingAdmissionPolicy"

    def __init__(
        self,
        index: PolicyIndex,
        equivalents: Equivalents,
        objects: ObjectLookup,
        params: PolicyParams,
        authorize: Authorize,
        metrics: PolicyMetrics,
    ) -> None:
        super().__init__(index.matches)
        self._equivalents = equivalents
        self._objects = objects
        self._params = params
        self._authorize = authorize
        self._metrics = metrics

    async def validate(self, attributes: AdmissionAttributes) -> Undo | None:
        """Refuse a write that a policy denies."""
        candidates = self._matches.candidates(attributes)
        if candidates:
            await self._check(attributes, candidates)
        return None

    async def _check(self, attributes: AdmissionAttributes, candidates: Sequence[BoundPolicy]) -> None:
        equivalents = self._equivalents.of(attributes.resource, attributes.version)
        if not equivalents:
            return
        in_namespace = bool(attributes.namespace) and attributes.resource != NAMESPACES
        namespace = await self._objects.namespace(attributes.namespace) if in_namespace else None

        def labels() -> Mapping[str, str] | None:
            if attributes.resource == NAMESPACES:
                return own_labels(attributes)
            if not in_namespace:
                return None
            return ((namespace or {}).get("metadata") or {}).get("labels") or {}

        outcome = _Outcome()
        for bound in candidates:
            policy = bound.source
            endpoint = policy.match.find(attributes, equivalents, labels)
            if endpoint is None:
                continue
            bindings = [
                binding
                for binding in bound.bindings
                if binding.match is None or binding.match.find(attributes, equivalents, labels) is not None
            ]
            if bindings:
                values = self._values(attributes, endpoint, equivalents[0], namespace)
                if endpoint.conversion is not None:
                    values["object"] = await object_for(attributes.object, attributes, endpoint)
                    values["oldObject"] = await object_for(attributes.old_object, attributes, endpoint)
                await self._evaluate(policy, bindings, attributes, values, outcome)
        self._report(attributes, outcome)

    async def _evaluate(
        self,
        policy: PolicySource,
        bindings: Sequence[Binding],
        attributes: AdmissionAttributes,
        values: dict[str, Any],
        outcome: _Outcome,
    ) -> None:
        problem = self._params.problem(policy.param_kind) if policy.param_kind is not None else ""
        compiled = policy.compiled()
        if compiled is None or problem:
            if policy.fails_closed:
                outcome.deny(policy.name, "", f"failed to configure policy: {problem or policy.problem}")
            return
        for binding in bindings:
            try:
                params: Sequence[Document | None] = _NO_PARAMS
                if policy.param_kind is not None:
                    params = await self._params.find(policy.param_kind, binding.param_ref, attributes.namespace)
            except ParamsError as error:
                if policy.fails_closed:
                    outcome.deny(policy.name, binding.name, f"failed to configure binding: {error}")
                continue
            for param in params:
                values["params"] = param
                verdict = compiled.evaluate(values)
                self._apply(policy, binding, verdict, attributes, outcome)

    def _values(
        self, attributes: AdmissionAttributes, endpoint: Endpoint, requested: Endpoint, namespace: Document | None
    ) -> dict[str, Any]:
        return LazyValues(
            {
                "object": lambda: served_object(attributes.object, attributes, endpoint),
                "oldObject": lambda: served_object(attributes.old_object, attributes, endpoint),
                "request": lambda: review_request(attributes, endpoint, requested),
                "namespaceObject": lambda: namespace_value(namespace),
                "authorizer": lambda: authorizer_value(attributes, self._authorize),
            }
        )

    def _apply(
        self,
        policy: PolicySource,
        binding: Binding,
        verdict: Verdict,
        attributes: AdmissionAttributes,
        outcome: _Outcome,
    ) -> None:
        for key, value in verdict.annotations.items():
            outcome.annotations.setdefault(key, []).append(value)
        if not verdict.violations:
            self._metrics.observe(policy.name, binding.name, "allow")
        for violation in verdict.violations:
            for action in binding.actions:
                self._metrics.observe(policy.name, binding.name, action.lower(), is_error=violation.is_error)
                if action == "Deny":
                    outcome.deny(policy.name, binding.name, violation.message, violation.reason)
                elif action == "Warn":
                    attributes.warnings.append(
                        f"Validation failed for ValidatingAdmissionPolicy '{policy.name}' with binding "
                        f"'{binding.name}': {violation.message}"
                    )
                else:
                    outcome.failures.append(_failure(policy, binding, violation))

    def _report(self, attributes: AdmissionAttributes, outcome: _Outcome) -> None:
        if attributes.audit is not None:
            for key, values in outcome.annotations.items():
                attributes.audit[key] = ", ".join(dict.fromkeys(values))
            if outcome.failures:
                attributes.audit[_FAILURES] = json.dumps(outcome.failures, separators=(",", ":"), ensure_ascii=False)
        if outcome.denial is not None:
            message, reason = outcome.denial
            raise PolicyDenialError(attributes.resource, shown_name(attributes), message, reason)


def _failure(policy: PolicySource, binding: Binding, violation: Violation) -> Document:
    return {
        "message": violation.message,
        "policy": policy.name,
        "binding": binding.name,
        "expressionIndex": violation.index,
        "validationActions": list(binding.actions),
    }


def authorizer_value(attributes: AdmissionAttributes, authorize: Authorize) -> AuthorizerValue:
    """Return the value of `authorizer` for a write."""
    ask = _asker(attributes.user, authorize)
    resource = AccessRequest(
        group=attributes.resource.group,
        resource=attributes.resource.resource,
        subresource=attributes.subresource,
        namespace=attributes.namespace,
        name=attributes.name,
    )
    return AuthorizerValue(ask, ResourceCheck(ask, resource))


def _asker(user: UserInfo, authorize: Authorize) -> Ask:
    def ask(request: AccessRequest) -> AccessDecision:
        decision = authorize(
            Attributes(
                user=_service_account(request.user) if request.user else user,
                verb=request.verb,
                group=request.group,
                version="*" if request.resource else "",
                resource=request.resource,
                subresource=request.subresource,
                namespace=request.namespace,
                name=request.name,
                path=request.path,
                field_selector=request.field_selector,
                label_selector=request.label_selector,
            )
        )
        return AccessDecision(decision.allowed, decision.reason)

    return ask


def _service_account(name: str) -> UserInfo:
    namespace = name.split(":")[2]
    return UserInfo(name, groups=(_SERVICE_ACCOUNTS, f"{_SERVICE_ACCOUNTS}:{namespace}", "system:authenticated"))
