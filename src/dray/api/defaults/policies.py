"""Defaults of policies: limit ranges, webhook configurations and admission policies."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from dray.api.defaults import Defaulters
from dray.api.defaults.pod_spec import canonicalize_quantities
from dray.api.document import Document, GroupVersion
from dray.lib.processor_time import ticking

_TIMEOUT_SECONDS: Final = 10
_HTTPS_PORT: Final = 443
_AMOUNTS: Final = ("max", "min", "default", "defaultRequest", "maxLimitRequestRatio")


def _default_limit_range(obj: Document, _now: datetime) -> None:
    for item in obj.setdefault("spec", {}).get("limits") or ():
        for field in _AMOUNTS:
            canonicalize_quantities(item.get(field))
        if item.get("type") == "Container":
            _default_container_limits(item)


def _default_container_limits(item: Document) -> None:
    """Default the limit to the maximum, and the request to the limit or the minimum."""
    limits = (item.get("max") or {}) | (item.get("default") or {})
    requests = (item.get("min") or {}) | limits | (item.get("defaultRequest") or {})
    if limits:
        item["default"] = limits
    if requests:
        item["defaultRequest"] = requests


def _default_rules(rules: list[Document] | None) -> None:
    for rule in rules or ():
        if rule.get("scope") is None:
            rule["scope"] = "*"


def _default_webhooks(obj: Document, _now: datetime) -> None:
    is_mutating = obj.get("kind") == "MutatingWebhookConfiguration"
    for webhook in ticking(obj.get("webhooks") or ()):
        defaults = {"failurePolicy": "Fail", "matchPolicy": "Equivalent", "timeoutSeconds": _TIMEOUT_SECONDS}
        if is_mutating:
            defaults["reinvocationPolicy"] = "Never"
        for field, value in defaults.items():
            if webhook.get(field) is None:
                webhook[field] = value
        for field in ("namespaceSelector", "objectSelector"):
            if webhook.get(field) is None:
                webhook[field] = {}
        _default_rules(webhook.get("rules"))
        service = (webhook.get("clientConfig") or {}).get("service")
        if service is not None and service.get("port") is None:
            service["port"] = _HTTPS_PORT


def _default_match_resources(constraints: Document | None) -> None:
    if constraints is None:
        return
    if constraints.get("matchPolicy") is None:
        constraints["matchPolicy"] = "Equivalent"
    for field in ("namespaceSelector", "objectSelector"):
        if constraints.get(field) is None:
            constraints[field] = {}
    _default_rules(constraints.get("resourceRules"))
    _default_rules(constraints.get("excludeResourceRules"))


def _default_policy(obj: Document, _now: datetime) -> None:
    spec = obj.setdefault("spec", {})
    if spec.get("failurePolicy") is None:
        spec["failurePolicy"] = "Fail"
    _default_match_resources(spec.get("matchConstraints"))


def _default_policy_binding(obj: Document, _now: datetime) -> None:
    _default_match_resources(obj.setdefault("spec", {}).get("matchResources"))


_ADMISSION: Final = GroupVersion("admissionregistration.k8s.io", "v1")

DEFAULTERS: Final[Defaulters] = {
    GroupVersion("", "v1").kind("LimitRange"): _default_limit_range,
    _ADMISSION.kind("MutatingWebhookConfiguration"): _default_webhooks,
    _ADMISSION.kind("ValidatingWebhookConfiguration"): _default_webhooks,
    _ADMISSION.kind("ValidatingAdmissionPolicy"): _default_policy,
    _ADMISSION.kind("ValidatingAdmissionPolicyBinding"): _default_policy_binding,
}
