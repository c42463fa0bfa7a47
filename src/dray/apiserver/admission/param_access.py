"""Who configures a policy with parameters must be allowed to read them: a policy could otherwise show their content."""

from __future__ import annotations

from typing import Final

from dray.api.document import Document, GroupResource, GroupVersion
from dray.api.errors import InvalidError
from dray.api.field_errors import Path, forbidden
from dray.apiserver.admission.plugin import AdmissionAttributes, AdmissionPlugin, Operation, Undo
from dray.apiserver.admission.policy_index import BINDINGS, POLICIES, PolicyIndex
from dray.apiserver.admission.policy_params import PolicyParams
from dray.apiserver.authorization.escalation import MASTERS, Authorize
from dray.apiserver.request import Attributes, UserInfo

_ANY: Final = "*"


class ParamAccess(AdmissionPlugin):
    """Refuses a policy or binding whose writer may not read its parameters. A step of the registry upstream."""

    name = "ParamAccess"

    def __init__(self, policies: PolicyIndex, params: PolicyParams, authorize: Authorize) -> None:
        self._policies = policies
        self._params = params
        self._authorize = authorize

    def handles(self, resource: GroupResource, subresource: str, operation: Operation) -> bool:
        """Take part in writes of policies and bindings."""
        return resource in (POLICIES, BINDINGS) and not subresource and operation is not Operation.DELETE

    async def validate(self, attributes: AdmissionAttributes) -> Undo | None:
        """Refuse parameters that the writer may not read, unless they are those of the object before."""
        new, old = _spec(attributes.object), _spec(attributes.old_object)
        if MASTERS in attributes.user.groups:
            return None
        if attributes.resource == POLICIES:
            if new.get("paramKind") is not None and new["paramKind"] != old.get("paramKind"):
                self._check_kind(attributes, new["paramKind"])
        elif new.get("paramRef") is not None and _reference(new) != _reference(old):
            self._check_reference(attributes, new)
        return None

    def _check_kind(self, attributes: AdmissionAttributes, kind: Document) -> None:
        if not self._may(attributes.user, "get", kind, _ANY, _ANY):
            text = (
                f'user {_shown(attributes.user)} must have "get" permission on all objects of the referenced paramKind '
                f"(kind={kind.get('kind', '')}, apiVersion={kind.get('apiVersion', '')})"
            )
            raise _invalid(attributes, "ValidatingAdmissionPolicy", "paramKind", text)

    def _check_reference(self, attributes: AdmissionAttributes, spec: Document) -> None:
        reference = spec["paramRef"]
        name, namespace = reference.get("name") or "", reference.get("namespace") or ""
        policy = self._policies.get(spec.get("policyName") or "")
        verb = "get" if name else "list"
        if not self._may(attributes.user, verb, policy.param_kind if policy is not None else None, namespace, name):
            text = (
                f'user {_shown(attributes.user)} does not have "{verb}" permission on the object referenced by paramRef'
            )
            raise _invalid(attributes, "ValidatingAdmissionPolicyBinding", "paramRef", text)

    def _may(self, user: UserInfo, verb: str, kind: Document | None, namespace: str, name: str) -> bool:
        """Return whether a user may read objects of a kind; of one that is not known, whether of all kinds."""
        group = version = resource = _ANY
        if kind is not None:
            place = GroupVersion.parse(kind.get("apiVersion") or "")
            group, version = place.group, place.version
            endpoint = self._params.endpoint(kind)
            resource = _ANY if endpoint is None else endpoint.resource.resource
        wanted = Attributes(
            user=user, verb=verb, group=group, version=version, resource=resource, namespace=namespace, name=name
        )
        return self._authorize(wanted).allowed


def _spec(document: Document | None) -> Document:
    return (document or {}).get("spec") or {}


def _reference(spec: Document) -> tuple[object, object]:
    return spec.get("paramRef"), spec.get("policyName")


def _shown(user: UserInfo) -> str:
    """Return a user as Go prints it."""
    extra = " ".join(f"{key}:[{' '.join(values)}]" for key, values in sorted(user.extra.items()))
    return f"&{{{user.name} {user.uid} [{' '.join(user.groups)}] map[{extra}]}}"


def _invalid(attributes: AdmissionAttributes, kind: str, field: str, text: str) -> InvalidError:
    name = attributes.name or ((attributes.object or {}).get("metadata") or {}).get("name") or ""
    return InvalidError(attributes.resource.group, kind, name, [forbidden(Path("spec").child(field), text)])
