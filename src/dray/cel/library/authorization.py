"""Checks of permissions in admission expressions: `authorizer.group("").resource("pods").check("get").allowed()`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from dray.cel import types
from dray.cel.signatures import Registry
from dray.cel.types import Field

_PREFIX: Final = "kubernetes.authorization."


@dataclass(frozen=True, slots=True)
class AccessRequest:
    """What a check asks: a verb on a resource, or on a path."""

    verb: str = ""
    path: str = ""
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    field_selector: str = ""
    label_selector: str = ""
    # Another user than the one of the request; empty for that one.
    user: str = ""


@dataclass(frozen=True, slots=True)
class AccessDecision:
    """The outcome of a check."""

    type_name: ClassVar[str] = f"{_PREFIX}Decision"

    allowed: bool
    reason: str = ""
    error: str = ""


Ask = Callable[[AccessRequest], AccessDecision]


@dataclass(frozen=True, slots=True)
class PathCheck:
    """A check of a path that lacks its verb."""

    type_name: ClassVar[str] = f"{_PREFIX}PathCheck"

    ask: Ask
    request: AccessRequest


@dataclass(frozen=True, slots=True)
class GroupCheck:
    """A check that lacks its resource."""

    type_name: ClassVar[str] = f"{_PREFIX}GroupCheck"

    ask: Ask
    request: AccessRequest


@dataclass(frozen=True, slots=True)
class ResourceCheck:
    """A check of a resource that lacks its verb."""

    type_name: ClassVar[str] = f"{_PREFIX}ResourceCheck"

    ask: Ask
    request: AccessRequest


@dataclass(frozen=True, slots=True)
class AuthorizerValue:
    """The value of `authorizer`; `request_resource` checks the resource of the request."""

    type_name: ClassVar[str] = f"{_PREFIX}Authorizer"

    ask: Ask
    request_resource: ResourceCheck
    user: str = ""

    def for_user(self, user: str) -> AuthorizerValue:
        """Return the same for another user."""
        request = replace(self.request_resource, request=replace(self.request_resource.request, user=user))
        return AuthorizerValue(self.ask, request, user)


AUTHORIZER: Final = types.object_type(
    AuthorizerValue.type_name, {"requestResource": Field(types.RESOURCE_CHECK, "request_resource")}, by_attribute=True
)

REGISTRY: Final = Registry()


def _declare(signature: str, implementation: Callable[..., Any], charge: Callable[..., int] | None = None) -> None:
    REGISTRY.declare(signature, implementation, charge=charge, names={"authorizer": AUTHORIZER})


def _extend(field: str) -> Callable[[Any, str], ResourceCheck]:
    return lambda check, value: ResourceCheck(check.ask, replace(check.request, **{field: value}))


def _check(check: PathCheck | ResourceCheck, verb: str) -> AccessDecision:
    return check.ask(replace(check.request, verb=verb))


# As in Kubernetes, an expression can afford two checks.
_CHECK_COST: Final = 350_000


def _selector_cost(_: Any, text: str) -> int:
    return 20 + 26 * len(text)


def _path(authorizer: AuthorizerValue, path: str) -> PathCheck:
    return PathCheck(authorizer.ask, AccessRequest(path=path, user=authorizer.user))


def _group(authorizer: AuthorizerValue, group: str) -> GroupCheck:
    return GroupCheck(authorizer.ask, AccessRequest(group=group, user=authorizer.user))


def _service_account(authorizer: AuthorizerValue, namespace: str, name: str) -> AuthorizerValue:
    return authorizer.for_user(f"system:serviceaccount:{namespace}:{name}")


_declare("authorizer::path(string) -> path_check", _path)
_declare("authorizer::group(string) -> group_check", _group)
_declare("authorizer::serviceAccount(string, string) -> authorizer", _service_account)
_declare("group_check::resource(string) -> resource_check", _extend("resource"))
for _field in ("subresource", "namespace", "name"):
    _declare(f"resource_check::{_field}(string) -> resource_check", _extend(_field))
_declare("resource_check::fieldSelector(string) -> resource_check", _extend("field_selector"), _selector_cost)
_declare("resource_check::labelSelector(string) -> resource_check", _extend("label_selector"), _selector_cost)
_declare("path_check::check(string) -> decision", _check, lambda *_: _CHECK_COST)
_declare("resource_check::check(string) -> decision", _check, lambda *_: _CHECK_COST)
_declare("decision::allowed() -> bool", lambda decision: decision.allowed)
_declare("decision::reason() -> string", lambda decision: decision.reason)
_declare("decision::errored() -> bool", lambda decision: bool(decision.error))
_declare("decision::error() -> string", lambda decision: decision.error)
