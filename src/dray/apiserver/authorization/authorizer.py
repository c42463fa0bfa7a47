"""Authorization of requests: system:masters, the node authorizer and RBAC; and access reviews."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from dray.api import field_errors
from dray.api.document import Document, GroupResource
from dray.api.errors import BadRequestError, ForbiddenError, InvalidError
from dray.api.field_errors import FieldError, Path, quote
from dray.apiserver.authorization.escalation import MASTERS
from dray.apiserver.authorization.node import NodeAuthorizer, node_name_of, selector_terms
from dray.apiserver.authorization.rbac import Decision, RBACIndex
from dray.apiserver.request import Attributes, UserInfo
from dray.lib.processor_time import ticking

_GROUP: Final = "authorization.k8s.io"
_COLLECTION_VERBS: Final = frozenset({"list", "watch", "deletecollection"})
_MASTER: Final = Decision(allowed=True)
_NODE_RULES_UNKNOWN: Final = "node authorizer does not support user rule resolution"
_SELECTOR_ESCAPES: Final = str.maketrans({"\\": "\\\\", ",": "\\,", "=": "\\="})


@dataclass(slots=True)
class Authorizer:
    """The chain of authorizers; the first that allows a request wins."""

    rbac: RBACIndex
    node: NodeAuthorizer

    def authorize(self, attributes: Attributes) -> Decision:
        """Return the decision; a denial has the reasons of all authorizers."""
        if MASTERS in attributes.user.groups:
            return _MASTER
        by_rbac = self.rbac.authorize(attributes)
        if by_rbac.allowed or node_name_of(attributes.user) is None:
            return by_rbac
        by_node = self.node.authorize(attributes)
        if by_node.allowed:
            return by_node
        reasons = [decision.reason for decision in (by_node, by_rbac) if decision.reason]
        return Decision(allowed=False, reason="\n".join(reasons))

    def check(self, attributes: Attributes) -> None:
        """Raise Kubernetes' 403 unless the request is allowed."""
        if attributes.field_selector:
            attributes = with_selected_name(attributes)
        decision = self.authorize(attributes)
        if not decision.allowed:
            raise forbidden_error(attributes, decision.reason)

    def subject_access_review(self, spec: Document) -> Document:
        """Return the `status` of a SubjectAccessReview."""
        errors = _attribute_errors(spec)
        if not spec.get("user") and not spec.get("groups"):
            path = Path("spec").child("user")
            errors.append(
                field_errors.invalid(path, spec.get("user", ""), "at least one of user or group must be specified")
            )
        _raise_invalid(errors)
        extra = {key.lower(): tuple(values) for key, values in (spec.get("extra") or {}).items()}
        user = UserInfo(spec.get("user") or "", spec.get("uid") or "", tuple(spec.get("groups") or ()), extra)
        return self._review(user, spec)

    def local_subject_access_review(self, spec: Document, namespace: str) -> Document:
        """Return the `status` of a LocalSubjectAccessReview in the namespace."""
        path = Path("spec")
        errors: list[FieldError] = []
        attributes = spec.get("resourceAttributes") or {}
        if attributes and attributes.get("namespace", "") != namespace:
            child = path.child("resourceAttributes", "namespace")
            errors.append(field_errors.invalid(child, attributes.get("namespace", ""), "must match metadata.namespace"))
        if spec.get("nonResourceAttributes"):
            child = path.child("nonResourceAttributes")
            value = spec["nonResourceAttributes"]
            errors.append(field_errors.invalid(child, value, "disallowed on this kind of request"))
        _raise_invalid(errors)
        return self.subject_access_review(spec)

    def self_subject_access_review(self, user: UserInfo, spec: Document) -> Document:
        """Return the `status` of a SelfSubjectAccessReview by the user."""
        _raise_invalid(_attribute_errors(spec))
        return self._review(user, spec)

    def self_subject_rules_review(self, user: UserInfo, namespace: str) -> Document:
        """Return the `status` of a SelfSubjectRulesReview by the user."""
        if not namespace:
            raise BadRequestError("no namespace on request")
        review = self.rbac.rules_for(user, namespace)
        errors = list(review.errors)
        if node_name_of(user) is not None:
            errors.insert(0, _NODE_RULES_UNKNOWN)
        status: Document = {
            "resourceRules": [rule.document() for rule in review.rules if rule.resources],
            "nonResourceRules": [rule.document() for rule in review.rules if rule.urls],
            "incomplete": bool(errors),
        }
        if errors:
            status["evaluationError"] = errors[0] if len(errors) == 1 else f"[{', '.join(errors)}]"
        return status

    def _review(self, user: UserInfo, spec: Document) -> Document:
        decision = self.authorize(attributes_of(user, spec))
        status: Document = {"allowed": decision.allowed}
        if decision.reason:
            status["reason"] = decision.reason
        return status


def with_selected_name(attributes: Attributes) -> Attributes:
    """Return the attributes with the name that the field selector of a list or watch selects, if any."""
    if attributes.name or attributes.verb not in _COLLECTION_VERBS:
        return attributes
    for term in selector_terms(attributes.field_selector):
        field, equals, value = term.partition("=")
        name = value.removeprefix("=")
        if equals and field == "metadata.name" and name and "\\" not in name:
            return msgspec.structs.replace(attributes, name=name)
    return attributes


def attributes_of(user: UserInfo, spec: Document) -> Attributes:
    """Return the attributes of a review."""
    asked = spec.get("resourceAttributes")
    if not asked:
        path = spec.get("nonResourceAttributes") or {}
        return Attributes(user, path.get("verb", ""), path=path.get("path", ""))
    return Attributes(
        user,
        asked.get("verb", ""),
        group=asked.get("group", ""),
        version=asked.get("version", ""),
        resource=asked.get("resource", ""),
        subresource=asked.get("subresource", ""),
        namespace=asked.get("namespace", ""),
        name=asked.get("name", ""),
        field_selector=_selector(asked.get("fieldSelector")),
        label_selector=_selector(asked.get("labelSelector")),
    )


def _selector(selector: Mapping[str, object] | None) -> str:
    """Return a review's selector in the form of a request; requirements without such a form are ignored."""
    if not selector:
        return ""
    raw = selector.get("rawSelector")
    if isinstance(raw, str) and raw:
        return raw
    requirements = selector.get("requirements")
    terms = [_term(item) for item in ticking(requirements)] if isinstance(requirements, list) else []
    return ",".join(term for term in terms if term)


def _term(requirement: Document) -> str:
    values: Sequence[str] = requirement.get("values") or ()
    sign = {"In": "=", "NotIn": "!="}.get(requirement.get("operator", ""))
    if sign is None or len(values) != 1:
        return ""
    return f"{requirement.get('key', '')}{sign}{values[0].translate(_SELECTOR_ESCAPES)}"


def _attribute_errors(spec: Document) -> list[FieldError]:
    path = Path("spec")
    resource, other = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    if resource is not None and other is not None:
        detail = "cannot be specified in combination with resourceAttributes"
        return [field_errors.invalid(path.child("nonResourceAttributes"), other, detail)]
    if resource is None and other is None:
        detail = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        return [field_errors.invalid(path.child("resourceAttributes"), None, detail)]
    return []


def _raise_invalid(errors: Sequence[FieldError]) -> None:
    # Kubernetes' error has neither name nor kind.
    if errors:
        raise InvalidError(_GROUP, "", "", errors)


# The text may be rendered by a browser.
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


def forbidden_message(attributes: Attributes) -> str:
    """Return Kubernetes' message about what the user cannot do."""
    who = f"User {quote(attributes.user.name)}"
    if not attributes.is_resource:
        return f"{who} cannot {attributes.verb} path {quote(attributes.path)}".translate(_ESCAPES)
    resource = attributes.resource
    if attributes.subresource:
        resource = f"{resource}/{attributes.subresource}"
    what = f"cannot {attributes.verb} resource {quote(resource)} in API group {quote(attributes.group)}"
    where = f"in the namespace {quote(attributes.namespace)}" if attributes.namespace else "at the cluster scope"
    return f"{who} {what} {where}".translate(_ESCAPES)


def forbidden_error(attributes: Attributes, reason: str = "") -> ForbiddenError:
    """Return the 403 for a denied request; `reason` is that of the authorizers."""
    message = forbidden_message(attributes)
    resource = GroupResource(attributes.group, attributes.resource) if attributes.is_resource else GroupResource("", "")
    name = attributes.name if attributes.is_resource else ""
    return ForbiddenError(resource, name, f"{message}: {reason}" if reason else message)
