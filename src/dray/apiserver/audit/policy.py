"""Audit policies (audit.k8s.io/v1 Policy): at which level a request is recorded. Pure."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final

import msgspec

from dray.api.document import Document
from dray.apiserver.request import UserInfo
from dray.apiserver.routes import RequestInfo

API_VERSION: Final = "audit.k8s.io/v1"
STAGES: Final = ("RequestReceived", "ResponseStarted", "ResponseComplete", "Panic")
_ANY: Final = "*"


class Level(enum.IntEnum):
    """How much of a request is recorded."""

    NONE = 0
    METADATA = 1
    REQUEST = 2
    REQUEST_RESPONSE = 3


_LEVELS: Final = {
    "None": Level.NONE,
    "Metadata": Level.METADATA,
    "Request": Level.REQUEST,
    "RequestResponse": Level.REQUEST_RESPONSE,
}
LEVEL_NAMES: Final = {level: name for name, level in _LEVELS.items()}


class PolicyError(ValueError):
    """A policy that cannot be used."""


class Decision(msgspec.Struct, frozen=True):
    """How a request is recorded."""

    level: Level
    omit_stages: frozenset[str]
    omit_managed_fields: bool


_NOTHING: Final = Decision(Level.NONE, frozenset(), omit_managed_fields=False)


class _Resources(msgspec.Struct, frozen=True):
    group: str
    resources: tuple[str, ...]
    names: frozenset[str]

    def matches(self, info: RequestInfo) -> bool:
        if self.group != info.group:
            return False
        if not self.resources:
            return True
        if self.names and info.name not in self.names:
            return False
        combined = f"{info.resource}/{info.subresource}" if info.subresource else info.resource
        return any(_resource_matches(pattern, combined, info) for pattern in self.resources)


def _resource_matches(pattern: str, combined: str, info: RequestInfo) -> bool:
    if pattern in (_ANY, combined):
        return True
    resource, _, subresource = pattern.partition("/")
    if not subresource:
        return False
    return resource in (_ANY, info.resource) and subresource in (_ANY, info.subresource) and bool(info.subresource)


class _Rule(msgspec.Struct, frozen=True):
    decision: Decision
    users: frozenset[str]
    groups: frozenset[str]
    verbs: frozenset[str]
    namespaces: frozenset[str]
    resources: tuple[_Resources, ...]
    paths: tuple[str, ...]

    def matches(self, user: UserInfo, info: RequestInfo) -> bool:
        if self.users and user.name not in self.users:
            return False
        if self.groups and self.groups.isdisjoint(user.groups):
            return False
        if self.verbs and info.verb not in self.verbs:
            return False
        if self.namespaces or self.resources:
            return self._matches_resource(info)
        if self.paths:
            return not info.resource and any(_path_matches(pattern, info.path) for pattern in self.paths)
        return True

    def _matches_resource(self, info: RequestInfo) -> bool:
        if not info.resource:
            return False
        if self.namespaces and info.namespace not in self.namespaces:
            return False
        return not self.resources or any(item.matches(info) for item in self.resources)


def _path_matches(pattern: str, path: str) -> bool:
    if pattern in (_ANY, path):
        return True
    return pattern.endswith(_ANY) and path.startswith(pattern.removesuffix(_ANY))


class AuditPolicy:
    """The rules of a policy, of which the first that matches decides. Raises `PolicyError`."""

    def __init__(self, document: Document) -> None:
        if document.get("kind") != "Policy":
            raise PolicyError("kind must be Policy")
        if document.get("apiVersion") != API_VERSION:
            raise PolicyError(f"apiVersion must be {API_VERSION}")
        rules = document.get("rules") or []
        if not rules:
            raise PolicyError("loaded illegal policy with 0 rules")
        stages = _stages(document.get("omitStages") or (), "omitStages")
        omit = bool(document.get("omitManagedFields"))
        self._rules: Final = tuple(_rule(rule, f"rules[{i}]", stages, omit=omit) for i, rule in enumerate(rules))

    def decide(self, user: UserInfo, info: RequestInfo) -> Decision:
        """Return how a request is recorded."""
        return next((rule.decision for rule in self._rules if rule.matches(user, info)), _NOTHING)


def _stages(names: Sequence[str], path: str) -> frozenset[str]:
    for name in names:
        if name not in STAGES:
            raise PolicyError(f'{path}: Unsupported value: "{name}": supported values: {", ".join(STAGES)}')
    return frozenset(names)


def _rule(rule: Document, path: str, stages: frozenset[str], *, omit: bool) -> _Rule:
    level = _LEVELS.get(rule.get("level") or "")
    if level is None:
        raise PolicyError(f'{path}.level: Unsupported value: "{rule.get("level", "")}"')
    paths, resources = tuple(rule.get("nonResourceURLs") or ()), rule.get("resources") or ()
    if paths and (resources or rule.get("namespaces")):
        raise PolicyError(f"{path}.nonResourceURLs: rules cannot apply to both regular resources and non-resource URLs")
    for pattern in paths:
        if pattern != _ANY and (not pattern.startswith("/") or _ANY in pattern[:-1]):
            text = "non-resource URL rules must begin with a '/' character, and '*' must be the last character"
            raise PolicyError(f'{path}.nonResourceURLs: Invalid value: "{pattern}": {text}')
    own = rule.get("omitManagedFields")
    decision = Decision(level, stages | _stages(rule.get("omitStages") or (), path), omit if own is None else bool(own))
    return _Rule(
        decision=decision,
        users=frozenset(rule.get("users") or ()),
        groups=frozenset(rule.get("userGroups") or ()),
        verbs=frozenset(rule.get("verbs") or ()),
        namespaces=frozenset(rule.get("namespaces") or ()),
        resources=tuple(
            _Resources(
                item.get("group") or "",
                tuple(item.get("resources") or ()),
                frozenset(item.get("resourceNames") or ()),
            )
            for item in resources
        ),
        paths=paths,
    )
