"""PodSecurity: enforces the Pod Security Standards that the labels of a namespace ask for. Texts are Kubernetes' own.

Pods that violate the enforced policy are refused. Pods and workloads that violate the others cause a warning or a log
entry, since there is no audit log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Final

from dray.api.document import Document, GroupResource
from dray.api.errors import ForbiddenError, InvalidError
from dray.api.field_errors import FieldError, quote
from dray.api.pod_security.controls import Violation
from dray.api.pod_security.evaluation import details, evaluate, summary
from dray.api.pod_security.policy import Level, LevelVersion, PodSecurityConfiguration, Policy, policy_of
from dray.apiserver.admission.plugin import AdmissionAttributes, AdmissionPlugin, Operation
from dray.apiserver.admission.pod_security_metrics import PodSecurityMetrics
from dray.apiserver.malformed import each_shown, load_object
from dray.apiserver.object_cache import NAMESPACES, PODS
from dray.apiserver.object_lookup import ObjectLookup
from dray.apiserver.reflector import resource_prefix
from dray.apiserver.registry.pods import PODS as POD_DEFINITION
from dray.lib.clock import Clock
from dray.store.interface import Store

_LOG: Final = logging.getLogger("dray.apiserver.pod-security")
# Where the Pod template of a workload is.
_TEMPLATES: Final[Mapping[GroupResource, tuple[str, ...]]] = {
    GroupResource("", "podtemplates"): ("template",),
    GroupResource("", "replicationcontrollers"): ("spec", "template"),
    GroupResource("apps", "replicasets"): ("spec", "template"),
    GroupResource("apps", "deployments"): ("spec", "template"),
    GroupResource("apps", "statefulsets"): ("spec", "template"),
    GroupResource("apps", "daemonsets"): ("spec", "template"),
    GroupResource("batch", "jobs"): ("spec", "template"),
    GroupResource("batch", "cronjobs"): ("spec", "jobTemplate", "spec", "template"),
}
# Subresources that cannot change a Pod's spec; others, known or not, are checked.
_IGNORED_SUBRESOURCES: Final = frozenset(
    {"status", *(row.name for row in POD_DEFINITION.subresources if row.strategy is None)}
)
# Existing Pods that a new policy is checked against, and how long that may take.
_EXISTING_PODS_MAX: Final = 3000
_EXISTING_PODS_SECONDS_MAX: Final = 1.0
_PAGE: Final = 100


class PodSecurity(AdmissionPlugin):
    """Refuses Pods that violate the policy of their namespace, and namespaces whose policy is malformed."""

    name = "PodSecurity"

    def __init__(
        self,
        objects: ObjectLookup,
        store: Store,
        clock: Clock,
        configuration: PodSecurityConfiguration,
        metrics: PodSecurityMetrics,
    ) -> None:
        self._objects = objects
        self._store = store
        self._clock = clock
        self._configuration = configuration
        self._metrics = metrics

    def handles(self, resource: GroupResource, subresource: str, operation: Operation) -> bool:
        """Take part in writes of Pods, workloads and namespaces."""
        if operation is Operation.DELETE:
            return False
        if resource == PODS:
            return subresource not in _IGNORED_SUBRESOURCES
        return not subresource and (resource == NAMESPACES or resource in _TEMPLATES)

    async def validate(self, attributes: AdmissionAttributes) -> None:
        """Check a Pod, a workload or a namespace."""
        if attributes.resource == NAMESPACES:
            await self._check_namespace(attributes)
            return
        exemptions = self._configuration
        if attributes.namespace in exemptions.namespaces or attributes.user.name in exemptions.usernames:
            self._metrics.exempted(attributes)
            return
        policy, errors = self._policy(await self._objects.namespace(attributes.namespace))
        if policy.is_privileged and not errors:
            self._metrics.evaluated("enforce", policy.enforce, attributes, allowed=True)
            return
        if errors:
            self._metrics.failed(attributes, fatal=False)
        if attributes.resource == PODS:
            self._check_pod(attributes, policy)
        elif attributes.object is not None:
            template = _template(attributes.object, _TEMPLATES[attributes.resource])
            if template is None:
                return
            if self._is_exempt(template):
                self._metrics.exempted(attributes)
            else:
                self._report(attributes, policy, template, {})

    def _policy(self, namespace: Document | None) -> tuple[Policy, Sequence[FieldError]]:
        return policy_of(_labels(namespace), self._configuration.defaults)

    def _check_pod(self, attributes: AdmissionAttributes, policy: Policy) -> None:
        pod, old = attributes.object, attributes.old_object
        if pod is None or (old is not None and not _changes_containers(pod, old)):
            return
        if self._is_exempt(pod):
            self._metrics.exempted(attributes)
            return
        violations = _evaluate(policy.enforce, pod)
        self._metrics.evaluated("enforce", policy.enforce, attributes, allowed=not violations)
        self._report(attributes, policy, pod, {policy.enforce: violations})
        if violations:
            raise ForbiddenError(
                attributes.resource,
                attributes.name or pod["metadata"].get("name", ""),
                f"violates PodSecurity {quote(str(policy.enforce))}: {details(violations)}",
            )

    def _is_exempt(self, pod: Document) -> bool:
        return (pod.get("spec") or {}).get("runtimeClassName") in self._configuration.runtime_classes

    def _report(
        self,
        attributes: AdmissionAttributes,
        policy: Policy,
        pod: Document,
        known: dict[LevelVersion, Sequence[Violation]],
    ) -> None:
        """Log violations of the audited policy and warn about those of the other; not about a Pod that is refused."""
        refused = bool(known.get(policy.enforce))
        for level in {policy.audit, policy.warn} - known.keys():
            known[level] = _evaluate(level, pod)
        if violations := known[policy.audit]:
            self._metrics.evaluated("audit", policy.audit, attributes, allowed=False)
            _LOG.info(
                "%s of %s %s/%s by %s would violate PodSecurity %s: %s",
                attributes.operation.value,
                attributes.resource,
                attributes.namespace,
                attributes.name or (attributes.object or {}).get("metadata", {}).get("name", ""),
                quote(attributes.user.name),
                quote(str(policy.audit)),
                details(violations),
            )
        if not refused and (violations := known[policy.warn]):
            self._metrics.evaluated("warn", policy.warn, attributes, allowed=False)
            _warn(attributes, [f"would violate PodSecurity {quote(str(policy.warn))}: {details(violations)}"])

    async def _check_namespace(self, attributes: AdmissionAttributes) -> None:
        """Refuse wrong labels, and warn if the new policy has no effect or existing Pods violate it."""
        namespace, old = attributes.object, attributes.old_object
        assert namespace is not None
        policy, errors = self._policy(namespace)
        old_policy, old_errors = self._policy(old) if old is not None else (None, ())
        name = namespace["metadata"].get("name", "")
        if errors and list(errors) != list(old_errors):
            raise InvalidError("", "Namespace", name, errors)
        if old_policy is not None and not _is_tightened(policy.enforce, old_policy.enforce):
            return
        if name in self._configuration.namespaces:
            if not policy.is_privileged and policy != self._configuration.defaults:
                what = f"namespace {quote(name)} is exempt from Pod Security, and the policy"
                _warn(attributes, [f"{what} ({policy.describe(_labels(namespace))}) will be ignored"])
        elif old_policy is not None:
            _warn(attributes, await self._existing_violations(name, policy.enforce))

    async def _existing_violations(self, namespace: str, policy: LevelVersion) -> Sequence[str]:
        """Return warnings about Pods that exist already, which stay; each violation once, with the number of Pods."""
        prefix = f"{resource_prefix(PODS)}{namespace}/"
        names: dict[str, list[str]] = {}
        checked = 0
        async for pod in self._pods(prefix):
            checked += 1
            if not self._is_exempt(pod) and (violations := _evaluate(policy, pod)):
                names.setdefault(summary(violations), []).append(pod["metadata"]["name"])
        warnings = []
        total = await self._store.count(prefix)
        if checked < total:
            what = "new PodSecurity enforce level only checked against"
            warnings.append(f"{what} the first {checked} of {total} existing pods")
        if names:
            what = f"existing pods in namespace {quote(namespace)} violate"
            warnings.append(f"{what} the new PodSecurity enforce level {quote(str(policy))}")
        return [*warnings, *sorted(f"{_first(pods)}: {violation}" for violation, pods in names.items())]

    async def _pods(self, prefix: str) -> AsyncIterator[Document]:
        """Return the Pods below the prefix, as many as the bounds of number and time allow."""
        deadline = self._clock.monotonic() + _EXISTING_PODS_SECONDS_MAX
        last = ""
        for _ in range(_EXISTING_PODS_MAX // _PAGE):
            page = await self._store.list_page(prefix, limit=_PAGE, start_after=last)
            for document in each_shown(load_object, page.entries):
                yield document
            if len(page.entries) < _PAGE or self._clock.monotonic() >= deadline:
                return
            last = page.entries[-1].key
            # A page takes milliseconds; other requests go on between two.
            await asyncio.sleep(0)


def _labels(namespace: Document | None) -> Mapping[str, str]:
    labels: Mapping[str, str] = ((namespace or {}).get("metadata") or {}).get("labels") or {}
    return labels


def _evaluate(policy: LevelVersion, pod: Document) -> Sequence[Violation]:
    return evaluate(policy, pod.get("metadata") or {}, pod.get("spec") or {})


def _template(workload: Document, path: Iterable[str]) -> Document | None:
    found: Document | None = workload
    for field in path:
        found = (found or {}).get(field)
    return found


def _warn(attributes: AdmissionAttributes, warnings: Iterable[str]) -> None:
    # A write that is repeated after a lost race is checked again.
    attributes.warnings.extend(text for text in warnings if text not in attributes.warnings)


def _changes_containers(pod: Document, old: Document) -> bool:
    """Return whether an update adds containers or changes an image; nothing else that matters can be changed."""
    return _images(pod) != _images(old)


def _images(pod: Document) -> list[tuple[str, str, str]]:
    spec = pod.get("spec") or {}
    return [
        (field, container.get("name") or "", container.get("image") or "")
        for field in ("containers", "initContainers", "ephemeralContainers")
        for container in spec.get(field) or ()
    ]


def _is_tightened(new: LevelVersion, old: LevelVersion) -> bool:
    """Return whether Pods that met the old policy may violate the new one."""
    if new == old or new.level is Level.PRIVILEGED:
        return False
    return new.minor != old.minor or new.level.is_stricter_than(old.level)


def _first(names: Sequence[str]) -> str:
    """Return the first Pod, and how many others there are."""
    others = len(names) - 1
    if not others:
        return names[0]
    return f"{min(names)} (and {others} other {'pod' if others == 1 else 'pods'})"
